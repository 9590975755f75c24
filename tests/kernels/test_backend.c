/* test_backend.c - opening, limits, sticky errors, and a whole layer: bits and memory. */
#include "tests/allocs.h"
#include "tests/kernels/fixture.h"

#define HIDDEN 48
#define FFN    80
#define VOCAB  100

static void expect_refusal(const char *name, const struct backend_options *o, int code,
                           const char *says)
{
    struct backend *b = NULL;
    struct err err = {{0}};
    assert_int_equal(backend_open(&b, name, o, &err), code);
    assert_null(b);
    if (!strstr(err.msg, says)) fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
}

static void what_cannot_be_opened_is_explained(void **state)
{
    (void)state;
    struct backend_options o = {.threads = 1, .limits = wide_limits};
    expect_refusal("tpu", &o, -ENODEV, "right is cpu, cuda or cuda:N");
#ifdef HAVE_CUDA
    static const char *const wrong[] = {"cuda:",   "cuda0",   "cuda:-1",
                                        "cuda:1x", "cuda: 1", "cuda:99999999999"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        expect_refusal(wrong[i], &o, -EINVAL, wrong[i]);
    expect_refusal("cuda:1000", &o, -ENODEV, "there is no CUDA device");
#else
    expect_refusal("cuda", &o, -ENODEV, "make CUDA=1");
#endif
    o.cpu_path = "sse9";
    expect_refusal("cpu", &o, -ENODEV, "sse9");
    o.cpu_path = NULL;
    o.threads = 5000;
    expect_refusal("cpu", &o, -EINVAL, "5000 threads");
    o.threads = 1;
    o.limits.max_seqs = 0;
    expect_refusal("cpu", &o, -EINVAL, "max_seqs");
    o.limits.max_seqs = 1;
    o.limits.max_head_dim = 4096;
    expect_refusal("cpu", &o, -EINVAL, "max_head_dim");
}

static void it_says_what_it_is(void **state)
{
    (void)state;
    struct backend *b = open_path("portable", 3);
    assert_string_equal(backend_describe(b), "cpu (portable C, 3 threads)");
    assert_int_equal(backend_threads(b), 3);
    backend_close(b);
    b = open_path(NULL, 0);
    assert_true(backend_threads(b) >= 1);
    backend_close(b);
    backend_close(NULL);
}

static void scratch_grows_with_the_limits_and_the_threads(void **state)
{
    (void)state;
    struct backend *few = open_path("portable", 1), *many = open_path("portable", 4);
    assert_true(backend_scratch_bytes(few) > 0);
    assert_true(backend_scratch_bytes(many) > backend_scratch_bytes(few));

    struct backend_options o = {.threads = 1, .limits = wide_limits};
    o.limits.max_blocks *= 64;
    struct backend *long_tables = NULL;
    assert_int_equal(backend_open(&long_tables, "cpu", &o, NULL), 0);
    assert_true(backend_scratch_bytes(long_tables) > backend_scratch_bytes(few));

    struct backend *wide = NULL;  // by the inputs of products with quantised weights
    o.limits = wide_limits;
    o.limits.max_cols *= 2;
    assert_int_equal(backend_open(&wide, "cpu", &o, NULL), 0);
    assert_true(backend_scratch_bytes(wide) > backend_scratch_bytes(few));
    backend_close(few);
    backend_close(many);
    backend_close(long_tables);
    backend_close(wide);
}

static void a_matrix_wider_than_the_limit_is_refused(void **state)
{
    (void)state;
    struct backend_options o = {.threads = 1, .limits = wide_limits};
    o.limits.max_cols = 40;
    struct backend *b = NULL;
    assert_int_equal(backend_open(&b, "cpu", &o, NULL), 0);
    static const float w[2 * 41];
    struct matrix m = new_matrix(b, w, DTYPE_F32, 2, 40, NULL);
    backend_matrix_free(b, &m);
    struct matrix_part part = {w, DTYPE_F32, 2, NULL};
    struct err err = {{0}};
    assert_int_equal(backend_matrix_load(b, &m, WEIGHT_OWN, 41, &part, 1, &err),
                     -EINVAL);
    assert_non_null(strstr(err.msg, "41 columns"));
    assert_non_null(strstr(err.msg, "for 40"));
    backend_close(b);
}

static void memory_that_cannot_be_is_refused(void **state)
{
    (void)state;
    struct backend *b = open_path("portable", 1);
    struct err err;
    struct buffer x;
    struct matrix m;
    struct kv_pool_mem kv;
    float *logits, one = 1;
    struct matrix_part part = {&one, DTYPE_F32, 1, NULL};
    struct kv_shape huge = {UINT32_MAX, UINT32_MAX, UINT32_MAX, DTYPE_F32};
    struct kv_shape none = {0, 2, 64, DTYPE_F32};
    assert_int_equal(backend_buffer_alloc(b, &x, 0, 8, &err), -ENOMEM);
    assert_int_equal(backend_buffer_alloc(b, &x, UINT32_MAX, UINT32_MAX, &err),
                     -ENOMEM);
    assert_int_equal(backend_logits_alloc(b, &logits, UINT32_MAX, UINT32_MAX, &err),
                     -ENOMEM);
    assert_int_equal(backend_kv_alloc(b, &kv, &huge, UINT32_MAX, &err), -ENOMEM);
    assert_int_equal(backend_kv_alloc(b, &kv, &none, 8, &err), -ENOMEM);
    assert_int_equal(backend_matrix_load(b, &m, WEIGHT_OWN, 0, &part, 1, &err),
                     -EINVAL);
    assert_int_equal(backend_matrix_load(b, &m, WEIGHT_OWN, 8, &part, 0, &err),
                     -EINVAL);
    assert_int_equal(
        backend_matrix_bytes(b, WEIGHT_OWN, UINT32_MAX, UINT32_MAX, DTYPE_F32), 0);
    backend_close(b);
}

/* ---- sticky errors ---- */

static void expect_lost_step(struct backend *b, const char *says)
{
    struct err err = {{0}};
    assert_int_equal(backend_finish(b, &err), -EINVAL);
    if (!strstr(err.msg, says)) fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
    assert_int_equal(backend_finish(b, &err), 0);  // reported once
}

static void begin(struct backend *b, struct step *s)
{
    backend_begin(b, &s->batch, frequencies(16), 16);
}

static void a_batch_that_breaks_a_rule_is_an_error_and_not_computed(void **state)
{
    (void)state;
    static struct step s;
    struct backend *b = open_path("portable", 1);

    step_clear(&s);
    begin(b, &s);
    expect_lost_step(b, "0 rows");

    begin_rows(b, &s, 4);
    begin(b, &s);
    expect_lost_step(b, "before the last one was finished");

    step_clear(&s);
    step_add(&s, 0, 4, NULL);
    s.pos[2] = 7;
    begin(b, &s);
    expect_lost_step(b, "row 2 has position 7");

    step_clear(&s);
    step_add(&s, 0, 16, NULL);
    s.pos[0] = 1;
    for (uint32_t i = 0; i < 16; i++) s.pos[i] = i + 1;
    begin(b, &s);
    expect_lost_step(b, "row 15 has position 16; its block table holds 16");

    step_clear(&s);
    step_add(&s, 0, 4, NULL);
    s.row_start[1] = 3;
    begin(b, &s);
    expect_lost_step(b, "cover its 4 rows");

    step_clear(&s);
    step_add(&s, 0, 4, NULL);
    s.block_start[1] = wide_limits.max_blocks + 1;
    begin(b, &s);
    expect_lost_step(b, "1024 blocks");

    step_clear(&s);
    step_add(&s, 0, 4, NULL);
    s.batch.n_logits = 2;
    s.logit_rows[0] = s.logit_rows[1] = 3;
    begin(b, &s);
    expect_lost_step(b, "logit row 1 is 3");

    step_clear(&s);
    step_add(&s, 0, 4, NULL);
    backend_begin(b, &s.batch, frequencies(16), 15);
    expect_lost_step(b, "head dimension 15");

    step_add(&s, 0, 4, NULL);
    s.batch.n_rows = wide_limits.max_rows + 1;
    begin(b, &s);
    expect_lost_step(b, "1025 rows");
    backend_close(b);
}

static void
an_operation_that_does_not_fit_is_an_error_and_the_first_one_counts(void **state)
{
    (void)state;
    static struct step s;
    struct backend *b = open_path("portable", 1);
    struct err err;
    struct buffer x = new_buffer(b, 4, 16), y = new_buffer(b, 4, 8);
    float w[16 * 8] = {0};
    struct matrix m = new_matrix(b, w, DTYPE_F32, 8, 16, NULL);
    struct kv_shape shape = {1, 1, 16, DTYPE_F32};
    struct kv_pool_mem kv;
    assert_int_equal(backend_kv_alloc(b, &kv, &shape, 2, &err), 0);
    struct attention_shape a = {1, 1, 16, 0, 1};
    struct buffer qkv = new_buffer(b, 4, 48), out = new_buffer(b, 4, 16);

    backend_rmsnorm(b, &x, &x, w, 0);
    expect_lost_step(b, "rmsnorm was called outside of a step");

    begin_rows(b, &s, 5);
    backend_matmul(b, &y, &m, &x);
    expect_lost_step(b, "4 rows by 16 columns; 5 by 16");

    begin_rows(b, &s, 4);
    backend_matmul(b, &x, &m, &x);
    backend_silu_mul(b, &x, &y);
    expect_lost_step(b, "matmul's y");

    begin_rows(b, &s, 4);
    s.ids[3] = 8;
    backend_embed(b, &x, &m);
    expect_lost_step(b, "row 3 has token id 8; the vocabulary holds 0 to 7");

    begin_rows(b, &s, 4);
    s.ids[1] = -1;
    backend_embed(b, &x, &m);
    expect_lost_step(b, "token id -1");

    step_clear(&s);
    step_add(&s, 0, 4, (const uint32_t[]){2});
    begin(b, &s);
    backend_rope_store(b, &qkv, &kv, 0, &a, NULL);
    expect_lost_step(b, "block 2; the pool has 2");

    begin_rows(b, &s, 4);
    backend_attention(b, &out, &qkv, &kv, 1, &a);
    expect_lost_step(b, "layer 1");

    a.q_heads = 3;
    a.kv_heads = 2;
    begin_rows(b, &s, 4);
    backend_attention(b, &out, &qkv, &kv, 0, &a);
    expect_lost_step(b, "3 query heads over 2 KV heads");

    backend_copy_block(b, &kv, 0, 2);
    expect_lost_step(b, "block 2 cannot be copied");

    begin_rows(b, &s, 4);
    backend_matmul(b, &y, &m, &x);
    finish(b);  // and the backend still works
    backend_kv_free(b, &kv);
    backend_matrix_free(b, &m);
    backend_buffer_free(b, &x);
    backend_buffer_free(b, &y);
    backend_buffer_free(b, &qkv);
    backend_buffer_free(b, &out);
    backend_close(b);
}

/* ---- one layer of a model, from token ids to logits ---- */

struct layer {
    struct backend *b;
    struct matrix table, qkv_w, o_w, gate_up_w, down_w;
    struct buffer x, y, qkv, att, gu, act, last;
    struct kv_pool_mem kv;
    float *logits, norm[HIDDEN];
};

static struct matrix random_matrix(struct backend *b, uint64_t seed, enum dtype t,
                                   uint32_t rows, uint32_t cols)
{
    float *exact = malloc((size_t)rows * cols * sizeof *exact);
    void *typed = random_typed(seed, (size_t)rows * cols, t, exact);
    struct matrix m = new_matrix(b, typed, t, rows, cols, NULL);
    free(typed);
    free(exact);
    return m;
}

static struct layer open_layer(const char *path, uint32_t threads)
{
    struct layer l = {.b = open_path(path, threads)};
    struct err err;
    struct kv_shape shape = {1, 1, 16, DTYPE_BF16};
    if (!l.b) return l;
    l.table = random_matrix(l.b, 1, DTYPE_BF16, VOCAB, HIDDEN);
    l.qkv_w = random_matrix(l.b, 2, DTYPE_BF16, 80, HIDDEN);
    l.o_w = random_matrix(l.b, 3, DTYPE_F16, HIDDEN, 48);
    l.gate_up_w = random_matrix(l.b, 4, DTYPE_F32, 2 * FFN, HIDDEN);
    l.down_w = random_matrix(l.b, 5, DTYPE_BF16, HIDDEN, FFN);
    l.x = new_buffer(l.b, 128, HIDDEN);
    l.y = new_buffer(l.b, 128, HIDDEN);
    l.qkv = new_buffer(l.b, 128, 80);
    l.att = new_buffer(l.b, 128, 48);
    l.gu = new_buffer(l.b, 128, 2 * FFN);
    l.act = new_buffer(l.b, 128, FFN);
    l.last = new_buffer(l.b, 128, HIDDEN);
    for (uint32_t i = 0; i < HIDDEN; i++) l.norm[i] = 1;
    assert_int_equal(backend_kv_alloc(l.b, &l.kv, &shape, 64, &err), 0);
    assert_int_equal(backend_logits_alloc(l.b, &l.logits, 128, VOCAB, &err), 0);
    return l;
}

static void close_layer(struct layer *l)
{
    backend_matrix_free(l->b, &l->table);
    backend_matrix_free(l->b, &l->qkv_w);
    backend_matrix_free(l->b, &l->o_w);
    backend_matrix_free(l->b, &l->gate_up_w);
    backend_matrix_free(l->b, &l->down_w);
    struct buffer *buffers[] = {&l->x,  &l->y,   &l->qkv, &l->att,
                                &l->gu, &l->act, &l->last};
    for (size_t i = 0; i < ARRAY_LEN(buffers); i++)
        backend_buffer_free(l->b, buffers[i]);
    backend_kv_free(l->b, &l->kv);
    backend_logits_free(l->b, l->logits);
    backend_close(l->b);
}

static void run_layer(struct layer *l, struct step *s)
{
    struct attention_shape a = {3, 1, 16, 0, 0.25f};
    struct backend *b = l->b;
    begin(b, s);
    backend_embed(b, &l->x, &l->table);
    backend_rmsnorm(b, &l->y, &l->x, l->norm, 1e-5f);
    backend_matmul(b, &l->qkv, &l->qkv_w, &l->y);
    backend_rope_store(b, &l->qkv, &l->kv, 0, &a, NULL);
    backend_attention(b, &l->att, &l->qkv, &l->kv, 0, &a);
    backend_matmul(b, &l->y, &l->o_w, &l->att);
    backend_add_rmsnorm(b, &l->y, &l->x, &l->y, l->norm, 1e-5f);
    backend_matmul(b, &l->gu, &l->gate_up_w, &l->y);
    backend_silu_mul(b, &l->act, &l->gu);
    backend_matmul(b, &l->y, &l->down_w, &l->act);
    backend_add_rmsnorm(b, &l->y, &l->x, &l->y, l->norm, 1e-5f);
    backend_gather_logit_rows(b, &l->last, &l->y);
    backend_logits(b, l->logits, &l->table, &l->last);
    finish(b);
}

/* Append positions pos .. pos + rows - 1 of a sequence of known tokens, all logits wanted. */
static void add_tokens(struct step *s, uint32_t seed, uint32_t pos, uint32_t rows,
                       uint32_t first_block)
{
    uint32_t table[32], at = s->batch.n_rows;
    for (uint32_t i = 0; i < 32; i++) table[i] = first_block + i;
    step_add(s, pos, rows, table);
    for (uint32_t r = 0; r < rows; r++) {
        s->ids[at + r] = (int32_t)((seed + 31 * (pos + r)) % VOCAB);
        s->logit_rows[s->batch.n_logits++] = at + r;
    }
}

static void logits_do_not_depend_on_company_cutting_or_threads(void **state)
{
    (void)state;
    static struct step s;
    static float whole[100 * VOCAB];
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        for (uint32_t chunk = 0; chunk < 12; chunk++) {
            struct layer l = open_layer(paths[p], 1 + chunk % 3);
            if (!l.b) break;
            uint32_t rows = chunk ? chunk : 100;
            for (uint32_t pos = 0; pos < 100; pos += rows) {
                uint32_t n = rows < 100 - pos ? rows : 100 - pos;
                step_clear(&s);
                if (chunk) add_tokens(&s, 9, pos / 3, chunk, 32);
                uint32_t first = s.batch.n_rows;
                add_tokens(&s, 4, pos, n, 0);
                run_layer(&l, &s);
                const float *got = l.logits + first * VOCAB;
                if (!chunk) memcpy(whole, got, sizeof whole);
                assert_memory_equal(got, whole + pos * VOCAB,
                                    n * VOCAB * sizeof(float));
            }
            close_layer(&l);
        }
    }
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    static struct step s;
    for (size_t p = 0; p < ARRAY_LEN(paths); p++) {
        struct layer l = open_layer(paths[p], 2);
        if (!l.b) continue;
        unsigned long before = allocs_so_far();
        for (uint32_t pos = 0; pos < 300; pos += 100) {
            step_clear(&s);
            add_tokens(&s, 1, pos, 100, 0);
            run_layer(&l, &s);
        }
        for (uint32_t pos = 300; pos < 320; pos++) {
            step_clear(&s);
            add_tokens(&s, 1, pos, 1, 0);
            add_tokens(&s, 2, pos - 300, 1, 32);
            run_layer(&l, &s);
        }
        assert_int_equal(allocs_so_far(), before);
        close_layer(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_opened_is_explained),
        cmocka_unit_test(it_says_what_it_is),
        cmocka_unit_test(scratch_grows_with_the_limits_and_the_threads),
        cmocka_unit_test(a_matrix_wider_than_the_limit_is_refused),
        cmocka_unit_test(memory_that_cannot_be_is_refused),
        cmocka_unit_test(a_batch_that_breaks_a_rule_is_an_error_and_not_computed),
        cmocka_unit_test(
            an_operation_that_does_not_fit_is_an_error_and_the_first_one_counts),
        cmocka_unit_test(logits_do_not_depend_on_company_cutting_or_threads),
        cmocka_unit_test(a_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
