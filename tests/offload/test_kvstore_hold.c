/* The store: what is held, how much of it, and until when. */
#include "tests/offload/kvstore_world.h"

static int hold(struct world *w, const struct text *t, uint64_t until)
{
    return kvstore_hold(w->kv, t->tenant, t->name, until, w->now);
}

static void a_held_conversation_stays_in_g1_or_ram_until_then(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){12, 6, 32});
    struct text t = chat(0, 3, 5);
    turn(&w, &t, 0, 0);
    assert_int_equal(hold(&w, &t, w.now + 500 * SEC), 0);
    assert_int_equal(kvstore_make_room(w.kv, 12, w.now), 9);
    world_pass(&w, 10 * SEC);
    assert_int_equal(kvstore_make_room(w.kv, 12, w.now), 12);  // RAM has it
    for (uint64_t i = 0; i < 5; i++) {
        struct text other = chat(0, 4, 60 + i);
        turn(&w, &other, 0, 0);
        world_pass(&w, 70 * SEC);
        where(&w, &t, 0, 3, 3);
    }
    world_pass(&w, 500 * SEC);
    struct text other = chat(0, 4, 77);
    turn(&w, &other, 0, 0);
    world_pass(&w, 70 * SEC);
    where(&w, &t, 0, 0, 3);
    world_close(&w);
}

static void what_a_held_conversation_adds_is_held_too(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){12, 0, 0});
    struct text t = chat(0, 3, 5);
    turn(&w, &t, 0, 0);
    assert_int_equal(hold(&w, &t, w.now + 500 * SEC), 0);
    text_add(&t, 2 * B, 1);
    turn(&w, &t, 0, 0);
    assert_int_equal(kvstore_make_room(w.kv, 12, w.now), 7);
    assert_int_equal(hold(&w, &t, 0), 0);
    assert_int_equal(kvstore_make_room(w.kv, 12, w.now), 12);
    world_close(&w);
}

static void half_of_the_level_may_be_held_and_no_more(void **state)
{
    (void)state;
    for (int ram = 0; ram < 2; ram++) {
        struct world w;
        world_open(&w, (struct sizes){ram ? 32 : 16, ram ? 16 : 0, 32});
        assert_int_equal(kvstore_hold_tokens(w.kv), 8 * B);
        struct text a = chat(0, 5, 1), b = chat(1, 4, 2), c = chat(1, 3, 3);
        turn(&w, &a, 0, 0);
        turn(&w, &b, 0, 0);
        turn(&w, &c, 0, 0);
        assert_int_equal(hold(&w, &a, w.now + 50 * SEC), 0);
        assert_int_equal(hold(&w, &b, w.now + 500 * SEC), -EDQUOT);
        assert_int_equal(hold(&w, &c, w.now + 500 * SEC), 0);
        assert_int_equal(hold(&w, &c, w.now + 600 * SEC), 0);  // longer
        world_pass(&w, 50 * SEC);
        assert_int_equal(hold(&w, &b, w.now + 500 * SEC), 0);
        assert_int_equal(hold(&w, &a, w.now + 500 * SEC), -EDQUOT);
        assert_int_equal(hold(&w, &a, 0), 0);
        world_close(&w);
    }
}

static void of_several_tenants_each_leaves_something_to_hold_for_one_more(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){64, 32, 0});
    w.o.several_tenants = true;
    restart_with(&w, &w.o.policy);
    for (uint64_t tenant = 0; tenant < 3; tenant++) {
        uint32_t share = 8u >> tenant;  // of 16, of 8, of 4
        struct text most = chat(tenant, share, 10 + tenant);
        struct text more = chat(tenant, 2, 20 + tenant);
        turn(&w, &most, 0, 0);
        turn(&w, &more, 0, 0);
        uint64_t until = w.now + 500 * SEC;
        assert_int_equal(hold(&w, &most, until), 0);
        assert_int_equal(hold(&w, &more, until), -EDQUOT);
        assert_int_equal(hold(&w, &most, 0), 0);
        assert_int_equal(hold(&w, &more, until), 0);
        assert_int_equal(hold(&w, &most, until), -EDQUOT);
        assert_int_equal(hold(&w, &more, 0), 0);
        assert_int_equal(hold(&w, &most, until), 0);
    }
    world_close(&w);
}

static void what_is_held_is_held_for_longer_whatever_others_hold(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){64, 32, 0});
    w.o.several_tenants = true;
    restart_with(&w, &w.o.policy);
    struct text a = chat(0, 8, 10), b = chat(1, 4, 11);
    turn(&w, &a, 0, 0);
    turn(&w, &b, 0, 0);
    assert_int_equal(hold(&w, &a, w.now + 50 * SEC), 0);
    assert_int_equal(hold(&w, &b, w.now + 900 * SEC), 0);
    assert_int_equal(hold(&w, &a, w.now + 500 * SEC), 0);
    assert_int_equal(hold(&w, &a, w.now + 50 * SEC), 0);
    text_add(&a, B, 1);  // what it grows by is beyond its share,
    turn(&w, &a, 0, 0);
    assert_int_equal(hold(&w, &a, w.now + 500 * SEC), -EDQUOT);
    assert_int_equal(kvstore_make_room(w.kv, 64, w.now), 64 - 12);
    turn(&w, &a, 0, 0);  // and does not become held by another turn
    assert_int_equal(kvstore_make_room(w.kv, 64, w.now), 64 - 12);
    world_pass(&w, 60 * SEC);  // what has ended is asked for anew
    assert_int_equal(hold(&w, &a, w.now + 500 * SEC), -EDQUOT);
    world_close(&w);
}

static void a_tenant_holds_no_more_than_its_quota_of_ram(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){32, 32, 0});
    w.o.policy.ram_quota = 6 * PAGE;
    restart_with(&w, &w.o.policy);
    struct text a = chat(0, 4, 1), b = chat(0, 4, 2), other = chat(1, 4, 3);
    turn(&w, &a, 0, 0);
    turn(&w, &b, 0, 0);
    turn(&w, &other, 0, 0);
    assert_int_equal(hold(&w, &a, w.now + 50 * SEC), 0);
    assert_int_equal(hold(&w, &b, w.now + 50 * SEC), -EDQUOT);
    assert_int_equal(hold(&w, &other, w.now + 50 * SEC), 0);
    world_close(&w);
}

/* How many of 12 pages stay when all others make room. */
static uint32_t stay(struct world *w)
{
    return 12 - kvstore_make_room(w->kv, 12, w->now);
}

static void what_outgrows_its_hold_or_leaves_it_behind_is_not_held(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){12, 0, 0});
    struct text t = chat(0, 2, 5), edited = t;
    text_add(&t, 3 * B, 1);
    text_add(&edited, 2 * B, 2);
    turn(&w, &t, 0, 0);
    assert_int_equal(hold(&w, &t, w.now + 500 * SEC), 0);
    text_add(&t, 4 * B, 3);  // 9 of the 6 that may be
    turn(&w, &t, 0, 0);
    assert_int_equal(stay(&w), 5);
    memcpy(edited.name, t.name, sizeof t.name);
    turn(&w, &edited, 0, 0);
    assert_int_equal(stay(&w), 4);
    assert_int_equal(found(&w, &edited).by[KV_DEVICE], 4);
    assert_int_equal(kvstore_forget(w.kv, 0, t.name), 0);
    assert_int_equal(stay(&w), 0);
    world_close(&w);
}

static void many_held_blocks_are_passed_over_to_one_that_may_go(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){40, 160, 0});
    struct text held[2], others[2], old = chat(0, 20, 95), new = chat(0, 15, 96);
    for (uint64_t i = 0; i < 2; i++) {  // together more than one walk looks at
        held[i] = chat(0, 35, 90 + i);
        turn(&w, &held[i], 0, 0);
        assert_int_equal(hold(&w, &held[i], w.now + 9000 * SEC), 0);
        world_pass(&w, 70 * SEC);
    }
    turn(&w, &old, 0, 0);
    world_pass(&w, 70 * SEC);
    for (uint64_t i = 0; i < 2; i++) {
        others[i] = chat(0, 35, 92 + i);
        turn(&w, &others[i], 0, 0);
        world_pass(&w, 70 * SEC);
    }
    world_pass(&w, 1000 * SEC);
    assert_int_equal(slots_used(w.o.ram->slots), 160);
    turn(&w, &new, 0, 0);
    world_pass(&w, 70 * SEC);
    where(&w, &new, 0, 15, 0);
    assert_true(found(&w, &old).blocks <= 5);
    for (uint64_t i = 0; i < 2; i++) {
        where(&w, &held[i], 0, 35, 0);
        where(&w, &others[i], 0, 35, 0);
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_held_conversation_stays_in_g1_or_ram_until_then),
        cmocka_unit_test(what_a_held_conversation_adds_is_held_too),
        cmocka_unit_test(half_of_the_level_may_be_held_and_no_more),
        cmocka_unit_test(what_is_held_is_held_for_longer_whatever_others_hold),
        cmocka_unit_test(of_several_tenants_each_leaves_something_to_hold_for_one_more),
        cmocka_unit_test(a_tenant_holds_no_more_than_its_quota_of_ram),
        cmocka_unit_test(what_outgrows_its_hold_or_leaves_it_behind_is_not_held),
        cmocka_unit_test(many_held_blocks_are_passed_over_to_one_that_may_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
