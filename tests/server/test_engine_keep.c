/* What was computed is found again, and nobody can tell by the answer. */
#include "tests/allocs.h"
#include "tests/server/engine_prompts.h"

static struct client client, other;

static const struct world_options keeping = {.model = "tiny-rand", .keeps = true};
static const struct world_options forgetful = {.model = "tiny-rand"};

static void a_prompt_that_comes_again_is_not_computed_again(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 66; n++) {
        struct world cold, w;
        world_open(&cold, &forgetful);
        world_open(&w, &keeping);
        client_ask(&client, &cold, prompt_of(&cold, n, 3, 0, 5));
        for (int i = 0; i < 3; i++) {
            client_ask(&other, &w, prompt_of(&w, n, 3, 0, 5));
            assert_same(&client, &other);
            assert_int_equal(cached(&other), i == 0 ? 0 : (n - 1) / 16 * 16);
        }
        uint64_t computed = metrics_counter(w.metrics, COUNTER_COMPUTED_TOKENS);
        assert_int_equal(computed, 3 * (n + 4) - 2 * ((n - 1) / 16 * 16));
        world_close(&cold);
        world_close(&w);
    }
}

static void a_reply_is_found_by_the_turn_after_it(void **state)
{
    (void)state;
    struct world cold, w;
    world_open(&cold, &forgetful);
    world_open(&w, &keeping);
    uint32_t n = 50;
    struct request *r = prompt_of(&w, n, 3, 0, 60);
    client_ask(&client, &w, r);
    int32_t ids[50 + 60 + 10];
    struct request *again = prompt_of(&w, n, 3, 0, 1);
    memcpy(ids, again->ids, n * sizeof *ids);
    for (uint32_t i = 0; i < 60; i++) ids[n + i] = client.samples[i].id;
    for (uint32_t i = 0; i < 10; i++) ids[n + 60 + i] = (int32_t)i + 40;
    request_unref(again);
    struct request *turn[2];
    for (int i = 0; i < 2; i++) {
        turn[i] = prompt_of(&w, 120, 3, 0, 8);
        memcpy(turn[i]->ids, ids, sizeof ids);
    }
    client_ask(&client, &cold, turn[0]);
    client_ask(&other, &w, turn[1]);
    assert_same(&client, &other);
    assert_int_equal(cached(&other),
                     96);  // 109 of 110 are computed: six blocks of them
    world_close(&cold);
    world_close(&w);
}

static void equal_prompts_that_come_together_are_computed_once(void **state)
{
    (void)state;
    enum { N = 1000, COMMON = 900, COUNT = 4 };
    static struct client all[COUNT];
    struct world cold, w;
    struct world_options stopped = keeping;
    struct err err;
    stopped.stopped = true;
    world_open(&cold, &forgetful);
    world_open(&w, &stopped);
    for (uint32_t i = 0; i < COUNT; i++)
        client_begin(&all[i], &w, prompt_of(&w, N, 3 + i, COMMON, 5));
    assert_int_equal(engine_start(w.engine, &err), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        client_read(&all[i]);
        client_end(&all[i]);
        client_ask(&client, &cold, prompt_of(&cold, N, 3 + i, COMMON, 5));
        assert_same(&client, &all[i]);
    }
    uint64_t computed = metrics_counter(w.metrics, COUNTER_COMPUTED_TOKENS);
    assert_true(computed >= COMMON + COUNT * (N - COMMON + 4));
    assert_true(computed <= COMMON + COUNT * (N - COMMON + 4 + 6 * 16));
    world_close(&cold);
    world_close(&w);
}

static void an_edit_keeps_what_is_before_it(void **state)
{
    (void)state;
    struct world cold, w;
    world_open(&cold, &forgetful);
    world_open(&w, &keeping);
    client_ask(&other, &w, prompt_of(&w, 64, 1, 64, 1));
    for (uint32_t at = 0; at < 64; at += 5) {
        struct request *a = prompt_of(&w, 64, 1, 64, 6),
                       *b = prompt_of(&w, 64, 1, 64, 6);
        a->ids[at] = b->ids[at] = (a->ids[at] + 1) % 500;
        client_ask(&client, &cold, a);
        client_ask(&other, &w, b);
        assert_same(&client, &other);
        assert_int_equal(cached(&other), at / 16 * 16);
    }
    world_close(&cold);
    world_close(&w);
}

static void tenants_share_nothing(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &keeping);
    const uint32_t expected[] = {0, 80, 0, 80};
    for (uint32_t i = 0; i < 4; i++) {
        struct request *r = prompt_of(&w, 90, 3, 0, 2);
        r->tenant = i / 2;
        client_ask(&client, &w, r);
        assert_int_equal(cached(&client), expected[i]);
    }
    struct err err = {""};
    struct request *r = prompt_of(&w, 90, 3, 0, 2);
    r->tenant = 2;
    assert_int_equal(engine_submit(w.engine, r, &err), -EINVAL);
    request_unref(r);
    world_close(&w);
}

static void choices_and_scored_prompts_answer_as_without_a_store(void **state)
{
    (void)state;
    struct world cold, w;
    world_open(&cold, &forgetful);
    world_open(&w, &keeping);
    for (int i = 0; i < 4; i++) {
        struct request *r[2];
        for (int k = 0; k < 2; k++) {
            r[k] = prompt_of(&w, 80, 3, 0, 20);
            r[k]->n_choices = i % 2 ? 3 : 1;
            r[k]->prompt_logprobs = i == 2;
            r[k]->sampling.temperature = 1;
            r[k]->sampling.seed = 7;
        }
        client_ask(&client, &cold, r[0]);
        client_ask(&other, &w, r[1]);
        for (int c = 0; c < (i % 2 ? 3 : 1); c++)
            assert_string_equal(client.choices[c].text, other.choices[c].text);
        if (i % 2 == 0) assert_same(&client, &other);
        assert_int_equal(cached(&other), i == 0 || i == 2 ? 0 : 64);
    }
    world_close(&cold);
    world_close(&w);
}

/* Twelve conversations over a pool that holds about two: the idle yield, and those that are
 * put back find their blocks or compute them. */
static void a_full_pool_changes_no_answer(void **state)
{
    (void)state;
    struct world cold, w;
    struct world_options small = keeping;
    small.blocks = 24;
    small.context = 24 * 16;
    small.max_running = 4;
    world_open(&cold, &forgetful);
    world_open(&w, &small);
    static struct client all[12];
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 12; i++)
            client_begin(&all[i], &w, prompt_of(&w, 60 + 9 * i, i + 2, 40, 30 + 5 * i));
        for (uint32_t i = 0; i < 12; i++) {
            client_ask(&client, &cold,
                       prompt_of(&cold, 60 + 9 * i, i + 2, 40, 30 + 5 * i));
            client_read(&all[i]);
            assert_same(&client, &all[i]);
            client_end(&all[i]);
        }
    }
    assert_true(metrics_counter(w.metrics, COUNTER_PREEMPTIONS) > 0);
    assert_true(scrape(&w, "kv_blocks_used") == 0);
    assert_true(scrape(&w, "num_sequences_waking") == 0);
    world_close(&cold);
    world_close(&w);
}

/* The names of a prompt are taken memory for by whoever submits it: once for each request. */
static void a_step_with_a_store_takes_no_memory(void **state)
{
    (void)state;
    struct world w;
    struct world_options small = keeping;
    small.blocks = 40;
    small.context = 40 * 16;
    small.ram_blocks = 20;
    world_open(&w, &small);
    static struct client all[8];
    struct request *r[8];
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 8; i++)
            r[i] = prompt_of(&w, 50 + 20 * i, i + 2, 40, 60);
        unsigned long before = allocs_so_far();
        for (uint32_t i = 0; i < 8; i++) client_begin(&all[i], &w, r[i]);
        for (uint32_t i = 0; i < 8; i++) client_read(&all[i]);
        if (round > 0) assert_int_equal(allocs_so_far(), before + 8);
        for (uint32_t i = 0; i < 8; i++) client_end(&all[i]);
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_that_comes_again_is_not_computed_again),
        cmocka_unit_test(a_reply_is_found_by_the_turn_after_it),
        cmocka_unit_test(equal_prompts_that_come_together_are_computed_once),
        cmocka_unit_test(an_edit_keeps_what_is_before_it),
        cmocka_unit_test(tenants_share_nothing),
        cmocka_unit_test(choices_and_scored_prompts_answer_as_without_a_store),
        cmocka_unit_test(a_full_pool_changes_no_answer),
        cmocka_unit_test(a_step_with_a_store_takes_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
