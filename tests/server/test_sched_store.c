/* A store below the scheduler: what it has is not computed, and nothing runs before it is
 * all there. */
#include "tests/server/sched_world.h"

#include "tests/server/sched_store.h"

static struct world world;
static struct sched_world_store store;

static void open_both(uint32_t blocks, struct sched_options o, unsigned seed)
{
    open_world(&world, blocks, o);
    store_open(&store, &world.s, &world.kv, seed);
}

static void close_both(void)
{
    sched_close(&world.s);
    store_close(&store);
    assert_int_equal(world.kv.n_free, world.kv.mem.n_blocks);
    kv_pool_close(&world.kv);
    backend_close(world.backend);
}

/* ---- a store of the test's own: so many blocks, loading or there ---- */

struct fixed {
    struct kv_pool *kv;
    struct sched *s;
    uint32_t blocks, left, asked;
    bool loading;
    enum sched_room room;  // where there is any
    uint32_t twin;         // a prompt of so many tokens is being computed by another
};

static uint32_t fixed_adopt(void *arg, uint32_t seq, uint32_t cap, bool *loading)
{
    struct fixed *f = arg;
    if (cap == 0) return 0;
    f->asked++;
    for (uint32_t i = 0; i < f->blocks; i++)
        f->s->seqs[seq].table.blocks[i] = kv_pool_take(f->kv);
    *loading = f->loading;
    return f->blocks;
}

static enum sched_room fixed_has_room(void *arg, uint32_t seq, uint32_t n,
                                      uint32_t most)
{
    const struct fixed *f = arg;
    (void)seq;
    (void)most;
    if (n > f->kv->n_free) return ROOM_NONE;
    return n > 10 ? f->room : ROOM_NOW;
}

static bool fixed_computing(void *arg, uint32_t seq)
{
    const struct fixed *f = arg;
    return f->s->seqs[seq].n_known == f->twin;
}

static void fixed_leave(void *arg, uint32_t seq)
{
    struct fixed *f = arg;
    (void)seq;
    f->left++;
}

static void open_fixed(struct fixed *f, uint32_t blocks, bool loading)
{
    open_world(&world, 64,
               (struct sched_options){.max_running = 4, .step_tokens = 128});
    *f = (struct fixed){.kv = &world.kv,
                        .s = &world.s,
                        .blocks = blocks,
                        .loading = loading,
                        .room = ROOM_NOW};
    world.s.o.store = (struct sched_store){f, fixed_has_room, fixed_computing,
                                           fixed_adopt, fixed_leave};
}

static void what_the_store_has_is_not_computed(void **state)
{
    (void)state;
    struct fixed f;
    open_fixed(&f, 5, false);
    uint32_t j = add(&world, 100, 1, 4);
    assert_int_equal(step(&world, MS)->n_rows, 20);
    finish_all(&world, MS);
    assert_int_equal(world.n_rows[j], 20 + 3);
    assert_int_equal(f.left, 1);
    close_world(&world);
}

static void
nothing_is_computed_until_the_blocks_are_there_and_others_go_on(void **state)
{
    (void)state;
    struct fixed f;
    open_fixed(&f, 0, false);
    uint32_t other = add(&world, 20, 1, 40);
    step(&world, MS);
    f.blocks = 5;
    f.loading = true;
    uint32_t j = add(&world, 100, 1, 4);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(step(&world, MS)->n_rows, 1);
        assert_int_equal(world.s.n_waking, 1);
    }
    uint32_t seq = world.s.jobs[j].first_seq;
    assert_int_equal(world.s.seqs[seq].table.n_blocks, 7);
    sched_woken(&world.s, seq, 5, world.now);
    assert_true(sched_check(&world.s));
    finish_all(&world, MS);
    assert_int_equal(world.n_rows[j], 20 + 3);
    assert_int_equal(world.replied[other], 40);
    close_world(&world);
}

static void nobody_is_put_back_for_room_that_only_has_to_be_saved(void **state)
{
    (void)state;
    struct fixed f;
    open_fixed(&f, 0, false);
    f.room = ROOM_LATER;
    uint32_t large = add(&world, 400, 1, 4);
    step(&world, MS);
    uint32_t small = add(&world, 20, 1, 200);
    for (int i = 0; i < 30; i++) step(&world, 1000 * MS);
    assert_int_equal(world.put_back, 0);
    assert_int_equal(world.n_rows[large], 0);
    assert_true(world.replied[small] > 10);
    f.room = ROOM_NOW;
    finish_all(&world, MS);
    close_world(&world);
}

static void
one_whose_beginning_another_computes_waits_for_it_but_not_for_ever(void **state)
{
    (void)state;
    struct fixed f;
    open_fixed(&f, 0, false);
    f.twin = 100;
    uint32_t first = add(&world, 50, 1, 200);
    uint32_t twin = add(&world, 100, 1, 4), other = add(&world, 60, 1, 4);
    for (int i = 0; i < 10; i++) step(&world, MS);
    assert_int_equal(world.n_rows[twin], 0);
    assert_true(world.replied[first] > 5 && world.replied[other] == 4);
    f.twin = 0;
    step(&world, MS);
    assert_true(world.n_rows[twin] > 0);

    f.twin = 100;
    uint32_t again = add(&world, 100, 1, 4);
    for (int i = 0; i < 29; i++) step(&world, 1000 * MS);  // of max_wait_ns, a minute
    assert_int_equal(world.n_rows[again], 0);
    for (int i = 0; i < 2; i++) step(&world, 1000 * MS);
    assert_true(world.n_rows[again] > 0);
    finish_all(&world, MS);
    close_world(&world);
}

/* A short prompt that has long begun to be replied to. */
static uint32_t add_replying(uint32_t max_tokens)
{
    uint32_t j = add(&world, 64, 1, max_tokens);
    step(&world, 64 * 2 * MS);
    for (int i = 0; i < 30; i++) step(&world, 8 * MS);
    return j;
}

static void those_who_run_do_not_notice_who_wakes(void **state)
{
    (void)state;
    struct fixed f;
    open_fixed(&f, 0, false);
    uint32_t other = add_replying(400), woken[3];
    f.blocks = 5;
    for (int i = 0; i < 3; i++) woken[i] = add(&world, 5 * 16 + 20, 1, 1);
    while (world.s.jobs[woken[0]].used || world.s.jobs[woken[1]].used ||
           world.s.jobs[woken[2]].used) {
        uint32_t before = world.replied[other];
        const struct sched_step *p = step(&world, 10 * MS);
        assert_int_equal(p->n_decode, 1);
        assert_int_equal(p->n_rows, 2);
        assert_int_equal(world.replied[other], before + 1);
    }
    finish_all(&world, MS);
    close_world(&world);
}

static void an_end_behind_a_long_history_is_not_read_for_one_token(void **state)
{
    (void)state;
    struct fixed f = {.kv = &world.kv, .s = &world.s, .room = ROOM_NOW};
    open_world(&world, 1024,
               (struct sched_options){.max_running = 4, .step_tokens = 128});
    world.s.o.store = (struct sched_store){&f, fixed_has_room, fixed_computing,
                                           fixed_adopt, fixed_leave};
    add_replying(400);
    f.blocks = 512;
    add(&world, 512 * 16 + 40, 1, 1);
    assert_int_equal(step(&world, 30 * MS)->n_rows, 1 + 16);
    assert_int_equal(step(&world, 30 * MS)->n_rows, 1 + 16);
    assert_int_equal(step(&world, 30 * MS)->n_rows, 1 + 8);
    finish_all(&world, MS);
    close_world(&world);
}

static void who_wakes_beside_replies_does_not_wait_for_long(void **state)
{
    (void)state;
    struct fixed f;
    open_fixed(&f, 0, false);
    add_replying(900);
    f.blocks = 5;
    uint32_t j = add(&world, 5 * 16 + 60, 1, 1);
    uint64_t since = world.now, steps = 0;
    for (; world.now - since < SCHED_BUMP_NS; steps++) {
        assert_int_equal(step(&world, 500 * MS)->n_rows, 2);
        assert_true(world.s.jobs[j].used);
    }
    assert_true(step(&world, 500 * MS)->n_rows >= 1 + SCHED_MIN_CHUNK);
    finish_all(&world, MS);
    close_world(&world);
}

static void a_prompt_that_is_not_a_woken_ones_end_is_computed_as_ever(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        struct fixed f;
        open_fixed(&f, 0, false);
        add_replying(400);
        f.blocks = kind == 0 ? 0 : 1;
        uint32_t j = add(&world, kind == 0 ? 40 : 16 + SCHED_END_TOKENS + 1, 1, 1);
        assert_true(step(&world, MS)->n_rows >= 1 + SCHED_MIN_CHUNK);
        for (int steps = 0; world.s.jobs[j].used; steps++) {  // its end is no other
            step(&world, 8 * MS);
            assert_true(steps < 6);
        }
        finish_all(&world, MS);
        close_world(&world);
    }
}

static void what_did_not_arrive_is_computed(void **state)
{
    (void)state;
    for (uint32_t arrived = 0; arrived <= 5; arrived++) {
        struct fixed f;
        open_fixed(&f, 5, true);
        uint32_t j = add(&world, 100, 1, 4);
        assert_int_equal(step(&world, MS)->n_rows, 0);
        uint32_t seq = world.s.jobs[j].first_seq;
        for (uint32_t i = arrived; i < 5; i++)
            kv_pool_unref(&world.kv, world.s.seqs[seq].table.blocks[i]);
        sched_woken(&world.s, seq, arrived, world.now);
        assert_true(sched_check(&world.s));
        finish_all(&world, MS);
        assert_int_equal(world.n_rows[j], 100 - 16 * arrived + 3);
        close_world(&world);
    }
}

/* Others have taken what it would need: it waits like one that was put back. */
static void one_that_wakes_too_short_for_the_pool_starts_again_later(void **state)
{
    (void)state;
    struct fixed f;
    open_fixed(&f, 30, true);
    uint32_t j = add(&world, 600, 1, 4);
    assert_int_equal(step(&world, MS)->n_rows, 0);
    struct kv_table hog = {.blocks = (uint32_t[64]){0}, .cap = 64};
    assert_int_equal(kv_table_extend(&world.kv, &hog, 0, world.kv.n_free * 16), 0);
    /* the store keeps the pages of loads that are late */
    uint32_t seq = world.s.jobs[j].first_seq, late[30];
    for (uint32_t i = 0; i < 30; i++) late[i] = world.s.seqs[seq].table.blocks[i];
    sched_woken(&world.s, seq, 0, world.now);
    assert_int_equal(world.s.seqs[seq].state, SEQ_PUT_BACK);
    assert_int_equal(world.s.n_waking, 0);
    f.blocks = 0;
    f.loading = false;
    assert_int_equal(sched_plan(&world.s, world.now)->n_rows, 0);
    for (uint32_t i = 0; i < 30; i++) kv_pool_unref(&world.kv, late[i]);
    kv_table_release(&world.kv, &hog);
    finish_all(&world, MS);
    assert_int_equal(world.replied[j], 4);
    close_world(&world);
}

static void a_scored_prompt_is_computed_whole(void **state)
{
    (void)state;
    struct fixed f;
    open_fixed(&f, 3, false);
    uint32_t j = sched_add(&world.s, 80, 1, true, world.now);
    world.max_tokens[j] = 2;
    world.n_rows[j] = world.replied[j] = 0;
    sched_pause(&world.s, j, false, 100);
    finish_all(&world, MS);
    assert_int_equal(f.asked, 0);
    assert_int_equal(world.n_rows[j], 80 + 1);
    close_world(&world);
}

static void one_load_serves_all_choices(void **state)
{
    (void)state;
    struct fixed f;
    open_fixed(&f, 5, true);
    uint32_t j = add(&world, 100, 3, 4);
    for (int i = 0; i < 3; i++) assert_int_equal(step(&world, MS)->n_rows, 0);
    assert_int_equal(f.asked, 1);
    sched_woken(&world.s, world.s.jobs[j].first_seq, 5, world.now);
    finish_all(&world, MS);
    assert_int_equal(f.asked, 1);
    assert_int_equal(world.n_rows[j], 20 + 2 + 3 * 3);
    close_world(&world);
}

static void one_that_leaves_while_waking_gives_everything_back(void **state)
{
    (void)state;
    struct fixed f;
    open_fixed(&f, 5, true);
    uint32_t j = add(&world, 100, 1, 4);
    step(&world, MS);
    sched_remove(&world.s, j);
    assert_int_equal(f.left, 1);
    assert_true(sched_check(&world.s));
    close_world(&world);
}

/* As the random traffic without a store, with blocks that are found again, and loads that
 * land at any time, or not whole. */
static void random_traffic_over_a_store_keeps_every_invariant_and_ends(void **state)
{
    (void)state;
    uint32_t adopted = 0, loads = 0, short_loads = 0, put_back = 0;
    for (unsigned seed = 1; seed <= 60; seed++) {
        srand(seed);
        uint32_t blocks = 8 + (uint32_t)rand() % 60;
        open_both(blocks,
                  (struct sched_options){
                      .max_running = 1 + (uint32_t)rand() % 8,
                      .step_tokens = 24 + (uint32_t)rand() % 100,
                      .max_logits = 8 + (uint32_t)rand() % 20,
                      .max_jobs = 12,
                      .draft = {&world, seed % 2 ? draft_some : NULL, 8, 4}},
                  seed);
        world.chance = rand() % 9;
        struct sched *s = &world.s;
        for (int i = 0; i < 1500; i++) {
            random_jobs(&world, 90);
            store_step(&store, world.now);
            assert_true(sched_check(s));
            step(&world, (uint64_t)(rand() % 300) * MS);
        }
        for (uint32_t j = 0; j < 12; j++)
            if (s->jobs[j].used) sched_pause(s, j, false, 7);
        for (uint32_t i = 0; s->oldest != SCHED_NONE; i++) {
            assert_true(i < 100000);
            store_step(&store, world.now);
            bool waking = s->n_waking > 0;
            uint32_t later = store.later;
            bool rows = step(&world, 10 * MS)->n_rows > 0;
            assert_true(rows || waking || s->n_waking > 0 || store.later > later);
        }
        adopted += store.adopted;
        loads += store.loads;
        short_loads += store.short_loads;
        put_back += world.put_back;
        close_both();
    }
    assert_true(adopted > 1000 && loads > 100 && short_loads > 10 && put_back > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_store_has_is_not_computed),
        cmocka_unit_test(
            nothing_is_computed_until_the_blocks_are_there_and_others_go_on),
        cmocka_unit_test(nobody_is_put_back_for_room_that_only_has_to_be_saved),
        cmocka_unit_test(
            one_whose_beginning_another_computes_waits_for_it_but_not_for_ever),
        cmocka_unit_test(those_who_run_do_not_notice_who_wakes),
        cmocka_unit_test(an_end_behind_a_long_history_is_not_read_for_one_token),
        cmocka_unit_test(who_wakes_beside_replies_does_not_wait_for_long),
        cmocka_unit_test(a_prompt_that_is_not_a_woken_ones_end_is_computed_as_ever),
        cmocka_unit_test(what_did_not_arrive_is_computed),
        cmocka_unit_test(one_that_wakes_too_short_for_the_pool_starts_again_later),
        cmocka_unit_test(a_scored_prompt_is_computed_whole),
        cmocka_unit_test(one_load_serves_all_choices),
        cmocka_unit_test(one_that_leaves_while_waking_gives_everything_back),
        cmocka_unit_test(random_traffic_over_a_store_keeps_every_invariant_and_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
