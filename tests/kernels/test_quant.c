/* test_quant.c - int8 and int4 weights: what is lost, and that nothing else is. */
#include "kernels/cpu/cpu.h"
#include "tests/kernels/product_reference.h"

#define MOST_ROWS 130

static const enum weight_format formats[] = {WEIGHT_Q8, WEIGHT_Q4};

/* Outputs around panels of 16, inputs around groups of 32 and blocks of 256. */
static const struct shape shapes[] = {
    {1, 1},    {3, 31},   {16, 32},  {17, 33},  {15, 64},    {33, 255},
    {50, 256}, {31, 257}, {96, 576}, {21, 288}, {130, 1030},
};

/* ---- weights ---- */

/* The weights of a matrix as its panels hold them. */
static float *unpacked(const struct matrix *m)
{
    float *w = malloc((size_t)m->rows * m->cols * sizeof *w);
    assert_non_null(w);
    for (uint32_t r = 0; r < m->rows; r++) {
        const char *panel = (const char *)m->data +
                            r / PANEL * cpu_panel_bytes(m->format, m->cols, m->type);
        quant_unpack_row(w + (size_t)r * m->cols, panel, m->format, r % PANEL, m->cols);
    }
    return w;
}

/* The step between neighbouring values that a group may take: its range in 254 or 15
 * parts, the scale and the least value rounded to bf16. */
static double step_of(enum weight_format format, const float *w, uint32_t n)
{
    double top = 0, high = w[0], low = w[0];
    for (uint32_t i = 0; i < n; i++) {
        top = fmax(top, fabs(w[i]));
        high = fmax(high, w[i]);
        low = fmin(low, w[i]);
    }
    if (n < QUANT_GROUP) {  // padded with zeros
        high = fmax(high, 0);
        low = fmin(low, 0);
    }
    double up = 1 + 0x1p-7;
    return format == WEIGHT_Q8 ? top / 127 * up
                               : (high - low + fabs(low) * 0x1p-7) / 15 * up;
}

static void a_weight_is_off_by_half_a_step_of_its_group_at_most(void **state)
{
    (void)state;
    struct backend *b = open_path("portable", 1);
    for (size_t f = 0; f < ARRAY_LEN(formats); f++) {
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
            uint32_t rows = shapes[i].rows, cols = shapes[i].cols;
            float *exact = random_floats(i + 1, (size_t)rows * cols);
            // Groups of all sizes, of one sign, and around zero.
            for (uint32_t k = 0; k < rows * cols; k++)
                exact[k] =
                    ldexpf(exact[k] + (float)(k / 96 % 3), (int)(k / 32 % 60) - 30);
            struct matrix m =
                new_matrix_as(b, formats[f], exact, DTYPE_F32, rows, cols, NULL);
            assert_int_equal(
                m.bytes, backend_matrix_bytes(b, formats[f], rows, cols, DTYPE_F32));
            float *got = unpacked(&m);
            for (uint32_t at = 0; at < rows * cols; at++) {
                uint32_t k = at % cols, first = at - k % QUANT_GROUP;
                double step =
                    step_of(formats[f], exact + first,
                            cpu_min(QUANT_GROUP, cols - (k - k % QUANT_GROUP)));
                if (!(fabs((double)got[at] - exact[at]) <= step * 0.50001))
                    fail_msg("%s: %.9g became %.9g, with steps of %.9g",
                             weight_format_name(formats[f]), exact[at], got[at], step);
            }
            backend_matrix_free(b, &m);
            free(got);
            free(exact);
        }
    }
    backend_close(b);
}

static void groups_of_zeros_and_of_extreme_weights_stay_finite(void **state)
{
    (void)state;
    struct backend *b = open_path("portable", 1);
    static const float extremes[] = {0, 3e38f, -3e38f, 1e-40f, -1e-40f, 1};
    for (size_t f = 0; f < ARRAY_LEN(formats); f++) {
        for (size_t i = 0; i < ARRAY_LEN(extremes); i++) {
            float w[QUANT_GROUP * 2] = {0};
            w[3] = extremes[i];
            for (int k = QUANT_GROUP; k < 2 * QUANT_GROUP; k++) w[k] = extremes[i];
            struct matrix m = new_matrix_as(b, formats[f], w, DTYPE_F32, 1, 64, NULL);
            float *got = unpacked(&m);
            for (int k = 0; k < 64; k++) {
                assert_true(isfinite(got[k]));
                double off = fabs((double)got[k] - w[k]);
                assert_true(off <= fabs(extremes[i]) * 0.05 + 1e-38);
            }
            if (extremes[i] == 0) assert_true(got[3] == 0 && got[40] == 0);
            backend_matrix_free(b, &m);
            free(got);
        }
    }
    backend_close(b);
}

/* ---- products ---- */

static void check_shape(struct backend *b, struct shape shape,
                        enum weight_format format)
{
    float *exact = random_floats(shape.cols, (size_t)shape.rows * shape.cols);
    float *bias = random_floats(7, shape.rows);
    bool with_bias = shape.rows % 2;
    struct matrix m = new_matrix_as(b, format, exact, DTYPE_F32, shape.rows, shape.cols,
                                    with_bias ? bias : NULL);
    float *w = unpacked(&m);
    static const uint32_t counts[] = {1, 2, 3, 4, 5, 6, 7, 13, 24, 25, 97, 130};
    check_products(b, &m, w, with_bias ? bias : NULL, counts, ARRAY_LEN(counts),
                   check_quant_product);
    backend_matrix_free(b, &m);
    free(bias);
    free(exact);
    free(w);
}

static void it_is_the_product_on_every_path_format_and_shape(void **state)
{
    (void)state;
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 2);
        if (!b) continue;
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
            for (size_t f = 0; f < ARRAY_LEN(formats); f++)
                check_shape(b, shapes[i], formats[f]);
        }
        backend_close(b);
    }
}

/* y of the same weights and inputs, `group` rows at a time, as one array.  Inputs of very
 * different sizes, some rows of zeros, and some that are no numbers. */
static float *multiply(const char *path, uint32_t threads, enum weight_format format,
                       struct shape shape, uint32_t group)
{
    struct backend *b = open_path(path, threads);
    uint32_t rows = shape.rows, cols = shape.cols;
    float *w = random_floats(3, (size_t)rows * cols), *bias = random_floats(4, rows);
    struct matrix m = new_matrix_as(b, format, w, DTYPE_F32, rows, cols, bias);
    float *fill = random_floats(5, (size_t)MOST_ROWS * cols);
    for (size_t i = 0; i < (size_t)MOST_ROWS * cols; i++)
        fill[i] = ldexpf(fill[i], (int)(i / 32 % 70) - 35);
    memset(fill + (size_t)3 * cols, 0, cols * sizeof *fill);
    fill[(size_t)17 * cols + cols / 2] = NAN;
    fill[(size_t)29 * cols] = -INFINITY;
    fill[(size_t)31 * cols] = 1e-40f;
    float *out = products_by(b, &m, fill, MOST_ROWS, group);
    for (uint32_t c = 0; c < rows; c++) {
        assert_true(out[(size_t)3 * rows + c] == bias[c]);
        assert_true(isnan(out[(size_t)17 * rows + c]));
        assert_true(isnan(out[(size_t)29 * rows + c]));
    }
    backend_matrix_free(b, &m);
    backend_close(b);
    free(fill);
    free(bias);
    free(w);
    return out;
}

/* A NaN is one whatever its sign and payload are. */
static void same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(a[i]) && isnan(b[i])) continue;
        assert_memory_equal(a + i, b + i, sizeof *a);
    }
}

static void
a_row_has_the_same_bits_on_every_path_in_any_batch_on_any_threads(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 2, 3, 5, 6, 7, 8, 23, 24, 25, 33, 100};
    static const struct shape some[] = {{70, 600}, {17, 33}, {40, 1536}};
    for (size_t f = 0; f < ARRAY_LEN(formats); f++) {
        for (size_t i = 0; i < ARRAY_LEN(some); i++) {
            size_t n = (size_t)MOST_ROWS * some[i].rows;
            float *want = multiply("portable", 1, formats[f], some[i], MOST_ROWS);
            for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
                struct backend *here = open_path(paths[p], 1);
                if (!here) continue;
                backend_close(here);
                for (size_t g = 0; g < ARRAY_LEN(groups); g++) {
                    float *got = multiply(paths[p], 1 + (uint32_t)g % 3, formats[f],
                                          some[i], groups[g]);
                    same_bits(got, want, n);
                    free(got);
                }
            }
            free(want);
        }
    }
}

/* ---- the rest of a backend ---- */

static void embed_reads_rows_back(void **state)
{
    (void)state;
    enum { ROWS = 37, COLS = 50 };
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 2);
        if (!b) continue;
        for (size_t f = 0; f < ARRAY_LEN(formats); f++) {
            float *w = random_floats(f, ROWS * COLS);
            struct matrix m =
                new_matrix_as(b, formats[f], w, DTYPE_F32, ROWS, COLS, NULL);
            float *want = unpacked(&m);
            check_embeds(b, &m, want);
            backend_matrix_free(b, &m);
            free(want);
            free(w);
        }
        backend_close(b);
    }
}

static void bf16_is_made_of_any_type_by_rounding(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = 9 };
    struct backend *b = open_path("portable", 1);
    for (size_t t = 0; t < ARRAY_LEN(dtypes); t++) {
        float exact[ROWS * COLS];
        void *typed = random_typed(t, ROWS * COLS, dtypes[t], exact);
        struct matrix m =
            new_matrix_as(b, WEIGHT_BF16, typed, dtypes[t], ROWS, COLS, NULL);
        assert_int_equal(m.type, DTYPE_BF16);
        assert_int_equal(m.format, WEIGHT_OWN);
        for (uint32_t i = 0; i < ROWS * COLS; i++)
            exact[i] = dtype_bf16_to_f32(dtype_f32_to_bf16(exact[i]));
        check_embeds(b, &m, exact);
        backend_matrix_free(b, &m);
        free(typed);
    }
    backend_close(b);
}

static void a_format_has_one_name(void **state)
{
    (void)state;
    enum weight_format f;
    for (int i = WEIGHT_OWN; i <= WEIGHT_Q4; i++) {
        assert_true(weight_format_parse(weight_format_name((enum weight_format)i), &f));
        assert_int_equal(f, i);
    }
    assert_false(weight_format_parse("q5", &f));
    assert_false(weight_format_parse("", &f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_weight_is_off_by_half_a_step_of_its_group_at_most),
        cmocka_unit_test(groups_of_zeros_and_of_extreme_weights_stay_finite),
        cmocka_unit_test(it_is_the_product_on_every_path_format_and_shape),
        cmocka_unit_test(
            a_row_has_the_same_bits_on_every_path_in_any_batch_on_any_threads),
        cmocka_unit_test(embed_reads_rows_back),
        cmocka_unit_test(bf16_is_made_of_any_type_by_rounding),
        cmocka_unit_test(a_format_has_one_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
