/* What stands behind `is`. */
#include <math.h>

#include "tokenizer/jinja_eval.h"
#include "tokenizer/unicode.h"

#define TEST(name)                                                                     \
    static struct value name(struct run *r, struct value v, const struct value *a,     \
                             const struct call_args *all)
#define UNUSED (void)r, (void)a, (void)all

TEST(is_defined)
{
    return UNUSED, value_bool(v.kind != V_UNDEFINED);
}
TEST(is_undefined)
{
    return UNUSED, value_bool(v.kind == V_UNDEFINED);
}
TEST(is_none)
{
    return UNUSED, value_bool(v.kind == V_NONE);
}
TEST(is_string)
{
    return UNUSED, value_bool(v.kind == V_STRING);
}
TEST(is_mapping)
{
    return UNUSED, value_bool(v.kind == V_DICT);
}
TEST(is_number)
{
    return UNUSED, value_bool(value_is_number(v));
}
TEST(is_integer)
{
    return UNUSED, value_bool(v.kind == V_INT);
}
TEST(is_float)
{
    return UNUSED, value_bool(v.kind == V_FLOAT);
}
TEST(is_boolean)
{
    return UNUSED, value_bool(v.kind == V_BOOL);
}
TEST(is_true)
{
    return UNUSED, value_bool(v.kind == V_BOOL && v.b);
}
TEST(is_false)
{
    return UNUSED, value_bool(v.kind == V_BOOL && !v.b);
}
TEST(is_escaped)
{
    return UNUSED, value_bool(v.kind == V_STRING && v.markup);
}

TEST(is_sequence)
{
    size_t n;
    return UNUSED, value_bool(value_length(v, &n));
}

TEST(is_callable)
{
    return UNUSED,
           value_bool(v.kind == V_MACRO || v.kind == V_FUNCTION || v.kind == V_METHOD ||
                      v.kind == V_LOOP || v.kind == V_UNDEFINED);
}

/* v % divisor == 0 */
static struct value divides(struct run *r, struct value v, struct value divisor,
                            wide rest)
{
    struct value m = value_binary(r, OP_MOD, v, divisor);
    return value_bool(!r->rc && value_equal(r, m, value_int(rest)));
}

TEST(is_even)
{
    return UNUSED, divides(r, v, value_int(2), 0);
}
TEST(is_odd)
{
    return UNUSED, divides(r, v, value_int(2), 1);
}
TEST(is_divisible)
{
    return UNUSED, divides(r, v, a[0], 0);
}
TEST(is_eq)
{
    return UNUSED, value_bool(value_matches(r, OP_EQ, v, a[0]));
}
TEST(is_ne)
{
    return UNUSED, value_bool(value_matches(r, OP_NE, v, a[0]));
}
TEST(is_lt)
{
    return UNUSED, value_bool(value_matches(r, OP_LT, v, a[0]));
}
TEST(is_le)
{
    return UNUSED, value_bool(value_matches(r, OP_LE, v, a[0]));
}
TEST(is_gt)
{
    return UNUSED, value_bool(value_matches(r, OP_GT, v, a[0]));
}
TEST(is_ge)
{
    return UNUSED, value_bool(value_matches(r, OP_GE, v, a[0]));
}
TEST(is_in)
{
    return UNUSED, value_bool(value_matches(r, OP_IN, v, a[0]));
}

TEST(is_same)
{
    return UNUSED, value_bool(v.kind == a[0].kind && value_equal(r, v, a[0]));
}

/* Cased letters are there, and all of them of that case. */
static struct value has_case(struct run *r, struct value v, bool (*right)(uint32_t))
{
    const struct str *s = str_from(r, v);
    bool any = false;
    if (!run_charge(r, s->n)) return value_undefined();
    for (const char *p = s->bytes; p < s->bytes + s->n;) {
        uint32_t cp = unicode_next(&p);
        if (right(cp))
            any = true;
        else if (unicode_is_cased(cp))
            return value_bool(false);
    }
    return value_bool(any);
}

TEST(is_upper)
{
    return UNUSED, has_case(r, v, unicode_is_upper);
}
TEST(is_lower)
{
    return UNUSED, has_case(r, v, unicode_is_lower);
}

TEST(is_filter)
{
    const struct str *s = str_from(r, v);
    return UNUSED, value_bool(filter_find(s->bytes, s->n) != NULL);
}

TEST(is_test)
{
    const struct str *s = str_from(r, v);
    return UNUSED, value_bool(test_find(s->bytes, s->n) != NULL);
}

const struct builtin tests[] = {
    {"defined", "", is_defined, 0},
    {"undefined", "", is_undefined, 0},
    {"none", "", is_none, 0},
    {"string", "", is_string, 0},
    {"mapping", "", is_mapping, 0},
    {"sequence", "", is_sequence, 0},
    {"iterable", "", is_sequence, 0},
    {"number", "", is_number, 0},
    {"integer", "", is_integer, 0},
    {"float", "", is_float, 0},
    {"boolean", "", is_boolean, 0},
    {"true", "", is_true, 0},
    {"false", "", is_false, 0},
    {"callable", "", is_callable, 0},
    {"escaped", "", is_escaped, 0},
    {"even", "", is_even, 0},
    {"odd", "", is_odd, 0},
    {"divisibleby", "num", is_divisible, 0},
    {"sameas", "other", is_same, 0},
    {"in", "seq", is_in, 0},
    {"upper", "", is_upper, 0},
    {"lower", "", is_lower, 0},
    {"filter", "", is_filter, 0},
    {"test", "", is_test, 0},
    {"eq", "other", is_eq, 0},
    {"==", "other", is_eq, 0},
    {"equalto", "other", is_eq, 0},
    {"ne", "other", is_ne, 0},
    {"!=", "other", is_ne, 0},
    {"lt", "other", is_lt, 0},
    {"<", "other", is_lt, 0},
    {"lessthan", "other", is_lt, 0},
    {"le", "other", is_le, 0},
    {"<=", "other", is_le, 0},
    {"gt", "other", is_gt, 0},
    {">", "other", is_gt, 0},
    {"greaterthan", "other", is_gt, 0},
    {"ge", "other", is_ge, 0},
    {">=", "other", is_ge, 0},
    {NULL, NULL, NULL, 0},
};
