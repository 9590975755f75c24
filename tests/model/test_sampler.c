/* test_sampler.c - what is chosen without chance: greedy, bias, penalties, logprobs. */
#include "tests/allocs.h"
#include "tests/model/sampling.h"

#include <string.h>

/* ---- greedy ---- */

static void temperature_0_takes_the_largest_and_a_tie_the_lowest_id(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    struct sampling greedy = {.temperature = 0, .top_p = 1};
    float logits[VOCAB];
    for (uint32_t seed = 1; seed <= 200; seed++) {
        random_logits(logits, VOCAB, seed);
        int32_t want = 0;
        for (int32_t i = 1; i < VOCAB; i++) {
            if (logits[i] > logits[want]) want = i;
        }
        assert_int_equal(pick(s, logits, &greedy, seed), want);
    }
    for (uint32_t i = 0; i < VOCAB; i++) logits[i] = i % 2 ? -0.0f : -1.0f;
    logits[4] = 0.0f;
    assert_int_equal(pick(s, logits, &greedy, 0), 1);  // -0 and 0 are equal
    sampler_close(s);
}

static void ids_beyond_the_usable_are_never_chosen(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    struct sampling greedy = {.top_p = 1, .logprobs = true, .top_logprobs = 20};
    float logits[VOCAB];
    random_logits(logits, VOCAB, 5);
    for (uint32_t i = 10; i < VOCAB; i++) logits[i] = i % 2 ? 100 : NAN;
    sampler_set_usable(s, 10);
    struct sample out;
    assert_int_equal(sampler_pick(s, logits, &greedy, 0, 0, NULL, 0, &out), 0);
    assert_in_range(out.id, 0, 9);
    assert_int_equal(out.n_top, 10);
    for (uint32_t step = 0; step < 1000; step++)
        assert_in_range(pick(s, logits, &PLAIN, step), 0, 9);
    assert_int_equal(sampler_score(s, logits, &greedy, 10, &out), -EINVAL);
    sampler_close(s);
}

static void a_broken_model_is_an_error_and_not_a_token(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    float logits[VOCAB];
    struct sample out;
    const float bad[] = {NAN, -NAN, INFINITY};
    for (size_t b = 0; b < ARRAY_LEN(bad); b++) {
        for (uint32_t at = 0; at < VOCAB; at += 333) {
            random_logits(logits, VOCAB, 1);
            logits[at] = bad[b];
            assert_int_equal(sampler_pick(s, logits, &PLAIN, 0, 0, NULL, 0, &out),
                             -EDOM);
            assert_int_equal(sampler_score(s, logits, &PLAIN, 1, &out), -EDOM);
        }
    }
    for (uint32_t i = 0; i < VOCAB; i++) logits[i] = -INFINITY;
    assert_int_equal(sampler_pick(s, logits, &PLAIN, 0, 0, NULL, 0, &out), -EDOM);

    struct sampling with_logprobs = {.top_p = 1, .logprobs = true, .top_logprobs = 2};
    logits[7] = -3;  // one finite logit is enough
    assert_int_equal(sampler_pick(s, logits, &with_logprobs, 0, 0, NULL, 0, &out), 0);
    assert_int_equal(out.id, 7);
    assert_true(out.logprob == 0 && out.top[1].logprob == -9999.0f);
    assert_int_equal(out.top[1].id, 0);
    assert_int_equal(pick(s, logits, &PLAIN, 3), 7);
    sampler_close(s);
}

/* ---- bias and penalties ---- */

static void a_bias_of_100_decides_and_one_of_minus_100_bans(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    float logits[VOCAB];
    random_logits(logits, VOCAB, 9);
    struct sampling greedy = {.top_p = 1};
    int32_t best = pick(s, logits, &greedy, 0);

    struct logit_bias bias[2] = {{best, -100}, {321, 100}};
    struct sampling how = PLAIN;
    how.bias = bias;
    how.n_bias = 1;
    for (uint32_t step = 0; step < 2000; step++)
        assert_int_not_equal(pick(s, logits, &how, step), best);
    how.n_bias = 2;
    for (uint32_t step = 0; step < 200; step++)
        assert_int_equal(pick(s, logits, &how, step), 321);
    assert_int_equal(pick(s, logits, &greedy, 0), best);  // nothing stays behind
    sampler_close(s);
}

static void penalties_follow_the_formula(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(8);
    const float logits[8] = {5, 4, 3, 2, 1, 0, -1, -2};
    const int32_t history[] = {0, 1, 0, 0, 2};
    struct sampling how = {
        .top_p = 1, .presence_penalty = 0.5f, .frequency_penalty = 0.25f};
    struct sample out;

    /* 0: 5 - 0.5 - 0.75 = 3.75; 1: 4 - 0.75 = 3.25; 2: 3 - 0.75 = 2.25 */
    assert_int_equal(sampler_pick(s, logits, &how, 0, 0, history, 5, &out), 0);
    assert_int_equal(out.id, 0);
    how.frequency_penalty = 0.5f;  // 0: 3; 1: 3; the tie goes to the lower id
    assert_int_equal(sampler_pick(s, logits, &how, 0, 0, history, 5, &out), 0);
    assert_int_equal(out.id, 0);
    how.frequency_penalty = 0.625f;  // 0: 2.625; 1: 2.875
    assert_int_equal(sampler_pick(s, logits, &how, 0, 0, history, 5, &out), 0);
    assert_int_equal(out.id, 1);
    how.presence_penalty = how.frequency_penalty = -2;  // may reward, too
    assert_int_equal(sampler_pick(s, logits, &how, 0, 0, history + 4, 1, &out), 0);
    assert_int_equal(out.id, 2);
    sampler_close(s);
}

static void a_long_history_counts_once_each_and_leaves_nothing(void **state)
{
    (void)state;
    enum { LONG = 20000 };
    struct sampler *s = open_sampler(VOCAB);
    float logits[VOCAB], expected[VOCAB];
    int32_t *history = calloc(LONG, sizeof *history);
    uint32_t seed = 3, count[VOCAB] = {0};
    for (uint32_t i = 0; i < LONG; i++) {
        history[i] = (int32_t)(random_next(&seed) % VOCAB);
        count[history[i]]++;
    }
    random_logits(logits, VOCAB, 4);
    struct sampling how = {
        .top_p = 1, .presence_penalty = 1.5f, .frequency_penalty = 0.125f};
    struct sampling greedy = {.top_p = 1};
    for (uint32_t i = 0; i < VOCAB; i++)
        expected[i] =
            count[i] ? logits[i] - (1.5f + 0.125f * (float)count[i]) : logits[i];

    struct sample out;
    assert_int_equal(sampler_pick(s, logits, &how, 0, 0, history, LONG, &out), 0);
    assert_int_equal(out.id, pick(s, expected, &greedy, 0));
    assert_int_equal(sampler_pick(s, logits, &how, 0, 0, history, LONG, &out), 0);
    assert_int_equal(out.id, pick(s, expected, &greedy, 0));
    free(history);
    sampler_close(s);
}

/* ---- logprobs ---- */

static void logprobs_are_the_log_softmax_of_the_raw_logits(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    float logits[VOCAB];
    struct entry e[VOCAB];
    struct logit_bias bias = {17, 100};
    struct sampling how = {.temperature = 0.3f,
                           .top_p = 0.5f,
                           .top_k = 3,
                           .logprobs = true,
                           .top_logprobs = 20,
                           .bias = &bias,
                           .n_bias = 1};
    for (uint32_t round = 0; round < 20; round++) {
        random_logits(logits, VOCAB, round);
        reference(logits, VOCAB, &PLAIN, e);
        double total = 0;
        for (uint32_t i = 0; i < VOCAB; i++) total += exp((double)logits[i]);

        struct sample out, scored;
        assert_int_equal(sampler_pick(s, logits, &how, 0, round, NULL, 0, &out), 0);
        assert_int_equal(out.id, 17);
        assert_true(fabs((double)out.logprob - ((double)logits[17] - log(total))) <
                    2e-6);
        assert_int_equal(out.n_top, 20);
        for (uint32_t i = 0; i < 20; i++) {
            assert_int_equal(out.top[i].id, e[i].id);
            double want = (double)e[i].logit - log(total);
            assert_true(fabs((double)out.top[i].logprob - want) < 2e-6);
        }
        assert_int_equal(sampler_score(s, logits, &how, 17, &scored), 0);
        assert_true(scored.logprob == out.logprob && scored.n_top == 20);
        assert_memory_equal(scored.top, out.top, sizeof out.top);
    }
    sampler_close(s);
}

static void top_logprobs_of_a_tiny_vocabulary_end_with_it(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(3);
    const float logits[3] = {0, 0, 0};
    struct sampling how = {.top_p = 1, .logprobs = true, .top_logprobs = 20};
    struct sample out;
    assert_int_equal(sampler_pick(s, logits, &how, 0, 0, NULL, 0, &out), 0);
    assert_int_equal(out.n_top, 3);
    for (int32_t i = 0; i < 3; i++) assert_int_equal(out.top[i].id, i);
    assert_true(fabs((double)out.logprob + log(3)) < 1e-6);
    sampler_close(s);
}

static void picking_allocates_nothing(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    float logits[VOCAB];
    int32_t history[64];
    random_logits(logits, VOCAB, 6);
    for (int32_t i = 0; i < 64; i++) history[i] = i * 3;
    struct logit_bias bias = {5, 1};
    struct sampling how = {.temperature = 0.8f,
                           .top_k = 50,
                           .top_p = 0.9f,
                           .min_p = 0.01f,
                           .presence_penalty = 1,
                           .logprobs = true,
                           .top_logprobs = 5,
                           .bias = &bias,
                           .n_bias = 1};
    struct sample out;
    unsigned long before = allocs_so_far();
    for (uint32_t step = 0; step < 100; step++)
        assert_int_equal(sampler_pick(s, logits, &how, 0, step, history, 64, &out), 0);
    assert_int_equal(allocs_so_far() - before, 0);
    sampler_close(s);
}

static void an_impossible_vocabulary_is_explained(void **state)
{
    (void)state;
    struct sampler *s = NULL;
    struct err err;
    assert_int_equal(sampler_open(&s, 0, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "0 ids"));
    assert_null(s);
    sampler_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperature_0_takes_the_largest_and_a_tie_the_lowest_id),
        cmocka_unit_test(ids_beyond_the_usable_are_never_chosen),
        cmocka_unit_test(a_broken_model_is_an_error_and_not_a_token),
        cmocka_unit_test(a_bias_of_100_decides_and_one_of_minus_100_bans),
        cmocka_unit_test(penalties_follow_the_formula),
        cmocka_unit_test(a_long_history_counts_once_each_and_leaves_nothing),
        cmocka_unit_test(logprobs_are_the_log_softmax_of_the_raw_logits),
        cmocka_unit_test(top_logprobs_of_a_tiny_vocabulary_end_with_it),
        cmocka_unit_test(picking_allocates_nothing),
        cmocka_unit_test(an_impossible_vocabulary_is_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
