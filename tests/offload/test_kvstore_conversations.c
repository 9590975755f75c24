/* The store: conversations by name, deleted, and found again after a restart. */
#include "tests/offload/kvstore_world.h"

static bool in_memory(const unsigned char *at, size_t n, const struct text *t,
                      uint32_t b)
{
    unsigned char want[PAGE];
    text_bytes(t, b, want);
    return memmem(at, n, want, PAGE) != NULL;
}

static void deleting_takes_the_bytes_from_every_tier_but_what_others_share(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 16, 32});
    struct text a = chat(0, 3, 15), b = a;
    text_add(&a, 3 * B, 16);
    text_add(&b, 2 * B, 17);
    turn(&w, &a, 0, 0);
    turn(&w, &b, 0, 0);
    assert_string_not_equal(a.name, b.name);
    world_pass(&w, 40 * SEC);
    where(&w, &a, 6, 6, 6);
    where(&w, &b, 5, 5, 5);
    assert_int_equal(kvstore_forget(w.kv, 0, a.name), 0);
    assert_true(kvstore_check(w.kv));
    struct kv_conversation c;
    assert_false(kvstore_conversation_find(w.kv, 0, a.name, &c));
    assert_int_equal(found(&w, &a).blocks, 3);
    where(&w, &b, 5, 5, 5);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(in_memory(w.ssd->bytes, 32 * PAGE, &a, i), i < 3);
    assert_int_equal(kvstore_forget(w.kv, 0, b.name), 0);
    assert_int_equal(found(&w, &b).blocks, 0);
    assert_int_equal(slots_used(w.o.ram->slots) + slots_used(w.o.ssd->slots), 0);
    for (uint32_t i = 0; i < 5; i++)
        assert_false(in_memory(w.ssd->bytes, 32 * PAGE, &b, i));
    assert_int_equal(fake_free(&w.pages), 16);
    world_close(&w);
}

static void deleting_takes_older_replies_and_what_is_above_a_gap_too(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){24, 0, 32});
    struct text t = chat(0, 4, 18), again = t, stranger = chat(0, 2, 20);
    text_add(&t, 1, 1);
    again = t;
    turn(&w, &stranger, 0, 0);
    turn(&w, &t, 3 * B, 2);
    turn(&w, &again, 2 * B, 3);  // the reply is made again
    assert_string_equal(t.name, again.name);
    sleep_now(&w, &again);
    world_pass(&w, 100 * SEC);
    assert_int_equal(found(&w, &t).blocks, 7);
    assert_int_equal(tier_drop(w.o.ssd, &again.meta[2].id), 0);  // damaged, say
    assert_int_equal(kvstore_forget(w.kv, 0, again.name), 0);
    assert_true(kvstore_check(w.kv));
    assert_int_equal(found(&w, &again).blocks, 0);
    assert_int_equal(found(&w, &stranger).blocks, 2);
    assert_int_equal(slots_used(w.o.ssd->slots), 2);
    world_close(&w);
}

static void after_a_restart_the_ssds_conversations_are_there_and_wake(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 16, 32});
    struct text a = chat(0, 3, 21), b = a, c = chat(1, 2, 22);
    text_add(&a, 3 * B, 23);
    text_add(&b, 2 * B, 24);
    turn(&w, &a, 0, 0);
    turn(&w, &b, 0, 0);
    turn(&w, &c, 0, 0);
    for (int i = 0; !kvstore_drain(w.kv, w.now); i++) assert_true(i < 1000);
    assert_int_equal(slots_used(w.o.ssd->slots), 6 + 2 + 2);
    world_settle(&w);
    kvstore_close(w.kv);
    w.o.ram = (tier_close(w.o.ram), NULL);
    world_start(&w);

    assert_int_equal(kvstore_conversations(w.kv), 3);
    a.name[0] = 0;
    struct kv_wake_report r = turn(&w, &a, 0, 0);
    assert_int_equal(r.loaded[KV_SSD], 5);
    text_add(&b, 20, 25);
    b.name[0] = 0;
    r = turn(&w, &b, 0, 0);
    assert_int_equal(r.blocks, 5);
    assert_int_equal(kvstore_conversations(w.kv),
                     4);  // a's prompt ended before its leaf
    world_close(&w);
}

static void a_conversation_without_a_name_keeps_the_one_it_was_given(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){40, 16, 0});
    struct text a = chat(0, 3, 26), b = a;
    turn(&w, &a, 20, 1);
    char name[KVSTORE_CONVERSATION];
    memcpy(name, a.name, sizeof name);
    for (uint64_t i = 0; i < 3; i++) {
        a.name[0] = 0;
        text_add(&a, 20, i);
        turn(&w, &a, 20, i);
        assert_string_equal(a.name, name);
    }
    turn(&w, &b, 30, 9);  // the same first message, another day
    assert_string_not_equal(b.name, name);
    assert_int_equal(kvstore_conversations(w.kv), 2);
    struct kv_conversation c;
    assert_true(kvstore_conversation_at(w.kv, 0, NULL, &c));
    assert_string_equal(c.name, b.name);
    assert_true(kvstore_conversation_at(w.kv, 1, NULL, &c));
    assert_string_equal(c.name, name);
    assert_int_equal(c.tokens, a.n);
    assert_int_equal(c.state, KV_IDLE);
    assert_false(kvstore_conversation_at(w.kv, 2, NULL, &c));
    world_close(&w);
}

static void the_record_used_longest_ago_makes_place_for_a_new_one(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){40, 64, 0});
    struct kv_conversation c;
    char first[KVSTORE_CONVERSATION] = "";
    for (uint64_t i = 0; i < 40; i++) {
        struct text t = chat(0, 1, 400 + i);
        snprintf(t.name, sizeof t.name, "chat %d", (int)i);
        if (i == 0) memcpy(first, t.name, sizeof first);
        turn(&w, &t, 0, 0);
        assert_true(kvstore_conversation_find(w.kv, 0, t.name, &c));
        world_pass(&w, 100 * SEC);
    }
    assert_int_equal(kvstore_conversations(w.kv), w.o.max_conversations);
    assert_false(kvstore_conversation_find(w.kv, 0, first, &c));
    struct text t = chat(0, 1, 400);
    assert_int_equal(found(&w, &t).by[KV_RAM], 1);  // its blocks are still there
    world_close(&w);
}

static void restart(struct world *w)
{
    world_settle(w);
    kvstore_close(w->kv);
    world_start(w);
}

static void a_conversation_has_its_name_again_after_a_restart(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 16, 32});
    struct text mine = chat(0, 4, 1), nameless = chat(0, 4, 2), theirs = chat(1, 4, 3);
    strcpy(mine.name, "mine");
    strcpy(theirs.name, "mine");  // another tenant's of that name
    turn(&w, &mine, 0, 0);
    turn(&w, &nameless, 0, 0);
    turn(&w, &theirs, 0, 0);
    text_add(&mine, 2 * B, 7);
    turn(&w, &mine, 0, 0);
    world_pass(&w, 100 * SEC);
    restart(&w);
    assert_int_equal(kvstore_conversations(w.kv), 3);
    where(&w, &mine, 0, 6, 6);
    where(&w, &theirs, 0, 4, 4);
    where(&w, &nameless, 0, 4, 4);
    struct kv_wake_report r = turn(&w, &mine, 0, 0);
    assert_int_equal(r.blocks, 5);
    assert_string_equal(r.conversation, "mine");
    world_close(&w);
}

static void of_two_branches_of_a_name_the_latest_has_it_after_a_restart(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 32});
    struct text t = chat(0, 2, 1);
    strcpy(t.name, "mine");
    turn(&w, &t, 0, 0);
    struct text edited = t;
    text_add(&t, 2 * B, 2);
    turn(&w, &t, 0, 0);
    world_pass(&w, 100 * SEC);
    text_add(&edited, 3 * B, 3);
    turn(&w, &edited, 0, 0);
    world_pass(&w, 100 * SEC);
    restart(&w);
    assert_int_equal(kvstore_conversations(w.kv), 1);
    struct kv_conversation c;
    assert_true(kvstore_conversation_find(w.kv, 0, "mine", &c));
    assert_true(c.blocks[KV_SSD] == 4 || c.blocks[KV_SSD] == 5);
    assert_int_equal(found(&w, &edited).by[KV_SSD], 5);
    assert_int_equal(kvstore_forget(w.kv, 0, "mine"), 0);
    world_close(&w);
}

static enum kv_state state_of(const struct world *w, const struct text *t)
{
    struct kv_conversation c;
    assert_true(kvstore_conversation_find(w->kv, t->tenant, t->name, &c));
    return c.state;
}

static void one_that_was_called_is_waking_until_its_blocks_are_there(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 32});
    struct text t = chat(0, 5, 3);
    turn(&w, &t, 0, 0);
    assert_int_equal(state_of(&w, &t), KV_IDLE);
    assert_true(kvstore_unsaved(w.kv) == 5);
    sleep_now(&w, &t);
    assert_int_equal(state_of(&w, &t), KV_ASLEEP);
    assert_true(kvstore_unsaved(w.kv) == 0);
    assert_int_equal(kvstore_prefetch(w.kv, 0, t.name, w.now), 0);
    assert_int_equal(state_of(&w, &t), KV_WAKING);
    w.ssd->max_wait = UINT32_MAX;
    assert_int_equal(kvstore_prefetch(w.kv, 0, t.name, w.now), 0);  // it is at it
    assert_int_equal(kvstore_sleep(w.kv, 0, t.name, w.now), -EBUSY);
    for (int i = 0; i < 20; i++) world_step(&w);  // all loads are under way
    assert_int_equal(state_of(&w, &t), KV_WAKING);
    assert_int_equal(kvstore_prefetch(w.kv, 0, t.name, w.now), 0);
    assert_int_equal(kvstore_sleep(w.kv, 0, t.name, w.now), -EBUSY);
    memset(w.ssd->wait, 0, sizeof w.ssd->wait);
    w.ssd->max_wait = 0;
    world_settle(&w);
    assert_int_equal(state_of(&w, &t), KV_IDLE);
    where(&w, &t, 5, 0, 5);
    sleep_now(&w, &t);
    where(&w, &t, 0, 0, 5);
    world_close(&w);
}

static void
of_another_tenants_conversation_no_more_is_told_than_whose_it_is(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 0});
    struct text mine = chat(0, 2, 1), theirs = chat(1, 2, 2);
    turn(&w, &mine, 0, 0);
    turn(&w, &theirs, 0, 0);
    uint64_t tenant = 0;
    struct kv_conversation c;
    assert_true(kvstore_conversation_at(w.kv, 0, &tenant, &c));
    assert_true(c.tenant == 1 && !c.name[0] && !c.tokens && !c.blocks[KV_DEVICE]);
    assert_true(kvstore_conversation_at(w.kv, 1, &tenant, &c));
    assert_true(c.tenant == 0 && c.tokens == mine.n && c.blocks[KV_DEVICE] == 2);
    assert_false(kvstore_conversation_at(w.kv, 2, &tenant, &c));
    world_close(&w);
}

/* A prompt of less than a block has no name; its reply grows into another's first blocks. */
static void who_was_not_counted_as_using_a_conversation_ends_nobodys_use(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 0});
    struct text x = chat(0, 2, 1), y;
    text_add(&x, 1, 2);
    y = x;
    y.n = B / 2;
    struct request long_one, short_one;
    request_begin(&w, &long_one, &x);
    request_begin(&w, &short_one, &y);
    memcpy(x.name, long_one.report.conversation, sizeof x.name);
    assert_string_equal(short_one.report.conversation, "");
    y.n = 2 * B;
    text_chain(&w, &y, 2);
    assert_true(request_compute(&w, &short_one));
    request_end(&w, &short_one);
    assert_int_equal(state_of(&w, &x), KV_ACTIVE);
    assert_true(request_compute(&w, &long_one));
    request_end(&w, &long_one);
    assert_int_equal(state_of(&w, &x), KV_IDLE);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_conversation_has_its_name_again_after_a_restart),
        cmocka_unit_test(of_two_branches_of_a_name_the_latest_has_it_after_a_restart),
        cmocka_unit_test(
            deleting_takes_the_bytes_from_every_tier_but_what_others_share),
        cmocka_unit_test(deleting_takes_older_replies_and_what_is_above_a_gap_too),
        cmocka_unit_test(after_a_restart_the_ssds_conversations_are_there_and_wake),
        cmocka_unit_test(a_conversation_without_a_name_keeps_the_one_it_was_given),
        cmocka_unit_test(one_that_was_called_is_waking_until_its_blocks_are_there),
        cmocka_unit_test(
            of_another_tenants_conversation_no_more_is_told_than_whose_it_is),
        cmocka_unit_test(who_was_not_counted_as_using_a_conversation_ends_nobodys_use),
        cmocka_unit_test(the_record_used_longest_ago_makes_place_for_a_new_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
