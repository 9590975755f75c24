/* What the engine counts, and how often it looks around. */
#include "tests/server/engine_fixture.h"

static struct client client;

static void tokens_counted_are_those_of_the_answers(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-abc", .blocks = 24});
    enum { N = 40 };
    static struct client c[N];
    uint64_t prompt = 0, generated = 0, answered = 0;
    for (uint32_t i = 0; i < N; i++) {
        struct request *r = world_chat(&w, "the cat", 1 + i * 7 % 60);
        r->n_choices = 1 + i % 3;
        if (i % 2) request_stop_at(r, "JKL");
        client_begin(&c[i], &w, r);
    }
    for (uint32_t i = 0; i < N; i += 5) {
        usleep(200);
        request_cancel(c[i].r);
        engine_wake(w.engine);
    }
    for (uint32_t i = 0; i < N; i++) {
        client_read(&c[i]);
        bool whole = true;
        for (uint32_t k = 0; k < c[i].r->n_choices; k++)
            whole = whole && c[i].choices[k].end.reason != FINISH_CANCELLED;
        if (whole) {
            answered++;
            prompt += c[i].r->n_ids;
            for (uint32_t k = 0; k < c[i].r->n_choices; k++)
                generated += c[i].choices[k].end.completion_tokens;
        }
        const struct request_stats *s = &c[i].r->stats;
        assert_true(s->finished >= s->submitted);
        if (whole)
            assert_true(s->submitted <= s->started && s->started <= s->first_token &&
                        s->first_token <= s->finished);
        client_end(&c[i]);
    }
    assert_true(answered >= N - N / 5);
    assert_true(scrape(&w, "prompt_tokens_total") == (double)prompt);
    assert_true(scrape(&w, "generation_tokens_total") == (double)generated);
    assert_true(scrape(&w, "computed_tokens_total") >= (double)generated);
    assert_true(scrape(&w, "e2e_request_latency_seconds_count") == (double)answered);
    assert_true(scrape(&w, "num_preemptions_total") > 0);
    assert_true(scrape(&w, "num_requests_running") == 0);
    assert_true(scrape(&w, "num_requests_waiting") == 0);
    assert_true(scrape(&w, "kv_blocks_used") == 0);
    assert_true(scrape(&w, "kv_blocks_free") == 24);
    assert_true(scrape(&w, "kv_cache_usage_perc") == 0);
    world_close(&w);
}

static void latencies_are_observed_once_for_each_of_their_kind(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-abc"});
    for (int i = 0; i < 3; i++) client_ask(&client, &w, world_chat(&w, "x", 10));
    assert_true(scrape(&w, "time_to_first_token_seconds_count") == 3);
    assert_true(scrape(&w, "inter_token_latency_seconds_count") == 27);
    assert_true(scrape(&w, "request_queue_time_seconds_count") == 3);
    assert_true(scrape(&w, "e2e_request_latency_seconds_count") == 3);
    assert_true(scrape(&w, "steps_total") == 30);
    assert_true(scrape(&w, "step_seconds_count") == 30);
    assert_true(scrape(&w, "step_seconds_sum") > 0);
    world_close(&w);
}

static void count_tick(void *arg)
{
    atomic_fetch_add((atomic_uint *)arg, 1);
}

static struct engine_options small(struct world *w)
{
    return (struct engine_options){
        .model = &w->model,
        .kv = &w->kv,
        .tokenizer = w->tokenizer,
        .metrics = w->metrics,
        .context = 8192,
        .max_running = 4,
        .max_waiting = 4,
        .step_tokens = 256,
        .step_ms = 20,
        .max_wait_ms = 600000,
        .stall_ms = 600000,
    };
}

static void somebody_looks_around_while_any_request_is_there(void **state)
{
    (void)state;
    struct world w;
    struct err err;
    world_open(&w, &(struct world_options){.model = "tiny-abc", .stopped = true});
    atomic_uint ticks = 0;
    engine_close(w.engine);
    struct engine_options o = small(&w);
    o.tick = count_tick;
    o.tick_arg = &ticks;
    assert_true(engine_bytes(&o) > 0);
    assert_int_equal(engine_open(&w.engine, &o, &err), 0);
    assert_int_equal(engine_start(w.engine, &err), 0);
    client_begin(&client, &w, world_chat(&w, "x", 8000));
    /* Nobody reads: after some hundred steps only the looking goes on. */
    wait_until(atomic_load(&ticks) > 400);
    assert_true(metrics_counter(w.metrics, COUNTER_STEPS) < 300);
    request_cancel(client.r);
    engine_wake(w.engine);
    client_read(&client);
    client_end(&client);
    world_close(&w);
}

static void options_that_do_not_fit_the_model_are_refused(void **state)
{
    (void)state;
    struct world w;
    struct err err;
    world_open(&w, &(struct world_options){.model = "tiny-abc", .stopped = true});
    const struct engine_options good = small(&w);
    struct engine_options bad[] = {good, good, good, good, good};
    bad[0].context = 131073;
    bad[1].step_tokens = 257;
    bad[2].step_tokens = 19;
    bad[3].max_running = 0;
    bad[4].max_running = 17;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct engine *e;
        assert_int_equal(engine_open(&e, &bad[i], &err), -EINVAL);
        assert_true(strlen(err.msg) > 20);
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_counted_are_those_of_the_answers),
        cmocka_unit_test(latencies_are_observed_once_for_each_of_their_kind),
        cmocka_unit_test(somebody_looks_around_while_any_request_is_there),
        cmocka_unit_test(options_that_do_not_fit_the_model_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
