/* The functions every template can call. */
#include <string.h>
#include <time.h>

#include "tokenizer/jinja.h"
#include "tokenizer/jinja_eval.h"

#define MAX_RANGE 100000  // as the sandbox has it

#define FUNCTION(name)                                                                 \
    static struct value name(struct run *r, struct value v, const struct value *a,     \
                             const struct call_args *all)
#define UNUSED (void)r, (void)v, (void)a, (void)all

FUNCTION(do_range)
{
    UNUSED;
    const wide far = (wide)1 << 61;
    wide start = 0, stop = arg_int(r, a[0], 0), step = 1;
    if (a[1].kind != V_ABSENT) {
        start = stop;
        stop = arg_int(r, a[1], 0);
    }
    if (a[2].kind != V_ABSENT) step = arg_int(r, a[2], 1);
    for (int i = 0; i < 3; i++) {
        if (a[i].kind != V_ABSENT && !value_is_integral(a[i]))
            return run_fail_type(r, "'%s' object cannot be interpreted as an integer",
                                 value_type_name(a[i]));
    }
    if (step == 0) return run_fail(r, "ValueError", "range() arg 3 must not be zero");
    wide n = step > 0 ? (stop > start ? (stop - start - 1) / step + 1 : 0)
                      : (stop < start ? (start - stop - 1) / -step + 1 : 0);
    bool wild = start > far || start < -far || stop > far || stop < -far ||
                step > far || step < -far;
    if (n > MAX_RANGE || wild)
        return run_fail(r, "OverflowError",
                        "Range too big. The sandbox blocks ranges larger than "
                        "MAX_RANGE (100000).");
    struct range_value *g = run_alloc(r, sizeof *g);
    if (!g) return value_undefined();
    *g = (struct range_value){(int64_t)start, (int64_t)stop, (int64_t)step, (size_t)n};
    return (struct value){.kind = V_RANGE, .range = g};
}

/* dict(mapping, a=1) and namespace(mapping, a=1). */
static struct value collect(struct run *r, const struct call_args *all, enum kind kind)
{
    struct dict *d = dict_new(r, all->n_named);
    for (size_t i = 0; d && i < all->n; i++) {
        if (all->n > 1 || all->pos[i].kind != V_DICT)
            return run_fail_type(r, "only one mapping and named values are taken here");
        const struct dict *from = all->pos[i].dict;
        for (size_t k = 0; k < from->n; k++)
            dict_put(r, d, from->pairs[k].key, from->pairs[k].value);
    }
    for (size_t i = 0; d && i < all->n_named; i++)
        dict_put(r, d, all->named[i].key, all->named[i].value);
    return d ? (struct value){.kind = (uint8_t)kind, .dict = d} : value_undefined();
}

FUNCTION(do_dict)
{
    return UNUSED, collect(r, all, V_DICT);
}
FUNCTION(do_namespace)
{
    return UNUSED, collect(r, all, V_NAMESPACE);
}

FUNCTION(do_raise)
{
    UNUSED;
    const struct str *why = str_from(r, a[0]);
    return run_fail(r, RUN_RAISED, "%.*s", str_clip(why, (int)sizeof r->message - 1),
                    why->bytes);
}

/* In UTC, so that the same request gives the same prompt everywhere. */
FUNCTION(do_strftime_now)
{
    UNUSED;
    const struct str *form = str_from(r, a[0]);
    char format[256], out[1024];
    time_t now = (time_t)r->now;
    struct tm tm;
    if (form->n == 0) return value_str(&str_empty);
    if (form->n >= sizeof format || memchr(form->bytes, 0, form->n) ||
        !gmtime_r(&now, &tm))
        return run_fail(r, "ValueError", "a date format that cannot be used");
    memcpy(format, form->bytes, form->n);
    format[form->n] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"  // the template chooses the format
    size_t n = strftime(out, sizeof out, format, &tm);
#pragma GCC diagnostic pop
    if (n == 0) return run_fail(r, "ValueError", "a date format that cannot be used");
    struct builder b;
    builder_init(&b, r);
    builder_put(&b, out, n, str_has_user(form));
    return value_str(builder_done(&b));
}

/* Defined, so that a template may ask, but refused at compile time where called. */
FUNCTION(unsupported)
{
    UNUSED;
    return run_fail(r, "TemplateRuntimeError", "this function is not supported");
}

const struct builtin functions[] = {
    {"range", "start ? stop step", do_range, 0},
    {"dict", NULL, do_dict, 0},
    {"namespace", NULL, do_namespace, 0},
    {"raise_exception", "message", do_raise, 0},
    {"strftime_now", "format", do_strftime_now, 0},
    {"lipsum", NULL, unsupported, 0},
    {"cycler", NULL, unsupported, 0},
    {"joiner", NULL, unsupported, 0},
    {NULL, NULL, NULL, 0},
};

bool jinja_has_function(struct json_value name)
{
    const struct builtin *f = functions;
    while (f->name && !json_equals(name, f->name)) f++;
    return f->name != NULL;
}
