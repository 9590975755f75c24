/* jinja_value.h - the values of the template language: Python's, as far as it has them.
 *
 * Owns     nothing: values live in the arena of a render (or of the template) and are
 *          copied freely.  What a value points to never changes once it is published,
 *          except a namespace.
 * Marks    every string knows for each byte whether it came from the context (1, user
 *          data) or from the template (0).  Operations copy marks as they copy bytes.
 *          A number knows it as a whole.
 * Failing  functions take the render; what fails sets its error and returns a value
 *          that is safe to go on with, so that callers may look later.
 * Threads  those of a render: one.  Values of a compiled template: any.
 */
#ifndef TOKENIZER_JINJA_VALUE_H
#define TOKENIZER_JINJA_VALUE_H

#include "kernels/base.h"

struct run;      // jinja_run.h
struct builtin;  // jinja_builtin.h
struct macro;    // jinja_run.h
struct loop;     // jinja_run.h

/* Python's integers have no bound; here 128 bits, and an error beyond. */
typedef __int128 wide;
typedef unsigned __int128 uwide;

enum kind {
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_NAMESPACE,
    V_RANGE,
    V_MACRO,
    V_FUNCTION,
    V_METHOD,
    V_LOOP,
    V_ABSENT  // an argument that was not given; no template ever sees one
};

/* Why a value is undefined; decides the message where it is used after all. */
enum missing {
    MISSING_VARIABLE,
    MISSING_ATTRIBUTE,
    MISSING_PARAMETER,
    MISSING_UNSAFE,
    MISSING_ITEM
};

struct str_buf;

struct str {
    const char *bytes;     // n of them, UTF-8, no final NUL
    const uint8_t *marks;  // n of them; NULL: all from the template
    size_t n, chars;       // bytes and code points
    struct str_buf *buf;   // the buffer it may grow in (str_concat); NULL: none
};

struct value {
    uint8_t kind;
    bool user;      // numbers: from the context.  Strings have marks instead
    bool markup;    // strings: already escaped (the filters safe and escape)
    uint8_t why;    // V_UNDEFINED: enum missing
    uint8_t owner;  // V_UNDEFINED: the kind of what lacks `name`
    union {
        bool b;
        wide i;
        double f;
        const struct str *s;
        const struct str *name;  // V_UNDEFINED; may be NULL
        struct list *list;       // also tuples
        struct dict *dict;       // also namespaces
        const struct range_value *range;
        const struct macro *macro;
        const struct builtin *function;
        const struct method *method;
        struct loop *loop;
    };
};

struct list {
    struct value *items;
    size_t n, cap;
};

struct pair {
    struct value key, value;
};

struct dict {
    struct pair *pairs;  // in order of insertion
    size_t n, cap;
};

struct range_value {
    int64_t start, stop, step;
    size_t n;
};

struct method {
    const struct builtin *function;
    struct value self;
};

static inline struct value value_none(void)
{
    return (struct value){.kind = V_NONE};
}

static inline struct value value_bool(bool b)
{
    return (struct value){.kind = V_BOOL, .b = b};
}

static inline struct value value_int(wide i)
{
    return (struct value){.kind = V_INT, .i = i};
}

static inline struct value value_float(double f)
{
    return (struct value){.kind = V_FLOAT, .f = f};
}

static inline struct value value_str(const struct str *s)
{
    return (struct value){.kind = V_STRING, .s = s};
}

static inline struct value value_undefined(void)
{
    return (struct value){.kind = V_UNDEFINED, .why = MISSING_ITEM};
}

static inline struct value value_list(struct list *l)
{
    return (struct value){.kind = V_LIST, .list = l};
}

static inline bool value_is_number(struct value v)
{
    return v.kind == V_INT || v.kind == V_FLOAT || v.kind == V_BOOL;
}

/* A bool counts as the integer it is in Python. */
static inline bool value_is_integral(struct value v)
{
    return v.kind == V_INT || v.kind == V_BOOL;
}

static inline wide value_as_int(struct value v)
{
    return v.kind == V_BOOL ? (wide)v.b : v.i;
}

static inline double value_as_double(struct value v)
{
    return v.kind == V_FLOAT ? v.f : (double)value_as_int(v);
}

const char *value_type_name(struct value v);  // Python's: "str", "NoneType" ...
bool value_truth(struct value v);
bool value_equal(struct run *r, struct value a, struct value b);
/* <0, 0, >0; TypeError where Python has no order between the two. */
int value_compare(struct run *r, struct value a, struct value b, const char *op);
/* The number of elements; false where it has none. */
bool value_length(struct value v, size_t *out);
/* `needle in v`. */
bool value_contains(struct run *r, struct value v, struct value needle);
/* What a for loop goes over, as a list that must not be changed; NULL after TypeError. */
struct list *value_items(struct run *r, struct value v);
/* Does any part of it come from the context? */
bool value_has_user(struct value v);

/* Room for n items, none in it yet; NULL after an error. */
struct list *list_new(struct run *r, size_t n);
bool list_push(struct run *r, struct list *l, struct value v);

struct dict *dict_new(struct run *r, size_t n);
/* Put at the end without looking whether the key is there. */
bool dict_append(struct run *r, struct dict *d, struct value key, struct value v);
/* NULL: not there. */
struct value *dict_find(struct run *r, const struct dict *d, struct value key);
struct value *dict_find_str(struct run *r, const struct dict *d, const struct str *key);
bool dict_put(struct run *r, struct dict *d, struct value key, struct value v);

#endif
