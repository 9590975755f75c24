/* test_sampler_best.c - the best of a row choose the token that the row chooses.
 */
#include "tests/model/sampling.h"

static const uint32_t vocabularies[] = {1, 2, 7, 63, 64, 65, 1000, 3001};

/* A row with many ties, some logits of -inf, and in some rows something that is no number. */
static void fill(float *logits, uint32_t n, uint32_t seed)
{
    static const float odd[] = {NAN, -NAN, INFINITY};
    random_logits(logits, n, seed);
    for (uint32_t i = 0; i < n; i++) {
        if (seed % 7 == 0 && random_next(&seed) % 4) logits[i] = -INFINITY;
        if (seed % 7 == 1) logits[i] = i % 2 ? -0.0f : 0.0f;
    }
    if (seed % 11 == 0) logits[seed % n] = odd[seed % 3];
}

/* Both ways to the token of one step. */
static void compare(struct sampler *s, const float *logits, uint32_t usable,
                    const struct sampling *how, uint32_t step)
{
    struct best best[BEST_MOST];
    struct sample whole = {.id = -1}, few = {.id = -1};
    uint32_t k = sampler_best(s, how);
    assert_in_range(k, 1, usable < BEST_MOST ? usable : BEST_MOST);
    best_of_row(best, k, logits, usable);
    int rc = sampler_pick(s, logits, how, 3, step, NULL, 0, &whole);
    assert_int_equal(sampler_pick_best(s, best, how, 3, step, &few), rc);
    assert_int_equal(few.id, whole.id);
    if (rc == 0) assert_true(few.n_top == 0 && few.logprob == 0);
}

static void the_best_choose_the_token_that_the_row_chooses(void **state)
{
    (void)state;
    static const uint32_t top_ks[] = {1, 2, 5, 20, 64};
    static const float temperatures[] = {0, 1e-30f, 0.2f, 1, 8};
    static const float top_ps[] = {0, 0.1f, 0.5f, 0.95f, 1};
    static const float min_ps[] = {0, 0.02f, 0.3f, 2};
    float logits[3001];
    for (uint32_t i = 0; i < 16000; i++) {
        uint32_t vocab = vocabularies[i % 8], seed = i;
        struct sampler *s = open_sampler(vocab);
        uint32_t usable = vocab - (i % 3 ? 0 : vocab / 4);
        sampler_set_usable(s, usable);
        fill(logits, vocab, i);
        const struct sampling how = {
            .temperature = temperatures[random_next(&seed) % 5],
            .top_k = top_ks[random_next(&seed) % 5],
            .top_p = top_ps[random_next(&seed) % 5],
            .min_p = min_ps[random_next(&seed) % 4],
            .seed = i,
        };
        for (uint32_t step = 0; step < 3; step++)
            compare(s, logits, usable, &how, step);
        sampler_close(s);
    }
}

/* What one token leaves behind must not be in the way of the next. */
static void rows_and_their_best_may_take_turns(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    const struct sampling few = {
        .temperature = 1, .top_k = 40, .top_p = 0.9f, .seed = 5};
    const struct sampling all = {.temperature = 1, .top_p = 0.9f, .seed = 5};
    struct sampler *fresh = open_sampler(VOCAB);
    float logits[VOCAB];
    for (uint32_t step = 0; step < 500; step++) {
        random_logits(logits, VOCAB, step);
        compare(s, logits, VOCAB, &few, step);
        assert_int_equal(pick(s, logits, &all, step), pick(fresh, logits, &all, step));
    }
    sampler_close(s);
    sampler_close(fresh);
}

static void who_needs_the_row_says_so(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    const struct logit_bias bias = {3, 1};
    const struct {
        struct sampling how;
        uint32_t best;
    } cases[] = {
        {{.temperature = 0}, 1},
        {{.temperature = 0, .top_k = 40}, 1},
        {{.temperature = 1, .top_p = 0.5f}, 0},
        {{.temperature = 1, .top_k = 40}, 40},
        {{.temperature = 1, .top_k = BEST_MOST}, BEST_MOST},
        {{.temperature = 1, .top_k = BEST_MOST + 1}, 0},
        {{.temperature = 0, .logprobs = true}, 0},
        {{.temperature = 0, .presence_penalty = 1}, 0},
        {{.temperature = 0, .frequency_penalty = -1}, 0},
        {{.temperature = 0, .bias = &bias, .n_bias = 1}, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_int_equal(sampler_best(s, &cases[i].how), cases[i].best);
    sampler_set_usable(s, 30);
    assert_int_equal(sampler_best(s, &cases[3].how), 30);
    sampler_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_choose_the_token_that_the_row_chooses),
        cmocka_unit_test(rows_and_their_best_may_take_turns),
        cmocka_unit_test(who_needs_the_row_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
