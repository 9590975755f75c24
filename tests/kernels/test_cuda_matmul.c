/* test_cuda_matmul.c - products on the CUDA backend: own kernels for few rows, cuBLAS beyond.
 *
 * The reference sums in double precision what the backend multiplies: x rounded to the
 * matrix' type.  An f32 sum of n terms in any order is wrong by at most n roundings of the
 * sum of their sizes.
 */
#include "tests/kernels/fixture_cuda.h"

#define FEW 32  // rows that own kernels multiply

struct product {
    enum dtype type;
    uint32_t rows, outputs, cols;
    bool biased;
};

static struct product all[64];

static void check_product(const struct product *p, const float *x, const float *w,
                          const float *bias, const float *y)
{
    for (uint32_t r = 0; r < p->rows; r++)
        for (uint32_t o = 0; o < p->outputs; o++) {
            double want = bias ? bias[o] : 0, size = fabs(want);
            for (uint32_t k = 0; k < p->cols; k++) {
                double term = (double)x[r * p->cols + k] * w[o * p->cols + k];
                want += term;
                size += fabs(term);
            }
            double got = y[r * p->outputs + o];
            double tolerance = (p->cols + 2) * UNIT_ROUNDOFF * size;
            if (!(fabs(want - got) <= tolerance))
                fail_msg("%s, %u rows of %u, output %u of %u: %.9g is not %.9g",
                         dtype_name(p->type), p->rows, p->cols, o, p->outputs, got,
                         want);
        }
}

/* On the stand-in, for a while: not even the copies of weights, which a product waits for. */
static void nothing_runs_before_it_must(bool lazy)
{
    order_streams(lazy ? STANDIN_LAZY : STANDIN_RANDOM);
}

/* y of the product; x is rounded as the backend does. */
static float *multiply(struct device *d, const struct product *p, uint64_t seed,
                       bool check)
{
    static struct step s;
    size_t nx = (size_t)p->rows * p->cols, nw = (size_t)p->outputs * p->cols;
    float *x = random_floats(seed, nx), *w = malloc(nw * sizeof *w);
    float *bias = p->biased ? random_floats(seed + 2, p->outputs) : NULL;
    void *typed = random_typed(seed + 1, nw, p->type, w);
    struct buffer bx = new_buffer(d->b, p->rows, p->cols);
    struct buffer by = new_buffer(d->b, p->rows, p->outputs);
    put_rows(d, &bx, x, p->rows);
    nothing_runs_before_it_must(true);
    struct matrix m = new_matrix(d->b, typed, p->type, p->outputs, p->cols, bias);
    begin_rows(d->b, &s, p->rows);
    backend_matmul(d->b, &by, &m, &bx);
    finish(d->b);
    nothing_runs_before_it_must(false);
    float *y = get_rows(d, &by, p->rows);
    round_to(p->type, x, nx);
    if (check) check_product(p, x, w, bias, y);
    free(x);
    free(w);
    free(bias);
    free(typed);
    backend_buffer_free(d->b, &bx);
    backend_buffer_free(d->b, &by);
    backend_matrix_free(d->b, &m);
    return y;
}

/* Of 500 and of 2,100 columns every part of the sum has some, the last one fewer, and of the
 * latter more than are loaded at once.  Under TSan that would take minutes. */
static size_t ragged(void)
{
    static const uint32_t rows[] = {1, 2, 7, 8, 9, 16, 17, 32, 33, 40};
    static const uint32_t outputs[] = {1, 15, 16, 17, 100};
    const uint32_t cols[] = {1, 7, 8, 33, 64, 500, TSAN ? 257 : 2100};
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        all[n++] = (struct product){dtypes[i % 3], rows[i % ARRAY_LEN(rows)],
                                    outputs[i / 3 % ARRAY_LEN(outputs)],
                                    cols[i % ARRAY_LEN(cols)], i % 4 == 1};
    return n;
}

static void a_product_is_the_sum_of_rounded_terms_for_every_shape(void **state)
{
    (void)state;
    struct device d = open_device();
    for (size_t i = 0, n = ragged(); i < n; i++) free(multiply(&d, &all[i], i, true));
    close_device(&d);
}

/* The rows that came first are the same numbers, whatever else was in the batch. */
static void check_bits_among(struct device *d, struct product p, bool check,
                             const uint32_t *fewer, size_t n)
{
    float *whole = multiply(d, &p, 9, check);
    for (size_t i = 0; i < n; i++) {
        p.rows = fewer[i];
        float *part = multiply(d, &p, 9, false);
        assert_memory_equal(part, whole, (size_t)fewer[i] * p.outputs * sizeof *part);
        free(part);
    }
    free(whole);
}

static void a_row_has_the_same_bits_among_any_few_others(void **state)
{
    (void)state;
    static const uint32_t fewer[] = {1, 3, 8, 9, 16, 31};
    struct device d = open_device();
    for (int t = 0; t < 3; t++) {
        struct product p = {dtypes[t], FEW, 40, 500, false};
        check_bits_among(&d, p, false, fewer, ARRAY_LEN(fewer));
    }
    close_device(&d);
}

static void with_own_kernels_only_the_same_holds_among_any_number(void **state)
{
    (void)state;
    static const uint32_t columns[] = {31, 500}, fewer[] = {1, 33, 65};
    struct device d = open_device_as(true);
    for (size_t k = 0; k < ARRAY_LEN(columns) * 3; k++) {
        struct product p = {dtypes[k % 3], 100, 70, columns[k / 3], k % 2 == 1};
        check_bits_among(&d, p, true, fewer, ARRAY_LEN(fewer));
    }
    close_device(&d);
}

/* More of them than there are buffers that they go through. */
static void stacked_parts_of_several_types_are_one_matrix(void **state)
{
    (void)state;
    static struct step s;
    struct device d = open_device();
    enum { COLS = 24, ROWS = 5 };
    float w[12 * COLS], bias[12];
    uint16_t *a = random_typed(1, 7 * COLS, DTYPE_BF16, w);
    float *c = random_typed(2, 5 * COLS, DTYPE_F32, w + 7 * COLS);
    struct matrix_part parts[12];
    for (int i = 0; i < 12; i++) {
        bias[i] = (float)i;
        parts[i] =
            i < 7 ? (struct matrix_part){a + i * COLS, DTYPE_BF16, 1, bias + i}
                  : (struct matrix_part){c + (i - 7) * COLS, DTYPE_F32, 1, bias + i};
    }
    struct matrix m;
    struct err err;
    nothing_runs_before_it_must(true);
    assert_int_equal(backend_matrix_load(d.b, &m, WEIGHT_OWN, COLS, parts, 12, &err),
                     0);
    nothing_runs_before_it_must(false);
    assert_int_equal(m.type, DTYPE_F32);
    float *x = random_floats(3, ROWS * COLS);
    struct buffer bx = new_buffer(d.b, ROWS, COLS), by = new_buffer(d.b, ROWS, 12);
    put_rows(&d, &bx, x, ROWS);
    begin_rows(d.b, &s, ROWS);
    backend_matmul(d.b, &by, &m, &bx);
    finish(d.b);
    float *y = get_rows(&d, &by, ROWS);
    struct product p = {DTYPE_F32, ROWS, 12, COLS, true};
    check_product(&p, x, w, bias, y);
    free(a);
    free(c);
    free(x);
    free(y);
    backend_buffer_free(d.b, &bx);
    backend_buffer_free(d.b, &by);
    backend_matrix_free(d.b, &m);
    close_device(&d);
}

/* A norm that rounds its own result for the product behind it, against a pass that does. */
static void an_operand_is_the_same_whoever_rounds_it(void **state)
{
    (void)state;
    static struct step s;
    struct device d = open_device();
    struct err err;
    enum { ROWS = 3, COLS = 40, OUT = 20 };
    for (int t = 1; t < 3; t++) {
        float exact[OUT * COLS], *ones = random_floats(8, COLS), *w;
        void *typed = random_typed(7, OUT * COLS, dtypes[t], exact);
        struct matrix m = new_matrix(d.b, typed, dtypes[t], OUT, COLS, NULL);
        struct buffer x = new_buffer(d.b, ROWS, COLS), h = new_buffer(d.b, ROWS, COLS);
        struct buffer fused = new_buffer(d.b, ROWS, OUT),
                      apart = new_buffer(d.b, ROWS, OUT);
        float *in = random_floats(6, ROWS * COLS);
        assert_int_equal(backend_vector_load(d.b, &w, ones, DTYPE_F32, COLS, &err), 0);
        put_rows(&d, &x, in, ROWS);
        begin_rows(d.b, &s, ROWS);
        backend_rmsnorm(d.b, &h, &x, w, 1e-5f);
        backend_matmul(d.b, &fused, &m, &h);
        backend_matmul(d.b, &apart, &m, &h);
        finish(d.b);
        float *a = get_rows(&d, &fused, ROWS), *b = get_rows(&d, &apart, ROWS);
        assert_memory_equal(a, b, ROWS * OUT * sizeof *a);
        free(a);
        free(b);
        free(in);
        free(ones);
        free(typed);
        backend_vector_free(d.b, w);
        backend_buffer_free(d.b, &x);
        backend_buffer_free(d.b, &h);
        backend_buffer_free(d.b, &fused);
        backend_buffer_free(d.b, &apart);
        backend_matrix_free(d.b, &m);
    }
    close_device(&d);
}

static void logits_of_the_wanted_rows_reach_the_host(void **state)
{
    (void)state;
    static struct step s;
    struct device d = open_device();
    struct err err;
    enum { ROWS = 6, COLS = 32, VOCAB = 70 };
    float exact[VOCAB * COLS], *logits;
    void *typed = random_typed(7, VOCAB * COLS, DTYPE_BF16, exact);
    struct matrix m = new_matrix(d.b, typed, DTYPE_BF16, VOCAB, COLS, NULL);
    struct buffer x = new_buffer(d.b, ROWS, COLS), last = new_buffer(d.b, ROWS, COLS);
    float *in = random_floats(6, ROWS * COLS), wanted[3 * COLS];
    assert_int_equal(backend_logits_alloc(d.b, &logits, ROWS, VOCAB, &err), 0);
    put_rows(&d, &x, in, ROWS);
    step_clear(&s);
    step_add(&s, 0, ROWS, NULL);
    static const uint32_t rows[] = {0, 3, 5};
    memcpy(s.logit_rows, rows, sizeof rows);
    s.batch.n_logits = 3;
    backend_begin(d.b, &s.batch, frequencies(16), 16);
    backend_gather_logit_rows(d.b, &last, &x);
    backend_logits(d.b, logits, &m, &last);
    finish(d.b);
    for (int i = 0; i < 3; i++)
        memcpy(wanted + i * COLS, in + rows[i] * COLS, COLS * sizeof *in);
    round_to(DTYPE_BF16, wanted, 3 * COLS);
    struct product p = {DTYPE_BF16, 3, VOCAB, COLS, false};
    check_product(&p, wanted, exact, NULL, logits);
    free(in);
    free(typed);
    backend_logits_free(d.b, logits);
    backend_buffer_free(d.b, &x);
    backend_buffer_free(d.b, &last);
    backend_matrix_free(d.b, &m);
    close_device(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_is_the_sum_of_rounded_terms_for_every_shape),
        cmocka_unit_test(a_row_has_the_same_bits_among_any_few_others),
        cmocka_unit_test(with_own_kernels_only_the_same_holds_among_any_number),
        cmocka_unit_test(stacked_parts_of_several_types_are_one_matrix),
        cmocka_unit_test(an_operand_is_the_same_whoever_rounds_it),
        cmocka_unit_test(logits_of_the_wanted_rows_reach_the_host),
    };
    return run_in_each_order(tests, ARRAY_LEN(tests));
}
