/* Operations of the CPU backend in any shape, on any path and number of threads: each is within
 * its tolerance of the plain reference, and has the same bits whatever it is computed with. */
#include "tests/kernels/attention_reference.h"
#include "tests/kernels/best_cases.h"
#include "tests/kernels/product_reference.h"

/* The bytes that choose, and a seed of them all, from which the numbers come and what is chosen
 * when the bytes are used up. */
struct input {
    const uint8_t *at, *end;
    uint64_t seed;
};

static uint32_t take(struct input *in, uint32_t least, uint32_t most)
{
    uint32_t v = 0;
    if (in->at == in->end) v = (uint32_t)(random_unit(&in->seed) * 0x1p30f + 0x1p30f);
    for (int i = 0; i < 2 && in->at < in->end; i++) v = v << 8 | *in->at++;
    return least + v % (most - least + 1);
}

/* n numbers below 2^most: of one size, with zeros, below the normal ones, or of all sizes. */
static float *numbers(struct input *in, size_t n, int most)
{
    const uint32_t kind = take(in, 0, 4);
    float *v = random_floats(in->seed += 77, n);
    for (size_t i = 0; i < n; i++) {
        const uint32_t by = (uint32_t)(i / 16 * 2654435761u >> 7) % 160;
        if (kind == 1 && i * 2654435761u >> 20 & 3) v[i] = 0;
        if (kind == 2) v[i] = ldexpf(v[i], -110 - (int)(by % 40));
        if (kind == 3) v[i] = ldexpf(v[i], most);
        if (kind == 4) v[i] = ldexpf(v[i], most - (int)by);
    }
    return v;
}

/* A backend of that path: opened once for each number of threads. */
static struct backend *backend_of(uint32_t path, uint32_t threads)
{
    static struct backend *open[ARRAY_LEN(paths)][4];
    const struct backend_options o = {
        .threads = threads,
        .cpu_path = paths[path],
        .limits = {256, 16, 256, 128, 16, 1024},
    };
    struct backend **b = &open[path][threads];
    if (!*b && backend_open(b, "cpu", &o, NULL)) return backend_of(0, threads);
    return *b;
}

static void same(const void *a, const void *b, size_t n)
{
    assert_memory_equal(a, b, n * sizeof(float));
}

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

/* All rows of m as embed gives them, in steps of up to 256 rows. */
static float *embedded(struct backend *b, const struct matrix *m)
{
    static struct step s;
    struct buffer x = new_buffer(b, m->rows, m->cols);
    step_clear(&s);
    step_add(&s, 0, m->rows, NULL);
    for (uint32_t i = 0; i < m->rows; i++) s.ids[i] = (int32_t)i;
    backend_begin(b, &s.batch, frequencies(16), 16);
    backend_embed(b, &x, m);
    finish(b);
    float *w = malloc((size_t)m->rows * m->cols * sizeof *w);
    memcpy(w, x.data, (size_t)m->rows * m->cols * sizeof *w);
    backend_buffer_free(b, &x);
    return w;
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
    check_output_fn *check = m.format != WEIGHT_OWN     ? check_quant_product
                             : rounds_inputs(b, m.type) ? check_rounded_product
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

/* ---- attention: RoPE, blocks, windows ---- */

#define MOST_SEQS 3
#define TABLE     26  // blocks of a sequence at most

struct attention {
    struct attention_shape shape;
    enum dtype type;
    uint32_t width, n_seqs;
    uint32_t start[MOST_SEQS], rows[MOST_SEQS];  // of the step that is compared
    uint32_t shared;  // first tokens that all sequences share, in whole blocks
    uint64_t seed;
    int large;
};

static void choose_attention(struct input *in, struct attention *a)
{
    const uint32_t kv = take(in, 1, 4), q = kv * take(in, 1, 4);
    const uint32_t dim = 2 * take(in, 1, 64);
    static const uint32_t windows[] = {0, 1, 2, 15, 16, 17, 33, 100, 270, 100000};
    uint32_t window = windows[take(in, 0, ARRAY_LEN(windows) - 1)];
    if (window > 1) window += take(in, 0, 2);
    a->shape = shape_of((struct heads){q, kv, dim}, window);
    a->type = dtypes[take(in, 0, 2)];
    a->width = (q + 2 * kv) * dim;
    a->n_seqs = take(in, 1, MOST_SEQS);
    const uint32_t most = 1 + 40000 / a->width;  // keeps the reference quick
    for (uint32_t s = 0; s < a->n_seqs; s++) {
        a->start[s] = take(in, 0, most < 380 ? most : 380);
        a->rows[s] = take(in, 1, take(in, 0, 3) ? 4 : 30);
    }
    a->shared = take(in, 0, 3) * KV_BLOCK_TOKENS;
    for (uint32_t s = 0; s < a->n_seqs; s++)
        while (a->shared > a->start[s]) a->shared -= KV_BLOCK_TOKENS;
    a->seed = in->seed;
    a->large = (int)take(in, 0, 2);
}

/* The table of sequence s: the shared blocks are those of the first. */
static void table_of(const struct attention *a, uint32_t s, uint32_t *table)
{
    uint32_t all[BLOCKS];
    shuffled_table(all, BLOCKS, (uint32_t)(a->seed % BLOCKS));
    for (uint32_t i = 0; i < TABLE; i++)
        table[i] = all[(i < a->shared / KV_BLOCK_TOKENS ? 0 : s * TABLE) + i];
}

/* A token's numbers, the same wherever it is computed; V may be large, or below the normal
 * numbers. */
static void token_row(const struct attention *a, uint32_t s, uint32_t pos, float *row)
{
    uint64_t state = a->seed + pos + 1000003 * (pos < a->shared ? 0 : s + 1);
    const uint32_t v = a->width - a->shape.kv_heads * a->shape.head_dim;
    for (uint32_t i = 0; i < a->width; i++) {
        row[i] = 2 * random_unit(&state);
        if (state >> 50 & 1 && i % 7 == 0) row[i] = 0;
        if (i >= v && a->large) row[i] = ldexpf(row[i], a->large == 1 ? 10 : -135);
    }
}

struct attention_world {
    struct backend *b;
    struct kv_pool_mem kv;
    struct buffer qkv, out;
    struct step step;
};

static void open_attention(struct attention_world *w, struct backend *b,
                           const struct attention *a)
{
    const struct kv_shape shape = {2, a->shape.kv_heads, a->shape.head_dim, a->type};
    w->b = b;
    assert_int_equal(backend_kv_alloc(b, &w->kv, &shape, BLOCKS, NULL), 0);
    memset(w->kv.base, 0xff, BLOCKS * kv_block_bytes(&shape));
    w->qkv = new_buffer(b, 256, a->width);
    w->out = new_buffer(b, 256, a->shape.q_heads * a->shape.head_dim);
}

static void close_attention(struct attention_world *w)
{
    backend_kv_free(w->b, &w->kv);
    backend_buffer_free(w->b, &w->qkv);
    backend_buffer_free(w->b, &w->out);
}

static void add_rows(struct attention_world *w, const struct attention *a, uint32_t s,
                     uint32_t pos, uint32_t n)
{
    uint32_t table[TABLE];
    table_of(a, s, table);
    for (uint32_t r = 0; r < n; r++)
        token_row(a, s, pos + r,
                  (float *)w->qkv.data + (size_t)(w->step.batch.n_rows + r) * a->width);
    step_add(&w->step, pos, n, table);
}

static void run_attention(struct attention_world *w, const struct attention *a)
{
    const uint32_t dim = a->shape.head_dim;
    backend_begin(w->b, &w->step.batch, frequencies(dim), dim);
    backend_rope_store(w->b, &w->qkv, &w->kv, 1, &a->shape);
    backend_attention(w->b, &w->out, &w->qkv, &w->kv, 1, &a->shape);
    finish(w->b);
}

/* Positions from .. to - 1 of a sequence, `chunk` at a time, onto out where it is not NULL. */
static void compute(struct attention_world *w, const struct attention *a, uint32_t s,
                    uint32_t from, uint32_t to, uint32_t chunk, float *out)
{
    for (uint32_t pos = from; pos < to; pos += chunk) {
        const uint32_t n = chunk < to - pos ? chunk : to - pos;
        step_clear(&w->step);
        add_rows(w, a, s, pos, n);
        run_attention(w, a);
        const size_t cols = w->out.cols;
        if (out) memcpy(out + (pos - from) * cols, w->out.data, n * cols * sizeof *out);
    }
}

/* Row r of the step at position pos against the reference: what was stored, and what was seen. */
static void check_row(const struct attention_world *w, const struct attention *a,
                      uint32_t s, uint32_t r, uint32_t pos)
{
    const struct attention_shape *shape = &a->shape;
    const uint32_t dim = shape->head_dim, half = dim / 2;
    const float *qkv = (const float *)w->qkv.data + (size_t)r * a->width;
    uint32_t table[TABLE];
    float before[3 * 16 * 128];
    table_of(a, s, table);
    token_row(a, s, pos, before);
    for (uint32_t i = 0; i < a->width; i++) {
        const uint32_t head = i / dim, d = i % dim, k = head - shape->q_heads;
        const bool turned = head < shape->q_heads + shape->kv_heads;
        const float *x = before + (size_t)head * dim;
        const double angle = (double)((float)pos * frequencies(dim)[d % half]);
        const double other = d < half ? -x[d + half] : x[d - half];
        const double want = turned ? x[d] * cos(angle) + other * sin(angle) : x[d];
        const double tolerance = 6 * UNIT_ROUNDOFF * (fabs(x[d]) + fabs(other));
        if (!(fabs(qkv[i] - want) <= (turned ? tolerance : 0)))
            fail_msg("rotated at %u: %.9g is not %.9g", pos, (double)qkv[i], want);
        if (head < shape->q_heads) continue;
        uint32_t narrow = 0;
        float kept;
        dtype_from_f32(&narrow, &qkv[i], a->type, 1);
        dtype_to_f32(&kept, &narrow, a->type, 1);
        assert_true(cpu_stored(&w->kv, table, pos, !turned, k % shape->kv_heads, d) ==
                    kept);
    }
    for (uint32_t head = 0; head < shape->q_heads; head++) {
        struct attended want = attend(shape, &w->kv, cpu_stored, table, pos, head,
                                      qkv + (size_t)head * dim);
        check_attended(&want, attention_tolerance(&want, dim), shape, pos, head,
                       (const float *)w->out.data + (size_t)r * w->out.cols +
                           (size_t)head * dim);
    }
}

static void attention(struct input *in, struct backend *b, struct backend *other)
{
    static struct attention_world w, alone;
    struct attention a;
    choose_attention(in, &a);
    open_attention(&w, b, &a);
    open_attention(&alone, other, &a);
    for (uint32_t s = 0; s < a.n_seqs; s++)  // before the step
        compute(&w, &a, s, s ? a.shared : 0, a.start[s], take(in, 1, 256), NULL);
    step_clear(&w.step);
    for (uint32_t s = 0; s < a.n_seqs; s++) add_rows(&w, &a, s, a.start[s], a.rows[s]);
    run_attention(&w, &a);
    for (uint32_t s = 0; s < a.n_seqs; s++) {
        const uint32_t first = w.step.row_start[s];
        const size_t cols = w.out.cols;
        float *out = malloc(a.rows[s] * cols * sizeof *out);
        for (uint32_t r = 0; r < a.rows[s]; r += 1 + r / 3)
            check_row(&w, &a, s, first + r, a.start[s] + r);
        compute(&alone, &a, s, 0, a.start[s], take(in, 1, 256), NULL);
        compute(&alone, &a, s, a.start[s], a.start[s] + a.rows[s],
                take(in, 1, a.rows[s]), out);
        same(out, (const float *)w.out.data + first * cols, a.rows[s] * cols);
        free(out);
    }
    close_attention(&w);
    close_attention(&alone);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, data + size, 1469598103934665603u};
    for (size_t i = 0; i < size; i++) in.seed = (in.seed ^ data[i]) * 1099511628211u;
    const uint32_t operation = take(&in, 0, 2),
                   path = take(&in, 0, ARRAY_LEN(paths) - 1);
    const uint32_t threads = take(&in, 1, 3);
    struct backend *b = backend_of(path, threads),
                   *other = backend_of(path, take(&in, 1, 3));
    if (operation == 0) product(&in, b, other);
    if (operation == 1) rows(&in, b, other);
    if (operation == 2) attention(&in, b, other);
    return 0;
}
