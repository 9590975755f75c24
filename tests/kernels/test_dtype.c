#include "tests/kernels/fixture.h"

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static void names_are_parsed_and_nothing_else(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
        enum dtype t;
        assert_true(dtype_parse(dtype_name(dtypes[i]), &t));
        assert_int_equal(t, dtypes[i]);
    }
    enum dtype t = DTYPE_F16;
    assert_false(dtype_parse("f64", &t));
    assert_false(dtype_parse("F16", &t));
    assert_false(dtype_parse("", &t));
    assert_int_equal(t, DTYPE_F16);
    assert_int_equal(dtype_bytes(DTYPE_F32), 4);
    assert_int_equal(dtype_bytes(DTYPE_F16), 2);
    assert_int_equal(dtype_bytes(DTYPE_BF16), 2);
}

/* What the bits of an f16 mean, by IEEE 754 (section 3.4). */
static double f16_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h & 0x8000 ? -v : v;
}

static void every_f16_widens_exactly_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = dtype_f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00) {
            assert_true(h & 1023 ? isnan(f) : isinf(f));
        } else {
            assert_true((double)f == f16_value((uint16_t)h));
            assert_int_equal(signbit(f) != 0, h >> 15);
        }
        if (isnan(f)) {
            assert_true(isnan(dtype_f16_to_f32(dtype_f32_to_f16(f))));
        } else {
            assert_int_equal(dtype_f32_to_f16(f), h);
        }
    }
}

static void every_bf16_widens_exactly_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = dtype_bf16_to_f32((uint16_t)h);
        assert_int_equal(bits(f), h << 16);
        if (isnan(f)) {
            assert_true(isnan(dtype_bf16_to_f32(dtype_f32_to_bf16(f))));
        } else {
            assert_int_equal(dtype_f32_to_bf16(f), h);
        }
    }
}

/* Between each f16 and the next: just below, at, and just above the half-way point. */
static void f16_rounds_to_nearest_and_ties_to_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        double mid = (f16_value((uint16_t)h) + f16_value((uint16_t)(h + 1))) / 2;
        float tie = (float)mid;
        assert_true((double)tie == mid);
        uint32_t even = h & 1 ? h + 1 : h;
        assert_int_equal(dtype_f32_to_f16(tie), even);
        assert_int_equal(dtype_f32_to_f16(-tie), even | 0x8000);
        assert_int_equal(dtype_f32_to_f16(nextafterf(tie, 0)), h);
        assert_int_equal(dtype_f32_to_f16(nextafterf(tie, INFINITY)), h + 1);
    }
    assert_int_equal(dtype_f32_to_f16(nextafterf(65520.0f, 0)), 0x7bff);
    assert_int_equal(dtype_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(dtype_f32_to_f16(-1e30f), 0xfc00);
    assert_int_equal(dtype_f32_to_f16(1e-30f), 0);
}

static void bf16_rounds_to_nearest_and_ties_to_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7f7f; h++) {
        float tie;
        uint32_t u = h << 16 | 0x8000;
        memcpy(&tie, &u, sizeof tie);
        assert_int_equal(dtype_f32_to_bf16(tie), h & 1 ? h + 1 : h);
        assert_int_equal(dtype_f32_to_bf16(nextafterf(tie, 0)), h);
        assert_int_equal(dtype_f32_to_bf16(nextafterf(tie, INFINITY)), h + 1);
    }
}

static void rows_convert_at_any_alignment(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
        enum dtype t = dtypes[i];
        float exact[37], back[37];
        void *typed = random_typed(i, 37, t, exact);
        unsigned char odd[37 * 4 + 1];
        dtype_from_f32(odd + 1, exact, t, 37);
        assert_memory_equal(odd + 1, typed, 37 * dtype_bytes(t));
        dtype_to_f32(back, odd + 1, t, 37);
        assert_memory_equal(back, exact, sizeof back);
        free(typed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_parsed_and_nothing_else),
        cmocka_unit_test(every_f16_widens_exactly_and_comes_back),
        cmocka_unit_test(every_bf16_widens_exactly_and_comes_back),
        cmocka_unit_test(f16_rounds_to_nearest_and_ties_to_even),
        cmocka_unit_test(bf16_rounds_to_nearest_and_ties_to_even),
        cmocka_unit_test(rows_convert_at_any_alignment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
