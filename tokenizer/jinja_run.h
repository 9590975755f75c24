/* jinja_run.h - one render under way: its memory, its variables and its limits.
 *
 * Owns     the arena that all values of the render live in.
 * Errors   sticky: the first failure is kept, and every later operation answers with a
 *          harmless value.  Loops look at rc; straight code need not.
 * Bounds   steps (an evaluated node, or 64 bytes or a handful of values touched), depth
 *          of nested evaluation, bytes of one text and of the arena.
 * Threads  one render belongs to one thread; the compiled template is only read.
 */
#ifndef TOKENIZER_JINJA_RUN_H
#define TOKENIZER_JINJA_RUN_H

#include "tokenizer/jinja_arena.h"
#include "tokenizer/jinja_ast.h"
#include "tokenizer/jinja_str.h"

/* How deep expressions and statements may nest while they are evaluated, macros that
 * call each other included: with room to spare on a stack of 256 KiB, in a sanitizer
 * build too. */
#define RUN_MAX_DEPTH 160

struct binding {
    const struct str *name;  // interned: compared by address
    struct value value;
    struct binding *next;
};

/* Variables of one block; looked up from the innermost outward. */
struct scope {
    struct scope *parent;
    struct binding *bindings;
};

/* A macro, or the body of a call block, with the scope it was defined in. */
struct macro {
    const struct macro_def *def;
    struct scope *scope;
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

struct run {
    const struct jinja *t;
    struct arena arena;
    struct builder *out;  // where statements print
    struct scope *scope;
    int64_t now;
    uint64_t steps;   // left
    size_t max_text;  // the longest string and the longest output
    unsigned depth;
    enum flow flow;
    int rc;            // 0, or why the render ended
    const char *kind;  // -EINVAL: Python's name of the error, or RUN_RAISED
    unsigned line;     // of the template, where it is now
    char message[400];
};

#define RUN_RAISED "raise_exception"

/* End the render with a Python error; answers an undefined value to return. */
struct value run_fail(struct run *r, const char *kind, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
struct value run_fail_type(struct run *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* ... because an undefined value was used. */
struct value run_fail_undefined(struct run *r, struct value v);
void run_limit(struct run *r, const char *what);  // -E2BIG

void *run_alloc(struct run *r, size_t n);  // NULL after setting the error
/* Count work: 1 for a step, and one more for every 64 units.  False: it was too much,
 * or the render has failed before. */
bool run_charge(struct run *r, size_t units);
bool run_enter(struct run *r);  // one level deeper; false: too deep.  Then no leave
void run_leave(struct run *r);

/* Names. */
struct scope *run_push_scope(struct run *r, struct scope *parent);
void run_bind(struct run *r, const struct str *name, struct value v);
struct value run_lookup(struct run *r, const struct str *name);

#endif
