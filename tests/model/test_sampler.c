/* test_sampler.c - the sampler against a plain formula: sort everything, add in double. */
#include "model/sampler.h"
#include "tests/allocs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VOCAB 1000

static const struct sampling PLAIN = {.temperature = 1, .top_p = 1};

static struct sampler *open_sampler(uint32_t vocab)
{
    struct sampler *s = NULL;
    struct err err;
    assert_int_equal(sampler_open(&s, vocab, &err), 0);
    return s;
}

static int32_t pick(struct sampler *s, const float *logits, const struct sampling *how,
                    uint32_t step)
{
    struct sample out;
    assert_int_equal(sampler_pick(s, logits, how, 0, step, NULL, 0, &out), 0);
    return out.id;
}

/* A plain generator for test data, seeded by hand. */
static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void random_logits(float *logits, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        logits[i] = (float)(next(&seed) % 4096) / 200.0f - 10.0f;  // with many ties
}

/* ---- the reference ---- */

struct entry {
    double p;
    float logit;
    int32_t id;
};

static int best_first(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Sort the whole vocabulary and answer how many of its best are kept. */
static uint32_t reference(const float *logits, uint32_t n, const struct sampling *how,
                          struct entry *e)
{
    for (uint32_t i = 0; i < n; i++) e[i] = (struct entry){0, logits[i], (int32_t)i};
    qsort(e, n, sizeof *e, best_first);
    uint32_t kept = how->top_k > 0 && how->top_k < n ? how->top_k : n;

    double total = 0, mass = 0;
    for (uint32_t i = 0; i < kept; i++) {
        e[i].p =
            exp(((double)e[i].logit - (double)e[0].logit) / (double)how->temperature);
        total += e[i].p;
    }
    uint32_t head = 0;
    while (head < kept && (head == 0 || mass < (double)how->top_p * total))
        mass += e[head++].p;
    kept = head;
    while (kept > 1 && e[kept - 1].p < (double)how->min_p) kept--;
    return kept;
}

/* Pearson's chi-square of `draws` draws against the reference, over its degrees of
 * freedom; fails at once where an id outside the kept ones is drawn. */
static double chi_square(struct sampler *s, const float *logits, uint32_t n,
                         const struct sampling *how, uint32_t draws)
{
    struct entry *e = calloc(n, sizeof *e);
    uint32_t *seen = calloc(n, sizeof *seen);
    uint32_t kept = reference(logits, n, how, e), cells = 0;
    for (uint32_t i = 0; i < draws; i++) seen[pick(s, logits, how, i)]++;

    double total = 0, x = 0, rest_want = 0, rest_seen = 0;
    for (uint32_t i = 0; i < kept; i++) total += e[i].p;
    for (uint32_t i = 0; i < kept; i++) {
        double want = e[i].p / total * draws, got = seen[e[i].id];
        seen[e[i].id] = 0;
        if (want < 10) {  // rare ids share one cell
            rest_want += want;
            rest_seen += got;
            continue;
        }
        x += (got - want) * (got - want) / want;
        cells++;
    }
    if (rest_want >= 10) {
        x += (rest_seen - rest_want) * (rest_seen - rest_want) / rest_want;
        cells++;
    }
    for (uint32_t i = 0; i < n; i++) assert_int_equal(seen[i], 0);
    free(e);
    free(seen);
    return cells > 1 ? x / (cells - 1) : 0;
}

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
        history[i] = (int32_t)(next(&seed) % VOCAB);
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

/* ---- drawing ---- */

static void draws_are_distributed_as_the_softmax_says(void **state)
{
    (void)state;
    const struct sampling how[] = {
        {.temperature = 1, .top_p = 1, .seed = 1},
        {.temperature = 0.7f, .top_p = 1, .seed = 2},
        {.temperature = 2, .top_p = 1, .seed = 3},
        {.temperature = 1, .top_p = 1, .top_k = 7, .seed = 4},
        {.temperature = 1, .top_p = 0.9f, .seed = 5},
        {.temperature = 1.5f, .top_p = 0.8f, .top_k = 40, .seed = 6},
        {.temperature = 1, .top_p = 1, .min_p = 0.05f, .seed = 7},
        {.temperature = 2, .top_p = 0.95f, .top_k = 100, .min_p = 0.1f, .seed = 8},
    };
    const uint32_t sizes[] = {8, 61, 200};
    float logits[200];
    for (size_t v = 0; v < ARRAY_LEN(sizes); v++) {
        struct sampler *s = open_sampler(sizes[v]);
        uint32_t seed = 77 + (uint32_t)v;
        for (uint32_t i = 0; i < sizes[v]; i++)
            logits[i] = (float)(next(&seed) % 64) / 16;
        for (size_t i = 0; i < ARRAY_LEN(how); i++) {
            /* 2 for each degree of freedom is passed by chance about once in 20 with the 7
             * of the smallest case and hardly ever with more; the seeds are fixed. */
            double x = chi_square(s, logits, sizes[v], &how[i], 30000);
            assert_true(x < 2.0);
        }
        sampler_close(s);
    }
}

static void what_is_kept_is_what_sorting_everything_keeps(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    float logits[VOCAB];
    struct entry e[VOCAB];
    uint32_t seed = 11;
    for (uint32_t round = 0; round < 300; round++) {
        random_logits(logits, VOCAB, round);
        struct sampling how = {
            .temperature = (float)(1 + next(&seed) % 40) / 10,
            .top_k = next(&seed) % 3 ? next(&seed) % 60 : 0,
            .top_p = next(&seed) % 3 ? (float)(1 + next(&seed) % 99) / 100 : 1,
            .min_p = next(&seed) % 3 ? 0 : (float)(next(&seed) % 100) / 200,
            .seed = round,
        };
        uint32_t kept = reference(logits, VOCAB, &how, e);
        for (uint32_t step = 0; step < 20; step++) {
            int32_t id = pick(s, logits, &how, step);
            bool found = false;
            for (uint32_t i = 0; i < kept && !found; i++) found = e[i].id == id;
            assert_true(found);
        }
    }
    sampler_close(s);
}

static void settings_that_leave_one_token_are_greedy(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB);
    float logits[VOCAB];
    const struct sampling narrow[] = {
        {.temperature = 1e-6f, .top_p = 1},
        {.temperature = 1e-45f, .top_p = 1},
        {.temperature = 1, .top_p = 0},
        {.temperature = 2, .top_p = 1e-9f},
        {.temperature = 2, .top_p = 1, .top_k = 1},
    };
    struct sampling greedy = {.top_p = 1};
    for (uint32_t round = 0; round < 50; round++) {
        random_logits(logits, VOCAB, round);
        logits[round * 7] =
            20;  // no tie: a temperature, however low, draws among equals
        logits[900] = -3e38f;
        for (size_t i = 0; i < ARRAY_LEN(narrow); i++)
            assert_int_equal(pick(s, logits, &narrow[i], round),
                             pick(s, logits, &greedy, 0));
    }
    sampler_close(s);
}

static void min_p_of_1_keeps_the_likeliest(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(4);
    const float logits[4] = {1, 2, 2, -5};
    struct sampling how = {.temperature = 1, .top_p = 1, .min_p = 1};
    uint32_t seen[4] = {0};
    for (uint32_t step = 0; step < 200; step++) seen[pick(s, logits, &how, step)]++;
    assert_true(seen[0] == 0 && seen[3] == 0 && seen[1] > 0 && seen[2] > 0);
    sampler_close(s);
}

static void a_seed_repeats_whatever_ran_between(void **state)
{
    (void)state;
    struct sampler *s = open_sampler(VOCAB), *other = open_sampler(VOCAB);
    float flat[VOCAB] = {0};
    struct sampling how = PLAIN, noise = PLAIN;
    how.seed = 42;
    uint32_t same_step = 0, same_choice = 0, same_seed = 0;
    for (uint32_t step = 0; step < 500; step++) {
        struct sample a, b, c;
        assert_int_equal(sampler_pick(s, flat, &how, 1, step, NULL, 0, &a), 0);
        noise.seed = step;
        (void)pick(other, flat, &noise, 9);
        assert_int_equal(sampler_pick(other, flat, &how, 1, step, NULL, 0, &b), 0);
        assert_int_equal(a.id, b.id);

        assert_int_equal(sampler_pick(s, flat, &how, 2, step, NULL, 0, &c), 0);
        same_choice += c.id == a.id;
        assert_int_equal(sampler_pick(s, flat, &how, 1, step + 1, NULL, 0, &c), 0);
        same_step += c.id == a.id;
        noise.seed = 43;
        assert_int_equal(sampler_pick(s, flat, &noise, 1, step, NULL, 0, &c), 0);
        same_seed += c.id == a.id;
    }
    /* One in a thousand by chance. */
    assert_true(same_choice < 6 && same_step < 6 && same_seed < 6);
    sampler_close(s);
    sampler_close(other);
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
        cmocka_unit_test(draws_are_distributed_as_the_softmax_says),
        cmocka_unit_test(what_is_kept_is_what_sorting_everything_keeps),
        cmocka_unit_test(settings_that_leave_one_token_are_greedy),
        cmocka_unit_test(min_p_of_1_keeps_the_likeliest),
        cmocka_unit_test(a_seed_repeats_whatever_ran_between),
        cmocka_unit_test(logprobs_are_the_log_softmax_of_the_raw_logits),
        cmocka_unit_test(top_logprobs_of_a_tiny_vocabulary_end_with_it),
        cmocka_unit_test(picking_allocates_nothing),
        cmocka_unit_test(an_impossible_vocabulary_is_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
