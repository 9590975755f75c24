/* jinja_builtin.h - what templates can call by name: filters, tests, methods, functions.
 *
 * Owns     constant tables.  A name that is in none of them does not exist, and a
 *          template that uses it is refused when it is compiled.
 * Threads  any.
 */
#ifndef TOKENIZER_JINJA_BUILTIN_H
#define TOKENIZER_JINJA_BUILTIN_H

#include "tokenizer/jinja_value.h"
#include "tokenizer/unicode.h"

/* The arguments of a call as written. */
struct call_args {
    struct value *pos;
    size_t n;
    struct pair *named;  // the keys are strings
    size_t n_named;
};

#define BUILTIN_MAX_PARAMS 6

/* `a` holds the value of each parameter in order, V_ABSENT where none was given, and
 * `all` the arguments as they came, for what takes any number. */
typedef struct value builtin_fn(struct run *r, struct value self, const struct value *a,
                                const struct call_args *all);

struct builtin {
    const char *name;
    /* Parameter names, separated by blanks; those after "?" may be left out.  NULL: any
     * arguments, which the function reads from `all`. */
    const char *params;
    builtin_fn *fn;
    uint8_t kind;  // methods: of the value they belong to
};

/* A table ends with a NULL name. */
extern const struct builtin filters_of_text[], filters_of_values[], filters_of_lists[];
extern const struct builtin tests[];
extern const struct builtin methods_of_text[], methods_of_values[];
extern const struct builtin functions[];

/* Methods of str in a file of their own, and of the loop variable. */
builtin_fn method_split, method_rsplit, method_splitlines, method_partition,
    method_rpartition, method_cycle, method_changed;

const struct builtin *filter_find(const char *name, size_t n);
const struct builtin *test_find(const char *name, size_t n);
const struct builtin *method_find(enum kind kind, const char *name, size_t n);
/* Does Python's type have a method of that name that would change the value? */
bool method_mutates(enum kind kind, const char *name, size_t n);

struct value builtin_call(struct run *r, const struct builtin *f, struct value self,
                          const struct call_args *args);

/* Shared by several of them. */
struct list *dict_pairs(struct run *r,
                        const struct dict *d);  // tuples; NULL on an error
struct dict *dict_sorted(struct run *r, const struct dict *d);  // by key; d on an error
/* x.a.b or x.0.b, as the parameter `attribute` of filters has it. */
struct value value_attribute_path(struct run *r, struct value v, struct value path);
const struct str *str_escape(struct run *r, const struct str *s);  // HTML
const struct str *str_strip(struct run *r, const struct str *s, struct value chars,
                            bool left, bool right);
const struct str *str_replace(struct run *r, const struct str *s, const struct str *old,
                              const struct str *with, wide count);
const struct str *str_case(struct run *r, const struct str *s, enum unicode_case to);
const struct str *str_capitalize(struct run *r, const struct str *s);
/* printf-style: text % values. */
struct value str_format_percent(struct run *r, const struct str *s,
                                struct value values);
struct value str_format_braces(struct run *r, const struct str *s,
                               const struct call_args *args);

/* Arguments with defaults. */
bool arg_given(struct value v);
wide arg_int(struct run *r, struct value v, wide otherwise);
bool arg_truth(struct value v, bool otherwise);

#endif
