/* Drafts in a step: what they may take, and that they upset nothing. */
#include "tests/server/sched_world.h"

static struct sched_options drafting(struct world *w, struct sched_options o)
{
    o.draft.arg = w;
    if (!o.draft.find) o.draft.find = draft_all;
    if (!o.draft.most) o.draft.most = 8;
    if (o.draft.step_rows == 0) o.draft.step_rows = 7;
    return o;
}

static void accepted_drafts_are_steps_saved(void **state)
{
    (void)state;
    static const uint32_t steps[] = {1 + 100, 1 + 12};
    for (int all = 0; all < 2; all++) {
        struct world w;
        open_world(&w, 64,
                   drafting(&w, (struct sched_options){.max_running = 1,
                                                       .step_tokens = 64,
                                                       .max_logits = 9}));
        w.chance = all ? 8 : 0;
        uint32_t j = add(&w, 20, 1, 1 + 9 * 11 + 1);
        finish_all(&w, MS);
        assert_int_equal(w.replied[j], 101);
        assert_int_equal(w.steps, steps[all]);
        close_world(&w);
    }
}

static void a_draft_costs_the_more_the_more_replies_are_running(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 9; n += 2) {
        struct world w;
        open_world(&w, 64,
                   drafting(&w, (struct sched_options){.max_running = 9,
                                                       .step_tokens = 64,
                                                       .max_logits = 20}));
        for (uint32_t i = 0; i < n; i++) add(&w, 3, 1, 10);
        step(&w, MS);
        step(&w, MS);
        assert_int_equal(w.cost, n * 65536 / (n + 7));
        finish_all(&w, MS);
        close_world(&w);
    }
}

static void drafts_leave_rows_for_prefill_and_logits_for_replies(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 256,
               drafting(&w, (struct sched_options){.max_running = 4,
                                                   .step_tokens = 25,
                                                   .max_logits = 30}));
    add(&w, 1, 1, 200);
    add(&w, 1, 1, 200);
    step(&w, MS);
    add(&w, 500, 1, 1);
    const struct sched_step *p = step(&w, MS);
    assert_int_equal(p->n_decode, 2);
    assert_int_equal(p->n_draft, 25 - 4 - SCHED_MIN_CHUNK);
    assert_int_equal(p->n_rows, 2 + 5 + SCHED_MIN_CHUNK);
    finish_all(&w, MS);
    close_world(&w);

    open_world(&w, 256,
               drafting(&w, (struct sched_options){.max_running = 4,
                                                   .step_tokens = 250,
                                                   .max_logits = 7}));
    add(&w, 1, 1, 200);
    add(&w, 1, 1, 200);
    step(&w, MS);
    assert_int_equal(step(&w, MS)->n_draft, 3);
    finish_all(&w, MS);
    close_world(&w);
}

/* Two replies leave one block: it goes to the older one's drafts, for this step. */
static void drafts_take_no_block_that_is_not_free(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 5,
               drafting(&w, (struct sched_options){.max_running = 2,
                                                   .step_tokens = 64,
                                                   .max_logits = 40,
                                                   .draft.most = 12}));
    add(&w, 26, 1, 30);
    add(&w, 22, 1, 5);
    step(&w, MS);
    assert_int_equal(w.kv.n_free, 1);
    const struct sched_step *p = step(&w, MS);
    assert_int_equal(p->items[0].n_draft, 12);
    assert_int_equal(p->items[1].n_draft, 32 - 23);
    assert_int_equal(w.kv.n_free, 1);
    finish_all(&w, MS);
    assert_int_equal(w.put_back, 0);
    close_world(&w);
}

static void a_step_with_drafts_does_not_make_replies_look_slow(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64,
               drafting(&w, (struct sched_options){
                                .max_running = 1, .step_tokens = 64, .max_logits = 9}));
    add(&w, 20, 1, 200);
    step(&w, 20 * MS);
    for (int i = 0; i < 40; i++) {
        const struct sched_step *p = sched_plan(&w.s, w.now);
        step(&w, (8 + p->n_draft) * MS);
        assert_true(w.s.decode_ns > 7.999 * MS && w.s.decode_ns < 8.001 * MS);
    }
    w.s.o.draft.find = NULL;
    finish_all(&w, 8 * MS);
    close_world(&w);
}

static void random_traffic_with_drafts_keeps_every_invariant_and_ends(void **state)
{
    (void)state;
    uint32_t drafted = 0, accepted = 0, put_back = 0;
    for (unsigned seed = 1; seed <= 60; seed++) {
        struct world w;
        srand(seed);
        uint32_t running = 1 + (uint32_t)rand() % 8;
        open_world(&w, 8 + (uint32_t)rand() % 60,
                   drafting(&w, (struct sched_options){
                                    .max_running = running,
                                    .step_tokens = running + 16 + (uint32_t)rand() % 40,
                                    .max_logits = running + (uint32_t)rand() % 20,
                                    .max_jobs = 12,
                                    .draft.find = draft_some,
                                    .draft.most = 1 + (uint32_t)rand() % 32,
                                }));
        w.chance = rand() % 9;
        random_traffic(&w);
        drafted += w.drafted;
        accepted += w.accepted;
        put_back += w.put_back;
        close_world(&w);
    }
    assert_true(accepted > 0 && accepted < drafted && put_back > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_drafts_are_steps_saved),
        cmocka_unit_test(a_draft_costs_the_more_the_more_replies_are_running),
        cmocka_unit_test(drafts_leave_rows_for_prefill_and_logits_for_replies),
        cmocka_unit_test(drafts_take_no_block_that_is_not_free),
        cmocka_unit_test(a_step_with_drafts_does_not_make_replies_look_slow),
        cmocka_unit_test(random_traffic_with_drafts_keeps_every_invariant_and_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
