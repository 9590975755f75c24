#include "tests/kernels/product_reference.h"

#define MOST_ROWS 200

/* Outputs around panels of 16, inputs around vectors of 8 and blocks of 256. */
static const struct shape shapes[] = {
    {1, 1}, {3, 5}, {16, 8}, {17, 33}, {50, 256}, {33, 257}, {96, 576}, {130, 1030},
};

static void check_shape(struct backend *b, struct shape shape, enum dtype t,
                        bool with_bias)
{
    size_t n = (size_t)shape.rows * shape.cols;
    float *w = malloc(n * sizeof *w), *bias = random_floats(7, shape.rows);
    void *typed = random_typed(shape.rows, n, t, w);
    struct matrix m =
        new_matrix(b, typed, t, shape.rows, shape.cols, with_bias ? bias : NULL);
    assert_int_equal(m.bytes,
                     backend_matrix_bytes(b, WEIGHT_OWN, shape.rows, shape.cols, t));
    static const uint32_t counts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,
                                      12, 13, 16, 17, 31, 32, 33, 97, 200};
    check_products(b, &m, w, with_bias ? bias : NULL, counts, ARRAY_LEN(counts),
                   backend_rounds(b, t) ? check_rounded_product : check_product);
    backend_matrix_free(b, &m);
    free(typed);
    free(bias);
    free(w);
}

static void it_is_the_product_on_every_path_type_and_shape(void **state)
{
    (void)state;
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 2);
        if (!b) continue;
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
            for (size_t t = 0; t < ARRAY_LEN(dtypes); t++) {
                check_shape(b, shapes[i], dtypes[t], (i + t) % 2);
            }
        }
        backend_close(b);
    }
}

/* y of the same weights and inputs, `group` rows at a time, as one array. */
static float *multiply(const char *path, uint32_t threads, enum dtype t, uint32_t rows,
                       uint32_t cols, uint32_t group)
{
    struct backend *b = open_path(path, threads);
    float *exact = malloc((size_t)rows * cols * sizeof *exact);
    void *typed = random_typed(3, (size_t)rows * cols, t, exact);
    float *bias = random_floats(4, rows);
    struct matrix m = new_matrix(b, typed, t, rows, cols, bias);
    float *fill = random_floats(5, (size_t)MOST_ROWS * cols);
    float *out = products_by(b, &m, fill, MOST_ROWS, group);
    backend_matrix_free(b, &m);
    backend_close(b);
    free(fill);
    free(bias);
    free(typed);
    free(exact);
    return out;
}

static void a_row_has_the_same_bits_in_any_batch_on_any_number_of_threads(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 2, 3, 5, 6, 7, 8, 16, 33, 100, 151};
    // On one thread an item has four panels: side by side, and some that are not.
    enum { ROWS = 118, COLS = 600 };
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *here = open_path(paths[p], 1);
        if (!here) continue;
        backend_close(here);
        bool emulated = path_is_emulated(paths[p]);
        for (size_t t = 0; t < ARRAY_LEN(dtypes); t++) {
            float *whole = multiply(paths[p], 1, dtypes[t], ROWS, COLS, MOST_ROWS);
            for (size_t i = emulated ? t : 0; i < ARRAY_LEN(groups);
                 i += emulated ? 3 : 1) {
                uint32_t threads = 1 + (uint32_t)i % 3;
                float *part =
                    multiply(paths[p], threads, dtypes[t], ROWS, COLS, groups[i]);
                assert_memory_equal(part, whole, MOST_ROWS * ROWS * sizeof *whole);
                free(part);
            }
            free(whole);
        }
    }
}

/* How weights lie and widen changes nothing: the same values in f32 make the same bits
 * wherever inputs are not rounded. */
static void weights_in_16_bits_multiply_as_the_same_values_in_f32(void **state)
{
    (void)state;
    enum { ROWS = 24 };
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 2);
        if (!b) continue;
        for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
            for (size_t t = 1; t < ARRAY_LEN(dtypes); t++) {
                if (backend_rounds(b, dtypes[t])) continue;
                uint32_t rows = shapes[i].rows, cols = shapes[i].cols;
                float *w = malloc((size_t)rows * cols * sizeof *w);
                float *x = random_floats(6, (size_t)ROWS * cols);
                void *typed = random_typed(i, (size_t)rows * cols, dtypes[t], w);
                struct matrix narrow =
                    new_matrix(b, typed, dtypes[t], rows, cols, NULL);
                struct matrix wide = new_matrix(b, w, DTYPE_F32, rows, cols, NULL);
                float *got = products_by(b, &narrow, x, ROWS, 1 + (uint32_t)i);
                float *want = products_by(b, &wide, x, ROWS, ROWS);
                assert_memory_equal(got, want, (size_t)ROWS * rows * sizeof *want);
                free(got);
                free(want);
                backend_matrix_free(b, &narrow);
                backend_matrix_free(b, &wide);
                free(typed);
                free(x);
                free(w);
            }
        }
        backend_close(b);
    }
}

static void parts_are_stacked_and_mixed_types_kept_exactly(void **state)
{
    (void)state;
    static struct step s;
    enum { COLS = 24 };
    float exact[3][20 * COLS], bias[20] = {1, 2, 3};
    void *data[3];
    for (size_t i = 0; i < 3; i++)
        data[i] = random_typed(i, 20 * COLS, dtypes[i], exact[i]);
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 2);
        if (!b) continue;
        struct matrix m;
        struct err err;
        struct matrix_part parts[3] = {{data[0], DTYPE_F32, 7, bias},
                                       {data[1], DTYPE_F16, 13, bias},
                                       {data[2], DTYPE_BF16, 20, bias}};
        assert_int_equal(backend_matrix_load(b, &m, WEIGHT_OWN, COLS, parts, 3, &err),
                         0);
        assert_int_equal(m.type, DTYPE_F32);
        assert_int_equal(m.rows, 40);

        struct buffer x = new_buffer(b, 40, COLS);
        step_clear(&s);
        step_add(&s, 0, 40, NULL);
        for (int32_t i = 0; i < 40; i++) s.ids[i] = 39 - i;
        backend_begin(b, &s.batch, frequencies(16), 16);
        backend_embed(b, &x, &m);
        finish(b);
        for (uint32_t r = 0; r < 40; r++) {
            uint32_t id = 39 - r, part = id < 7 ? 0 : id < 20 ? 1 : 2;
            uint32_t row = id - (const uint32_t[]){0, 7, 20}[part];
            assert_memory_equal((float *)x.data + r * COLS, exact[part] + row * COLS,
                                COLS * sizeof(float));
        }
        assert_true(m.bias[7] == 1 && m.bias[8] == 2 && m.bias[20] == 1);
        backend_matrix_free(b, &m);

        parts[1].bias = NULL;
        assert_int_equal(backend_matrix_load(b, &m, WEIGHT_OWN, COLS, parts, 3, &err),
                         -EINVAL);
        assert_non_null(strstr(err.msg, "2 of 3 parts"));
        backend_buffer_free(b, &x);
        backend_close(b);
    }
    for (size_t i = 0; i < 3; i++) free(data[i]);
}

static void weights_keep_their_type_and_embed_reads_it_back(void **state)
{
    (void)state;
    enum { ROWS = 37, COLS = 51 };
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 2);
        if (!b) continue;
        for (size_t t = 0; t < ARRAY_LEN(dtypes); t++) {
            float exact[ROWS * COLS];
            void *typed = random_typed(t, ROWS * COLS, dtypes[t], exact);
            struct matrix m = new_matrix(b, typed, dtypes[t], ROWS, COLS, NULL);
            assert_int_equal(m.type, dtypes[t]);
            uint32_t kept = dtypes[t] == DTYPE_BF16 ? COLS + 1 : COLS;
            assert_int_equal(m.bytes, 48 * kept * dtype_bytes(dtypes[t]));
            check_embeds(b, &m, exact);
            backend_matrix_free(b, &m);
            free(typed);
        }
        backend_close(b);
    }
}

static void logits_are_the_product_of_the_gathered_rows(void **state)
{
    (void)state;
    static struct step s;
    enum { VOCAB = 90, COLS = 40 };
    struct err err;
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 2);
        if (!b) continue;
        float *w = random_floats(1, VOCAB * COLS), *logits;
        struct matrix m = new_matrix(b, w, DTYPE_F32, VOCAB, COLS, NULL);
        struct buffer x = new_buffer(b, 20, COLS), last = new_buffer(b, 3, COLS);
        struct buffer all = new_buffer(b, 20, VOCAB);
        assert_int_equal(backend_logits_alloc(b, &logits, 3, VOCAB, &err), 0);
        float *fill = random_floats(2, 20 * COLS);
        memcpy(x.data, fill, 20 * COLS * sizeof *fill);

        step_clear(&s);
        step_add(&s, 0, 20, NULL);
        s.batch.n_logits = 3;
        memcpy(s.logit_rows, (const uint32_t[]){2, 11, 19}, 3 * sizeof(uint32_t));
        backend_begin(b, &s.batch, frequencies(16), 16);
        backend_matmul(b, &all, &m, &x);
        backend_gather_logit_rows(b, &last, &x);
        backend_logits(b, logits, &m, &last);
        finish(b);
        for (uint32_t i = 0; i < 3; i++) {
            assert_memory_equal(logits + i * VOCAB,
                                (float *)all.data + s.logit_rows[i] * VOCAB,
                                VOCAB * sizeof(float));
        }
        backend_matrix_free(b, &m);
        backend_buffer_free(b, &x);
        backend_buffer_free(b, &last);
        backend_buffer_free(b, &all);
        backend_logits_free(b, logits);
        backend_close(b);
        free(w);
        free(fill);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_product_on_every_path_type_and_shape),
        cmocka_unit_test(a_row_has_the_same_bits_in_any_batch_on_any_number_of_threads),
        cmocka_unit_test(weights_in_16_bits_multiply_as_the_same_values_in_f32),
        cmocka_unit_test(parts_are_stacked_and_mixed_types_kept_exactly),
        cmocka_unit_test(weights_keep_their_type_and_embed_reads_it_back),
        cmocka_unit_test(logits_are_the_product_of_the_gathered_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
