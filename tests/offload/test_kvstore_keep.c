/* The store: what stays and what goes; quotas and budgets. */
#include "tests/offload/kvstore_world.h"

static void room_is_made_of_the_oldest_conversation_its_suffix_first(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){12, 0, 0});
    struct text a = chat(0, 4, 1), b = chat(0, 4, 2), c = chat(0, 4, 3);
    struct text *in_order[] = {&a, &b, &c};
    for (int i = 0; i < 3; i++, w.now += SEC) turn(&w, in_order[i], 0, 0);
    turn(&w, &a, 0, 0);  // the oldest is b now
    for (uint32_t n = 1; n <= 12; n++) {
        assert_int_equal(kvstore_make_room(w.kv, n, w.now), n);
        assert_int_equal(found(&w, &b).blocks, n < 4 ? 4 - n : 0);
        assert_int_equal(found(&w, &c).blocks, n < 4 ? 4 : n < 8 ? 8 - n : 0);
        assert_int_equal(found(&w, &a).blocks, n < 8 ? 4 : 12 - n);
    }
    assert_int_equal(counted(&w).lost, 13);  // a made room for its own last block
    assert_int_equal(kvstore_conversations(w.kv), 0);
    world_close(&w);
}

static void clean_pages_go_before_unsaved_ones(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){12, 8, 0});
    struct text a = chat(0, 4, 1), b = chat(0, 4, 2);
    turn(&w, &a, 0, 0);
    world_pass(&w, 10 * SEC);
    turn(&w, &b, 0, 0);
    turn(&w, &a, 0, 0);  // b is older, but only a is in RAM
    assert_int_equal(kvstore_make_room(w.kv, 8, w.now), 8);
    assert_int_equal(found(&w, &a).by[KV_RAM], 4);
    assert_int_equal(found(&w, &b).by[KV_DEVICE], 4);
    assert_int_equal(counted(&w).lost, 0);
    world_close(&w);
}

static void active_pages_are_never_freed(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){12, 8, 0});
    struct text t = chat(0, 4, 4);
    turn(&w, &t, 0, 0);
    world_pass(&w, 10 * SEC);
    struct request r;
    request_begin(&w, &r, &t);
    assert_int_equal(kvstore_available(w.kv), 9);
    assert_int_equal(kvstore_make_room(w.kv, 12, w.now), 9);
    assert_int_equal(kvstore_sleep(w.kv, 0, t.name, w.now), -EBUSY);
    assert_int_equal(kvstore_forget(w.kv, 0, t.name), -EBUSY);
    assert_int_equal(kvstore_prefetch(w.kv, 0, t.name, w.now), -EBUSY);
    world_pass(&w, 1000 * SEC);
    assert_true(request_ready(&w, &r));
    request_end(&w, &r);
    world_close(&w);
}

static void what_just_came_up_goes_only_when_nothing_else_is_left(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){8, 16, 0});
    w.o.policy.residency = 10 * SEC;
    w.o.policy.high = w.o.policy.low = 1;
    restart_with(&w, &w.o.policy);
    struct text a = chat(0, 4, 6), b = chat(0, 3, 7);
    turn(&w, &a, 0, 0);
    sleep_now(&w, &a);
    turn(&w, &a, 0, 0);  // came up now
    w.now += SEC;
    turn(&w, &b, 0, 0);
    world_pass(&w, 6 * SEC);  // both have copies now
    assert_int_equal(kvstore_make_room(w.kv, 4, w.now), 4);
    assert_true(found(&w, &a).by[KV_DEVICE] >= 3);
    assert_int_equal(kvstore_make_room(w.kv, 8, w.now), 8);
    world_close(&w);
}

static void a_tenant_over_its_quota_gives_up_its_own_oldest(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){32, 0, 32});
    w.o.policy.ssd_quota = 6 * PAGE;
    restart_with(&w, &w.o.policy);
    struct text other = chat(1, 5, 8), a = chat(0, 4, 9), b = chat(0, 4, 10);
    turn(&w, &other, 0, 0);
    w.now += SEC;
    turn(&w, &a, 0, 0);
    world_pass(&w, 100 * SEC);
    turn(&w, &b, 0, 0);
    world_pass(&w, 100 * SEC);
    assert_int_equal(found(&w, &other).by[KV_SSD], 5);
    assert_int_equal(found(&w, &b).by[KV_SSD], 4);
    assert_int_equal(found(&w, &a).by[KV_SSD], 2);  // its first two
    assert_int_equal(counted(&w).quota_bites[KV_SSD], 2);
    world_close(&w);
}

static void a_tenant_that_waits_for_its_quota_holds_up_no_other(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){32, 16, 32});
    w.o.policy.ram_quota = 4 * PAGE;
    restart_with(&w, &w.o.policy);
    w.ssd->max_wait = UINT32_MAX;  // nothing lands there
    struct text a = chat(0, 4, 1), b = chat(0, 4, 2), other = chat(1, 3, 3);
    struct text *in_order[] = {&a, &b, &other};
    for (int i = 0; i < 3; i++, w.now += SEC) turn(&w, in_order[i], 0, 0);
    w.now += 6 * SEC;
    for (int i = 0; i < 50; i++) world_step(&w);
    where(&w, &a, 4, 4, 0);
    where(&w, &b, 4, 0, 0);
    where(&w, &other, 3, 3, 0);
    memset(w.ssd->wait, 0, sizeof w.ssd->wait);
    w.ssd->max_wait = 0;
    world_pass(&w, SEC);
    where(&w, &b, 4, 4, 0);
    where(&w, &a, 4, 0, 4);
    world_close(&w);
}

static void what_is_larger_than_a_quota_keeps_its_beginning(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){32, 0, 32});
    w.o.policy.ssd_quota = 6 * PAGE;
    restart_with(&w, &w.o.policy);
    struct text t = chat(0, 10, 11);
    turn(&w, &t, 0, 0);
    sleep_now(&w, &t);
    world_pass(&w, 100 * SEC);
    struct kv_conversation c;
    assert_true(kvstore_conversation_find(w.kv, 0, t.name, &c));
    assert_int_equal(c.blocks[KV_SSD], 6);
    assert_int_equal(counted(&w).demoted_bytes[KV_SSD], 6 * PAGE);  // and none twice
    assert_int_equal(kvstore_make_room(w.kv, 32, w.now), 32);
    assert_int_equal(found(&w, &t).by[KV_SSD], 6);
    world_close(&w);
}

static void nothing_is_written_and_evicted_for_the_same_conversation(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){40, 0, 12});
    w.o.policy.high = w.o.policy.low = 1;
    restart_with(&w, &w.o.policy);
    struct text t[4];
    for (uint32_t i = 0; i < 4; i++) t[i] = chat(0, 4, 100 + i);
    uint64_t computed = 0;
    for (int n = 0; n < 40; n++) {
        struct text *one = &t[n % 4];
        text_add(one, 4, (uint64_t)n);
        struct kv_wake_report r = turn(&w, one, 0, 0);
        computed += one->n / B - r.blocks;
        world_pass(&w, 10 * SEC);
        sleep_now(&w, one);
    }
    assert_true(counted(&w).demoted_bytes[KV_SSD] <= computed * PAGE);
    world_close(&w);
}

static void the_ssd_takes_no_more_than_its_budget(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){32, 0, 32});
    w.o.policy.ssd_bytes_per_day = 3 * PAGE;
    restart_with(&w, &w.o.policy);
    struct text t = chat(0, 5, 12);
    turn(&w, &t, 0, 0);
    world_pass(&w, 10 * SEC);
    assert_int_equal(found(&w, &t).by[KV_DEVICE], 5);
    assert_int_equal(w.ssd->base.stored, 3);
    assert_int_equal(counted(&w).budget_refused, 2);
    world_pass(&w, 86400 * SEC);
    assert_int_equal(found(&w, &t).by[KV_DEVICE],
                     2);  // unsaved: kept while there is room
    turn(&w, &t, 0, 0);
    world_pass(&w, 100 * SEC);
    assert_int_equal(w.ssd->base.stored, 5);
    world_close(&w);
}

static void what_the_budget_refuses_takes_nobodys_place(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){32, 0, 3});
    w.o.policy.ssd_bytes_per_day = 3 * PAGE;
    restart_with(&w, &w.o.policy);
    struct text old = chat(0, 3, 12), new = chat(0, 3, 13);
    turn(&w, &old, 0, 0);
    world_pass(&w, 10 * SEC);
    where(&w, &old, 3, 0, 3);
    turn(&w, &new, 0, 0);
    world_pass(&w, 10 * SEC);
    assert_int_equal(counted(&w).budget_refused, 3);
    assert_int_equal(counted(&w).evicted[KV_SSD], 0);
    where(&w, &old, 3, 0, 3);
    world_close(&w);
}

static void with_second_touch_the_ssd_takes_what_was_used_twice(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){32, 16, 32});
    w.o.policy.second_touch = true;
    restart_with(&w, &w.o.policy);
    struct text once = chat(0, 4, 13), twice = chat(0, 4, 14);
    turn(&w, &once, 0, 0);
    turn(&w, &twice, 0, 0);
    world_pass(&w, 100 * SEC);
    assert_int_equal(w.ssd->base.stored, 0);
    text_add(&twice, 1, 1);
    turn(&w, &twice, 0, 0);
    world_pass(&w, 100 * SEC);
    where(&w, &twice, 0, 4, 4);
    where(&w, &once, 0, 4, 0);
    assert_true(counted(&w).second_touch_refused >= 4);
    world_close(&w);
}

static void an_ssd_that_fails_is_left_alone_and_costs_no_answer(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 4, 32});
    w.ssd->broken = -EIO;
    for (uint64_t i = 0; i < 12; i++) {
        struct text t = chat(0, 6, 200 + i);
        turn(&w, &t, 0, 0);
        world_pass(&w, 90 * SEC);
    }
    assert_false(w.ssd->base.stored);
    assert_true(w.ssd->calls < 2000);
    w.ssd->broken = 0;
    struct text t = chat(0, 3, 300);
    turn(&w, &t, 0, 0);
    world_pass(&w, 200 * SEC);
    assert_int_equal(found(&w, &t).blocks, 3);
    assert_true(w.ssd->base.stored >= 3);
    world_close(&w);
}

/* Drain without a moment passing, for so long as that may help. */
static bool drains_now(struct world *w)
{
    for (int i = 0; i < 100; i++) {
        bool done = kvstore_drain(w->kv, w->now);
        assert_true(kvstore_check(w->kv));
        if (done) return true;
    }
    return false;
}

static void
a_drain_that_finds_no_room_on_the_device_ends_and_one_that_fails_goes_on(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){32, 0, 32});
    struct text t = chat(0, 20, 1);
    turn(&w, &t, 0, 0);
    w.ssd->broken = -ENOSPC;
    assert_true(drains_now(&w));
    assert_int_equal(w.ssd->calls, 2 * w.o.policy.max_stores);  // starts and landings
    assert_int_equal(kvstore_unsaved(w.kv), 20);
    assert_true(drains_now(&w));
    assert_int_equal(w.ssd->calls, 2 * w.o.policy.max_stores);
    world_close(&w);

    world_open(&w, (struct sizes){32, 0, 32});
    turn(&w, &t, 0, 0);
    w.ssd->broken = -ENOSPC;
    w.now += 5 * SEC;
    for (int i = 0; i < 5; i++) world_step(&w);
    assert_false(w.o.ssd->health.writable);
    w.ssd->broken = 0;  // room has been made
    assert_true(drains_now(&w));
    assert_int_equal(kvstore_unsaved(w.kv), 0);
    assert_int_equal(w.o.ssd->stored, 20);
    world_close(&w);

    world_open(&w, (struct sizes){32, 0, 32});
    turn(&w, &t, 0, 0);
    w.ssd->broken = -EIO;
    assert_false(drains_now(&w));
    w.ssd->broken = 0;
    w.now += TIER_PAUSE_MIN_NS;
    assert_true(drains_now(&w));
    assert_int_equal(w.o.ssd->stored, 20);
    world_close(&w);
}

static void a_drain_without_an_ssd_copies_nothing(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){32, 32, 0});
    struct text t = chat(0, 20, 1);
    turn(&w, &t, 0, 0);
    assert_true(drains_now(&w));
    assert_int_equal(w.o.ram->stored, 0);
    world_close(&w);
}

/* Step only when the store says so, or while a transfer is in flight; how many steps until
 * it says never. */
static uint32_t follow(struct world *w)
{
    uint32_t steps = 0;
    for (; steps < 20000; steps++) {
        uint64_t next = kvstore_next(w->kv, w->now);
        assert_true(next >= w->now);
        if (kvstore_in_flight(w->kv)) {
            w->now += 1000;
        } else if (next == UINT64_MAX) {
            return steps;
        } else {
            w->now = next;
        }
        world_step(w);
    }
    return steps;
}

static void stepping_when_it_says_so_does_all_that_is_due_and_never_spins(void **state)
{
    (void)state;
    for (int k = 0; k < 16; k++) {
        int kind = k % 8;
        struct world w;
        world_open(&w, (struct sizes){32, kind == 6 ? 0 : 12, kind == 7 ? 0 : 40});
        if (k >= 8) w.o.policy.max_stores = 32;  // more than RAM has blocks
        if (kind == 1) w.o.policy.ram_quota = 5 * PAGE;
        if (kind == 2) w.o.policy.ssd_quota = 5 * PAGE;
        if (kind == 3) w.o.policy.ssd_bytes_per_day = 3 * PAGE;
        if (kind == 4) w.o.policy.second_touch = true;
        if (kind == 5) w.ssd->broken = -EIO;
        restart_with(&w, &w.o.policy);
        struct text t[5];
        for (uint64_t i = 0; i < 5; i++) {
            t[i] = chat(i % 2, 5, 500 + i);
            turn(&w, &t[i], 0, 0);
            w.now += SEC;
        }
        assert_int_equal(kvstore_hold(w.kv, 1, t[3].name, w.now + 300 * SEC, w.now), 0);
        assert_true(follow(&w) < 600);
        assert_true(w.now < 2000 * SEC);
        if (kind == 0) {
            for (int i = 0; i < 5; i++)
                assert_int_equal(found(&w, &t[i]).by[KV_DEVICE], 0);
            assert_int_equal(slots_used(w.o.ssd->slots), 25);
        }
        world_close(&w);
    }
}

static void options_that_do_not_fit_are_refused_whole(void **state)
{
    (void)state;
    struct world w;
    struct err err;
    struct kvstore *kv = NULL;
    world_open(&w, (struct sizes){8, 8, 8});
    struct kvstore_options o = w.o;
    o.max_wakes = 0;
    assert_int_equal(kvstore_open(&kv, &o, &err), -EINVAL);
    o = w.o, o.block_tokens = 0;
    assert_int_equal(kvstore_open(&kv, &o, &err), -EINVAL);
    o = w.o, o.policy.low = 2;
    assert_int_equal(kvstore_open(&kv, &o, &err), -EINVAL);
    w.ssd->base.block_bytes = 100;
    assert_int_equal(kvstore_open(&kv, &w.o, &err), -EINVAL);
    w.ssd->base.block_bytes = PAGE;
    assert_null(kv);
    assert_true(kvstore_bytes(&w.o) > 1000);
    kvstore_close(NULL);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(room_is_made_of_the_oldest_conversation_its_suffix_first),
        cmocka_unit_test(clean_pages_go_before_unsaved_ones),
        cmocka_unit_test(active_pages_are_never_freed),
        cmocka_unit_test(what_just_came_up_goes_only_when_nothing_else_is_left),
        cmocka_unit_test(a_tenant_over_its_quota_gives_up_its_own_oldest),
        cmocka_unit_test(a_tenant_that_waits_for_its_quota_holds_up_no_other),
        cmocka_unit_test(what_is_larger_than_a_quota_keeps_its_beginning),
        cmocka_unit_test(nothing_is_written_and_evicted_for_the_same_conversation),
        cmocka_unit_test(the_ssd_takes_no_more_than_its_budget),
        cmocka_unit_test(what_the_budget_refuses_takes_nobodys_place),
        cmocka_unit_test(with_second_touch_the_ssd_takes_what_was_used_twice),
        cmocka_unit_test(an_ssd_that_fails_is_left_alone_and_costs_no_answer),
        cmocka_unit_test(
            a_drain_that_finds_no_room_on_the_device_ends_and_one_that_fails_goes_on),
        cmocka_unit_test(a_drain_without_an_ssd_copies_nothing),
        cmocka_unit_test(stepping_when_it_says_so_does_all_that_is_due_and_never_spins),
        cmocka_unit_test(options_that_do_not_fit_are_refused_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
