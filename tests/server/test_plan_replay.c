/* Replays of traces so small that every time and every hit is known by hand.
 *
 * Prefill takes 1 us a token, a step of decode 1 us a reply; a block of 512 tokens has 4096
 * bytes, which RAM brings in 1 us and the SSD in 4 us, both after 10 us of latency. */
#include "server/plan_build.h"
#include "server/plan_replay.h"

// cmocka needs these before it
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEADER                                                                         \
    "session_id,arrival_ms,round_idx,prefix_len,input_len,output_len,wait_after_ms\n"
#define TOKEN_BYTES 8
#define BLOCK_BYTES ((uint64_t)TOKEN_BYTES * PLAN_BLOCK_TOKENS)
#define US          UINT64_C(1000)

static struct plan_machine machine(uint32_t pages, uint32_t ram, uint32_t ssd)
{
    struct plan_machine m = {
        .kv_bytes = pages * BLOCK_BYTES,
        .token_bytes = TOKEN_BYTES,
        .context = 1u << 20,
        .compute = {.prefill_a = 1000, .step_tokens = 500, .max_running = 8},
        .ram = {ram * BLOCK_BYTES, 4.096e9, 4.096e9, 10 * US},
        .ssd = {ssd * BLOCK_BYTES, 1.024e9, 1.024e9, 10 * US},
        .max_conversations = 64,
        .max_wakes = 8};
    policy_defaults(&m.policy);
    return m;
}

static struct plan_result replay(const char *csv, const struct plan_machine *m)
{
    struct plan_trace t = {0};
    struct plan_result r;
    struct err err = {{0}};
    assert_int_equal(plan_trace_read(&t, "T", csv, strlen(csv), &err), 0);
    int rc = plan_replay(&r, &t, m, &err);
    assert_string_equal(err.msg, "");
    assert_int_equal(rc, 0);
    plan_trace_free(&t);
    return r;
}

static void a_lone_prompt_takes_its_prefill_and_its_steps(void **state)
{
    (void)state;
    struct plan_machine m = machine(4, 0, 0);
    struct plan_result r = replay(HEADER "1,5,0,0,1000,3,-1\n", &m);
    assert_int_equal(r.turns, 1);
    assert_int_equal(r.ttft[0], 1000 * US);
    assert_int_equal(r.span, 1002 * US);
    assert_int_equal(r.busy, 1002 * US);
    assert_int_equal(r.prompt_tokens, 1000);
    assert_int_equal(r.reply_tokens, 3);
    plan_result_free(&r);
}

static void prompts_are_prefilled_in_order_while_replies_go_on(void **state)
{
    (void)state;
    struct plan_machine m = machine(8, 0, 0);
    /* The second prompt's two steps carry a token of the first reply each. */
    struct plan_result r = replay(HEADER "1,0,0,0,1000,3,-1\n2,0,0,0,1000,1,-1\n", &m);
    assert_int_equal(r.turns, 2);
    assert_int_equal(r.ttft[0], 1000 * US);
    assert_int_equal(r.ttft[1], 2002 * US);
    plan_result_free(&r);
}

static void whoever_finds_no_room_waits_until_a_reply_has_ended(void **state)
{
    (void)state;
    struct plan_machine m = machine(3, 0, 0);
    struct plan_result r =
        replay(HEADER "1,0,0,0,1000,101,-1\n2,0,0,0,1000,1,-1\n", &m);
    assert_int_equal(r.ttft[0], 1000 * US);
    assert_int_equal(r.ttft[1], 2100 * US);
    plan_result_free(&r);
}

static void a_turn_that_returns_soon_finds_its_blocks_on_the_device(void **state)
{
    (void)state;
    struct plan_machine m = machine(8, 8, 8);
    struct plan_result r =
        replay(HEADER "1,0,0,0,1024,1,1000\n1,0,1,1025,511,1,-1\n", &m);
    assert_int_equal(r.returning, 1);
    assert_int_equal(r.ttft_returning[0], 512 * US);
    assert_int_equal(r.counters.hit_tokens[KV_DEVICE], 1024);
    assert_int_equal(r.counters.hit_tokens[KV_RAM], 0);
    assert_int_equal(r.counters.promoted_bytes[KV_RAM], 0);
    plan_result_free(&r);
}

/* A conversation that another pushes out of a device of four pages before it returns. */
static const char pushed_out[] =
    HEADER "1,0,0,0,1024,1,20000\n1,0,1,1025,511,1,-1\n2,10000,0,0,2040,1,-1\n";

static void a_turn_that_was_pushed_out_is_loaded_from_ram(void **state)
{
    (void)state;
    struct plan_machine m = machine(4, 8, 0);
    struct plan_result r = replay(pushed_out, &m);
    assert_int_equal(r.counters.hit_tokens[KV_DEVICE], 0);
    assert_int_equal(r.counters.hit_tokens[KV_RAM], 1024);
    assert_int_equal(r.counters.promoted_bytes[KV_RAM], 2 * BLOCK_BYTES);
    /* Two blocks of the first and three of the second have been quiet for long enough. */
    assert_int_equal(r.counters.demoted_bytes[KV_RAM], 5 * BLOCK_BYTES);
    assert_int_equal(r.counters.lost, 0);
    assert_int_equal(r.ttft_returning[0], (2 + 10 + 512) * US);
    assert_int_equal(r.waited_for_load, 12 * US);
    plan_result_free(&r);
}

static void without_tiers_it_is_computed_again(void **state)
{
    (void)state;
    struct plan_machine m = machine(4, 0, 0);
    struct plan_result r = replay(pushed_out, &m);
    assert_int_equal(r.counters.hit_tokens[KV_DEVICE], 0);
    assert_int_equal(r.ttft_returning[0], 1536 * US);
    assert_int_equal(r.counters.demoted_bytes[KV_RAM], 0);
    plan_result_free(&r);
}

static void without_ram_it_is_loaded_from_the_ssd(void **state)
{
    (void)state;
    struct plan_machine m = machine(4, 0, 8);
    struct plan_result r = replay(pushed_out, &m);
    assert_int_equal(r.counters.hit_tokens[KV_SSD], 1024);
    assert_int_equal(r.counters.promoted_bytes[KV_SSD], 2 * BLOCK_BYTES);
    assert_int_equal(r.ttft_returning[0], (8 + 10 + 512) * US);
    plan_result_free(&r);
}

static void a_load_slower_than_computing_is_not_made(void **state)
{
    (void)state;
    struct plan_machine m = machine(4, 8, 0);
    m.ram.read = 4e6;  // a block in 1 ms; computing it takes half
    struct plan_result r = replay(pushed_out, &m);
    assert_int_equal(r.counters.hit_tokens[KV_RAM], 0);
    assert_int_equal(r.ttft_returning[0], 1536 * US);
    plan_result_free(&r);
}

static void sessions_that_share_a_prompt_share_its_blocks(void **state)
{
    (void)state;
    struct plan_machine m = machine(8, 0, 0);
    struct plan_result r = replay("{\"timestamp\": 0, \"input_length\": 1100, "
                                  "\"output_length\": 1, \"hash_ids\": "
                                  "[1, 2, 3]}\n"
                                  "{\"timestamp\": 9, \"input_length\": 1224, "
                                  "\"output_length\": 1, \"hash_ids\": "
                                  "[1, 4, 5]}\n",
                                  &m);
    assert_int_equal(r.returning, 0);
    assert_int_equal(r.counters.hit_tokens[KV_DEVICE], 512);
    assert_int_equal(r.ttft[0], 712 * US);
    assert_int_equal(r.ttft[1], 1100 * US);
    plan_result_free(&r);
}

static void what_never_fits_is_refused_with_what_follows_it(void **state)
{
    (void)state;
    struct plan_machine m = machine(4, 0, 0);
    m.context = 1500;
    struct plan_result r = replay(HEADER "1,0,0,0,1000,1,10\n1,0,1,1001,499,1,10\n"
                                         "1,0,2,1501,9,1,-1\n2,0,0,0,2048,1,-1\n"
                                         "3,0,0,0,10,0,-1\n",
                                  &m);
    assert_int_equal(r.refused, 3);
    assert_int_equal(r.turns, 2);
    plan_result_free(&r);
}

/* A crowd over tiers that are much too small, as different as the seed makes it. */
static struct plan_result crowd(uint64_t seed, const struct plan_machine *m)
{
    const struct plan_synthetic o = {.conversations = 300,
                                     .duration = 600 * PLAN_S,
                                     .seed = seed,
                                     .first_tokens = 3000,
                                     .turn_tokens = 500,
                                     .reply_tokens = 400};
    struct plan_trace t = {0};
    struct plan_result r;
    struct err err = {{0}};
    assert_int_equal(plan_trace_make(&t, &o, &err), 0);
    int rc = plan_replay(&r, &t, m, &err);
    assert_string_equal(err.msg, "");
    assert_int_equal(rc, 0);
    assert_int_equal(r.turns + r.refused, t.n_turns);
    plan_trace_free(&t);
    return r;
}

static void every_prompt_token_is_found_or_computed(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct plan_machine m = machine(150, 100, 200);
        m.compute.prefill_a = 100000;
        struct plan_result r = crowd(seed, &m);
        const struct kvstore_counters *c = &r.counters;
        uint64_t sum = 0;
        for (int i = 0; i < KV_SOURCES; i++) sum += c->hit_tokens[i];
        assert_true(sum > 0);
        for (int i = 0; i < KV_WHYS; i++) sum += c->computed_tokens[i];
        assert_int_equal(sum, r.prompt_tokens);
        plan_result_free(&r);
    }
}

static void the_same_trace_gives_the_same_result(void **state)
{
    (void)state;
    struct plan_machine m = machine(150, 100, 200);
    struct plan_result a = crowd(9, &m), b = crowd(9, &m);
    assert_int_equal(a.span, b.span);
    assert_int_equal(a.turns, b.turns);
    assert_memory_equal(&a.counters, &b.counters, sizeof a.counters);
    assert_memory_equal(a.ttft, b.ttft, a.turns * sizeof *a.ttft);
    plan_result_free(&a);
    plan_result_free(&b);
}

static void a_percentile_is_the_nearest_rank(void **state)
{
    (void)state;
    const uint64_t v[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    assert_int_equal(plan_percentile(v, 10, 50), 5);
    assert_int_equal(plan_percentile(v, 10, 90), 9);
    assert_int_equal(plan_percentile(v, 10, 99), 10);
    assert_int_equal(plan_percentile(v, 1, 50), 1);
    assert_int_equal(plan_percentile(NULL, 0, 50), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lone_prompt_takes_its_prefill_and_its_steps),
        cmocka_unit_test(prompts_are_prefilled_in_order_while_replies_go_on),
        cmocka_unit_test(whoever_finds_no_room_waits_until_a_reply_has_ended),
        cmocka_unit_test(a_turn_that_returns_soon_finds_its_blocks_on_the_device),
        cmocka_unit_test(a_turn_that_was_pushed_out_is_loaded_from_ram),
        cmocka_unit_test(without_tiers_it_is_computed_again),
        cmocka_unit_test(without_ram_it_is_loaded_from_the_ssd),
        cmocka_unit_test(a_load_slower_than_computing_is_not_made),
        cmocka_unit_test(sessions_that_share_a_prompt_share_its_blocks),
        cmocka_unit_test(what_never_fits_is_refused_with_what_follows_it),
        cmocka_unit_test(every_prompt_token_is_found_or_computed),
        cmocka_unit_test(the_same_trace_gives_the_same_result),
        cmocka_unit_test(a_percentile_is_the_nearest_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
