/* jinja_eval.h - private to the evaluator: expressions, statements, calls and access.
 *
 * Owns     nothing.
 * Errors   sticky in the render (jinja_run.h); values returned are always safe to use.
 * Threads  those of a render: one.
 */
#ifndef TOKENIZER_JINJA_EVAL_H
#define TOKENIZER_JINJA_EVAL_H

#include "tokenizer/jinja_builtin.h"
#include "tokenizer/jinja_run.h"

/* Each level of nesting is a few small frames; inlined into each other they would be one
 * large frame at every level. */
#define SMALL_FRAME __attribute__((noinline))

struct value eval(struct run *r, const struct expr *e);
struct value eval_filtered(struct run *r, const struct expr *e, struct value text);
bool eval_args(struct run *r, const struct arg_list *args, struct call_args *out);

void exec_block(struct run *r, const struct block *b);
/* What a block prints, as a string. */
const struct str *exec_captured(struct run *r, const struct block *b);
struct value exec_recursive_loop(struct run *r, struct loop *loop, struct value items);

struct value value_binary(struct run *r, enum op op, struct value a, struct value b);
struct value value_negate(struct run *r, struct value v);
bool value_matches(struct run *r, enum op op, struct value a, struct value b);

struct value value_attribute(struct run *r, struct value v, const struct str *name);
struct value value_item(struct run *r, struct value v, struct value key);
struct value value_slice(struct run *r, struct value v, const struct value bound[3]);

struct value call_value(struct run *r, struct value f, const struct call_args *args);

/* A for loop under way.  Items that a condition rules out are passed over only when the
 * next one is asked for, since the condition may depend on what the body does. */
struct loop {
    const struct stmt *stmt;
    struct scope *outer;
    const struct list *items;
    size_t next;     // in items
    bool all_match;  // no condition, or already applied to what is left
    size_t index0, depth0;
    struct value current, previous, peeked, changed;
    bool has_previous, has_peeked, has_changed;
};

bool loop_advance(struct run *r, struct loop *l);  // to the next item; false: none
struct value loop_attribute(struct run *r, struct loop *l, const struct str *name);

#endif
