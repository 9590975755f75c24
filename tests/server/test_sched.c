/* What a step holds, and that nothing upsets the scheduler. */
#include "tests/allocs.h"
#include "tests/server/sched_world.h"

static void
one_request_is_prefilled_in_one_step_and_then_gives_a_token_a_step(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, (struct sched_options){.max_running = 4, .step_tokens = 128});
    uint32_t j = add(&w, 100, 1, 5);
    assert_int_equal(step(&w, MS)->n_rows, 100);
    for (int i = 0; i < 4; i++) assert_int_equal(step(&w, MS)->n_rows, 1);
    assert_int_equal(w.s.oldest, SCHED_NONE);
    assert_int_equal(w.replied[j], 5);
    assert_int_equal(step(&w, MS)->n_rows, 0);
    close_world(&w);
}

static void a_long_prompt_never_stops_a_running_reply(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4096, (struct sched_options){.max_running = 4, .step_tokens = 1024});
    uint32_t stream = add(&w, 10, 1, 2000);
    step(&w, MS);
    uint32_t big = add(&w, 40000, 1, 1);
    uint64_t worst = 0;
    while (w.s.jobs[big].used) {
        const struct sched_step *p = sched_plan(&w.s, w.now);
        uint32_t before = w.replied[stream];
        /* A token of the prompt takes 1 ms, so that about 50 fit. */
        uint64_t ns = MS / 2 + (p->n_rows - p->n_decode) * MS;
        step(&w, ns);
        assert_int_equal(w.replied[stream], before + 1);
        if (w.steps > 40 && ns > worst) worst = ns;
    }
    assert_true(worst <= 60 * MS);
    assert_int_equal(w.n_rows[big], 40000);
    close_world(&w);
}

static void prefill_never_falls_below_its_least_however_slow_replies_are(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4096, (struct sched_options){.max_running = 4, .step_tokens = 1024});
    add(&w, 10, 1, 1000);
    step(&w, MS);
    add(&w, 30000, 1, 1);
    for (int i = 0; i < 20; i++) {
        const struct sched_step *p = step(&w, 5000 * MS);
        assert_true(p->n_rows >= 1 + SCHED_MIN_CHUNK);
    }
    /* A step of replies alone takes 200 ms; with prefill, 0.1 ms more a token. */
    uint32_t most = 0;
    for (int i = 0; i < 400; i++) {
        const struct sched_step *p = sched_plan(&w.s, w.now);
        uint32_t rows = p->n_rows;
        if (rows > most) most = rows;
        w.s.decode_ns = 200.0 * MS;
        step(&w, 200 * MS + (rows - p->n_decode) * (MS / 10));
        if (w.s.youngest == w.s.oldest) break;
    }
    assert_true(most > 100);
    close_world(&w);
}

static void
short_prompts_do_not_wait_for_a_long_one_nor_the_long_one_for_them(void **state)
{
    (void)state;
    for (uint32_t tokens = 24; tokens <= 512; tokens *= 4) {
        struct world w;
        open_world(&w, 4096,
                   (struct sched_options){.max_running = 8, .step_tokens = tokens});
        uint32_t big = add(&w, 10000, 1, 1), worst = 0;
        while (w.s.jobs[big].used) {
            uint32_t s = add(&w, 40, 1, 1), from = w.steps;
            while (w.s.jobs[s].used) step(&w, MS);
            if (w.steps - from > worst) worst = w.steps - from;
        }
        /* half of a step, or every second one, of whole chunks: a quarter at least */
        assert_true(worst <= 40 / (tokens / 4) + 3);
        assert_true(w.steps <= 10000 / (tokens / 4) + 3);
        finish_all(&w, MS);
        close_world(&w);
    }
}

static void choices_share_the_prompt_and_its_blocks(void **state)
{
    (void)state;
    for (uint32_t prompt = 1; prompt < 70; prompt++) {
        struct world w;
        open_world(&w, 64,
                   (struct sched_options){.max_running = 8, .step_tokens = 128});
        uint32_t j = add(&w, prompt, 4, 20);
        step(&w, MS);
        step(&w, MS);
        if (prompt == 64) {
            /* three full ones shared, and one each for the last token of the prompt
             * and what follows: the first choice has begun a new one */
            assert_int_equal(w.kv.mem.n_blocks - w.kv.n_free, 3 + 4 + 1);
        }
        finish_all(&w, MS);
        assert_int_equal(w.replied[j], 4 * 20);
        /* the prompt once, its last token thrice more, and the replies but for their last */
        assert_int_equal(w.n_rows[j], prompt + 3 + 4 * 19);
        close_world(&w);
    }
}

static void a_prompt_is_computed_once_though_replies_end_at_once(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, (struct sched_options){.max_running = 8, .step_tokens = 128});
    uint32_t j = add(&w, 500, 4, 1);
    finish_all(&w, MS);
    assert_int_equal(w.n_rows[j], 500 + 3);
    assert_int_equal(w.replied[j], 4);
    close_world(&w);
}

static void a_job_of_more_choices_than_places_ends_too(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, (struct sched_options){.max_running = 3, .step_tokens = 128});
    add(&w, 5, 1, 30);
    uint32_t j = add(&w, 40, 8, 10);
    finish_all(&w, MS);
    assert_int_equal(w.replied[j], 80);
    close_world(&w);
}

static void prompt_scores_keep_to_the_rows_of_logits_and_the_readers_room(void **state)
{
    (void)state;
    struct world w;
    open_world(
        &w, 256,
        (struct sched_options){.max_running = 4, .step_tokens = 256, .max_logits = 12});
    uint32_t other = add(&w, 900, 1, 50);
    uint32_t j = sched_add(&w.s, 300, 2, true, w.now);
    w.max_tokens[j] = 3;
    w.n_rows[j] = w.replied[j] = 0;
    for (uint32_t scored = 0; w.s.jobs[j].used;) {
        if (w.s.jobs[j].n_scored < 100)
            sched_pause(&w.s, j, false, 5);
        else
            sched_pause(&w.s, j, false, 100);
        bool low = w.s.jobs[j].n_scored < 100;
        step(&w, MS);
        if (!w.s.jobs[j].used) break;
        assert_true(w.s.jobs[j].n_scored - scored <= (low ? 5u : 12u));
        scored = w.s.jobs[j].n_scored;
    }
    assert_int_equal(w.replied[j], 6);
    finish_all(&w, MS);
    assert_int_equal(w.replied[other], 50);
    close_world(&w);
}

static void random_traffic_keeps_every_invariant_and_ends(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 60; seed++) {
        struct world w;
        srand(seed);
        uint32_t blocks = 8 + (uint32_t)rand() % 60;
        open_world(&w, blocks,
                   (struct sched_options){.max_running = 1 + (uint32_t)rand() % 8,
                                          .step_tokens = 24 + (uint32_t)rand() % 100,
                                          .max_logits = 8 + (uint32_t)rand() % 20,
                                          .max_jobs = 12});
        random_traffic(&w);
        assert_int_equal(w.kv.n_free, blocks);
        close_world(&w);
    }
}

static void a_plan_takes_no_memory(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, (struct sched_options){.max_running = 8, .step_tokens = 64});
    unsigned long before = allocs_so_far();
    for (int i = 0; i < 6; i++) add(&w, 20, 2, 100);
    finish_all(&w, MS);
    assert_int_equal(allocs_so_far(), before);
    close_world(&w);
}

static void impossible_options_are_refused_with_the_numbers(void **state)
{
    (void)state;
    struct world w;
    struct err err;
    open_world(&w, 16, (struct sched_options){.max_running = 8, .step_tokens = 64});
    struct sched s;
    struct sched_options o = w.s.o;
    o.step_tokens = 20;
    assert_int_equal(sched_open(&s, &o, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "at least 24"));
    o = w.s.o;
    o.capacity = 16 * 16 + 1;
    assert_int_equal(sched_open(&s, &o, &err), -EINVAL);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            one_request_is_prefilled_in_one_step_and_then_gives_a_token_a_step),
        cmocka_unit_test(a_long_prompt_never_stops_a_running_reply),
        cmocka_unit_test(prefill_never_falls_below_its_least_however_slow_replies_are),
        cmocka_unit_test(
            short_prompts_do_not_wait_for_a_long_one_nor_the_long_one_for_them),
        cmocka_unit_test(choices_share_the_prompt_and_its_blocks),
        cmocka_unit_test(a_prompt_is_computed_once_though_replies_end_at_once),
        cmocka_unit_test(a_job_of_more_choices_than_places_ends_too),
        cmocka_unit_test(prompt_scores_keep_to_the_rows_of_logits_and_the_readers_room),
        cmocka_unit_test(random_traffic_keeps_every_invariant_and_ends),
        cmocka_unit_test(a_plan_takes_no_memory),
        cmocka_unit_test(impossible_options_are_refused_with_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
