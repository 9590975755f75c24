#include "tokenizer/jinja_run.h"

#include <stdarg.h>
#include <stdio.h>

PRINTF_LIKE(4, 0)
static void fail_va(struct run *r, int rc, const char *kind, const char *fmt,
                    va_list ap)
{
    if (r->rc) return;
    r->rc = rc;
    r->kind = kind;
    vsnprintf(r->message, sizeof r->message, fmt, ap);
}

struct value run_fail(struct run *r, const char *kind, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_va(r, -EINVAL, kind, fmt, ap);
    va_end(ap);
    return value_undefined();
}

struct value run_fail_type(struct run *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_va(r, -EINVAL, "TypeError", fmt, ap);
    va_end(ap);
    return value_undefined();
}

struct value run_fail_undefined(struct run *r, struct value v)
{
    static const char kind[] = "UndefinedError";
    int n = v.name ? str_clip(v.name, 200) : 0;
    const char *name = v.name ? v.name->bytes : "";
    const char *owner = v.owner == V_DICT ? "dict object"
                        : v.owner == V_LIST
                            ? "list object"
                            : value_type_name((struct value){.kind = v.owner});
    switch (v.why) {
    case MISSING_VARIABLE: return run_fail(r, kind, "'%.*s' is undefined", n, name);
    case MISSING_PARAMETER:
        return run_fail(r, kind, "parameter '%.*s' was not provided", n, name);
    case MISSING_UNSAFE:
        return run_fail(r, "SecurityError",
                        "access to attribute '%.*s' of '%s' object is unsafe", n, name,
                        value_type_name((struct value){.kind = v.owner}));
    case MISSING_ATTRIBUTE:
        return run_fail(r, kind, "'%s' has no attribute '%.*s'", owner, n, name);
    default: return run_fail(r, kind, "an element that does not exist is undefined");
    }
}

void run_limit(struct run *r, const char *what)
{
    if (r->rc) return;
    r->rc = -E2BIG;
    r->kind = "limit";
    snprintf(r->message, sizeof r->message, "%s", what);
}

void *run_alloc(struct run *r, size_t n)
{
    void *p = r->rc ? NULL : arena_alloc(&r->arena, n);
    if (p || r->rc) return p;
    if (r->arena.full) {
        run_limit(r, "it takes more memory than a render may");
        return NULL;
    }
    r->rc = -ENOMEM;
    r->kind = "MemoryError";
    snprintf(r->message, sizeof r->message, "out of memory");
    return NULL;
}

bool run_charge(struct run *r, size_t units)
{
    uint64_t steps = 1 + units / 64;
    if (r->rc) return false;
    if (r->steps < steps) {
        run_limit(r, "it takes more steps than a render may");
        return false;
    }
    r->steps -= steps;
    return true;
}

bool run_enter(struct run *r)
{
    if (r->rc) return false;
    if (r->depth >= RUN_MAX_DEPTH) {
        run_limit(r, "it nests more deeply than a render may");
        return false;
    }
    r->depth++;
    return true;
}

void run_leave(struct run *r)
{
    r->depth--;
}

struct scope *run_push_scope(struct run *r, struct scope *parent)
{
    struct scope *s = run_alloc(r, sizeof *s);
    if (!s) return parent;  // the render has failed; nothing is bound any more
    *s = (struct scope){.parent = parent};
    return s;
}

void run_bind(struct run *r, const struct str *name, struct value v)
{
    if (r->rc) return;
    struct binding *b = r->scope->bindings;
    while (b && b->name != name) b = b->next;
    if (b) {
        b->value = v;
        return;
    }
    b = run_alloc(r, sizeof *b);
    if (!b) return;
    *b = (struct binding){.name = name, .value = v, .next = r->scope->bindings};
    r->scope->bindings = b;
}

struct value run_lookup(struct run *r, const struct str *name)
{
    for (struct scope *s = r->scope; s; s = s->parent) {
        for (struct binding *b = s->bindings; b; b = b->next) {
            if (b->name == name) return b->value;
        }
    }
    return (struct value){.kind = V_UNDEFINED, .why = MISSING_VARIABLE, .name = name};
}
