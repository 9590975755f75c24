#include "tests/kernels/attention_reference.h"

static const struct heads many_heads[] = {
    {9, 3, 64}, {4, 1, 16}, {32, 8, 32}, {4, 2, 80}, {3, 3, 96}, {8, 2, 128}, {2, 1, 6},
};

/* One world: a pool of poisoned blocks, and qkv rows that any step may compute. */
struct world {
    struct backend *b;
    struct attention_shape shape;
    struct kv_pool_mem kv;
    struct buffer qkv, out;
    uint32_t width;  // of a qkv row
};

static struct world open_world(struct backend *b, struct heads h, uint32_t window,
                               enum dtype t)
{
    struct world w = {.b = b, .shape = shape_of(h, window)};
    struct err err;
    struct kv_shape shape = {2, h.kv, h.dim, t};
    assert_int_equal(backend_kv_alloc(b, &w.kv, &shape, BLOCKS, &err), 0);
    // NaN in every type: a token read before it was stored spoils what is compared.
    memset(w.kv.base, 0xff, BLOCKS * kv_block_bytes(&shape));
    w.width = (h.q + 2 * h.kv) * h.dim;
    w.qkv = new_buffer(b, 1024, w.width);
    w.out = new_buffer(b, 1024, h.q * h.dim);
    return w;
}

static void close_world(struct world *w)
{
    backend_kv_free(w->b, &w->kv);
    backend_buffer_free(w->b, &w->qkv);
    backend_buffer_free(w->b, &w->out);
}

/* Compute layer 1 of a step whose sequence s is the one of that seed. */
static void compute(struct world *w, struct step *s, const uint64_t *seeds)
{
    const struct batch *t = &s->batch;
    fill_rows(w->qkv.data, w->width, t, seeds);
    backend_begin(w->b, t, frequencies(w->shape.head_dim), w->shape.head_dim);
    backend_rope_store(w->b, &w->qkv, &w->kv, 1, &w->shape, NULL);
    backend_attention(w->b, &w->out, &w->qkv, &w->kv, 1, &w->shape);
    finish(w->b);
}

static float *out_row(const struct world *w, uint32_t row)
{
    return (float *)w->out.data + (size_t)row * w->out.cols;
}

static void check_head(const struct world *w, const uint32_t *table, uint32_t row,
                       uint32_t pos, uint32_t head)
{
    uint32_t dim = w->shape.head_dim;
    const float *q = (const float *)w->qkv.data + (size_t)row * w->width + head * dim;
    struct attended want = attend(&w->shape, &w->kv, cpu_stored, table, pos, head, q);
    check_attended(&want, attention_tolerance(&want, dim), &w->shape, pos, head,
                   out_row(w, row) + head * dim);
}

static void check_prompt_and_reply(struct backend *b, struct heads h, uint32_t window,
                                   enum dtype t)
{
    static struct step s;
    uint32_t table[BLOCKS];
    static const uint64_t seed[] = {5};
    struct world w = open_world(b, h, window, t);
    shuffled_table(table, BLOCKS, 11);

    uint32_t pos = 0;
    static const uint32_t chunks[] = {1, 15, 1, 33, 210, 1, 20, 1};
    for (size_t i = 0; i < ARRAY_LEN(chunks); pos += chunks[i++]) {
        step_clear(&s);
        step_add(&s, pos, chunks[i], table);
        compute(&w, &s, seed);
        for (uint32_t r = 0; r < chunks[i]; r += 1 + r / 4) {
            for (uint32_t head = 0; head < h.q; head++) {
                check_head(&w, table, r, pos + r, head);
            }
        }
    }
    close_world(&w);
}

static void it_is_softmax_attention_for_every_head_shape_and_type(void **state)
{
    (void)state;
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 2);
        if (!b) continue;
        bool emulated = path_is_emulated(paths[p]);
        for (size_t i = 0; i < ARRAY_LEN(many_heads); i += emulated ? 3 : 1) {
            check_prompt_and_reply(b, many_heads[i], 0, dtypes[i % 3]);
        }
        for (size_t t = 0; t < ARRAY_LEN(dtypes) && !emulated; t++) {
            check_prompt_and_reply(b, many_heads[0], 0, dtypes[t]);
        }
        backend_close(b);
    }
}

static void a_window_of_w_sees_the_last_w_keys(void **state)
{
    (void)state;
    static const uint32_t windows[] = {1, 2, 15, 16, 17, 32, 100, 257, 100000};
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 2);
        if (!b) continue;
        for (size_t i = 0; i < ARRAY_LEN(windows);
             i += path_is_emulated(paths[p]) ? 4 : 1) {
            check_prompt_and_reply(b, (struct heads){4, 2, 16}, windows[i], DTYPE_BF16);
        }
        backend_close(b);
    }
}

/* The outputs of positions 0 .. n-1 of one sequence computed `chunk` rows at a time,
 * beside another sequence where `beside`. */
static float *outputs(const char *path, uint32_t threads, uint32_t n, uint32_t chunk,
                      bool beside, uint32_t window, enum dtype t, uint32_t offset)
{
    static struct step s;
    static const uint64_t seeds[] = {77, 5};
    uint32_t table[BLOCKS], other[BLOCKS];
    struct backend *b = open_path(path, threads);
    struct world w = open_world(b, (struct heads){6, 2, 32}, window, t);
    float *all = malloc((size_t)n * w.out.cols * sizeof *all);
    shuffled_table(table, BLOCKS, offset);
    shuffled_table(other, BLOCKS, offset + 37 * 40);
    for (uint32_t pos = 0; pos < n; pos += chunk) {
        uint32_t rows = chunk < n - pos ? chunk : n - pos;
        step_clear(&s);
        if (beside) step_add(&s, pos / 2, 1 + pos % 3, other);
        uint32_t first = s.batch.n_rows;
        step_add(&s, pos, rows, table);
        compute(&w, &s, beside ? seeds : seeds + 1);
        memcpy(all + (size_t)pos * w.out.cols, out_row(&w, first),
               (size_t)rows * w.out.cols * sizeof *all);
    }
    close_world(&w);
    backend_close(b);
    return all;
}

static void check_bits(const char *path, uint32_t window, enum dtype t)
{
    enum { N = 400 };
    static const uint32_t chunks[] = {1, 7, 33, 256};
    float *whole = outputs(path, 1, N, N, false, window, t, 0);
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
        uint32_t threads = 1 + (uint32_t)i % 3;
        float *part =
            outputs(path, threads, N, chunks[i], i % 2 == 0, window, t, (uint32_t)i);
        assert_memory_equal(part, whole, (size_t)N * 6 * 32 * sizeof *whole);
        free(part);
    }
    free(whole);
}

static void a_position_has_the_same_bits_however_its_prompt_was_cut(void **state)
{
    (void)state;
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 1);
        if (!b) continue;
        backend_close(b);
        check_bits(paths[p], 100, DTYPE_BF16);
        if (path_is_emulated(paths[p])) continue;
        check_bits(paths[p], 0, DTYPE_BF16);
        check_bits(paths[p], 0, DTYPE_F16);
        check_bits(paths[p], 0, DTYPE_F32);
        check_bits(paths[p], 270, DTYPE_F16);
    }
}

/* The blocks before the window hold NaN again when the last position is computed. */
static void blocks_outside_the_window_are_not_read(void **state)
{
    (void)state;
    static struct step s;
    static const uint64_t seed[] = {5};
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 2);
        if (!b) continue;
        struct world w = open_world(b, (struct heads){4, 2, 16}, 20, DTYPE_F32);
        step_clear(&s);
        step_add(&s, 0, 300, NULL);
        compute(&w, &s, seed);
        // 300 sees 281 .. 300: blocks 17 and 18.
        memset(w.kv.base, 0xff, 17 * kv_block_bytes(&w.kv.shape));
        step_clear(&s);
        step_add(&s, 300, 1, NULL);
        compute(&w, &s, seed);
        for (uint32_t i = 0; i < w.out.cols; i++)
            assert_false(isnan(out_row(&w, 0)[i]));
        close_world(&w);
        backend_close(b);
    }
}

static void a_position_sees_nothing_after_itself(void **state)
{
    (void)state;
    static struct step s;
    static const uint64_t seed[] = {5};
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct backend *b = open_path(paths[p], 2);
        if (!b) continue;
        struct world w = open_world(b, (struct heads){4, 2, 16}, 0, DTYPE_F32);
        step_clear(&s);
        step_add(&s, 0, 40, NULL);
        fill_rows(w.qkv.data, w.width, &s.batch, seed);
        // The last V is infinite: only the last position may notice.
        ((float *)w.qkv.data)[40 * w.width - 1] = INFINITY;
        backend_begin(b, &s.batch, frequencies(16), 16);
        backend_rope_store(b, &w.qkv, &w.kv, 1, &w.shape, NULL);
        backend_attention(b, &w.out, &w.qkv, &w.kv, 1, &w.shape);
        finish(b);
        for (uint32_t i = 0; i < 39 * w.out.cols; i++) {
            assert_true(isfinite(((float *)w.out.data)[i]));
        }
        assert_true(isinf(out_row(&w, 39)[w.out.cols - 1]));
        close_world(&w);
        backend_close(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_softmax_attention_for_every_head_shape_and_type),
        cmocka_unit_test(a_window_of_w_sees_the_last_w_keys),
        cmocka_unit_test(a_position_has_the_same_bits_however_its_prompt_was_cut),
        cmocka_unit_test(blocks_outside_the_window_are_not_read),
        cmocka_unit_test(a_position_sees_nothing_after_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
