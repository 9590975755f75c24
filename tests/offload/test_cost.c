/* The cost model: fits of what was observed, and the split of a prefix. */
#include "offload/cost.h"
#include "tests/offload/blocks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct cost *opened(void)
{
    struct cost *c;
    struct err err;
    assert_int_equal(cost_open(&c, &err), 0);
    return c;
}

static void near(double is, double expected, double share)
{
    if (fabs(is - expected) > share * fabs(expected))
        fail_msg("%g is not within %g of %g", is, share, expected);
}

static void observe(struct cost *c, enum cost_tier t, uint64_t bytes, uint64_t ahead,
                    uint64_t ns, uint64_t now)
{
    const struct cost_load l = {t, bytes, ahead, ns, ns};
    cost_observe_load(c, &l, now);
}

static void prefill_is_fitted_over_tokens_and_position(void **state)
{
    (void)state;
    struct cost *c = opened();
    uint64_t seed = 7;
    for (int i = 0; i < 400; i++) {
        uint32_t from = (uint32_t)(mix64(&seed) % 8000);
        uint32_t to = from + 64 + (uint32_t)(mix64(&seed) % 448);
        double noise = 0.95 + 0.1 * (double)(mix64(&seed) % 1000) / 1000;
        double ns = 0;
        for (uint32_t p = from; p < to; p++) ns += 3e4 + 12.0 * p;
        cost_observe_prefill(c, from, to, (uint64_t)(ns * noise));
    }
    near(cost_prefill_ns(c, 0, 1000), 1000 * 3e4 + 12.0 * 999 * 500, 0.1);
    near(cost_prefill_ns(c, 6000, 8000), 2000 * 3e4 + 12.0 * 2000 * 6999.5, 0.05);
    assert_true(cost_prefill_ns(c, 5, 5) == 0);
    cost_close(c);
}

static void
a_load_is_fitted_as_latency_and_bandwidth_behind_what_is_queued(void **state)
{
    (void)state;
    struct cost *c = opened();
    uint64_t seed = 8, now = 0;
    for (int i = 0; i < 400; i++) {
        uint64_t bytes = 360 << 10, ahead = (mix64(&seed) % 32) * bytes;
        double ns = 3e5 + (double)(bytes + ahead) / 3.0;  // 3 GB/s
        observe(c, COST_SSD, bytes, ahead, (uint64_t)ns, now += (uint64_t)ns);
    }
    near(cost_load_ns(c, COST_SSD, 300 << 20, 0), 3e5 + (300 << 20) / 3.0, 0.03);
    near(cost_load_ns(c, COST_SSD, 4096, 30 << 20), 3e5 + (30 << 20) / 3.0, 0.03);
    assert_true(cost_load_ns(c, COST_SSD, 0, 1 << 20) == 0);
    cost_close(c);
}

static void rates_given_before_any_observation_are_what_is_predicted(void **state)
{
    (void)state;
    struct cost *c = opened();
    cost_set_prefill(c, 1000, 2);
    cost_set_tier(c, COST_RAM, 500, 2e9);
    near(cost_prefill_ns(c, 0, 3), 3 * 1000 + 2 * (0 + 1 + 2), 1e-9);
    near(cost_load_ns(c, COST_RAM, 2000, 2000), 500 + 2000, 1e-9);
    cost_close(c);
}

static void
one_hiccup_moves_a_rate_little_and_a_lasting_change_is_followed(void **state)
{
    (void)state;
    struct cost *c = opened();
    uint64_t now = 0;
    for (int i = 0; i < 100; i++)
        observe(c, COST_RAM, 1 << 20, 0, 1000000, now += 1000000);
    observe(c, COST_RAM, 1 << 20, 0, 10000000000u, now += 10000000000u);
    assert_true(cost_load_ns(c, COST_RAM, 1 << 20, 0) < 1.2e6);
    for (int i = 0; i < 200; i++)
        observe(c, COST_RAM, 1 << 20, 0, 100000000, now += 100000000);
    near(cost_load_ns(c, COST_RAM, 1 << 20, 0), 1e8, 0.05);
    cost_close(c);
}

static void rates_are_never_negative_whatever_is_observed(void **state)
{
    (void)state;
    struct cost *c = opened();
    uint64_t seed = 9, now = 0;
    for (int i = 0; i < 3000; i++) {
        uint32_t from = (uint32_t)(mix64(&seed) % 9000);
        cost_observe_prefill(c, from, from + (uint32_t)(mix64(&seed) % 300),
                             mix64(&seed) % 100000000);
        uint64_t ns = mix64(&seed) % 1000000000;
        observe(c, COST_RAM, mix64(&seed) % 10000000, mix64(&seed) % 100000000, ns,
                now += mix64(&seed) % 20000000000u);
        double small = cost_load_ns(c, COST_RAM, 1, 0);
        double large = cost_load_ns(c, COST_RAM, 1 << 30, 0);
        assert_true(isfinite(large) && small >= 0 && large >= small);
        double front = cost_prefill_ns(c, 0, 100),
               back = cost_prefill_ns(c, 9000, 9100);
        assert_true(isfinite(back) && front >= 0 && back >= front);
    }
    cost_close(c);
}

static double total_of(const struct cost *c, const struct cost_question *q, uint32_t k)
{
    uint64_t bytes[COST_TIERS] = {0};
    for (uint32_t i = 0; i < k; i++)
        if (q->tier[i] < COST_TIERS) bytes[q->tier[i]] += q->block_bytes;
    double wait = fmax(cost_load_ns(c, COST_RAM, bytes[COST_RAM], q->queued[COST_RAM]),
                       cost_load_ns(c, COST_SSD, bytes[COST_SSD], q->queued[COST_SSD]));
    return q->compute_price *
               cost_prefill_ns(c, (q->first + k) * q->block_tokens, q->prompt) +
           wait;
}

static void the_split_is_the_best_of_all(void **state)
{
    (void)state;
    struct cost *c = opened();
    uint64_t seed = 10;
    uint32_t kinds[3] = {0};
    for (int i = 0; i < 3000; i++) {
        uint8_t tier[100];
        uint32_t n = (uint32_t)(mix64(&seed) % 100),
                 ram = (uint32_t)(mix64(&seed) % 100);
        for (uint32_t k = 0; k < n; k++)
            tier[k] = k < ram ? COST_RAM : (uint8_t)(mix64(&seed) % 3);
        cost_set_prefill(c, (double)(mix64(&seed) % 100000),
                         (double)(mix64(&seed) % 100));
        cost_set_tier(c, COST_RAM, (double)(mix64(&seed) % 1000000),
                      1e8 + (double)(mix64(&seed) % 5000000000u));
        cost_set_tier(c, COST_SSD, (double)(mix64(&seed) % 10000000),
                      1e7 + (double)(mix64(&seed) % 1000000000u));
        struct cost_question q = {
            .block_tokens = 16,
            .block_bytes = 1 + mix64(&seed) % 2000000,
            .first = (uint32_t)(mix64(&seed) % 50),
            .n = n,
            .tier = tier,
            .queued = {mix64(&seed) % 10000000, mix64(&seed) % 10000000},
            .compute_price = 1 + (double)(mix64(&seed) % 4),
        };
        q.prompt = (q.first + n) * 16 + 1 + (uint32_t)(mix64(&seed) % 200);
        struct cost_answer a;
        cost_decide(c, &q, &a);
        double chosen = total_of(c, &q, a.load);
        for (uint32_t k = 0; k <= n; k++) {
            assert_true(chosen <= total_of(c, &q, k));
            if (k > a.load) assert_true(chosen < total_of(c, &q, k));
        }
        near(q.compute_price * a.compute_ns + a.load_ns, chosen, 1e-9);
        near(a.without_ns, cost_prefill_ns(c, q.first * 16, q.prompt), 1e-9);
        kinds[a.load == 0 ? 0 : a.load == n ? 2 : 1]++;
    }
    // All three answers were met: nothing, a part, all.
    assert_true(kinds[0] > 50 && kinds[1] > 50 && kinds[2] > 50);
    cost_close(c);
}

static void under_load_computing_again_costs_more(void **state)
{
    (void)state;
    struct cost *c = opened();
    uint8_t tier[4] = {COST_SSD, COST_SSD, COST_SSD, COST_SSD};
    cost_set_prefill(c, 1e5, 0);
    cost_set_tier(c, COST_SSD, 1e7, 1e9);  // 64 tokens: 6.4 ms; 4 blocks: 14 ms
    struct cost_question q = {16, 1000000, 0, 4, tier, 70, {0}, 1, 0};
    struct cost_answer a;
    cost_decide(c, &q, &a);
    assert_int_equal(a.load, 0);
    q.compute_price = 3;
    cost_decide(c, &q, &a);
    assert_int_equal(a.load, 4);
    cost_close(c);
}

/* A question about n blocks of 1 MB on the SSD, each of which computes for 5 ms and, by the
 * rates that were calibrated, loads in 1 ms. */
static uint32_t loads_of(const struct cost *c, uint32_t n, uint64_t now)
{
    uint8_t tier[64];
    memset(tier, COST_SSD, sizeof tier);
    struct cost_question q = {16, 1000000, 0, n, tier, 16 * n + 1, {0}, 1, now};
    struct cost_answer a;
    cost_decide(c, &q, &a);
    return a.load;
}

static struct cost *calibrated(void)
{
    struct cost *c = opened();
    cost_set_prefill(c, 5e6 / 16, 0);
    cost_set_tier(c, COST_SSD, 1e5, 1e9);
    return c;
}

/* The blocks are asked for together, and each takes so many ns. */
static uint64_t load_all(struct cost *c, uint32_t n, uint64_t each, uint64_t now)
{
    for (uint32_t i = 0; i < n; i++)
        observe(c, COST_SSD, 1000000, i * UINT64_C(1000000), (i + 1) * each,
                now + (i + 1) * each);
    return now + n * each;
}

static void a_load_of_many_blocks_that_stalls_counts_once(void **state)
{
    (void)state;
    struct cost *c = calibrated();
    uint64_t now = load_all(c, 30, 1000000, 0);
    now = load_all(c, 30, 1000000000, now);
    assert_true(cost_load_ns(c, COST_SSD, 30000000, 0) < 4.2 * 30e6);
    assert_int_equal(loads_of(c, 30, now), 30);
    cost_close(c);
}

static void
after_one_load_a_thousand_times_too_slow_loads_are_made_again_soon(void **state)
{
    (void)state;
    struct cost *c = calibrated();
    uint64_t now = 0, until, step = COST_HALF / 10;
    // One block after another, so that each confirms the one before.
    for (int i = 0; i < 30; i++) now = load_all(c, 1, 1000000000, now);
    assert_true(cost_load_ns(c, COST_SSD, 30000000, 0) > 10 * 30e6);
    assert_int_equal(loads_of(c, 30, now), 0);
    for (until = now + 8 * COST_HALF; now < until; now += step) {
        uint32_t n = loads_of(c, 30, now);
        if (n > 0) now = load_all(c, n, 1000000, now);
    }
    assert_int_equal(loads_of(c, 30, now), 30);
    cost_close(c);
}

static void a_tier_that_stays_slow_is_probed_with_a_block_now_and_then(void **state)
{
    (void)state;
    struct cost *c = calibrated();
    uint64_t now = 0, blocks = 0, asked = 0;
    for (int i = 0; i < 30; i++) now = load_all(c, 1, 1000000000, now);
    for (uint64_t until = now + 100 * COST_HALF; now < until; now += COST_HALF / 10) {
        uint32_t n = loads_of(c, 30, now);
        assert_true(n <= 1);
        now = load_all(c, n, 1000000000, now);
        blocks += n;
        asked += 30;
    }
    assert_true(blocks >= 10);
    assert_true(blocks * 200 < asked);
    cost_close(c);
}

static void a_load_that_landed_unseen_says_only_what_it_can(void **state)
{
    (void)state;
    struct cost *c = calibrated();
    double before = cost_load_ns(c, COST_SSD, 30000000, 0);
    uint64_t now = 0;
    for (int i = 0; i < 100; i++) {  // nobody looked for a second
        const struct cost_load l = {COST_SSD, 1000000, 0, 0, 1000000000};
        cost_observe_load(c, &l, now += 1000000000);
    }
    near(cost_load_ns(c, COST_SSD, 30000000, 0), before, 0.01);
    assert_int_equal(loads_of(c, 30, now), 30);
    cost_close(c);
}

/* 1 us a token, 10 GB/s. */
static double gain(uint64_t bytes, uint32_t pieces, uint32_t tokens, double price)
{
    struct err err;
    struct cost *c;
    assert_int_equal(cost_open(&c, &err), 0);
    cost_set_prefill(c, 1e3, 0);
    cost_set_tier(c, COST_RAM, 1e6, 1e10);
    const struct cost_overlap o = {bytes, pieces, 4096, 4096 + tokens, price};
    double ns = cost_overlap_gain(c, &o);
    cost_close(c);
    return ns;
}

static void
beginning_early_gains_what_computing_and_loading_have_in_common(void **state)
{
    (void)state;
    // 20 MB take 2 ms; then 1,000 tokens take 1 ms, 4,000 take 4 ms.
    near(gain(20000000, 8, 1000, 1), 1e6 * 7 / 8, 1e-9);
    near(gain(20000000, 8, 4000, 1), 2e6 * 7 / 8, 1e-9);
    near(gain(20000000, 2, 4000, 1), 2e6 / 2, 1e-9);
    assert_true(gain(20000000, 1, 4000, 1) == 0);
    assert_true(gain(0, 8, 4000, 1) == 0);
    assert_true(gain(20000000, 8, 0, 1) == 0);
}

static void beginning_early_costs_those_who_wait_while_the_device_does(void **state)
{
    (void)state;
    // Of 2 ms the device waits for 1 ms * 7 / 8 if it computes for 1 ms.
    near(gain(20000000, 8, 1000, 2), 0, 1e-9);
    near(gain(20000000, 8, 1000, 4), -2e6 * 7 / 8, 1e-9);
    near(gain(20000000, 8, 4000, 64), 2e6 * 7 / 8, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_is_fitted_over_tokens_and_position),
        cmocka_unit_test(
            a_load_is_fitted_as_latency_and_bandwidth_behind_what_is_queued),
        cmocka_unit_test(rates_given_before_any_observation_are_what_is_predicted),
        cmocka_unit_test(
            one_hiccup_moves_a_rate_little_and_a_lasting_change_is_followed),
        cmocka_unit_test(rates_are_never_negative_whatever_is_observed),
        cmocka_unit_test(the_split_is_the_best_of_all),
        cmocka_unit_test(under_load_computing_again_costs_more),
        cmocka_unit_test(a_load_of_many_blocks_that_stalls_counts_once),
        cmocka_unit_test(
            after_one_load_a_thousand_times_too_slow_loads_are_made_again_soon),
        cmocka_unit_test(a_tier_that_stays_slow_is_probed_with_a_block_now_and_then),
        cmocka_unit_test(a_load_that_landed_unseen_says_only_what_it_can),
        cmocka_unit_test(
            beginning_early_gains_what_computing_and_loading_have_in_common),
        cmocka_unit_test(beginning_early_costs_those_who_wait_while_the_device_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
