/* test_weights.c - every tensor lands where the architecture wants it, or is named. */
#include "model/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/tiny_rand.h"

#define HIDDEN 64
#define HEAD   20  // index of lm_head.weight in tiny-rand
#define MAX_T  (TINY_RAND_N + 16)

/* A model to load: the tensors of tiny-rand and its configuration, both to be changed. */
struct fixture {
    struct tiny_rand rand;
    struct backend *b;
    struct model_config c;
    struct files_tensor t[MAX_T];
    size_t n;
    char *file;
    struct tensor_set *set;
    enum weight_format format;
    struct weights w;
    struct err err;
};

static struct fixture *fixture_open(void)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    tiny_rand_open(&f->rand);
    memcpy(f->t, f->rand.t, sizeof f->rand.t);
    f->n = TINY_RAND_N;
    struct backend_options o = {.threads = 1,
                                .limits = {.max_rows = 4,
                                           .max_seqs = 1,
                                           .max_blocks = 1,
                                           .max_head_dim = 64,
                                           .max_q_heads = 8,
                                           .max_cols = 1024}};
    assert_int_equal(backend_open(&f->b, "cpu", &o, NULL), 0);
    assert_int_equal(model_config_load(&f->c, TINY_RAND, NULL), 0);
    return f;
}

static struct files_tensor *fixture_tensor(struct fixture *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++) {
        if (strcmp(f->t[i].name, name) == 0) return &f->t[i];
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

static int fixture_load(struct fixture *f)
{
    size_t n;
    f->file = files_safetensors(f->t, f->n, &n);
    if (safetensors_parse(&f->set, f->file, n, "model.safetensors", &f->err) < 0)
        fail_msg("%s", f->err.msg);
    size_t bytes = 0;
    int counted = weights_bytes(f->b, &f->c, f->set, f->format, &bytes, NULL);
    struct weights_options o = {.format = f->format};
    int rc = weights_load(&f->w, f->b, &f->c, f->set, &o, &f->err);
    assert_int_equal(rc, counted);
    if (rc == 0) assert_int_equal(f->w.bytes, bytes);
    return rc;
}

static void fixture_close(struct fixture *f)
{
    weights_close(&f->w);
    safetensors_close(f->set);
    free(f->file);
    backend_close(f->b);
    tiny_rand_close(&f->rand);
    free(f);
}

static void must_load(struct fixture *f)
{
    if (fixture_load(f) < 0) fail_msg("%s", f->err.msg);
}

static void must_fail(struct fixture *f, const char *why)
{
    if (fixture_load(f) == 0) fail_msg("loaded, where the message should say %s", why);
    if (!strstr(f->err.msg, why)) fail_msg("\"%s\" does not say %s", f->err.msg, why);
    assert_null(f->w.layer);
    fixture_close(f);
}

/* y = x W^T + bias for one row x, so that a unit vector gives a column of W exactly. */
static void apply(struct fixture *f, const struct matrix *m, const float *x, float *y)
{
    struct buffer in = {0}, out = {0};
    assert_int_equal(backend_buffer_alloc(f->b, &in, 4, m->cols, NULL), 0);
    assert_int_equal(backend_buffer_alloc(f->b, &out, 4, m->rows, NULL), 0);
    memcpy(in.data, x, m->cols * sizeof *x);

    static const float inv_freq[8];
    const struct batch batch = {.n_rows = 1,
                                .n_seqs = 1,
                                .ids = (int32_t[]){0},
                                .pos = (uint32_t[]){0},
                                .row_start = (uint32_t[]){0, 1},
                                .block_start = (uint32_t[]){0, 1},
                                .blocks = (uint32_t[]){0},
                                .logit_rows = (uint32_t[]){0}};
    backend_begin(f->b, &batch, inv_freq, 16);
    backend_matmul(f->b, &out, m, &in);
    assert_int_equal(backend_finish(f->b, NULL), 0);
    memcpy(y, out.data, m->rows * sizeof *y);
    backend_buffer_free(f->b, &in);
    backend_buffer_free(f->b, &out);
}

/* Row `row` of the matrix equals row `from` of the tensor of tiny-rand. */
static void check_row(struct fixture *f, const struct matrix *m, uint32_t row,
                      const char *tensor, uint32_t from)
{
    const struct tensor *t = safetensors_find(f->rand.set, tensor);
    assert_non_null(t);
    float want[128], x[128], *y = malloc(m->rows * sizeof *y);
    assert_non_null(y);
    assert_int_equal(t->dims[1], m->cols);
    dtype_to_f32(want, (const char *)t->data + (size_t)from * m->cols * 2, DTYPE_BF16,
                 m->cols);
    for (uint32_t k = 0; k < m->cols; k++) {
        memset(x, 0, sizeof x);
        x[k] = 1;
        apply(f, m, x, y);
        if (y[row] != want[k])
            fail_msg("%s[%u][%u] is not in row %u", tensor, from, k, row);
    }
    free(y);
}

static void check_all(struct fixture *f)
{
    for (uint32_t l = 0; l < 2; l++) {
        const struct layer_weights *w = &f->w.layer[l];
        const struct {
            const struct matrix *m;
            uint32_t row;
            const char *name;
            uint32_t from;
        } rows[] = {
            {&w->qkv, 0, "self_attn.q_proj", 0},
            {&w->qkv, 63, "self_attn.q_proj", 63},
            {&w->qkv, 64, "self_attn.k_proj", 0},
            {&w->qkv, 95, "self_attn.k_proj", 31},
            {&w->qkv, 96, "self_attn.v_proj", 0},
            {&w->qkv, 127, "self_attn.v_proj", 31},
            {&w->o, 5, "self_attn.o_proj", 5},
            {&w->gate_up, 0, "mlp.gate_proj", 0},
            {&w->gate_up, 127, "mlp.gate_proj", 127},
            {&w->gate_up, 128, "mlp.up_proj", 0},
            {&w->gate_up, 255, "mlp.up_proj", 127},
            {&w->down, 63, "mlp.down_proj", 63},
        };
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%u.%s.weight", l, rows[i].name);
            check_row(f, rows[i].m, rows[i].row, name, rows[i].from);
        }
        float norm[HIDDEN];
        char name[96];
        snprintf(name, sizeof name, "model.layers.%u.post_attention_layernorm.weight",
                 l);
        dtype_to_f32(norm, safetensors_find(f->rand.set, name)->data, DTYPE_BF16,
                     HIDDEN);
        assert_memory_equal(w->ffn_norm, norm, sizeof norm);
        snprintf(name, sizeof name, "model.layers.%u.input_layernorm.weight", l);
        dtype_to_f32(norm, safetensors_find(f->rand.set, name)->data, DTYPE_BF16,
                     HIDDEN);
        assert_memory_equal(w->attn_norm, norm, sizeof norm);
    }
    check_row(f, &f->w.embed, 519, "model.embed_tokens.weight", 519);
    if (f->w.head.data) check_row(f, &f->w.head, 519, "lm_head.weight", 519);
}

/* Replace tensor i by itself in another type; the caller frees what comes back. */
static void *convert(struct files_tensor *t, enum dtype to)
{
    size_t n = t->bytes / 2;
    float *f32 = malloc(n * sizeof *f32);
    void *out = malloc(n * dtype_bytes(to));
    assert_true(f32 && out);
    dtype_to_f32(f32, t->data, DTYPE_BF16, n);
    dtype_from_f32(out, f32, to, n);
    free(f32);
    t->data = out;
    t->bytes = n * dtype_bytes(to);
    t->dtype = to == DTYPE_F32 ? "F32" : "F16";
    return out;
}

static void every_tensor_lands_in_its_place(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    must_load(f);
    assert_int_equal(f->w.layers, 2);
    assert_string_equal(f->w.notes, "");
    assert_int_equal(f->w.layer[0].qkv.type, DTYPE_BF16);
    assert_non_null(f->w.head.data);
    check_all(f);
    fixture_close(f);
}

struct seen {
    size_t calls, last, total;
};

static void watch(void *arg, size_t done, size_t total)
{
    struct seen *s = arg;
    assert_true(done > s->last && done <= total);
    *s = (struct seen){s->calls + 1, done, total};
}

static void progress_rises_to_the_total(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    struct seen seen = {0};
    struct weights_options o = {.progress = watch, .arg = &seen};
    assert_int_equal(weights_load(&f->w, f->b, &f->c, f->rand.set, &o, NULL), 0);
    assert_int_equal(seen.calls, 10);
    assert_int_equal(seen.last, f->w.bytes);
    assert_int_equal(seen.total, f->w.bytes);
    fixture_close(f);
}

/* ---- tied embeddings ---- */

static void a_tied_model_needs_no_head(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    f->c.tied = true;
    f->n = HEAD;
    must_load(f);
    assert_null(f->w.head.data);
    assert_string_equal(f->w.notes, "");
    fixture_close(f);
}

static void a_tied_model_ignores_a_stray_head_and_says_so(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    f->c.tied = true;
    must_load(f);
    assert_null(f->w.head.data);
    assert_string_equal(f->w.notes,
                        "lm_head.weight is ignored: the configuration ties the "
                        "head to the embedding table.");
    fixture_close(f);
}

static void an_untied_model_without_a_head_is_refused(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    f->n = HEAD;
    must_fail(
        f, "model.safetensors: tensor lm_head.weight is missing; expected shape [520, "
           "64], because the configuration does not say");
}

/* ---- tensors that do not fit ---- */

static void a_transposed_shape_is_refused(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    fixture_tensor(f, "model.layers.0.mlp.down_proj.weight")->shape = "[128,64]";
    must_fail(f,
              "model.safetensors: tensor model.layers.0.mlp.down_proj.weight has shape "
              "[128, 64]; expected [64, 128]");
}

static void integers_are_no_weights(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    fixture_tensor(f, "model.layers.0.mlp.down_proj.weight")->dtype = "I16";
    must_fail(
        f, "tensor model.layers.0.mlp.down_proj.weight has type I16; expected F32, F16 "
           "or BF16");
}

static void each_missing_tensor_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < TINY_RAND_N; i++) {
        struct fixture *f = fixture_open();
        char why[128];
        snprintf(why, sizeof why, "tensor %s is missing", f->t[i].name);
        memmove(&f->t[i], &f->t[i + 1], (--f->n - i) * sizeof f->t[0]);
        must_fail(f, why);
    }
}

static void a_configuration_of_other_sizes_is_refused(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    f->c.vocab = 521;
    must_fail(f, "model.embed_tokens.weight has shape [520, 64]; expected [521, 64]");
    f = fixture_open();
    f->c.layers = 3;
    must_fail(f, "tensor model.layers.2.input_layernorm.weight is missing");
    f = fixture_open();
    f->c.layers = 1;
    must_fail(f, "is of layer 1, but by num_hidden_layers of config.json there are 1");
    f = fixture_open();
    f->c.kv_heads = 4;
    must_fail(f, "0.self_attn.k_proj.weight has shape [32, 64]; expected [64, 64]");
}

static void tensors_without_use_are_noted(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    static const int32_t data[16];
    f->t[f->n++] = (struct files_tensor){"model.layers.0.self_attn.rotary_emb.inv_freq",
                                         "I32", "[16]", data, sizeof data};
    f->t[f->n++] = (struct files_tensor){"zzz", "U8", "[1]", data, 1};
    must_load(f);
    assert_string_equal(
        f->w.notes,
        "The architecture has no use for 2 tensors of the file, the first of "
        "them model.layers.0.self_attn.rotary_emb.inv_freq.");
    fixture_close(f);
}

/* ---- element types ---- */

static void weights_are_kept_in_the_type_of_the_file(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16};
    for (size_t k = 0; k < ARRAY_LEN(types); k++) {
        struct fixture *f = fixture_open();
        void *made[TINY_RAND_N];
        for (size_t i = 0; i < TINY_RAND_N; i++) made[i] = convert(&f->t[i], types[k]);
        f->c.dtype = types[k];
        must_load(f);
        assert_int_equal(f->w.layer[1].qkv.type, types[k]);
        assert_string_equal(f->w.notes, "");
        check_all(f);
        fixture_close(f);
        for (size_t i = 0; i < TINY_RAND_N; i++) free(made[i]);
    }
}

static void a_claim_that_the_file_contradicts_is_noted_and_not_followed(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    f->c.dtype = DTYPE_F32;
    must_load(f);
    assert_int_equal(f->w.layer[0].down.type, DTYPE_BF16);
    assert_string_equal(f->w.notes,
                        "The configuration says f32, but of 21 tensors 0 are f32, "
                        "0 f16 and 21 bf16; each is kept in its own type.");
    fixture_close(f);

    f = fixture_open();
    f->c.has_dtype = false;
    must_load(f);
    assert_string_equal(f->w.notes, "");
    fixture_close(f);
}

static void types_may_be_mixed_within_a_file_and_a_matrix(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    void *made[TINY_RAND_N] = {0};
    for (size_t i = 0; i < TINY_RAND_N; i++) {
        if (strstr(f->t[i].name, "norm")) made[i] = convert(&f->t[i], DTYPE_F32);
        if (strstr(f->t[i].name, "mlp")) made[i] = convert(&f->t[i], DTYPE_F16);
        if (strstr(f->t[i].name, "layers.1.self_attn.k"))
            made[i] = convert(&f->t[i], DTYPE_F16);
    }
    must_load(f);
    assert_int_equal(f->w.layer[0].qkv.type, DTYPE_BF16);
    assert_int_equal(f->w.layer[0].gate_up.type, DTYPE_F16);
    assert_int_equal(f->w.layer[1].qkv.type, DTYPE_F32);
    assert_non_null(strstr(f->w.notes, "of 21 tensors 5 are f32, 7 f16 and 9 bf16"));
    check_all(f);
    fixture_close(f);
    for (size_t i = 0; i < TINY_RAND_N; i++) free(made[i]);
}

/* ---- biases ---- */

#define N_BIASES 14

static void add_biases(struct fixture *f, char name[N_BIASES][64],
                       char shape[N_BIASES][8], float values[128])
{
    static const struct {
        const char *name;
        unsigned rows;
    } pieces[] = {{"self_attn.q_proj", 64}, {"self_attn.k_proj", 32},
                  {"self_attn.v_proj", 32}, {"self_attn.o_proj", 64},
                  {"mlp.gate_proj", 128},   {"mlp.up_proj", 128},
                  {"mlp.down_proj", 64}};
    for (int i = 0; i < 128; i++) values[i] = (float)(i + 1);
    for (unsigned i = 0; i < N_BIASES; i++) {
        unsigned rows = pieces[i % 7].rows;
        snprintf(name[i], 64, "model.layers.%u.%s.bias", i / 7, pieces[i % 7].name);
        snprintf(shape[i], 8, "[%u]", rows);
        f->t[f->n++] =
            (struct files_tensor){name[i], "F32", shape[i], values, rows * 4};
    }
}

static void biases_are_stacked_like_their_rows(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    char name[N_BIASES][64], shape[N_BIASES][8];
    float values[128], zero[128] = {0}, y[256];
    add_biases(f, name, shape, values);
    f->c.attention_bias = f->c.mlp_bias = true;
    f->c.has_dtype = false;
    must_load(f);
    assert_string_equal(f->w.notes, "");
    f->c.attention_bias = f->c.mlp_bias = false;
    size_t plain;
    assert_int_equal(weights_bytes(f->b, &f->c, f->set, WEIGHT_OWN, &plain, NULL), 0);
    assert_int_equal(f->w.bytes - plain, 2 * (128 + 64 + 256 + 64) * sizeof(float));
    for (int l = 0; l < 2; l++) {
        const struct layer_weights *w = &f->w.layer[l];
        apply(f, &w->qkv, zero, y);
        assert_true(y[0] == 1 && y[63] == 64 && y[64] == 1 && y[95] == 32 &&
                    y[96] == 1);
        apply(f, &w->o, zero, y);
        assert_memory_equal(y, values, 64 * sizeof *y);
        apply(f, &w->gate_up, zero, y);
        assert_memory_equal(y, values, sizeof values);
        assert_memory_equal(y + 128, values, sizeof values);
        apply(f, &w->down, zero, y);
        assert_memory_equal(y, values, 64 * sizeof *y);
    }
    fixture_close(f);
}

static void a_bias_that_is_missing_is_named(void **state)
{
    (void)state;
    struct fixture *f = fixture_open();
    f->c.attention_bias = true;
    must_fail(
        f,
        "tensor model.layers.0.self_attn.q_proj.bias is missing; expected shape [64]");
}

static void closing_nothing_is_fine(void **state)
{
    (void)state;
    struct weights w = {0};
    weights_close(&w);
    weights_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_lands_in_its_place),
        cmocka_unit_test(progress_rises_to_the_total),
        cmocka_unit_test(a_tied_model_needs_no_head),
        cmocka_unit_test(a_tied_model_ignores_a_stray_head_and_says_so),
        cmocka_unit_test(an_untied_model_without_a_head_is_refused),
        cmocka_unit_test(a_transposed_shape_is_refused),
        cmocka_unit_test(integers_are_no_weights),
        cmocka_unit_test(each_missing_tensor_is_named),
        cmocka_unit_test(a_configuration_of_other_sizes_is_refused),
        cmocka_unit_test(tensors_without_use_are_noted),
        cmocka_unit_test(weights_are_kept_in_the_type_of_the_file),
        cmocka_unit_test(a_claim_that_the_file_contradicts_is_noted_and_not_followed),
        cmocka_unit_test(types_may_be_mixed_within_a_file_and_a_matrix),
        cmocka_unit_test(biases_are_stacked_like_their_rows),
        cmocka_unit_test(a_bias_that_is_missing_is_named),
        cmocka_unit_test(closing_nothing_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
