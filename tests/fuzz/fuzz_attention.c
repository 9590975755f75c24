/* Attention of the CPU backend, with QK norm, RoPE, blocks and windows of any shape, on any path
 * and number of threads: each row is within its tolerance of the plain reference, and has the
 * same bits alone as among others. */
#include "tests/fuzz/kernels_input.h"
#include "tests/kernels/attention_reference.h"

#define MOST_SEQS 3
#define TABLE     26  // blocks of a sequence at most

struct attention {
    struct attention_shape shape;
    enum dtype type;
    bool normed;  // each head of q and k by itself
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
    a->normed = take(in, 0, 1);
}

/* The weights of q's norm, then of k's. */
static struct qk_norm norm_of(const struct attention *a)
{
    static float w[2 * 128];
    uint64_t state = a->seed;
    for (uint32_t i = 0; i < 2 * a->shape.head_dim; i++) w[i] = 2 * random_unit(&state);
    return (struct qk_norm){w, w + a->shape.head_dim, 1e-5f};
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
    const struct qk_norm norm = norm_of(a);
    backend_begin(w->b, &w->step.batch, frequencies(dim), dim);
    backend_rope_store(w->b, &w->qkv, &w->kv, 1, &a->shape, a->normed ? &norm : NULL);
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

/* A head's numbers as they are before they are rotated. */
static void normed_head(const struct attention *a, const float *x, bool of_q, double *y)
{
    const struct qk_norm norm = norm_of(a);
    const uint32_t dim = a->shape.head_dim;
    const float *w = of_q ? norm.q : norm.k;
    double sum = 0;
    for (uint32_t d = 0; d < dim; d++) sum += (double)x[d] * x[d];
    for (uint32_t d = 0; d < dim; d++)
        y[d] = a->normed ? x[d] / sqrt(sum / dim + (double)norm.eps) * w[d] : x[d];
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
    double x[128];
    table_of(a, s, table);
    token_row(a, s, pos, before);
    for (uint32_t i = 0; i < a->width; i++) {
        const uint32_t head = i / dim, d = i % dim, k = head - shape->q_heads;
        const bool turned = head < shape->q_heads + shape->kv_heads;
        const float *v = before + (size_t)head * dim;
        if (d == 0 && turned) normed_head(a, v, head < shape->q_heads, x);
        const double angle = (double)((float)pos * frequencies(dim)[d % half]);
        const double other = d < half ? -x[d + half] : x[d - half];
        const double want = turned ? x[d] * cos(angle) + other * sin(angle) : v[d];
        const double roundings = a->normed ? dim / 2.0 + 14 : 6;
        const double tolerance = roundings * UNIT_ROUNDOFF * (fabs(x[d]) + fabs(other));
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
    struct input in = input_of(data, size);
    const struct backends by = backends_of(&in);
    attention(&in, by.b, by.other);
    return 0;
}
