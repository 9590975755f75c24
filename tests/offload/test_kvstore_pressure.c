/* G1 under pressure: who needs room waits for copies rather than lose the last one, but not
 * for ever. */
#include "tests/offload/kvstore_world.h"

static const struct kv_found nothing;

/* Two conversations fill the pages, and neither has been copied. */
static void open_full(struct world *w, struct text *a, struct text *b, uint32_t stores)
{
    world_open(w, (struct sizes){8, 0, 32});
    struct policy p = w->o.policy;
    p.max_stores = stores;
    restart_with(w, &p);
    *a = chat(0, 4, 1);
    *b = chat(0, 4, 2);
    w->ssd->max_wait = UINT32_MAX;
    turn(w, a, 0, 0);
    w->now++;
    turn(w, b, 0, 0);
    assert_int_equal(fake_free(&w->pages), 0);
}

static void let_land(struct world *w)
{
    w->ssd->max_wait = 0;
    memset(w->ssd->wait, 0, sizeof w->ssd->wait);
}

static void
who_needs_room_waits_until_the_oldest_are_copied_and_loses_nothing(void **state)
{
    (void)state;
    struct world w;
    struct text a, b;
    open_full(&w, &a, &b, 2);
    assert_false(kvstore_has_room(w.kv, 4, &nothing, w.now));
    assert_int_equal(kvstore_wait_room(w.kv, 4, &nothing, w.now), KV_LATER);
    assert_true(kvstore_next(w.kv, w.now) == w.now);
    let_land(&w);
    int steps = 0;
    while (kvstore_wait_room(w.kv, 4, &nothing, w.now) != KV_NOW) {
        world_step(&w);
        assert_true(++steps < 20);
    }
    assert_int_equal(kvstore_make_room(w.kv, 4, w.now), 4);
    assert_int_equal(counted(&w).lost, 0);
    assert_int_equal(counted(&w).unwaited, 0);
    assert_int_equal(found(&w, &a).by[KV_SSD], 4);
    assert_int_equal(found(&w, &b).by[KV_DEVICE], 4);
    world_close(&w);
}

static void the_wait_for_copies_ends_and_then_what_is_oldest_is_dropped(void **state)
{
    (void)state;
    struct world w;
    struct text a, b;
    open_full(&w, &a, &b, 2);
    uint64_t bound = w.o.policy.room_wait;
    assert_int_equal(kvstore_wait_room(w.kv, 4, &nothing, w.now), KV_LATER);
    world_step(&w);  // two are on their way, and do not arrive
    for (uint64_t left = bound; left > SEC / 4; left -= SEC / 4) {
        w.now += SEC / 4;
        assert_int_equal(kvstore_wait_room(w.kv, 4, &nothing, w.now), KV_LATER);
        world_step(&w);
    }
    assert_true(kvstore_next(w.kv, w.now) <= w.now + SEC / 4);
    w.now += SEC / 4;
    assert_int_equal(kvstore_wait_room(w.kv, 4, &nothing, w.now), KV_NOW);
    assert_int_equal(kvstore_wait_room(w.kv, 7, &nothing, w.now), KV_NEVER);
    assert_int_equal(kvstore_make_room(w.kv, 4, w.now), 4);
    assert_int_equal(counted(&w).lost, 4);
    assert_int_equal(counted(&w).unwaited, 4);
    let_land(&w);
    world_close(&w);
}

static void waiting_takes_no_longer_than_computing_again_would(void **state)
{
    (void)state;
    struct world w;
    struct text a, b;
    open_full(&w, &a, &b, 2);
    cost_set_prefill(w.o.cost, 1e7 / 4, 0);  // 160 ms for four blocks
    assert_int_equal(kvstore_wait_room(w.kv, 4, &nothing, w.now), KV_LATER);
    w.now += 159 * SEC / 1000;
    assert_int_equal(kvstore_wait_room(w.kv, 4, &nothing, w.now), KV_LATER);
    w.now += SEC / 1000;
    assert_int_equal(kvstore_wait_room(w.kv, 4, &nothing, w.now), KV_NOW);
    // Who comes next waits for itself.
    assert_int_equal(kvstore_wait_room(w.kv, 4, &nothing, w.now), KV_LATER);
    let_land(&w);
    world_close(&w);
}

static void a_shortage_that_nobody_waits_for_is_over(void **state)
{
    (void)state;
    struct world w;
    struct text a, b;
    open_full(&w, &a, &b, 2);
    assert_int_equal(kvstore_wait_room(w.kv, 4, &nothing, w.now), KV_LATER);
    w.now += 100 * SEC;
    assert_int_equal(kvstore_wait_room(w.kv, 4, &nothing, w.now), KV_LATER);
    let_land(&w);
    world_close(&w);
}

static void a_tier_that_takes_no_writes_is_not_waited_for(void **state)
{
    (void)state;
    struct world w;
    struct text a, b;
    open_full(&w, &a, &b, 2);
    w.ssd->broken = -EIO;
    let_land(&w);
    assert_int_equal(kvstore_wait_room(w.kv, 4, &nothing, w.now), KV_LATER);
    for (int i = 0; i < 5; i++) world_step(&w);
    assert_false(w.ssd->base.health.writable);
    assert_int_equal(kvstore_wait_room(w.kv, 4, &nothing, w.now), KV_NOW);
    w.ssd->broken = 0;
    world_close(&w);
}

static void without_a_tier_nobody_waits(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){8, 0, 0});
    struct text a = chat(0, 8, 1);
    turn(&w, &a, 0, 0);
    assert_int_equal(kvstore_wait_room(w.kv, 8, &nothing, w.now), KV_NOW);
    assert_int_equal(kvstore_wait_room(w.kv, 9, &nothing, w.now), KV_NEVER);
    world_close(&w);
}

static void who_returns_quickly_does_not_wait_for_copies_of_its_own(void **state)
{
    (void)state;
    struct world w;
    struct text a, b;
    open_full(&w, &a, &b, 2);
    struct kv_found mine = found(&w, &b);
    assert_int_equal(mine.unsaved, 4);
    assert_int_equal(kvstore_wait_room(w.kv, 4, &mine, w.now), KV_NOW);
    assert_int_equal(kvstore_wait_room(w.kv, 5, &mine, w.now), KV_LATER);
    world_step(
        &w);  // two of the other one's are on their way: theirs are not to be had
    assert_int_equal(kvstore_wait_room(w.kv, 7, &mine, w.now), KV_NEVER);
    let_land(&w);
    world_close(&w);
}

static void a_prefetch_throws_nothing_away(void **state)
{
    (void)state;
    struct world w;
    struct text a, b;
    open_full(&w, &a, &b, 2);
    let_land(&w);
    sleep_now(&w, &a);
    struct text c = chat(0, 4, 3);
    w.ssd->max_wait = UINT32_MAX;
    turn(&w, &c, 0, 0);  // full again
    assert_int_equal(kvstore_prefetch(w.kv, 0, a.name, w.now), 0);
    assert_int_equal(counted(&w).lost, 0);
    let_land(&w);
    world_close(&w);
}

static void what_is_held_is_not_promised_twice_and_counts_for_its_own(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){8, 0, 32});
    struct text a = chat(0, 4, 1);
    turn(&w, &a, 0, 0);
    world_pass(&w, 6 * SEC);
    assert_int_equal(kvstore_hold(w.kv, 0, a.name, w.now + 100 * SEC, w.now), 0);
    assert_true(kvstore_has_room(w.kv, 4, &nothing, w.now));
    assert_false(kvstore_has_room(w.kv, 5, &nothing, w.now));
    assert_int_equal(kvstore_make_room(w.kv, 8, w.now), 4);
    assert_false(kvstore_has_room(w.kv, 5, &nothing, w.now));
    assert_int_equal(kvstore_wait_room(w.kv, 5, &nothing, w.now), KV_NEVER);
    struct kv_found mine = found(&w, &a);
    assert_true(kvstore_has_room(w.kv, 8, &mine, w.now));
    assert_true(kvstore_has_room(w.kv, 8, &nothing, w.now + 100 * SEC));
    assert_int_equal(kvstore_hold(w.kv, 0, a.name, 0, w.now), 0);
    assert_true(kvstore_has_room(w.kv, 8, &nothing, w.now));
    world_close(&w);
}

static void for_who_gets_room_never_holds_end_those_used_longest_ago_first(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 32});
    struct text t[2] = {chat(0, 4, 1), chat(1, 4, 2)};
    struct kv_conversation c;
    for (int i = 0; i < 2; i++) {
        turn(&w, &t[i], 0, 0);
        world_pass(&w, 6 * SEC);
        uint64_t until = w.now + 100 * SEC;
        assert_int_equal(kvstore_hold(w.kv, t[i].tenant, t[i].name, until, w.now), 0);
    }
    assert_int_equal(kvstore_make_room(w.kv, 12, w.now), 8);
    assert_int_equal(kvstore_wait_room(w.kv, 12, &nothing, w.now), KV_NEVER);
    kvstore_end_holds(w.kv, 12, w.now);
    assert_int_equal(kvstore_wait_room(w.kv, 12, &nothing, w.now), KV_NOW);
    assert_int_equal(kvstore_make_room(w.kv, 12, w.now), 12);
    assert_true(kvstore_conversation_find(w.kv, 0, t[0].name, &c));
    assert_true(c.held_until == 0 && c.blocks[KV_DEVICE] == 0);
    assert_true(kvstore_conversation_find(w.kv, 1, t[1].name, &c));
    assert_true(c.held_until > w.now && c.blocks[KV_DEVICE] == 4);
    kvstore_end_holds(w.kv, 16, w.now);
    assert_int_equal(kvstore_make_room(w.kv, 16, w.now), 16);
    world_close(&w);
}

static void what_was_held_and_went_down_gives_its_room_back(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){8, 8, 0});
    struct text a = chat(0, 4, 1);
    turn(&w, &a, 0, 0);
    assert_int_equal(kvstore_hold(w.kv, 0, a.name, w.now + 1000 * SEC, w.now), 0);
    assert_int_equal(kvstore_make_room(w.kv, 8, w.now), 4);
    assert_int_equal(kvstore_wait_room(w.kv, 8, &nothing, w.now), KV_NEVER);
    assert_true(kvstore_next(w.kv, w.now) <= w.now + SEC);  // somebody may be waiting
    world_pass(&w, 10 * SEC);
    assert_int_equal(found(&w, &a).by[KV_RAM] + found(&w, &a).by[KV_DEVICE], 4);
    assert_true(kvstore_has_room(w.kv, 8, &nothing, w.now));
    assert_int_equal(kvstore_make_room(w.kv, 8, w.now), 8);
    world_close(&w);
}

static void where_room_is_scarce_copying_does_not_wait_for_quiet(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){10, 0, 32});
    struct text a = chat(0, 8, 1), b = chat(0, 1, 2);
    turn(&w, &a, 0, 0);
    world_settle(&w);
    assert_int_equal(found(&w, &a).unsaved, 8);  // not more than the low mark
    turn(&w, &b, 0, 0);
    world_settle(&w);
    assert_int_equal(found(&w, &a).unsaved, 7);
    assert_int_equal(found(&w, &b).unsaved, 1);
    world_close(&w);
}

static void a_tier_with_slots_to_wipe_is_stepped_until_they_are(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){8, 0, 8});
    assert_true(kvstore_next(w.kv, w.now) == UINT64_MAX);
    w.ssd->base.wipes.left = 1;
    assert_true(kvstore_next(w.kv, w.now) == w.now);
    w.ssd->base.wipes.left = 0;
    assert_true(kvstore_next(w.kv, w.now) == UINT64_MAX);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            who_needs_room_waits_until_the_oldest_are_copied_and_loses_nothing),
        cmocka_unit_test(the_wait_for_copies_ends_and_then_what_is_oldest_is_dropped),
        cmocka_unit_test(waiting_takes_no_longer_than_computing_again_would),
        cmocka_unit_test(a_shortage_that_nobody_waits_for_is_over),
        cmocka_unit_test(a_tier_that_takes_no_writes_is_not_waited_for),
        cmocka_unit_test(without_a_tier_nobody_waits),
        cmocka_unit_test(who_returns_quickly_does_not_wait_for_copies_of_its_own),
        cmocka_unit_test(a_prefetch_throws_nothing_away),
        cmocka_unit_test(what_is_held_is_not_promised_twice_and_counts_for_its_own),
        cmocka_unit_test(
            for_who_gets_room_never_holds_end_those_used_longest_ago_first),
        cmocka_unit_test(what_was_held_and_went_down_gives_its_room_back),
        cmocka_unit_test(where_room_is_scarce_copying_does_not_wait_for_quiet),
        cmocka_unit_test(a_tier_with_slots_to_wipe_is_stepped_until_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
