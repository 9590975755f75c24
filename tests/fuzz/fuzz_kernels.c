/* Products and row operations of the CPU backend in any shape, on any path and number of
 * threads: each is within its tolerance of the plain reference, and has the same bits whatever
 * it is computed with. */
#include "tests/fuzz/kernels_input.h"
#include "tests/kernels/best_cases.h"
#include "tests/kernels/product_reference.h"

/* ---- matrices: embed, matmul, logits, best ---- */

struct product {
    enum weight_format format;
    struct matrix_part parts[3];
    uint32_t n_parts, rows, cols, n;  // n: rows of x
    float *exact;                     // (rows, cols) the weights given
    float *x;
};

static void choose_product(struct input *in, struct product *p)
{
    p->format = (enum weight_format)take(in, WEIGHT_OWN, WEIGHT_Q4);
    p->cols = take(in, 1, 600);
    p->n_parts = take(in, 1, 3);
    const bool biased = take(in, 0, 1);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        p->parts[i].rows = take(in, 1, 70);
        p->rows += p->parts[i].rows;
    }
    p->exact = malloc((size_t)p->rows * p->cols * sizeof *p->exact);
    float *exact = p->exact;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        struct matrix_part *part = &p->parts[i];
        const size_t n = (size_t)part->rows * p->cols;
        part->type = dtypes[take(in, 0, 2)];
        float *v = numbers(in, n, 12);
        void *typed = malloc(n * dtype_bytes(part->type));
        dtype_from_f32(typed, v, part->type, n);
        dtype_to_f32(exact, typed, part->type, n);
        part->data = typed;
        part->bias = biased ? numbers(in, part->rows, 4) : NULL;
        exact += n;
        free(v);
    }
    const uint32_t most = 1 + (1u << 19) / (p->rows * p->cols);
    p->n = take(in, 1, most < 200 ? most : 200);
    p->x = numbers(in, (size_t)p->n * p->cols, 30);
}

/* The rows of y that are asked for, as logits, and the best of them. */
static void check_logits(struct input *in, struct backend *b, const struct product *p,
                         const struct matrix *m, const float *y)
{
    static struct step s;
    uint32_t n_best[256], every = take(in, 1, 5),
                          most = m->rows < BEST_MOST ? m->rows : BEST_MOST;
    struct buffer x = new_buffer(b, p->n, p->cols), last = new_buffer(b, p->n, p->cols);
    struct best *best;
    float *logits;
    assert_int_equal(backend_logits_alloc(b, &logits, p->n, m->rows, NULL), 0);
    assert_int_equal(backend_best_alloc(b, &best, p->n, NULL), 0);
    memcpy(x.data, p->x, (size_t)p->n * p->cols * sizeof(float));
    step_clear(&s);
    step_add(&s, 0, p->n, NULL);
    for (uint32_t r = 0; r < p->n; r += every) {
        n_best[s.batch.n_logits] = take(in, 0, most);
        s.logit_rows[s.batch.n_logits++] = r;
    }
    s.batch.n_best = n_best;
    s.batch.n_usable = m->rows;
    backend_begin(b, &s.batch, frequencies(16), 16);
    backend_gather_logit_rows(b, &last, &x);
    backend_logits(b, logits, m, &last);
    backend_best(b, best, logits, m->rows);
    finish(b);
    for (uint32_t i = 0; i < s.batch.n_logits; i++) {
        const float *row = logits + (size_t)i * m->rows;
        same(row, y + (size_t)s.logit_rows[i] * m->rows, m->rows);
        if (n_best[i])
            assert_best(best + (size_t)i * BEST_MOST, row, n_best[i], m->rows);
    }
    backend_buffer_free(b, &x);
    backend_buffer_free(b, &last);
    backend_logits_free(b, logits);
    backend_best_free(b, best);
}

static void product(struct input *in, struct backend *b, struct backend *other)
{
    struct product p = {.n = 0};
    struct matrix m, m2;
    choose_product(in, &p);
    assert_int_equal(
        backend_matrix_load(b, &m, p.format, p.cols, p.parts, p.n_parts, NULL), 0);
    assert_int_equal(
        backend_matrix_load(other, &m2, p.format, p.cols, p.parts, p.n_parts, NULL), 0);
    const size_t n = (size_t)p.rows * p.cols;
    float *w = embedded(b, &m);
    if (p.format == WEIGHT_BF16)
        for (size_t i = 0; i < n; i++)
            p.exact[i] = dtype_bf16_to_f32(dtype_f32_to_bf16(p.exact[i]));
    if (m.format == WEIGHT_OWN) same(w, p.exact, n);

    float *y = products_by(b, &m, p.x, p.n, p.n);
    float *parts = products_by(other, &m2, p.x, p.n, take(in, 1, p.n));
    same(y, parts, (size_t)p.n * p.rows);
    check_output_fn *check = m.format != WEIGHT_OWN      ? check_quant_product
                             : backend_rounds(b, m.type) ? check_rounded_product
                                                         : check_product;
    for (uint32_t r = 0; r < p.n; r++)
        for (uint32_t c = 0; c < p.rows; c++)
            check(p.x + (size_t)r * p.cols, w + (size_t)c * p.cols, p.cols,
                  m.bias ? m.bias[c] : 0, y[(size_t)r * p.rows + c]);
    check_logits(in, b, &p, &m, y);

    backend_matrix_free(b, &m);
    backend_matrix_free(other, &m2);
    for (uint32_t i = 0; i < p.n_parts; i++) {
        free((void *)p.parts[i].data);
        free((void *)p.parts[i].bias);
    }
    free(p.exact);
    free(p.x);
    free(w);
    free(y);
    free(parts);
}

/* ---- rows: norms and activation ---- */

/* What the operation gives of rows from .. from + n - 1, onto y. */
static void rows_once(struct backend *b, uint32_t kind, const float *x, const float *d,
                      const float *w, uint32_t from, uint32_t n, uint32_t cols,
                      float *y, float *sum)
{
    static struct step s;
    const uint32_t wide = kind == 2 ? 2 * cols : cols;
    struct buffer in = new_buffer(b, n, wide), add = new_buffer(b, n, cols);
    struct buffer out = new_buffer(b, n, cols);
    memcpy(in.data, x + (size_t)from * wide, (size_t)n * wide * sizeof *x);
    memcpy(add.data, d + (size_t)from * cols, (size_t)n * cols * sizeof *d);
    begin_rows(b, &s, n);
    if (kind == 0) backend_rmsnorm(b, &out, &in, w, 1e-5f);
    if (kind == 1) backend_add_rmsnorm(b, &out, &in, &add, w, 1e-5f);
    if (kind == 2) backend_silu_mul(b, &out, &in);
    finish(b);
    memcpy(y + (size_t)from * cols, out.data, (size_t)n * cols * sizeof *y);
    if (kind == 1)
        memcpy(sum + (size_t)from * cols, in.data, (size_t)n * cols * sizeof *y);
    backend_buffer_free(b, &in);
    backend_buffer_free(b, &add);
    backend_buffer_free(b, &out);
}

static void check_norm_row(const float *y, const float *x, const float *w, uint32_t n)
{
    double sum = 0;
    for (uint32_t c = 0; c < n; c++) sum += (double)x[c] * x[c];
    for (uint32_t c = 0; c < n; c++) {
        double want = x[c] / sqrt(sum / n + (double)1e-5f) * w[c];
        double tolerance = (n / 2.0 + 8) * UNIT_ROUNDOFF * fabs(want) + 0x1p-140;
        if (!(fabs(y[c] - want) <= tolerance))
            fail_msg("norm of %u: %.9g is not %.9g", n, (double)y[c], want);
    }
}

static void check_silu_row(const float *y, const float *gu, uint32_t n)
{
    for (uint32_t c = 0; c < n; c++) {
        double g = gu[c], u = gu[n + c], want = g / (1 + exp(-g)) * u;
        double tolerance = 8 * UNIT_ROUNDOFF * fabs(want) + 1e-34 * (1 + fabs(g * u));
        if (!(fabs(y[c] - want) <= tolerance))
            fail_msg("silu of %.9g, %.9g: %.9g is not %.9g", g, u, (double)y[c], want);
    }
}

static void rows(struct input *in, struct backend *b, struct backend *other)
{
    const uint32_t kind = take(in, 0, 2), n = take(in, 1, 40), cols = take(in, 1, 500);
    const uint32_t wide = kind == 2 ? 2 * cols : cols, group = take(in, 1, n);
    float *x = numbers(in, (size_t)n * wide, 10),
          *d = numbers(in, (size_t)n * cols, 10);
    float *w = numbers(in, cols, 4), *y = calloc((size_t)4 * n * cols, sizeof *y);
    float *again = y + (size_t)n * cols, *sum = again + (size_t)n * cols,
          *sum_again = sum + (size_t)n * cols;
    rows_once(b, kind, x, d, w, 0, n, cols, y, sum);
    for (uint32_t r = 0; r < n; r += group)
        rows_once(other, kind, x, d, w, r, group < n - r ? group : n - r, cols, again,
                  sum_again);
    same(y, again, (size_t)n * cols);
    same(sum, sum_again, (size_t)n * cols);
    for (uint32_t r = 0; r < n; r++) {
        const float *at = x + (size_t)r * wide, *got = y + (size_t)r * cols;
        if (kind == 1) {
            const float *s = sum + (size_t)r * cols;
            for (uint32_t c = 0; c < cols; c++)
                assert_true(s[c] == at[c] + d[(size_t)r * cols + c]);
            at = s;
        }
        if (kind < 2) check_norm_row(got, at, w, cols);
        if (kind == 2) check_silu_row(got, at, cols);
    }
    free(x);
    free(d);
    free(w);
    free(y);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = input_of(data, size);
    const bool of_rows = take(&in, 0, 1);
    const struct backends by = backends_of(&in);
    if (of_rows)
        rows(&in, by.b, by.other);
    else
        product(&in, by.b, by.other);
    return 0;
}
