/* Statements. */
#include "tokenizer/jinja_eval.h"

static void exec_stmt(struct run *r, const struct stmt *s);

SMALL_FRAME void exec_block(struct run *r, const struct block *b)
{
    if (!run_enter(r)) return;
    for (const struct stmt *s = b->first; s && !r->rc && r->flow == FLOW_ON;
         s = s->next)
        exec_stmt(r, s);
    run_leave(r);
}

const struct str *exec_captured(struct run *r, const struct block *b)
{
    struct builder text, *around = r->out;
    builder_init(&text, r);
    r->out = &text;
    exec_block(r, b);
    r->out = around;
    return builder_done(&text);
}

/* A block with variables of its own. */
static const struct str *captured_in_scope(struct run *r, const struct block *b)
{
    struct scope *around = r->scope;
    r->scope = run_push_scope(r, around);
    const struct str *text = exec_captured(r, b);
    r->scope = around;
    return text;
}

/* ---- assignment --------------------------------------------------------------- */

static void assign(struct run *r, const struct expr *target, struct value v);

static SMALL_FRAME void assign_tuple(struct run *r, const struct expr *target,
                                     struct value v)
{
    struct list *items = value_items(r, v);
    if (!items) return;
    if (items->n != target->n) {
        run_fail(r, "ValueError", "%s values to unpack (expected %zu)",
                 items->n > target->n ? "too many" : "not enough", target->n);
        return;
    }
    for (size_t i = 0; i < target->n && !r->rc; i++)
        assign(r, target->items[i], items->items[i]);
}

static void assign(struct run *r, const struct expr *target, struct value v)
{
    if (r->rc) return;
    if (target->kind == E_NAME) {
        run_bind(r, target->name, v);
    } else if (target->kind == E_TUPLE) {
        assign_tuple(r, target, v);
    } else {
        struct value ns = run_lookup(r, target->left->name);
        if (ns.kind != V_NAMESPACE)
            run_fail(r, "TemplateRuntimeError",
                     "cannot assign attribute on non-namespace object");
        else
            dict_put(r, ns.dict, value_str(target->name), v);
    }
}

static SMALL_FRAME void exec_set_block(struct run *r, const struct stmt *s)
{
    struct value text = value_str(captured_in_scope(r, &s->body));
    assign(r, s->target, eval_filtered(r, s->expr, text));
}

/* ---- loops -------------------------------------------------------------------- */

/* Does the item pass the loop's condition? */
static bool passes(struct run *r, struct loop *l, struct value item)
{
    struct scope *around = r->scope;
    r->scope = run_push_scope(r, l->outer);
    assign(r, l->stmt->target, item);
    bool yes = !r->rc && value_truth(eval(r, l->stmt->condition));
    r->scope = around;
    return yes && !r->rc;
}

static bool fetch(struct run *r, struct loop *l, struct value *out)
{
    while (l->next < l->items->n && run_charge(r, 0)) {
        *out = l->items->items[l->next++];
        if (l->all_match || passes(r, l, *out)) return true;
    }
    return false;
}

bool loop_advance(struct run *r, struct loop *l)
{
    struct value item;
    if (l->has_peeked)
        item = l->peeked;
    else if (!fetch(r, l, &item))
        return false;
    l->has_previous = l->index0 != SIZE_MAX;  // not before the first
    l->previous = l->current;
    l->current = item;
    l->has_peeked = false;
    l->index0++;
    return !r->rc;
}

static bool peek(struct run *r, struct loop *l)
{
    if (!l->has_peeked) l->has_peeked = fetch(r, l, &l->peeked);
    return l->has_peeked;
}

/* How many items there are in all; the condition then applies to the rest at once. */
static size_t loop_length(struct run *r, struct loop *l)
{
    if (!l->all_match) {
        struct list *rest = list_new(r, 0);
        struct value item;
        while (rest && fetch(r, l, &item) && list_push(r, rest, item)) continue;
        if (!rest || r->rc) return 0;
        l->items = rest;
        l->next = 0;
        l->all_match = true;
    }
    return l->index0 + 1 + l->has_peeked + (l->items->n - l->next);
}

static struct value as_int(size_t n)
{
    return value_int((wide)n);
}

struct value loop_attribute(struct run *r, struct loop *l, const struct str *name)
{
    if (str_is(name, "index")) return as_int(l->index0 + 1);
    if (str_is(name, "index0")) return as_int(l->index0);
    if (str_is(name, "first")) return value_bool(l->index0 == 0);
    if (str_is(name, "last")) return value_bool(!peek(r, l));
    if (str_is(name, "length")) return as_int(loop_length(r, l));
    if (str_is(name, "revindex")) return as_int(loop_length(r, l) - l->index0);
    if (str_is(name, "revindex0")) return as_int(loop_length(r, l) - l->index0 - 1);
    if (str_is(name, "depth")) return as_int(l->depth0 + 1);
    if (str_is(name, "depth0")) return as_int(l->depth0);
    if (str_is(name, "previtem") && l->has_previous) return l->previous;
    if (str_is(name, "nextitem") && peek(r, l)) return l->peeked;
    return (struct value){.kind = V_ABSENT};
}

static void exec_loop(struct run *r, const struct stmt *s, struct value iterable,
                      size_t depth0)
{
    const struct list *items = value_items(r, iterable);
    struct loop *l = run_alloc(r, sizeof *l);
    if (!items || !l) return;
    struct scope *outer = r->scope;
    *l = (struct loop){.stmt = s,
                       .outer = outer,
                       .items = items,
                       .all_match = s->condition == NULL,
                       .index0 = SIZE_MAX,
                       .depth0 = depth0};
    const struct value loop = {.kind = V_LOOP, .loop = l};
    bool finished = false;  // any of the bodies, without a jump: Jinja asks no more
    while (r->flow != FLOW_BREAK && loop_advance(r, l)) {
        r->scope = run_push_scope(r, outer);
        assign(r, s->target, l->current);
        run_bind(r, r->t->known[NAME_LOOP], loop);
        exec_block(r, &s->body);
        if (r->flow == FLOW_ON) finished = true;
        if (r->flow == FLOW_CONTINUE) r->flow = FLOW_ON;
    }
    r->scope = outer;
    r->flow = FLOW_ON;
    if (finished) return;
    r->scope = run_push_scope(r, outer);
    exec_block(r, &s->other);
    r->scope = outer;
}

static SMALL_FRAME void exec_for(struct run *r, const struct stmt *s)
{
    struct value iterable = eval(r, s->expr);
    if (!r->rc) exec_loop(r, s, iterable, 0);
}

struct value exec_recursive_loop(struct run *r, struct loop *loop, struct value items)
{
    if (!loop->stmt->recursive)
        return run_fail_type(r, "the loop is not marked recursive");
    if (!run_enter(r)) return value_undefined();
    struct scope *around_scope = r->scope;
    struct builder text, *around = r->out;
    builder_init(&text, r);
    r->out = &text;
    r->scope = loop->outer;
    exec_loop(r, loop->stmt, items, loop->depth0 + 1);
    r->scope = around_scope;
    r->out = around;
    run_leave(r);
    return value_str(builder_done(&text));
}

/* ---- the others --------------------------------------------------------------- */

static SMALL_FRAME void exec_if(struct run *r, const struct stmt *s)
{
    for (const struct branch *b = s->branches; b && !r->rc; b = b->next) {
        if (!b->condition || value_truth(eval(r, b->condition))) {
            if (!r->rc) exec_block(r, &b->body);
            return;
        }
    }
}

static SMALL_FRAME struct value new_macro(struct run *r, const struct macro_def *def)
{
    struct macro *m = run_alloc(r, sizeof *m);
    if (!m) return value_undefined();
    *m = (struct macro){def, r->scope};
    return (struct value){.kind = V_MACRO, .macro = m};
}

/* The body goes to the call as one more named argument. */
static bool add_caller(struct run *r, struct call_args *args, struct value caller)
{
    struct pair *named = run_alloc(r, (args->n_named + 1) * sizeof *named);
    if (!named) return false;
    for (size_t i = 0; i < args->n_named; i++) named[i] = args->named[i];
    named[args->n_named++] = (struct pair){value_str(r->t->known[NAME_CALLER]), caller};
    args->named = named;
    return true;
}

static SMALL_FRAME void exec_call(struct run *r, const struct stmt *s)
{
    struct call_args args;
    struct value f = eval(r, s->expr->left);
    if (r->rc || !eval_args(r, s->expr->args, &args)) return;
    if (!add_caller(r, &args, new_macro(r, s->macro))) return;
    builder_value(r->out, call_value(r, f, &args));
}

static SMALL_FRAME void exec_filter(struct run *r, const struct stmt *s)
{
    struct value text = value_str(captured_in_scope(r, &s->body));
    builder_value(r->out, eval_filtered(r, s->expr, text));
}

static SMALL_FRAME void exec_with(struct run *r, const struct stmt *s)
{
    struct scope *around = r->scope, *own = run_push_scope(r, around);
    for (size_t i = 0; i < s->n && !r->rc; i++) {
        struct value v = eval(r, s->values[i]);  // sees none of the new names
        r->scope = own;
        assign(r, s->targets[i], v);
        r->scope = around;
    }
    r->scope = own;
    exec_block(r, &s->body);
    r->scope = around;
}

static SMALL_FRAME void exec_print(struct run *r, const struct stmt *s)
{
    struct value v = eval(r, s->expr);
    if (!r->rc) builder_value(r->out, v);
}

static SMALL_FRAME void exec_stmt(struct run *r, const struct stmt *s)
{
    if (!run_charge(r, 0)) return;
    r->line = s->line;
    switch (s->kind) {
    case S_TEXT: builder_str(r->out, s->text); break;
    case S_PRINT: exec_print(r, s); break;
    case S_IF: exec_if(r, s); break;
    case S_FOR: exec_for(r, s); break;
    case S_SET: assign(r, s->target, eval(r, s->expr)); break;
    case S_SET_BLOCK: exec_set_block(r, s); break;
    case S_MACRO: run_bind(r, s->macro->name, new_macro(r, s->macro)); break;
    case S_CALL: exec_call(r, s); break;
    case S_FILTER: exec_filter(r, s); break;
    case S_WITH:
    case S_SCOPE: exec_with(r, s); break;
    case S_BREAK: r->flow = FLOW_BREAK; break;
    default: r->flow = FLOW_CONTINUE;
    }
}
