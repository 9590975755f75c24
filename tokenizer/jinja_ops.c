/* Python's operators. */
#include <math.h>
#include <string.h>

#include "tokenizer/jinja_eval.h"

#define WIDE_MAX ((wide)(~(uwide)0 >> 1))
#define WIDE_MIN (-WIDE_MAX - 1)

static const char *const op_names[] = {
    [OP_ADD] = "+",       [OP_SUB] = "-", [OP_MUL] = "*",        [OP_DIV] = "/",
    [OP_FLOORDIV] = "//", [OP_MOD] = "%", [OP_POW] = "**",       [OP_EQ] = "==",
    [OP_NE] = "!=",       [OP_LT] = "<",  [OP_LE] = "<=",        [OP_GT] = ">",
    [OP_GE] = ">=",       [OP_IN] = "in", [OP_NOT_IN] = "not in"};

static struct value overflow(struct run *r)
{
    return run_fail(r, "OverflowError", "an integer of more than 128 bits");
}

static struct value divided_by_zero(struct run *r)
{
    return run_fail(r, "ZeroDivisionError", "division by zero");
}

/* ---- integers ----------------------------------------------------------------- */

static uwide magnitude(wide v)
{
    return v < 0 ? -(uwide)v : (uwide)v;
}

static bool multiply(wide a, wide b, wide *out)
{
    uwide x = magnitude(a), y = magnitude(b);
    if (x && y > (uwide)WIDE_MAX / x) return false;
    *out = (a < 0) != (b < 0) ? -(wide)(x * y) : (wide)(x * y);
    return true;
}

static bool add(wide a, wide b, wide *out)
{
    if (b > 0 ? a > WIDE_MAX - b : a < WIDE_MIN - b) return false;
    *out = a + b;
    return true;
}

static bool power(wide base, wide exponent, wide *out)
{
    wide result = 1;
    for (; exponent; exponent >>= 1) {
        if ((exponent & 1) && !multiply(result, base, &result)) return false;
        if (exponent > 1 && !multiply(base, base, &base)) return false;
    }
    *out = result;
    return true;
}

/* Division that rounds towards minus infinity; the remainder has the divisor's sign. */
static void floor_divide(wide a, wide b, wide *quotient, wide *remainder)
{
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder && (*remainder < 0) != (b < 0)) {
        *quotient -= 1;
        *remainder += b;
    }
}

static struct value int_op(struct run *r, enum op op, wide a, wide b)
{
    wide out = 0, other;
    bool fits = true;
    switch (op) {
    case OP_ADD: fits = add(a, b, &out); break;
    case OP_SUB: fits = b != WIDE_MIN && add(a, -b, &out); break;
    case OP_MUL: fits = multiply(a, b, &out); break;
    case OP_FLOORDIV:
    case OP_MOD:
        if (b == 0) return divided_by_zero(r);
        if (a == WIDE_MIN && b == -1) return overflow(r);
        floor_divide(a, b, op == OP_MOD ? &other : &out, op == OP_MOD ? &out : &other);
        break;
    default: fits = power(a, b, &out);
    }
    return fits ? value_int(out) : overflow(r);
}

/* ---- floats ------------------------------------------------------------------- */

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m != 0) return (m < 0) != (b < 0) ? m + b : m;
    return copysign(0, b);
}

static double float_floordiv(double a, double b)
{
    double q = (a - float_mod(a, b)) / b;
    double whole = floor(q);
    return q - whole > 0.5 ? whole + 1 : whole;
}

static struct value float_op(struct run *r, enum op op, double a, double b)
{
    double out;
    switch (op) {
    case OP_ADD: return value_float(a + b);
    case OP_SUB: return value_float(a - b);
    case OP_MUL: return value_float(a * b);
    case OP_POW:
        if (a == 0 && b < 0) return divided_by_zero(r);
        out = pow(a, b);
        if (isinf(out) && !isinf(a) && !isinf(b))
            return run_fail(r, "OverflowError", "a result too large for a float");
        if (isnan(out) && !isnan(a) && !isnan(b))
            return run_fail(r, "ValueError", "a complex result");
        return value_float(out);
    default:
        if (b == 0) return divided_by_zero(r);
        return value_float(op == OP_DIV   ? a / b
                           : op == OP_MOD ? float_mod(a, b)
                                          : float_floordiv(a, b));
    }
}

static struct value number_op(struct run *r, enum op op, struct value a, struct value b)
{
    bool whole = value_is_integral(a) && value_is_integral(b) && op != OP_DIV &&
                 !(op == OP_POW && value_as_int(b) < 0);
    struct value v = whole ? int_op(r, op, value_as_int(a), value_as_int(b))
                           : float_op(r, op, value_as_double(a), value_as_double(b));
    v.user = a.user || b.user;
    return v;
}

/* ---- sequences ---------------------------------------------------------------- */

/* Text that counts as escaped escapes what is added to it. */
static struct value add_strings(struct run *r, struct value a, struct value b)
{
    bool markup = a.markup || b.markup;
    const struct str *left = markup && !a.markup ? str_escape(r, a.s) : a.s;
    const struct str *right = markup && !b.markup ? str_escape(r, b.s) : b.s;
    struct value v = value_str(str_concat(r, left, right));
    v.markup = markup;
    return v;
}

static struct value add_lists(struct run *r, struct value a, struct value b)
{
    struct list *l = list_new(r, a.list->n + b.list->n);
    if (!l || !run_charge(r, l->cap * 8)) return value_undefined();
    if (a.list->n) memcpy(l->items, a.list->items, a.list->n * sizeof *l->items);
    if (b.list->n)
        memcpy(l->items + a.list->n, b.list->items, b.list->n * sizeof *l->items);
    l->n = l->cap;
    return (struct value){.kind = a.kind, .list = l};
}

static struct value repeat(struct run *r, struct value v, wide times)
{
    size_t n = v.kind == V_STRING ? v.s->n : v.list->n;
    if (times < 0 || n == 0) times = 0;
    if (times > (wide)(r->max_text / (n ? n : 1))) {
        run_limit(r, "a repetition is longer than a render may make");
        return value_undefined();
    }
    if (v.kind == V_STRING) {
        struct builder b;
        builder_init(&b, r);
        for (wide i = 0; i < times && !r->rc; i++) builder_str(&b, v.s);
        return value_str(builder_done(&b));
    }
    struct list *l = list_new(r, n * (size_t)times);
    for (wide i = 0; l && i < times && run_charge(r, n * 8); i++) {
        memcpy(l->items + l->n, v.list->items, n * sizeof *l->items);
        l->n += n;
    }
    return l ? (struct value){.kind = v.kind, .list = l} : value_undefined();
}

static bool is_sequence(struct value v)
{
    return v.kind == V_STRING || v.kind == V_LIST || v.kind == V_TUPLE;
}

static struct value wrong_operands(struct run *r, enum op op, struct value a,
                                   struct value b)
{
    if (a.kind == V_UNDEFINED) return run_fail_undefined(r, a);
    if (b.kind == V_UNDEFINED) return run_fail_undefined(r, b);
    if (op == OP_ADD && is_sequence(a))
        return run_fail_type(r, "can only concatenate %s (not \"%s\") to %s",
                             value_type_name(a), value_type_name(b),
                             value_type_name(a));
    return run_fail_type(r, "unsupported operand type(s) for %s: '%s' and '%s'",
                         op_names[op], value_type_name(a), value_type_name(b));
}

struct value value_binary(struct run *r, enum op op, struct value a, struct value b)
{
    if (r->rc) return value_undefined();
    if (value_is_number(a) && value_is_number(b)) return number_op(r, op, a, b);
    if (op == OP_ADD && a.kind == V_STRING && b.kind == V_STRING)
        return add_strings(r, a, b);
    if (op == OP_ADD && a.kind == b.kind && is_sequence(a)) return add_lists(r, a, b);
    if (op == OP_MUL && is_sequence(a) && value_is_integral(b))
        return repeat(r, a, value_as_int(b));
    if (op == OP_MUL && value_is_integral(a) && is_sequence(b))
        return repeat(r, b, value_as_int(a));
    if (op == OP_MOD && a.kind == V_STRING) return str_format_percent(r, a.s, b);
    return wrong_operands(r, op, a, b);
}

struct value value_negate(struct run *r, struct value v)
{
    if (v.kind == V_FLOAT)
        return (struct value){.kind = V_FLOAT, .user = v.user, .f = -v.f};
    if (v.kind == V_UNDEFINED) return run_fail_undefined(r, v);
    if (!value_is_number(v))
        return run_fail_type(r, "bad operand type for unary -: '%s'",
                             value_type_name(v));
    return number_op(r, OP_SUB, value_int(0), v);
}

bool value_matches(struct run *r, enum op op, struct value a, struct value b)
{
    switch (op) {
    case OP_EQ: return value_equal(r, a, b);
    case OP_NE: return !value_equal(r, a, b);
    case OP_IN: return value_contains(r, b, a);
    case OP_NOT_IN: return !value_contains(r, b, a);
    default: break;
    }
    bool nan = (a.kind == V_FLOAT && isnan(a.f)) || (b.kind == V_FLOAT && isnan(b.f));
    int c = value_compare(r, a, b, op_names[op]);
    if (nan || r->rc) return false;
    return op == OP_LT ? c < 0 : op == OP_LE ? c <= 0 : op == OP_GT ? c > 0 : c >= 0;
}
