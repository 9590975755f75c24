/* test_qk_norm.c - the weights of QK norm are loaded, layer by layer, or missed by name. */
#include "model/weights.h"
#include "tests/model/tiny_rand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N   4  // weights of QK norm in two layers
#define DIM 16

static const char *const names[N] = {
    "model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.k_norm.weight",
    "model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.k_norm.weight"};
static float values[N][DIM];

/* tiny-rand as a model with QK norm, of whose norms number `without` is left out (N: none)
 * and each has that shape. */
static int load(struct weights *w, struct backend *b, uint32_t without,
                const char *shape, struct err *err)
{
    struct tiny_rand rand;
    struct files_tensor t[TINY_RAND_N + N];
    struct model_config c;
    struct tensor_set *set = NULL;
    size_t n = TINY_RAND_N, bytes, counted = 0;
    tiny_rand_open(&rand);
    memcpy(t, rand.t, sizeof rand.t);
    for (uint32_t i = 0; i < N; i++) {
        if (i != without)
            t[n++] = (struct files_tensor){names[i], "F32", shape, values[i],
                                           sizeof values[i]};
    }
    char *file = files_safetensors(t, n, &bytes);
    assert_int_equal(model_config_load(&c, TINY_RAND, NULL), 0);
    assert_int_equal(c.head_dim, DIM);
    c.qk_norm = true;
    assert_int_equal(safetensors_parse(&set, file, bytes, "file", NULL), 0);
    int rc = weights_bytes(b, &c, set, WEIGHT_OWN, &counted, NULL);
    assert_int_equal(weights_load(w, b, &c, set, &(struct weights_options){0}, err),
                     rc);
    assert_int_equal(w->bytes, counted);
    safetensors_close(set);
    free(file);
    tiny_rand_close(&rand);
    return rc;
}

static int open_backend(void **state)
{
    struct backend_options o = {.threads = 1, .limits = {4, 1, 1, 64, 8, 1024}};
    for (size_t i = 0; i < N * DIM; i++) values[i / DIM][i % DIM] = (float)i;
    return backend_open((struct backend **)state, "cpu", &o, NULL);
}

static int close_backend(void **state)
{
    backend_close(*state);
    return 0;
}

static void each_layer_has_its_own_weights_of_qk_norm(void **state)
{
    struct weights w;
    struct err err;
    if (load(&w, *state, N, "[16]", &err) < 0) fail_msg("%s", err.msg);
    for (uint32_t l = 0; l < 2; l++) {
        assert_memory_equal(w.layer[l].q_norm, values[2 * l], sizeof values[0]);
        assert_memory_equal(w.layer[l].k_norm, values[2 * l + 1], sizeof values[0]);
    }
    assert_null(strstr(w.notes, "no use for"));
    weights_close(&w);
}

static void a_missing_or_misshapen_one_is_named(void **state)
{
    for (uint32_t without = 0; without <= N; without++) {
        struct weights w;
        struct err err;
        const char *shape = without < N ? "[16]" : "[4,4]";
        assert_int_equal(load(&w, *state, without, shape, &err), -EINVAL);
        const char *want = without < N ? names[without] : "has shape [4, 4]";
        if (!strstr(err.msg, want)) fail_msg("%s is not in: %s", want, err.msg);
        assert_null(w.layer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_layer_has_its_own_weights_of_qk_norm),
        cmocka_unit_test(a_missing_or_misshapen_one_is_named),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
