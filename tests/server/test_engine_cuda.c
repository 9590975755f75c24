/* Sleep is invisible on a GPU: what has gone down from its memory and come back answers as
 * what never left, bit for bit.  Where a CPU stands in for the device, its streams run in any
 * legal order. */
#include "tests/server/engine_cuda.h"

#define ROUNDS 24

static void every_length_comes_back_from(uint32_t ram, uint32_t ssd,
                                         enum kv_source source)
{
    static const uint32_t lengths[] = {16, 17, 33, 49, 113};
    const size_t first = TSAN ? 3 : 0, end = ARRAY_LEN(lengths) - TSAN;
    need_device();
    struct world_options cold_options = on_device(64, 0, 0),
                         o = on_device(64, ram, ssd);
    static struct client right[ARRAY_LEN(lengths)];
    struct world w;
    world_open(&w, &cold_options);
    for (size_t i = first; i < end; i++)
        client_ask(&right[i], &w, prompt_of(&w, lengths[i], lengths[i], 0, REPLY));
    world_close(&w);

    empty_folder();
    world_open(&w, &o);
    for (size_t i = first; i < end; i++) {
        uint32_t n = lengths[i], blocks = (n - 1) / 16;
        char name[16];
        snprintf(name, sizeof name, "of %u", n);
        for (int again = 0; again < 2; again++) {
            struct kv_wake_report report =
                ask(&other, &w, named(prompt_of(&w, n, n, 0, REPLY), name));
            assert_same(&right[i], &other);
            if (again) assert_int_equal(report.loaded[source], blocks);
            wait_asleep(&w, name, source);
        }
    }
    world_close(&w);
}

static void every_length_comes_back_from_pinned_memory(void **state)
{
    (void)state;
    every_length_comes_back_from(64, 0, KV_RAM);
}

static void every_length_comes_back_from_the_ssd(void **state)
{
    (void)state;
    every_length_comes_back_from(0, 64, KV_SSD);
}

static void any_history_over_any_tiers_reads_as_one_that_never_slept(void **state)
{
    (void)state;
    static const struct {
        uint32_t ram, ssd;
    } tiers[] = {{40, 0}, {0, 60}, {12, 60}};
    static struct turn turns[ROUNDS];
    const uint32_t rounds = TSAN ? 5 : ROUNDS;
    uint64_t early = 0;
    need_device();
    for (uint32_t i = 0; i < ARRAY_LEN(tiers); i++) {
        struct world_options plain = on_device(64, 0, 0);
        struct world_options o = on_device(20, tiers[i].ram, tiers[i].ssd);
        struct world w;
        make_history(turns, rounds, 5 + i);
        world_open(&w, &plain);
        answer_cold(&w, turns, rounds);
        world_close(&w);
        if (standin_schedule) standin_schedule(STANDIN_RANDOM, i % 3, 100 + i);
        empty_folder();
        world_open(&w, &o);
        run_history(&w, turns, rounds);
        early += begun_early(&w);
        world_close(&w);
    }
    if (standin_schedule) assert_true(early > 0);
}

/* In the second of two histories, as in the first every size of step was recorded. */
static void while_blocks_move_nothing_waits_but_the_end_of_a_step(void **state)
{
    (void)state;
    static struct turn turns[2 * ROUNDS];
    const uint32_t rounds = ROUNDS / 2;
    struct world_options plain = on_device(64, 0, 0), o = on_device(20, 12, 60);
    struct standin_counts before, after;
    struct world w;
    need_device();
    if (!standin_count || TSAN) {
        print_message(
            "skipped: a real device does not count its calls, and under TSan it "
            "would count the same in a minute more\n");
        skip();
    }
    make_history(turns, 2 * rounds, 9);
    world_open(&w, &plain);
    answer_cold(&w, turns, 2 * rounds);
    world_close(&w);
    empty_folder();
    world_open(&w, &o);
    run_history(&w, turns, rounds);
    uint64_t steps = metrics_counter(w.metrics, COUNTER_STEPS);
    uint64_t up = metrics_counter(w.metrics, COUNTER_PROMOTED_RAM);
    uint64_t down = metrics_counter(w.metrics, COUNTER_DEMOTED_RAM);
    standin_count(&before);
    run_history(&w, turns + rounds, rounds);
    standin_count(&after);
    steps = metrics_counter(w.metrics, COUNTER_STEPS) - steps;
    assert_true(metrics_counter(w.metrics, COUNTER_PROMOTED_RAM) > up);
    assert_true(metrics_counter(w.metrics, COUNTER_DEMOTED_RAM) > down);
    assert_true(steps > rounds * REPLY);
    assert_int_equal(after.syncs - before.syncs, steps);
    assert_int_equal(after.allocs - before.allocs, 0);
    assert_int_equal(after.frees - before.frees, 0);
    assert_int_equal(after.pinned_used, before.pinned_used);
    assert_int_equal(after.pageable_async, 0);
    world_close(&w);
}

/* ---- drafts ---- */

static struct request *alphabet(const struct world *w)
{
    struct request *r = world_chat(w, "x", TSAN ? 32 : 80);
    r->ignore_eos = r->sampling.logprobs = true;
    return r;
}

/* Steps of one row are recorded, those with drafts are not. */
static void a_reply_with_drafts_has_the_bits_of_one_without(void **state)
{
    (void)state;
    need_device();
    struct world_options plain = on_device(64, 0, 0), o;
    struct world w;
    plain.model = "tiny-abc";
    o = plain;
    o.prompt_lookup = 6;
    o.max_logits = 12;
    world_open(&w, &plain);
    client_ask(&client, &w, alphabet(&w));
    world_close(&w);
    world_open(&w, &o);
    client_ask(&other, &w, alphabet(&w));
    assert_same(&client, &other);
    assert_true(metrics_counter(w.metrics, COUNTER_ACCEPTED_TOKENS) > 0);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_comes_back_from_pinned_memory),
        cmocka_unit_test(every_length_comes_back_from_the_ssd),
        cmocka_unit_test(any_history_over_any_tiers_reads_as_one_that_never_slept),
        cmocka_unit_test(while_blocks_move_nothing_waits_but_the_end_of_a_step),
        cmocka_unit_test(a_reply_with_drafts_has_the_bits_of_one_without),
    };
    return run_in_folder(tests, ARRAY_LEN(tests));
}
