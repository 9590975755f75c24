/* test_model.c - opening a model: what it takes, and that a failure leaves nothing. */
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DIR "tests/golden/models/tiny-llama3"

static const struct model_options OPTIONS = {40, 3, {0}};

struct parts {
    struct backend *backend;
    struct tensor_set *set;
    struct model_config config;
};

static struct parts open_parts(const char *dir)
{
    struct parts p;
    struct err err = {{0}};
    struct backend_options o = {.threads = 1, .limits = {64, 4, 64, 64, 16, 1024}};
    assert_int_equal(backend_open(&p.backend, "cpu", &o, &err), 0);
    assert_int_equal(model_config_load(&p.config, dir, &err), 0);
    assert_int_equal(safetensors_open_dir(&p.set, dir, &err), 0);
    return p;
}

static void close_parts(struct parts *p)
{
    safetensors_close(p->set);
    backend_close(p->backend);
}

static int open_model(struct model *m, const struct parts *p,
                      const struct model_options *o, struct err *err)
{
    return model_open(m, p->backend, &p->config, p->set, o, err);
}

static void activations_take_what_was_announced(void **state)
{
    (void)state;
    struct parts p = open_parts(DIR);
    struct model m;
    struct err err = {{0}};
    assert_int_equal(open_model(&m, &p, &OPTIONS, &err), 0);
    const struct buffer *buffers[] = {&m.x,    &m.h,       &m.delta, &m.qkv,
                                      &m.attn, &m.gate_up, &m.ffn,   &m.last};
    size_t floats = (size_t)OPTIONS.max_logits * p.config.vocab;
    for (size_t i = 0; i < ARRAY_LEN(buffers); i++) {
        assert_int_equal(buffers[i]->rows, buffers[i] == &m.last ? 3 : 40);
        floats += (size_t)buffers[i]->rows * buffers[i]->cols;
    }
    size_t best = OPTIONS.max_logits * BEST_MOST * sizeof *m.best;
    assert_int_equal(model_activation_bytes(&p.config, &OPTIONS),
                     floats * sizeof(float) + best);
    model_close(&m);
    close_parts(&p);
}

static void sizes_beyond_all_memory_are_announced_as_such(void **state)
{
    (void)state;
    struct parts p = open_parts(DIR);
    struct model m;
    struct err err = {{0}};
    struct model_options vast = {UINT32_MAX, UINT32_MAX, {0}};
    struct model_config c = p.config;
    c.hidden = c.vocab = c.ffn = UINT32_MAX;
    assert_true(model_activation_bytes(&c, &vast) == SIZE_MAX);
    c.ffn = UINT32_MAX / 2 + 1;  // gate and up beside each other: 2^32 columns
    c.hidden = 8;
    assert_true(model_open(&m, p.backend, &c, p.set, &OPTIONS, &err) < 0);
    close_parts(&p);
}

static void a_model_for_no_rows_is_refused(void **state)
{
    (void)state;
    struct parts p = open_parts(DIR);
    struct model m;
    const struct model_options none[] = {{0, 1, {0}}, {1, 0, {0}}};
    for (size_t i = 0; i < ARRAY_LEN(none); i++) {
        struct err err = {{0}};
        assert_int_equal(open_model(&m, &p, &none[i], &err), -EINVAL);
        assert_non_null(strstr(err.msg, "at least 1"));
    }
    close_parts(&p);
}

/* The address sanitizer's build shows what such an attempt would leave behind. */
static void weights_that_do_not_fit_leave_nothing_open(void **state)
{
    (void)state;
    struct parts p = open_parts(DIR);
    struct model m;
    struct err err = {{0}};
    struct parts deeper = p;
    deeper.config.layers++;
    assert_int_equal(open_model(&m, &deeper, &OPTIONS, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "model.layers."));
    close_parts(&p);
}

static void closing_what_was_never_opened_is_fine(void **state)
{
    (void)state;
    struct model none = {0};
    model_close(&none);
    model_close(&none);
}

static void the_kv_shape_is_the_configured_one(void **state)
{
    (void)state;
    struct parts p = open_parts(DIR);
    struct kv_shape s = model_kv_shape(&p.config, DTYPE_BF16);
    assert_true(s.layers == p.config.layers && s.kv_heads == 2 &&
                s.head_dim == p.config.head_dim && s.dtype == DTYPE_BF16);
    close_parts(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_take_what_was_announced),
        cmocka_unit_test(sizes_beyond_all_memory_are_announced_as_such),
        cmocka_unit_test(a_model_for_no_rows_is_refused),
        cmocka_unit_test(weights_that_do_not_fit_leave_nothing_open),
        cmocka_unit_test(closing_what_was_never_opened_is_fine),
        cmocka_unit_test(the_kv_shape_is_the_configured_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
