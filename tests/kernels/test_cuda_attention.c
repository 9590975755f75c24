/* test_cuda_attention.c - paged attention on the CUDA backend, on tensor cores and plain, in
 * each order of threads.
 *
 * The reference sums in double precision over the K and V that the pool holds, with the
 * rotated q that the step left.  Tensor cores see q and the weights of softmax in the cache's
 * type, of unit u (2^-11 for f16, 2^-8 for bf16): q's rounding moves a score by at most u
 * times the sum of its terms' sizes, and so each weight by that factor; the rounding of a
 * weight is u again.  With the roundings of f32 sums: (2 u (size + 1) + 2 (dim size + 64) 2^-24)
 * times the largest |v|.
 */
#include "tests/kernels/attention_reference.h"
#include "tests/kernels/fixture_cuda.h"

#define SLACK 1.5             // of the tolerance: exp2 and what is rounded twice
#define EVERY (TSAN ? 3 : 1)  // so many-th case: a race is one for heads of any size

struct world {
    struct device d;
    struct attention_shape shape;
    struct kv_pool_mem kv, pool;  // pool: the host's copy of kv
    struct buffer qkv, out;
    uint32_t width;
    float *q;  // the host's copy of qkv
};

static void open_world(struct world *w, const struct device *d, struct heads h,
                       uint32_t window, enum dtype t)
{
    struct err err;
    struct kv_shape shape = {2, h.kv, h.dim, t};
    *w = (struct world){
        .d = *d, .shape = shape_of(h, window), .width = (h.q + 2 * h.kv) * h.dim};
    assert_int_equal(backend_kv_alloc(d->b, &w->kv, &shape, BLOCKS, &err), 0);
    size_t bytes = BLOCKS * kv_block_bytes(&shape);
    w->pool = w->kv;
    w->pool.base = malloc(bytes);
    // NaN in every type: a token read before it was stored spoils what is compared.
    memset(w->pool.base, 0xff, bytes);
    put(&w->d, w->kv.base, w->pool.base, bytes);
    w->qkv = new_buffer(d->b, 1024, w->width);
    w->out = new_buffer(d->b, 1024, h.q * h.dim);
    w->q = malloc((size_t)1024 * w->width * sizeof *w->q);
}

static void close_world(struct world *w)
{
    backend_kv_free(w->d.b, &w->kv);
    backend_buffer_free(w->d.b, &w->qkv);
    backend_buffer_free(w->d.b, &w->out);
    free(w->pool.base);
    free(w->q);
}

/* Compute layer 1 of a step whose sequence s is the one of that seed; the caller frees the
 * outputs. */
static float *compute(struct world *w, struct step *s, const uint64_t *seeds)
{
    const struct batch *t = &s->batch;
    fill_rows(w->q, w->width, t, seeds);
    put_rows(&w->d, &w->qkv, w->q, t->n_rows);
    backend_begin(w->d.b, t, frequencies(w->shape.head_dim), w->shape.head_dim);
    backend_rope_store(w->d.b, &w->qkv, &w->kv, 1, &w->shape, NULL);
    backend_attention(w->d.b, &w->out, &w->qkv, &w->kv, 1, &w->shape);
    finish(w->d.b);
    return get_rows(&w->d, &w->out, t->n_rows);
}

static void fetch(struct world *w, uint32_t rows)
{
    get(&w->d, w->pool.base, w->kv.base, BLOCKS * kv_block_bytes(&w->kv.shape));
    get(&w->d, w->q, w->qkv.data, (size_t)rows * w->width * sizeof *w->q);
}

static void check_head(const struct world *w, const uint32_t *table, uint32_t row,
                       uint32_t pos, uint32_t head, const float *got)
{
    uint32_t dim = w->shape.head_dim;
    const float *q = w->q + (size_t)row * w->width + head * dim;
    struct attended want =
        attend(&w->shape, &w->pool, cuda_stored, table, pos, head, q);
    enum dtype t = w->kv.shape.dtype;
    double unit = t == DTYPE_F16 ? 0x1p-11 : t == DTYPE_BF16 ? 0x1p-8 : 0;
    double tolerance =
        (2 * unit * (want.size + 1) + 2 * (dim * want.size + 64) * UNIT_ROUNDOFF) *
        want.largest;
    check_attended(&want, SLACK * tolerance, &w->shape, pos, head, got);
}

static void check_prompt_and_reply(const struct device *d, struct heads h,
                                   uint32_t window, enum dtype t)
{
    static struct step s;
    static const uint64_t seed[] = {5};
    static const uint32_t chunks[] = {1, 15, 1, 33, 1, 190, 1, 30, 1};
    uint32_t table[BLOCKS], pos = 0;
    struct world w;
    open_world(&w, d, h, window, t);
    shuffled_table(table, BLOCKS, 11);
    for (size_t i = 0; i < ARRAY_LEN(chunks); pos += chunks[i++]) {
        step_clear(&s);
        step_add(&s, pos, chunks[i], table);
        float *out = compute(&w, &s, seed);
        fetch(&w, chunks[i]);
        for (uint32_t r = 0; r < chunks[i]; r += 1 + r)
            for (uint32_t head = 0; head < h.q; head++)
                check_head(&w, table, r, pos + r, head,
                           out + ((size_t)r * h.q + head) * h.dim);
        free(out);
    }
    close_world(&w);
}

static void it_is_softmax_attention_for_every_head_shape_and_type(void **state)
{
    (void)state;
    static const struct {
        struct heads h;
        enum dtype t;
    } cases[] = {
        {{9, 3, 64}, DTYPE_F16},  {{3, 3, 64}, DTYPE_BF16}, {{4, 2, 96}, DTYPE_F16},
        {{6, 2, 96}, DTYPE_BF16}, {{4, 1, 128}, DTYPE_F16}, {{8, 2, 128}, DTYPE_BF16},
        {{4, 1, 16}, DTYPE_BF16}, {{16, 1, 16}, DTYPE_F16}, {{8, 2, 32}, DTYPE_F16},
        {{5, 1, 16}, DTYPE_F32},  {{2, 1, 6}, DTYPE_F16},   {{4, 2, 80}, DTYPE_BF16},
        {{18, 1, 16}, DTYPE_F16}, {{1, 1, 200}, DTYPE_F32},
    };
    struct device d = open_device();
    for (size_t i = 0; i < ARRAY_LEN(cases); i += EVERY)
        check_prompt_and_reply(&d, cases[i].h, 0, cases[i].t);
    close_device(&d);
}

static void a_window_of_w_sees_the_last_w_keys(void **state)
{
    (void)state;
    static const struct {
        uint32_t window;
        struct heads h;
        enum dtype t;
    } cases[] = {
        {1, {4, 2, 16}, DTYPE_F16},      {2, {4, 2, 16}, DTYPE_BF16},
        {16, {4, 2, 16}, DTYPE_F32},     {17, {4, 2, 64}, DTYPE_BF16},
        {32, {4, 2, 96}, DTYPE_F16},     {33, {4, 1, 128}, DTYPE_BF16},
        {100, {4, 2, 16}, DTYPE_F32},    {257, {2, 1, 128}, DTYPE_F16},
        {100, {4, 2, 64}, DTYPE_F16},    {257, {2, 2, 96}, DTYPE_BF16},
        {100000, {4, 2, 16}, DTYPE_F16},
    };
    struct device d = open_device();
    for (size_t i = 0; i < ARRAY_LEN(cases); i += EVERY)
        check_prompt_and_reply(&d, cases[i].h, cases[i].window, cases[i].t);
    close_device(&d);
}

/* The outputs of positions 0 .. n-1 of one sequence computed `chunk` rows at a time, beside
 * another sequence where `beside`. */
static float *outputs(const struct device *d, uint32_t n, uint32_t chunk, bool beside,
                      uint32_t window, enum dtype t, uint32_t offset)
{
    static struct step s;
    static const uint64_t seeds[] = {77, 5};
    uint32_t table[BLOCKS], other[BLOCKS];
    struct world w;
    open_world(&w, d, (struct heads){6, 2, 32}, window, t);
    float *all = malloc((size_t)n * w.out.cols * sizeof *all);
    shuffled_table(table, BLOCKS, offset);
    shuffled_table(other, BLOCKS, offset + 37 * 50);
    for (uint32_t pos = 0; pos < n; pos += chunk) {
        uint32_t rows = chunk < n - pos ? chunk : n - pos;
        step_clear(&s);
        if (beside) step_add(&s, pos / 2, 1 + pos % 3, other);
        uint32_t first = s.batch.n_rows;
        step_add(&s, pos, rows, table);
        float *out = compute(&w, &s, beside ? seeds : seeds + 1);
        memcpy(all + (size_t)pos * w.out.cols, out + (size_t)first * w.out.cols,
               (size_t)rows * w.out.cols * sizeof *all);
        free(out);
    }
    close_world(&w);
    return all;
}

static void check_bits(const struct device *d, uint32_t window, enum dtype t)
{
    enum { N = 300 };
    static const uint32_t chunks[] = {5, 33, 256};
    float *whole = outputs(d, N, N, false, window, t, 0);
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
        float *part = outputs(d, N, chunks[i], i % 2 == 0, window, t, (uint32_t)i);
        assert_memory_equal(part, whole, (size_t)N * 6 * 32 * sizeof *whole);
        free(part);
    }
    free(whole);
}

static void a_position_has_the_same_bits_however_its_prompt_was_cut(void **state)
{
    (void)state;
    struct device d = open_device();
    check_bits(&d, 0, DTYPE_BF16);
    check_bits(&d, 0, DTYPE_F16);
    check_bits(&d, 0, DTYPE_F32);
    check_bits(&d, 100, DTYPE_BF16);
    check_bits(&d, 270, DTYPE_F16);
    close_device(&d);
}

/* Segments that are summed side by side, against one walk over all of them. */
static void a_token_decoded_has_the_bits_of_the_same_token_in_a_prompt(void **state)
{
    (void)state;
    static struct step s;
    static const uint64_t seeds[] = {5, 5, 5};
    static const struct {
        struct heads h;
        uint32_t window;
        enum dtype t;
    } cases[] = {
        {{8, 2, 64}, 0, DTYPE_F16},    {{8, 2, 64}, 300, DTYPE_BF16},
        {{4, 2, 96}, 40, DTYPE_F16},   {{2, 1, 96}, 0, DTYPE_BF16},
        {{4, 1, 128}, 300, DTYPE_F16}, {{4, 2, 128}, 0, DTYPE_BF16},
    };
    struct device d = open_device();
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        uint32_t table[BLOCKS];
        struct world w;
        open_world(&w, &d, cases[k].h, cases[k].window, cases[k].t);
        shuffled_table(table, BLOCKS, 3);
        step_clear(&s);
        step_add(&s, 0, 600, table);
        float *prompt = compute(&w, &s, seeds);
        static const uint32_t positions[] = {255, 256, 599};
        step_clear(&s);
        for (int i = 0; i < 3; i++) step_add(&s, positions[i], 1, table);
        float *alone = compute(&w, &s, seeds);
        for (int i = 0; i < 3; i++)
            assert_memory_equal(alone + (size_t)i * w.out.cols,
                                prompt + (size_t)positions[i] * w.out.cols,
                                w.out.cols * sizeof *alone);
        free(prompt);
        free(alone);
        close_world(&w);
    }
    close_device(&d);
}

/* The blocks before the window hold NaN again when the last position is computed. */
static void keys_outside_the_window_are_not_looked_at(void **state)
{
    (void)state;
    static struct step s;
    static const uint64_t seed[] = {5};
    struct device d = open_device();
    for (size_t t = 0; t < 3; t++) {
        struct world w;
        open_world(&w, &d, (struct heads){4, 2, 16}, 20, dtypes[t]);
        step_clear(&s);
        step_add(&s, 0, 300, NULL);
        free(compute(&w, &s, seed));
        // 300 sees 281 .. 300: blocks 17 and 18; its tile of 32 begins with 16 and 17.
        put(&d, w.kv.base, memset(w.pool.base, 0xff, 17 * kv_block_bytes(&w.kv.shape)),
            17 * kv_block_bytes(&w.kv.shape));
        step_clear(&s);
        step_add(&s, 300, 1, NULL);
        float *out = compute(&w, &s, seed);
        for (uint32_t i = 0; i < w.out.cols; i++) assert_false(isnan(out[i]));
        free(out);
        close_world(&w);
    }
    close_device(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_softmax_attention_for_every_head_shape_and_type),
        cmocka_unit_test(a_window_of_w_sees_the_last_w_keys),
        cmocka_unit_test(a_position_has_the_same_bits_however_its_prompt_was_cut),
        cmocka_unit_test(a_token_decoded_has_the_bits_of_the_same_token_in_a_prompt),
        cmocka_unit_test(keys_outside_the_window_are_not_looked_at),
    };
    return run_in_each_order(tests, ARRAY_LEN(tests));
}
