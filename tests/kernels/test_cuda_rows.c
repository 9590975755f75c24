/* test_cuda_rows.c - the CUDA backend's operations on rows, each against plain arithmetic in
 * double precision over ragged shapes, in each order of threads.
 */
#include "tests/kernels/fixture_cuda.h"

static const uint32_t widths[] = {1, 3, 8, 30, 64, 130, 257, 576, 1028};
static const uint32_t heights[] = {1, 2, 5, 33};

/* `got` may differ from `want` by some roundings of numbers of size `size`. */
static void check(double want, float got, double size, double roundings)
{
    if (!(fabs(want - (double)got) <= roundings * UNIT_ROUNDOFF * size + 1e-30))
        fail_msg("%.9g is not %.9g", got, want);
}

static void embedding_gives_the_rows_of_the_table_in_every_type(void **state)
{
    (void)state;
    static struct step s;
    struct device d = open_device();
    for (size_t i = 0; i < ARRAY_LEN(widths) * 3; i++) {
        uint32_t cols = widths[i / 3], vocab = 40, rows = heights[i % 4];
        float *exact = malloc(vocab * cols * sizeof *exact);
        void *typed = random_typed(i, vocab * cols, dtypes[i % 3], exact);
        struct matrix table = new_matrix(d.b, typed, dtypes[i % 3], vocab, cols, NULL);
        struct buffer x = new_buffer(d.b, rows, cols);
        step_clear(&s);
        step_add(&s, 0, rows, NULL);
        for (uint32_t r = 0; r < rows; r++) s.ids[r] = (int32_t)(r * 7 % vocab);
        backend_begin(d.b, &s.batch, frequencies(16), 16);
        backend_embed(d.b, &x, &table);
        finish(d.b);
        float *got = get_rows(&d, &x, rows);
        for (uint32_t r = 0; r < rows; r++)
            assert_memory_equal(got + r * cols, exact + (uint32_t)s.ids[r] * cols,
                                cols * sizeof *got);
        free(got);
        free(exact);
        free(typed);
        backend_buffer_free(d.b, &x);
        backend_matrix_free(d.b, &table);
    }
    close_device(&d);
}

static void check_norm(struct device *d, uint32_t rows, uint32_t cols, bool add)
{
    static struct step s;
    struct err err;
    const float eps = 1e-5f;
    float *x = random_floats(rows + cols, (size_t)rows * cols);
    float *delta = random_floats(rows * cols, (size_t)rows * cols);
    float *w = random_floats(cols, cols), *weight = NULL;
    struct buffer bx = new_buffer(d->b, rows, cols), by = new_buffer(d->b, rows, cols);
    struct buffer bd = new_buffer(d->b, rows, cols);
    assert_int_equal(backend_vector_load(d->b, &weight, w, DTYPE_F32, cols, &err), 0);
    put_rows(d, &bx, x, rows);
    put_rows(d, &bd, delta, rows);
    begin_rows(d->b, &s, rows);
    if (add)
        backend_add_rmsnorm(d->b, &by, &bx, &bd, weight, eps);
    else
        backend_rmsnorm(d->b, &by, &bx, weight, eps);
    finish(d->b);
    float *y = get_rows(d, &by, rows), *after = get_rows(d, &bx, rows);
    for (uint32_t r = 0; r < rows; r++) {
        double squares = 0;
        for (uint32_t i = r * cols; i < (r + 1) * cols; i++) {
            if (add) x[i] += delta[i];
            assert_memory_equal(&x[i], &after[i], sizeof x[i]);
            squares += (double)x[i] * x[i];
        }
        double scale = 1 / sqrt(squares / cols + (double)eps);
        for (uint32_t i = 0; i < cols; i++) {
            double want = x[r * cols + i] * scale * w[i];
            check(want, y[r * cols + i], fabs(want), 16 + cols / 64.0);
        }
    }
    free(x);
    free(delta);
    free(w);
    free(y);
    free(after);
    backend_vector_free(d->b, weight);
    backend_buffer_free(d->b, &bx);
    backend_buffer_free(d->b, &by);
    backend_buffer_free(d->b, &bd);
}

static void a_norm_is_the_formula_with_and_without_an_addend(void **state)
{
    (void)state;
    struct device d = open_device();
    for (size_t i = 0; i < ARRAY_LEN(widths) * 2; i++)
        check_norm(&d, heights[i % 4], widths[i / 2], i % 2 == 0);
    close_device(&d);
}

static void the_gate_is_silu_times_up(void **state)
{
    (void)state;
    static struct step s;
    struct device d = open_device();
    for (size_t k = 0; k < ARRAY_LEN(widths); k++) {
        uint32_t n = widths[k], rows = heights[k % 4];
        float *in = random_floats(k, (size_t)rows * 2 * n);
        for (uint32_t i = 0; i < rows * 2 * n; i++) in[i] *= 20;
        struct buffer gu = new_buffer(d.b, rows, 2 * n), y = new_buffer(d.b, rows, n);
        put_rows(&d, &gu, in, rows);
        begin_rows(d.b, &s, rows);
        backend_silu_mul(d.b, &y, &gu);
        finish(d.b);
        float *got = get_rows(&d, &y, rows);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t i = 0; i < n; i++) {
                double g = in[r * 2 * n + i], u = in[r * 2 * n + n + i];
                double want = g / (1 + exp(-g)) * u;
                check(want, got[r * n + i], fabs(want), 16);
            }
        free(in);
        free(got);
        backend_buffer_free(d.b, &gu);
        backend_buffer_free(d.b, &y);
    }
    close_device(&d);
}

/* A head (dim) normed by w where that is there, then turned where it is one of q or k. */
static void turned(double *out, const float *x, const float *w, float eps, uint32_t dim,
                   uint32_t pos, bool turn)
{
    double squares = 0, scale = 1;
    uint32_t half = dim / 2;
    for (uint32_t i = 0; i < dim; i++) squares += (double)x[i] * x[i];
    if (w) scale = 1 / sqrt(squares / dim + (double)eps);
    for (uint32_t i = 0; i < half; i++) {
        float angle = (float)pos * frequencies(dim)[i];
        double c = turn ? cos((double)angle) : 1, n = turn ? sin((double)angle) : 0;
        double a = x[i] * scale * (w ? w[i] : 1);
        double b = x[i + half] * scale * (w ? w[i + half] : 1);
        out[i] = a * c - b * n;
        out[i + half] = b * c + a * n;
    }
}

/* Rows behind the rotary angles of large positions, and both ends of the rotation. */
static void check_rope(struct device *d, uint32_t dim, enum dtype type, bool normed)
{
    static struct step s;
    enum { Q_HEADS = 6, KV_HEADS = 2, HEADS = Q_HEADS + 2 * KV_HEADS, ROWS = 21 };
    uint32_t width = HEADS * dim;
    struct attention_shape a = {Q_HEADS, KV_HEADS, dim, 0, 1};
    struct kv_shape shape = {3, KV_HEADS, dim, type};
    struct kv_pool_mem kv;
    struct err err;
    assert_int_equal(backend_kv_alloc(d->b, &kv, &shape, 9, &err), 0);
    size_t bytes = 9 * kv_block_bytes(&shape);
    char *pool = malloc(bytes);
    struct kv_pool_mem here = {shape, 9, pool};
    memset(pool, 0x55, bytes);
    put(d, kv.base, pool, bytes);
    float *in = random_floats(dim + type, (size_t)ROWS * width);
    float *w[2] = {random_floats(1, dim), random_floats(2, dim)}, *weight[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            backend_vector_load(d->b, &weight[i], w[i], DTYPE_F32, dim, &err), 0);
    const struct qk_norm norm = {weight[0], weight[1], 1e-2f};
    struct buffer qkv = new_buffer(d->b, ROWS, width);
    put_rows(d, &qkv, in, ROWS);
    const uint32_t table[] = {3, 1, 7, 0, 5};
    step_clear(&s);
    step_add(&s, 45, ROWS, table);
    backend_begin(d->b, &s.batch, frequencies(dim), dim);
    backend_rope_store(d->b, &qkv, &kv, 1, &a, normed ? &norm : NULL);
    finish(d->b);
    float *got = get_rows(d, &qkv, ROWS);
    get(d, pool, kv.base, bytes);

    // A norm adds the roundings that check_norm() allows, of numbers up to sqrt(dim).
    double size = normed ? 2 * sqrt(dim) : 2, roundings = normed ? 24 + dim / 64.0 : 8;
    double unit = type == DTYPE_F32 ? 0 : type == DTYPE_F16 ? 8192 : 65536, want[256];
    uint32_t written = 0;
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < HEADS; h++) {
            bool v = h >= Q_HEADS + KV_HEADS, k = h >= Q_HEADS && !v;
            turned(want, in + (size_t)r * width + h * dim, normed && !v ? w[k] : NULL,
                   norm.eps, dim, 45 + r, !v);
            for (uint32_t i = 0; i < dim; i++) {
                if (h < Q_HEADS) {
                    check(want[i], got[(size_t)r * width + h * dim + i], size,
                          roundings);
                    continue;
                }
                float stored =
                    cuda_stored(&here, table, 45 + r, v, (h - Q_HEADS) % KV_HEADS, i);
                check(want[i], stored, size, unit + roundings);
                written++;
            }
        }
    // Nothing else was touched.
    uint32_t other = 0;
    for (size_t i = 0; i < bytes; i++) other += pool[i] == 0x55;
    assert_true(other >= bytes - written * dtype_bytes(type));
    free(pool);
    free(in);
    free(got);
    for (int i = 0; i < 2; i++) {
        free(w[i]);
        backend_vector_free(d->b, weight[i]);
    }
    backend_buffer_free(d->b, &qkv);
    backend_kv_free(d->b, &kv);
}

static void check_ropes(bool normed)
{
    static const uint32_t dims[] = {2, 6, 16, 64, 96, 130, 256};
    struct device d = open_device();
    for (size_t k = 0; k < ARRAY_LEN(dims) * 3; k++)
        check_rope(&d, dims[k / 3], dtypes[k % 3], normed);
    close_device(&d);
}

static void rope_turns_q_and_stores_k_and_v_where_the_table_says(void **state)
{
    (void)state;
    check_ropes(false);
}

static void qk_norm_norms_each_head_of_q_and_k_before_it_is_turned(void **state)
{
    (void)state;
    check_ropes(true);
}

static void a_block_is_copied_whole_within_and_between_steps(void **state)
{
    (void)state;
    static struct step s;
    struct device d = open_device();
    struct kv_shape shape = {2, 2, 16, DTYPE_F16};
    struct kv_pool_mem kv;
    struct err err;
    size_t bytes = kv_block_bytes(&shape);
    assert_int_equal(backend_kv_alloc(d.b, &kv, &shape, 4, &err), 0);
    char *pool = malloc(4 * bytes), *after = malloc(4 * bytes);
    for (size_t i = 0; i < 4 * bytes; i++) pool[i] = (char)(i * 7 + i / bytes);
    put(&d, kv.base, pool, 4 * bytes);

    backend_copy_block(d.b, &kv, 2, 0);
    begin_rows(d.b, &s, 1);
    backend_copy_block(d.b, &kv, 3, 2);
    backend_copy_block(d.b, &kv, 1, 1);
    finish(d.b);
    get(&d, after, kv.base, 4 * bytes);
    assert_memory_equal(after, pool, 2 * bytes);
    assert_memory_equal(after + 2 * bytes, pool, bytes);
    assert_memory_equal(after + 3 * bytes, pool, bytes);
    free(pool);
    free(after);
    backend_kv_free(d.b, &kv);
    close_device(&d);
}

/* Rounded inputs of products are the widest of what a backend takes at opening. */
static void scratch_holds_the_inputs_of_products_for_the_rows_and_columns(void **state)
{
    (void)state;
    size_t bytes[2];
    struct device d = open_device();  // or skips
    close_device(&d);
    for (uint32_t i = 0; i < 2; i++) {
        struct backend_options o = {.limits = wide_limits};
        struct backend *b = NULL;
        struct err err;
        o.limits.max_cols = 1001 + 100 * i;  // in eights: 1008 and 1104
        if (backend_open(&b, "cuda", &o, &err)) fail_msg("%s", err.msg);
        bytes[i] = backend_scratch_bytes(b);
        backend_close(b);
    }
    assert_int_equal(bytes[1] - bytes[0], wide_limits.max_rows * 96 * 2);
}

/* Three sequences decode: their step would be padded to four rows. */
static void padding_stays_out_of_buffers_that_have_no_room_for_it(void **state)
{
    (void)state;
    static struct step s;
    enum { COLS = 40, VOCAB = 10, ROWS = 3 };
    struct device d = open_device();
    float *table = random_floats(1, (size_t)VOCAB * COLS), *logits = NULL;
    struct matrix m = new_matrix(d.b, table, DTYPE_F32, VOCAB, COLS, NULL);
    // As large as four rows, of which the last one is not given.
    struct buffer x = new_buffer(d.b, ROWS + 1, COLS);
    struct buffer last = new_buffer(d.b, ROWS + 1, COLS);
    float *before = random_floats(2, (size_t)(ROWS + 1) * COLS);
    struct err err;
    assert_int_equal(backend_logits_alloc(d.b, &logits, ROWS, VOCAB, &err), 0);
    // Too little room in one of the three at a time.
    for (int tight = 0; tight < 3; tight++) {
        put_rows(&d, &x, before, ROWS + 1);
        put_rows(&d, &last, before, ROWS + 1);
        struct buffer x3 = x, last3 = last;
        if (tight == 0) x3.rows = ROWS;
        if (tight == 1) last3.rows = ROWS;
        step_clear(&s);
        for (uint32_t i = 0; i < ROWS; i++) {
            step_add(&s, 0, 1, &i);
            s.ids[i] = (int32_t)i;
            s.logit_rows[i] = i;
        }
        s.batch.n_logits = ROWS;
        backend_begin(d.b, &s.batch, frequencies(16), 16);
        backend_embed(d.b, &x3, &m);
        backend_gather_logit_rows(d.b, &last3, &x3);
        if (tight == 2) backend_logits(d.b, logits, &m, &last3);
        finish(d.b);
        float *got = get_rows(&d, &x, ROWS + 1), *end = get_rows(&d, &last, ROWS + 1);
        assert_memory_equal(got, table, ROWS * COLS * sizeof *got);
        assert_memory_equal(end, table, ROWS * COLS * sizeof *end);
        assert_memory_equal(got + ROWS * COLS, before + ROWS * COLS,
                            COLS * sizeof *got);
        assert_memory_equal(end + ROWS * COLS, before + ROWS * COLS,
                            COLS * sizeof *end);
        free(got);
        free(end);
    }
    free(before);
    free(table);
    backend_logits_free(d.b, logits);
    backend_buffer_free(d.b, &x);
    backend_buffer_free(d.b, &last);
    backend_matrix_free(d.b, &m);
    close_device(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_gives_the_rows_of_the_table_in_every_type),
        cmocka_unit_test(a_norm_is_the_formula_with_and_without_an_addend),
        cmocka_unit_test(the_gate_is_silu_times_up),
        cmocka_unit_test(rope_turns_q_and_stores_k_and_v_where_the_table_says),
        cmocka_unit_test(qk_norm_norms_each_head_of_q_and_k_before_it_is_turned),
        cmocka_unit_test(a_block_is_copied_whole_within_and_between_steps),
        cmocka_unit_test(padding_stays_out_of_buffers_that_have_no_room_for_it),
        cmocka_unit_test(scratch_holds_the_inputs_of_products_for_the_rows_and_columns),
    };
    return run_in_each_order(tests, ARRAY_LEN(tests));
}
