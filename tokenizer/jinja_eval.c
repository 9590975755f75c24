#include "tokenizer/jinja_eval.h"

#include <string.h>

static SMALL_FRAME struct value eval_items(struct run *r, const struct expr *e)
{
    struct list *l = list_new(r, e->n);
    for (size_t i = 0; l && i < e->n; i++) l->items[l->n++] = eval(r, e->items[i]);
    if (!l) return value_undefined();
    return (struct value){.kind = e->kind == E_LIST ? V_LIST : V_TUPLE, .list = l};
}

static SMALL_FRAME struct value eval_dict(struct run *r, const struct expr *e)
{
    struct dict *d = dict_new(r, e->n / 2);
    for (size_t i = 0; d && i < e->n; i += 2) {
        struct value key = eval(r, e->items[i]);
        struct value v = eval(r, e->items[i + 1]);
        if (r->rc || !dict_put(r, d, key, v)) return value_undefined();
    }
    if (!d) return value_undefined();
    return (struct value){.kind = V_DICT, .dict = d};
}

static SMALL_FRAME struct value eval_chain(struct run *r, const struct expr *e)
{
    struct value v = eval(r, e->items[0]);
    for (size_t i = 1; i < e->n && !r->rc; i++)
        v = value_binary(r, e->ops[i - 1], v, eval(r, e->items[i]));
    return v;
}

static SMALL_FRAME struct value eval_concat(struct run *r, const struct expr *e)
{
    const struct str *s = str_from(r, eval(r, e->items[0]));
    for (size_t i = 1; i < e->n && !r->rc; i++)
        s = str_concat(r, s, str_from(r, eval(r, e->items[i])));
    return value_str(s);
}

static SMALL_FRAME struct value eval_compare(struct run *r, const struct expr *e)
{
    struct value left = eval(r, e->items[0]);
    for (size_t i = 1; i < e->n && !r->rc; i++) {
        struct value right = eval(r, e->items[i]);
        if (r->rc || !value_matches(r, e->ops[i - 1], left, right))
            return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

/* The first operand that decides, as Python's `and` and `or` answer. */
static SMALL_FRAME struct value eval_logic(struct run *r, const struct expr *e)
{
    struct value v = value_none();
    for (size_t i = 0; i < e->n && !r->rc; i++) {
        v = eval(r, e->items[i]);
        if (value_truth(v) == (e->kind == E_OR)) break;
    }
    return v;
}

static SMALL_FRAME struct value eval_condition(struct run *r, const struct expr *e)
{
    if (value_truth(eval(r, e->items[1]))) return eval(r, e->items[0]);
    return e->n > 2 && !r->rc ? eval(r, e->items[2]) : value_undefined();
}

static SMALL_FRAME struct value eval_slice(struct run *r, const struct expr *e)
{
    struct value bound[3], v = eval(r, e->left);
    for (int i = 0; i < 3; i++)
        bound[i] = e->items[i] ? eval(r, e->items[i]) : value_none();
    return r->rc ? value_undefined() : value_slice(r, v, bound);
}

static SMALL_FRAME struct value eval_item(struct run *r, const struct expr *e)
{
    struct value v = eval(r, e->left), key = eval(r, e->items[0]);
    r->line = e->line;
    return r->rc ? value_undefined() : value_item(r, v, key);
}

static bool add_positional(struct run *r, struct call_args *out, struct list *more)
{
    struct value *all = run_alloc(r, (out->n + more->n) * sizeof *all);
    if (!all) return false;
    if (out->n) memcpy(all, out->pos, out->n * sizeof *all);
    if (more->n) memcpy(all + out->n, more->items, more->n * sizeof *all);
    out->pos = all;
    out->n += more->n;
    return run_charge(r, more->n);
}

static bool add_named(struct run *r, struct call_args *out, struct value more)
{
    if (more.kind != V_DICT) {
        run_fail_type(r, "argument after ** must be a mapping, not %s",
                      value_type_name(more));
        return false;
    }
    size_t n = more.dict->n;
    struct pair *all = run_alloc(r, (out->n_named + n) * sizeof *all);
    if (!all) return false;
    if (out->n_named) memcpy(all, out->named, out->n_named * sizeof *all);
    for (size_t i = 0; i < n; i++) {
        if (more.dict->pairs[i].key.kind != V_STRING) {
            run_fail_type(r, "keywords must be strings");
            return false;
        }
        all[out->n_named++] = more.dict->pairs[i];
    }
    out->named = all;
    return run_charge(r, n);
}

bool eval_args(struct run *r, const struct arg_list *args, struct call_args *out)
{
    *out = (struct call_args){0};
    if (!args) return !r->rc;
    out->pos = run_alloc(r, args->n * sizeof *out->pos);
    out->named = run_alloc(r, args->n_named * sizeof *out->named);
    if (!out->pos || !out->named) return false;
    for (size_t i = 0; i < args->n; i++) out->pos[out->n++] = eval(r, args->pos[i]);
    for (size_t i = 0; i < args->n_named; i++) {
        struct value v = eval(r, args->named[i].value);
        out->named[out->n_named++] = (struct pair){value_str(args->named[i].name), v};
    }
    if (args->star && !r->rc) {
        struct list *more = value_items(r, eval(r, args->star));
        if (!more || !add_positional(r, out, more)) return false;
    }
    if (args->star_star && !r->rc) return add_named(r, out, eval(r, args->star_star));
    return !r->rc;
}

static SMALL_FRAME struct value eval_call(struct run *r, const struct expr *e)
{
    struct call_args args;
    struct value f = eval(r, e->left);
    if (r->rc || !eval_args(r, e->args, &args)) return value_undefined();
    r->line = e->line;
    return call_value(r, f, &args);
}

/* A filter or a test. */
static SMALL_FRAME struct value eval_builtin(struct run *r, const struct expr *e,
                                             struct value self)
{
    struct call_args args;
    if (r->rc || !eval_args(r, e->args, &args)) return value_undefined();
    r->line = e->line;
    return builtin_call(r, e->builtin, self, &args);
}

/* Filters on the text of a block: the innermost has nothing on its left. */
struct value eval_filtered(struct run *r, const struct expr *e, struct value text)
{
    if (!e) return text;
    if (!run_enter(r)) return value_undefined();
    struct value self = eval_filtered(r, e->left, text);
    struct value v = eval_builtin(r, e, self);
    run_leave(r);
    return v;
}

static SMALL_FRAME struct value eval_node(struct run *r, const struct expr *e)
{
    switch (e->kind) {
    case E_LIST:
    case E_TUPLE: return eval_items(r, e);
    case E_DICT: return eval_dict(r, e);
    case E_CHAIN: return eval_chain(r, e);
    case E_CONCAT: return eval_concat(r, e);
    case E_COMPARE: return eval_compare(r, e);
    case E_AND:
    case E_OR: return eval_logic(r, e);
    case E_NOT: return value_bool(!value_truth(eval(r, e->items[0])));
    case E_NEGATE: return value_negate(r, eval(r, e->items[0]));
    case E_PLUS: return value_binary(r, OP_ADD, value_int(0), eval(r, e->items[0]));
    case E_COND: return eval_condition(r, e);
    case E_ATTRIBUTE: return value_attribute(r, eval(r, e->left), e->name);
    case E_ITEM: return eval_item(r, e);
    case E_SLICE: return eval_slice(r, e);
    case E_CALL: return eval_call(r, e);
    default: return eval_builtin(r, e, eval(r, e->left));
    }
}

struct value eval(struct run *r, const struct expr *e)
{
    if (e->kind == E_CONST) return e->value;
    if (!run_charge(r, 0)) return value_undefined();
    r->line = e->line;
    if (e->kind == E_NAME) return run_lookup(r, e->name);
    if (!run_enter(r)) return value_undefined();
    struct value v = eval_node(r, e);
    run_leave(r);
    return r->rc ? value_undefined() : v;
}
