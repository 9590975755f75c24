/* test_rows.c - norms, activation, RoPE and the KV blocks, against double precision. */
#include "tests/kernels/fixture.h"

#define ROWS 37

static const uint32_t widths[] = {1, 7, 8, 15, 33, 64, 576, 1030};

static void fill(struct buffer *x, uint64_t seed)
{
    float *v = random_floats(seed, (size_t)x->rows * x->cols);
    memcpy(x->data, v, (size_t)x->rows * x->cols * sizeof *v);
    free(v);
}

static float at(const struct buffer *x, uint32_t r, uint32_t c)
{
    return ((const float *)x->data)[(size_t)r * x->cols + c];
}

/* The sum of squares has no cancellation, so n roundings bound its relative error, the
 * root halves it, and some more follow: (n / 2 + 8) roundings of the result. */
static void check_norm(const struct buffer *y, const struct buffer *x, const float *w,
                       float eps)
{
    uint32_t n = x->cols;
    for (uint32_t r = 0; r < ROWS; r++) {
        double sum = 0;
        for (uint32_t c = 0; c < n; c++) sum += (double)at(x, r, c) * at(x, r, c);
        for (uint32_t c = 0; c < n; c++) {
            double want = at(x, r, c) / sqrt(sum / n + eps) * w[c];
            double tolerance = (n / 2.0 + 8) * UNIT_ROUNDOFF * fabs(want);
            assert_true(fabs(at(y, r, c) - want) <= tolerance);
        }
    }
}

static void rmsnorm_is_its_formula_in_place_or_not(void **state)
{
    (void)state;
    static struct step s;
    for (size_t p = 0; p < ARRAY_LEN(paths) * ARRAY_LEN(widths); p++) {
        struct backend *b = open_path(paths[p % ARRAY_LEN(paths)], 2);
        if (!b) continue;
        uint32_t n = widths[p / ARRAY_LEN(paths)];
        struct buffer x = new_buffer(b, ROWS, n), y = new_buffer(b, ROWS, n);
        float *w = random_floats(3, n);
        fill(&x, 4);
        begin_rows(b, &s, ROWS);
        backend_rmsnorm(b, &y, &x, w, 1e-5f);
        finish(b);
        check_norm(&y, &x, w, 1e-5f);

        begin_rows(b, &s, ROWS);
        backend_rmsnorm(b, &x, &x, w, 1e-5f);
        finish(b);
        assert_memory_equal(x.data, y.data, (size_t)ROWS * n * sizeof(float));
        backend_buffer_free(b, &x);
        backend_buffer_free(b, &y);
        backend_close(b);
        free(w);
    }
}

static void add_rmsnorm_keeps_the_sum_and_norms_it(void **state)
{
    (void)state;
    static struct step s;
    for (size_t p = 0; p < ARRAY_LEN(paths) * ARRAY_LEN(widths); p++) {
        struct backend *b = open_path(paths[p % ARRAY_LEN(paths)], 2);
        if (!b) continue;
        uint32_t n = widths[p / ARRAY_LEN(paths)];
        struct buffer x = new_buffer(b, ROWS, n), y = new_buffer(b, ROWS, n);
        struct buffer d = new_buffer(b, ROWS, n), before = new_buffer(b, ROWS, n);
        float *w = random_floats(3, n);
        fill(&x, 4);
        fill(&before, 4);
        fill(&d, 5);
        begin_rows(b, &s, ROWS);
        backend_add_rmsnorm(b, &y, &x, &d, w, 1e-6f);
        finish(b);
        for (uint32_t i = 0; i < ROWS * n; i++) {
            assert_true(at(&x, 0, i) == at(&before, 0, i) + at(&d, 0, i));
        }
        check_norm(&y, &x, w, 1e-6f);
        backend_buffer_free(b, &x);
        backend_buffer_free(b, &y);
        backend_buffer_free(b, &d);
        backend_buffer_free(b, &before);
        backend_close(b);
        free(w);
    }
}

/* exp within 2 ulp, then an addition, a division and a product: 8 roundings are plenty,
 * and where exp(-g) leaves f32 the result is within 1e-36 of 0. */
static void silu_mul_is_its_formula_for_large_and_small_gates(void **state)
{
    (void)state;
    static struct step s;
    for (size_t p = 0; p < ARRAY_LEN(paths) * ARRAY_LEN(widths); p++) {
        struct backend *b = open_path(paths[p % ARRAY_LEN(paths)], 2);
        if (!b) continue;
        uint32_t n = widths[p / ARRAY_LEN(paths)];
        struct buffer gu = new_buffer(b, ROWS, 2 * n), y = new_buffer(b, ROWS, n);
        fill(&gu, 6);
        for (uint32_t r = 0; r < ROWS; r++) {
            ((float *)gu.data)[(size_t)r * 2 * n] *= (float)(r * r);
        }
        begin_rows(b, &s, ROWS);
        backend_silu_mul(b, &y, &gu);
        finish(b);
        for (uint32_t r = 0; r < ROWS; r++) {
            for (uint32_t c = 0; c < n; c++) {
                double g = at(&gu, r, c), u = at(&gu, r, n + c);
                double want = g / (1 + exp(-g)) * u;
                double tolerance = 8 * UNIT_ROUNDOFF * fabs(want) + 1e-34;
                assert_true(fabs(at(&y, r, c) - want) <= tolerance);
            }
        }
        backend_buffer_free(b, &gu);
        backend_buffer_free(b, &y);
        backend_close(b);
    }
}

/* x normed by w where that is there. */
static void norm_head(double *out, const float *x, const float *w, float eps,
                      uint32_t dim)
{
    double sum = 0;
    for (uint32_t d = 0; d < dim; d++) sum += (double)x[d] * x[d];
    for (uint32_t d = 0; d < dim; d++)
        out[d] = w ? x[d] / sqrt(sum / dim + eps) * w[d] : x[d];
}

/* x rotated as HF does: rotate_half, with the angle an f32 product. */
static double rotated(const double *x, uint32_t dim, uint32_t d, uint32_t pos,
                      const float *inv_freq)
{
    uint32_t half = dim / 2, i = d % half;
    double angle = (float)pos * inv_freq[i];
    double other = d < half ? -x[d + half] : x[d - half];
    return x[d] * cos(angle) + other * sin(angle);
}

/* With or without the norms, which differ between q and k. */
static void check_rope(struct backend *b, uint32_t dim, enum dtype t, bool normed)
{
    float *w = random_floats(dim, 2 * dim);
    const struct qk_norm norm = {w, w + dim, 1e-2f};
    static struct step s;
    struct attention_shape a = {4, 2, dim, 0, 1};
    struct kv_shape shape = {3, 2, dim, t};
    struct kv_pool_mem kv;
    struct err err;
    assert_int_equal(backend_kv_alloc(b, &kv, &shape, 12, &err), 0);
    memset(kv.base, 0, 12 * kv_block_bytes(&shape));
    static const uint32_t table[] = {7, 3, 11, 0, 5, 2, 9};
    struct buffer qkv = new_buffer(b, ROWS, 8 * dim),
                  before = new_buffer(b, ROWS, 8 * dim);
    fill(&qkv, 8);
    fill(&before, 8);
    step_clear(&s);
    step_add(&s, 70, ROWS, table);
    const float *inv_freq = frequencies(dim);
    backend_begin(b, &s.batch, inv_freq, dim);
    backend_rope_store(b, &qkv, &kv, 1, &a, normed ? &norm : NULL);
    finish(b);
    // A norm's own roundings are those of check_norm() for two numbers of a larger size.
    double tolerance = (normed ? dim + 22 : 6) * UNIT_ROUNDOFF;
    double x[128], size = 1;
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t i = 0; i < 8 * dim; i++) {
            uint32_t head = i / dim, d = i % dim, pos = 70 + r;
            const float *from = (float *)before.data + (size_t)r * 8 * dim + head * dim;
            const float *weight = head < 4 ? norm.q : norm.k;
            if (d == 0) {
                norm_head(x, from, normed && head < 6 ? weight : NULL, norm.eps, dim);
                size = 1;
                for (uint32_t k = 0; k < dim; k++) size = fmax(size, fabs(x[k]));
            }
            double want = head < 6 ? rotated(x, dim, d, pos, inv_freq) : x[d];
            assert_true(fabs(at(&qkv, r, i) - want) <= tolerance * size);
            if (head < 4) continue;
            float exact = at(&qkv, r, i), kept;
            uint32_t narrow;
            dtype_from_f32(&narrow, &exact, t, 1);
            dtype_to_f32(&kept, &narrow, t, 1);
            assert_true(cpu_stored(&kv, table, pos, head >= 6, head % 2, d) == kept);
        }
    }
    // Nothing but the 37 tokens of one layer was touched.
    size_t touched = 0, bytes = 12 * kv_block_bytes(&shape), element = dtype_bytes(t);
    static const char zero[4];
    for (size_t i = 0; i < bytes; i += element) {
        touched += memcmp((char *)kv.base + i, zero, element) != 0;
    }
    assert_in_range(touched, ROWS * 4 * dim - 4, ROWS * 4 * dim);  // a random 0 may be
    free(w);
    backend_kv_free(b, &kv);
    backend_buffer_free(b, &qkv);
    backend_buffer_free(b, &before);
}

static void check_ropes(bool normed)
{
    static const uint32_t dims[] = {2, 6, 16, 64, 80, 128};
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 2);
        if (!b) continue;
        for (size_t i = 0; i < ARRAY_LEN(dims) * 3; i++) {
            check_rope(b, dims[i / 3], dtypes[i % 3], normed);
        }
        backend_close(b);
    }
}

static void rope_rotates_halves_and_stores_in_the_tables_blocks(void **state)
{
    (void)state;
    check_ropes(false);
}

static void qk_norm_norms_each_head_of_q_and_k_before_it_is_rotated(void **state)
{
    (void)state;
    check_ropes(true);
}

static void copying_a_block_copies_all_layers_and_no_other_block(void **state)
{
    (void)state;
    struct backend *b = open_path("portable", 1);
    struct kv_shape shape = {3, 2, 8, DTYPE_BF16};
    struct kv_pool_mem kv;
    struct err err;
    assert_int_equal(backend_kv_alloc(b, &kv, &shape, 4, &err), 0);
    size_t n = kv_block_bytes(&shape);
    for (uint32_t i = 0; i < 4; i++) memset((char *)kv.base + i * n, (int)i, n);
    backend_copy_block(b, &kv, 2, 1);
    backend_copy_block(b, &kv, 3, 3);
    finish(b);
    static const char want[] = {0, 1, 1, 3};
    for (size_t i = 0; i < 4 * n; i++) {
        assert_int_equal(((char *)kv.base)[i], want[i / n]);
    }
    backend_kv_free(b, &kv);
    backend_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_is_its_formula_in_place_or_not),
        cmocka_unit_test(add_rmsnorm_keeps_the_sum_and_norms_it),
        cmocka_unit_test(silu_mul_is_its_formula_for_large_and_small_gates),
        cmocka_unit_test(rope_rotates_halves_and_stores_in_the_tables_blocks),
        cmocka_unit_test(qk_norm_norms_each_head_of_q_and_k_before_it_is_rotated),
        cmocka_unit_test(copying_a_block_copies_all_layers_and_no_other_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
