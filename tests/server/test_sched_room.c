/* Who gets blocks, who waits, and who gives way. */
#include "tests/server/sched_world.h"

static void what_the_pool_just_holds_runs_to_its_end(void **state)
{
    (void)state;
    const uint32_t prompts[] = {1007, 1008, 1009, 1022, 1023};
    for (size_t i = 0; i < ARRAY_LEN(prompts); i++) {
        struct world w;
        open_world(&w, 64,
                   (struct sched_options){.max_running = 4, .step_tokens = 256});
        uint32_t max = 1024 - prompts[i];
        uint32_t big = add(&w, prompts[i], 1, max), small = add(&w, 4, 1, 8);
        finish_all(&w, MS);
        assert_int_equal(w.replied[big], max);
        assert_int_equal(w.replied[small], 8);
        close_world(&w);
    }
}

static void the_youngest_gives_way_and_everyone_ends(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, (struct sched_options){.max_running = 8, .step_tokens = 64});
    uint32_t j[6];
    for (int i = 0; i < 6; i++) j[i] = add(&w, 20, 1, 200);
    while (w.s.jobs[j[0]].used) {
        step(&w, MS);
        /* the oldest has lost nothing */
        assert_true(w.n_rows[j[0]] == w.replied[j[0]] + 19);
    }
    assert_true(w.put_back > 0);
    finish_all(&w, MS);
    for (int i = 0; i < 6; i++) assert_int_equal(w.replied[j[i]], 200);
    close_world(&w);
}

static void one_whose_client_does_not_read_gives_way_first(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, (struct sched_options){.max_running = 8, .step_tokens = 64});
    uint32_t old = add(&w, 100, 1, 100), young = add(&w, 20, 1, 200);
    step(&w, MS);
    step(&w, MS);
    sched_pause(&w.s, old, true, 0);
    while (w.s.jobs[young].used) step(&w, MS);
    assert_int_equal(w.replied[young], 200);
    assert_int_equal(w.put_back, 1);
    sched_pause(&w.s, old, false, 0);
    finish_all(&w, MS);
    assert_int_equal(w.replied[old], 100);
    close_world(&w);
}

/* Four small ones at a time, for ever; how long until the big one starts. */
static uint64_t wait_of_the_big_one(struct world *w, uint32_t *overtakers)
{
    uint32_t small[4], big = SCHED_NONE;
    for (int i = 0; i < 4; i++) small[i] = add(w, 300, 1, 20 + 10 * (uint32_t)i);
    for (int i = 0; i < 3; i++) step(w, 10 * MS);
    big = add(w, 1100, 1, 8);
    uint64_t came = w->now;
    for (int n = 0; !w->first_row[big]; n++) {
        assert_true(n < 100000);
        for (int i = 0; i < 4; i++) {
            if (w->s.jobs[small[i]].used) continue;
            small[i] = add(w, 200, 1, 20 + 10 * (uint32_t)i);
            *overtakers += 1;
        }
        step(w, 10 * MS);
    }
    return w->first_row[big] - came;
}

static void a_big_one_is_passed_for_a_bounded_time_only(void **state)
{
    (void)state;
    struct world w;
    uint32_t overtakers = 0;
    open_world(&w, 80, (struct sched_options){.max_running = 8, .step_tokens = 1024});
    uint64_t waited = wait_of_the_big_one(&w, &overtakers);
    assert_true(overtakers > 4);
    assert_true(waited >= SCHED_PASS_NS && waited <= SCHED_BUMP_NS + 100 * MS);
    finish_all(&w, 10 * MS);
    close_world(&w);
}

static void younger_replies_are_put_back_for_one_that_waited_long(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, (struct sched_options){.max_running = 8, .step_tokens = 1024});
    uint32_t first = add(&w, 600, 1, 10);
    step(&w, 10 * MS);
    uint32_t big = add(&w, 800, 1, 8), endless = add(&w, 20, 1, 300);
    while (!w.first_row[big]) step(&w, 100 * MS);
    assert_false(w.s.jobs[first].used);
    assert_true(w.s.jobs[endless].used);
    finish_all(&w, 10 * MS);
    assert_int_equal(w.replied[endless], 300);
    close_world(&w);
}

static void waiting_too_long_for_a_start_is_told(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64,
               (struct sched_options){
                   .max_running = 1, .step_tokens = 64, .max_wait_ns = 500 * MS});
    add(&w, 10, 1, 500);
    uint32_t late = add(&w, 10, 1, 5);
    while (w.now < 1500 * MS) {
        assert_int_equal(sched_expired(&w.s, w.now), SCHED_NONE);
        step(&w, MS);
    }
    assert_int_equal(sched_expired(&w.s, w.now), late);
    sched_remove(&w.s, late);
    finish_all(&w, MS);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_pool_just_holds_runs_to_its_end),
        cmocka_unit_test(the_youngest_gives_way_and_everyone_ends),
        cmocka_unit_test(one_whose_client_does_not_read_gives_way_first),
        cmocka_unit_test(a_big_one_is_passed_for_a_bounded_time_only),
        cmocka_unit_test(younger_replies_are_put_back_for_one_that_waited_long),
        cmocka_unit_test(waiting_too_long_for_a_start_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
