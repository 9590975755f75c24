/* Filters that ask for, choose or convert a value. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/jinja_eval.h"
#include "tokenizer/jinja_literal.h"

#define FILTER(name)                                                                   \
    static struct value name(struct run *r, struct value v, const struct value *a,     \
                             const struct call_args *all)
#define UNUSED (void)r, (void)a, (void)all

FILTER(do_length)
{
    UNUSED;
    size_t n;
    if (!value_length(v, &n))
        return run_fail_type(r, "object of type '%s' has no len()", value_type_name(v));
    return value_int((wide)n);
}

FILTER(do_default)
{
    UNUSED;
    bool missing = v.kind == V_UNDEFINED || (arg_truth(a[1], false) && !value_truth(v));
    if (!missing) return v;
    return a[0].kind == V_ABSENT ? value_str(&str_empty) : a[0];
}

static struct value nothing_there(struct value v)
{
    return (struct value){.kind = V_UNDEFINED, .why = MISSING_ITEM, .owner = v.kind};
}

FILTER(do_first)
{
    UNUSED;
    if (v.kind == V_STRING && v.s->n) return value_item(r, v, value_int(0));
    struct list *l = value_items(r, v);
    return l && l->n ? l->items[0] : nothing_there(v);
}

FILTER(do_last)
{
    UNUSED;
    if (v.kind == V_STRING && v.s->n) return value_item(r, v, value_int(-1));
    struct list *l = value_items(r, v);
    return l && l->n ? l->items[l->n - 1] : nothing_there(v);
}

FILTER(do_list)
{
    UNUSED;
    struct list *l = value_items(r, v);
    return l ? value_list(l) : value_undefined();
}

FILTER(do_items)
{
    UNUSED;
    if (v.kind == V_UNDEFINED) return do_list(r, v, a, all);
    if (v.kind != V_DICT)
        return run_fail_type(r, "Can only get item pairs from a mapping.");
    return builtin_call(r, method_find(V_DICT, "items", 5), v, all);
}

FILTER(do_attr)
{
    UNUSED;
    struct value found = value_attribute(r, v, str_from(r, a[0]));
    return found;
}

/* ---- numbers ------------------------------------------------------------------ */

/* A string without the white space around it and with a final NUL; false: too long to
 * be a number. */
static bool number_text(struct run *r, const struct str *s, char *out, size_t cap,
                        size_t *n)
{
    s = str_strip(r, s, value_none(), true, true);
    if (s->n >= cap) return false;
    memcpy(out, s->bytes, s->n);
    out[s->n] = 0;
    *n = s->n;
    return true;
}

static bool parse_float(struct run *r, const struct str *s, double *out)
{
    char text[400], *end;
    size_t n;
    if (!number_text(r, s, text, sizeof text, &n) || n == 0) return false;
    if (strspn(text, "0123456789+-.eEinfatyINFATY") != n) return false;  // no 0x...
    *out = strtod(text, &end);
    return end == text + n;
}

/* int() of a float: towards zero, where it fits. */
static bool truncated(double f, wide *out)
{
    if (!(f > -1.7e38 && f < 1.7e38)) return false;
    *out = (wide)f;
    return true;
}

FILTER(do_int)
{
    (void)all;
    struct value otherwise = a[0].kind == V_ABSENT ? value_int(0) : a[0];
    wide base = arg_int(r, a[1], 10), out = 0;
    char text[200];
    size_t n;
    double f;
    if (v.kind == V_UNDEFINED) return run_fail_undefined(r, v);
    bool user = value_has_user(v);
    bool read = false;
    if (value_is_integral(v)) {
        out = value_as_int(v);
        read = true;
    } else if (v.kind == V_FLOAT) {
        read = truncated(v.f, &out);
    } else if (v.kind == V_STRING) {
        if (base < 2 || base > 36)
            return run_fail(r, "ValueError", "int() base must be >= 2 and <= 36");
        read = (number_text(r, v.s, text, sizeof text, &n) &&
                literal_int(text, n, (unsigned)base, &out)) ||
               (parse_float(r, v.s, &f) && truncated(f, &out));
    }
    return read ? (struct value){.kind = V_INT, .user = user, .i = out} : otherwise;
}

FILTER(do_float)
{
    (void)all;
    struct value otherwise = a[0].kind == V_ABSENT ? value_float(0) : a[0];
    double f = 0;
    if (v.kind == V_UNDEFINED) return run_fail_undefined(r, v);
    bool read = value_is_number(v) || (v.kind == V_STRING && parse_float(r, v.s, &f));
    if (value_is_number(v)) f = value_as_double(v);
    return read ? (struct value){.kind = V_FLOAT, .user = value_has_user(v), .f = f}
                : otherwise;
}

FILTER(do_abs)
{
    UNUSED;
    if (v.kind == V_UNDEFINED) return run_fail_undefined(r, v);
    if (!value_is_number(v))
        return run_fail_type(r, "bad operand type for abs(): '%s'", value_type_name(v));
    bool negative = v.kind == V_FLOAT ? signbit(v.f) != 0 : value_as_int(v) < 0;
    struct value out = negative ? value_negate(r, v) : v;
    if (out.kind == V_BOOL) out = value_int(out.b);
    return out;
}

/* To `digits` decimals, half to even of the exact binary value, as round() does. */
static double rounded(double f, int digits)
{
    char text[400];
    if (!isfinite(f)) return f;
    if (digits < 0) {
        double scale = pow(10, -digits);
        return isinf(scale) ? 0 : nearbyint(f / scale) * scale;
    }
    snprintf(text, sizeof text, "%.*f", digits, f);
    return strtod(text, NULL);
}

FILTER(do_round)
{
    (void)all;
    wide digits = arg_int(r, a[0], 0);
    const struct str *method = a[1].kind == V_STRING ? a[1].s : NULL;
    if (v.kind == V_UNDEFINED) return run_fail_undefined(r, v);
    if (!value_is_number(v))
        return run_fail_type(r, "type %s doesn't define __round__ method",
                             value_type_name(v));
    if (digits > 40 || digits < -40)
        return run_fail(r, "ValueError", "round takes -40 to 40 digits");
    struct value out = value_float(value_as_double(v));
    out.user = v.user;
    if (!method || str_is(method, "common")) {
        if (v.kind == V_BOOL) v = value_int(v.b);
        if (v.kind == V_INT && digits >= 0) return v;
        out.f = rounded(out.f, (int)digits);
        return out;
    }
    if (!str_is(method, "ceil") && !str_is(method, "floor"))
        return run_fail(r, "FilterArgumentError",
                        "method must be common, ceil or floor");
    double scale = pow(10, (double)digits);
    out.f = str_is(method, "ceil") ? ceil(out.f * scale) : floor(out.f * scale);
    out.f /= scale;
    return out;
}

const struct builtin filters_of_values[] = {
    {"length", "", do_length, 0},
    {"count", "", do_length, 0},
    {"default", "? default_value boolean", do_default, 0},
    {"d", "? default_value boolean", do_default, 0},
    {"first", "", do_first, 0},
    {"last", "", do_last, 0},
    {"list", "", do_list, 0},
    {"items", "", do_items, 0},
    {"attr", "name", do_attr, 0},
    {"int", "? default base", do_int, 0},
    {"float", "? default", do_float, 0},
    {"abs", "", do_abs, 0},
    {"round", "? precision method", do_round, 0},
    {NULL, NULL, NULL, 0},
};
