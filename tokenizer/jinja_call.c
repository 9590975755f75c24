/* Calls: macros, call blocks, and binding arguments to the parameters of builtins. */
#include <string.h>

#include "tokenizer/jinja_eval.h"

/* ---- builtins ----------------------------------------------------------------- */

/* The index of a parameter in "a b ? c"; -1: there is none of that name. */
static int param_index(const char *params, const struct str *name)
{
    int index = 0;
    for (const char *p = params; *p;) {
        size_t n = strcspn(p, " ");
        if (n == name->n && memcmp(p, name->bytes, n) == 0) return index;
        if (*p != '?') index++;
        p += n + (p[n] == ' ');
    }
    return -1;
}

static void count_params(const char *params, size_t *required, size_t *all)
{
    bool optional = false;
    *required = *all = 0;
    for (const char *p = params; *p;) {
        size_t n = strcspn(p, " ");
        if (*p == '?')
            optional = true;
        else
            *all += 1, *required += !optional;
        p += n + (p[n] == ' ');
    }
}

struct value builtin_call(struct run *r, const struct builtin *f, struct value self,
                          const struct call_args *args)
{
    struct value a[BUILTIN_MAX_PARAMS];
    for (size_t i = 0; i < ARRAY_LEN(a); i++) a[i] = (struct value){.kind = V_ABSENT};
    if (r->rc) return value_undefined();
    if (!f->params) return f->fn(r, self, a, args);
    size_t required, all;
    count_params(f->params, &required, &all);
    if (args->n > all)
        return run_fail_type(r, "%s takes %zu arguments, not %zu", f->name, all,
                             args->n);
    for (size_t i = 0; i < args->n; i++) a[i] = args->pos[i];
    for (size_t i = 0; i < args->n_named; i++) {
        const struct str *name = args->named[i].key.s;
        int at = param_index(f->params, name);
        if (at < 0 || a[at].kind != V_ABSENT)
            return run_fail_type(r, "%s has no argument '%.*s' to set", f->name,
                                 str_clip(name, 60), name->bytes);
        a[at] = args->named[i].value;
    }
    for (size_t i = 0; i < required; i++) {
        if (a[i].kind == V_ABSENT)
            return run_fail_type(r, "%s lacks an argument", f->name);
    }
    return f->fn(r, self, a, args);
}

/* ---- macros ------------------------------------------------------------------- */

/* The arguments given by name, each to its parameter; others to kwargs, where used. */
static bool bind_named(struct run *r, const struct macro_def *def,
                       const struct call_args *args, struct value *given,
                       struct dict *kwargs, struct value *caller)
{
    for (size_t i = 0; i < args->n_named; i++) {
        const struct pair *named = &args->named[i];
        size_t at = 0;
        while (at < def->n && !str_equal(def->params[at], named->key.s)) at++;
        if (at < def->n) {
            if (given[at].kind != V_ABSENT) {
                run_fail_type(r, "macro '%.*s' got an argument twice",
                              str_clip(def->name, 60), def->name->bytes);
                return false;
            }
            given[at] = named->value;
        } else if (def->uses_caller && str_is(named->key.s, "caller")) {
            *caller = named->value;
        } else if (!def->uses_kwargs) {
            run_fail_type(r, "macro '%.*s' takes no keyword argument '%.*s'",
                          str_clip(def->name, 60), def->name->bytes,
                          str_clip(named->key.s, 60), named->key.s->bytes);
            return false;
        } else if (!dict_put(r, kwargs, named->key, named->value)) {
            return false;
        }
    }
    return true;
}

/* Bind the parameters in the macro's own scope, which is the current one. */
static bool bind_params(struct run *r, const struct macro_def *def,
                        const struct call_args *args)
{
    struct value caller = {.kind = V_ABSENT};
    struct value *given = run_alloc(r, def->n * sizeof *given);
    struct list *rest = list_new(r, args->n > def->n ? args->n - def->n : 0);
    struct dict *kwargs = dict_new(r, 0);
    const struct str *const *known = r->t->known;
    if (!given || !rest || !kwargs) return false;
    for (size_t i = 0; i < def->n; i++)
        given[i] = i < args->n ? args->pos[i] : (struct value){.kind = V_ABSENT};
    for (size_t i = def->n; i < args->n; i++) rest->items[rest->n++] = args->pos[i];
    if (rest->n && !def->uses_varargs) {
        run_fail_type(r, "macro '%.*s' takes not more than %zu argument(s)",
                      str_clip(def->name, 60), def->name->bytes, def->n);
        return false;
    }
    if (!bind_named(r, def, args, given, kwargs, &caller)) return false;
    for (size_t i = 0; i < def->n && !r->rc; i++) {
        struct value v = given[i];
        if (v.kind == V_ABSENT)
            v = def->defaults[i] ? eval(r, def->defaults[i])
                                 : (struct value){.kind = V_UNDEFINED,
                                                  .why = MISSING_PARAMETER,
                                                  .name = def->params[i]};
        run_bind(r, def->params[i], v);
    }
    if (def->uses_varargs)
        run_bind(r, known[NAME_VARARGS], (struct value){.kind = V_TUPLE, .list = rest});
    if (def->uses_kwargs)
        run_bind(r, known[NAME_KWARGS], (struct value){.kind = V_DICT, .dict = kwargs});
    if (caller.kind != V_ABSENT) run_bind(r, known[NAME_CALLER], caller);
    return !r->rc;
}

static SMALL_FRAME struct value call_macro(struct run *r, const struct macro *m,
                                           const struct call_args *args)
{
    const struct str *text = &str_empty;
    struct scope *around = r->scope;
    if (!run_enter(r)) return value_undefined();
    r->scope = run_push_scope(r, m->scope);
    if (bind_params(r, m->def, args)) text = exec_captured(r, &m->def->body);
    r->scope = around;
    run_leave(r);
    return value_str(text);
}

struct value call_value(struct run *r, struct value f, const struct call_args *args)
{
    if (r->rc) return value_undefined();
    switch (f.kind) {
    case V_MACRO: return call_macro(r, f.macro, args);
    case V_FUNCTION: return builtin_call(r, f.function, value_none(), args);
    case V_METHOD: return builtin_call(r, f.method->function, f.method->self, args);
    case V_LOOP:
        if (args->n != 1) return run_fail_type(r, "loop() takes one argument");
        return exec_recursive_loop(r, f.loop, args->pos[0]);
    case V_UNDEFINED: return run_fail_undefined(r, f);
    default: return run_fail_type(r, "'%s' object is not callable", value_type_name(f));
    }
}
