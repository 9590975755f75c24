/* The store: what conversations are called after a restart, and what they are not. */
#include "tests/offload/kvstore_world.h"

static struct text named(const char *name, uint32_t blocks, uint64_t seed)
{
    struct text t = chat(0, blocks, seed);
    strcpy(t.name, name);
    return t;
}

static void kill_and_restart(struct world *w)
{
    while (!kvstore_settle(w->kv, w->now)) continue;
    kvstore_close(w->kv);
    world_start(w);
    assert_true(kvstore_check(w->kv));
}

static bool listed(const struct world *w, const char *name)
{
    struct kv_conversation c;
    return kvstore_conversation_find(w->kv, 0, name, &c);
}

/* In the file, too. */
static bool written(const struct world *w, const char *name)
{
    return memmem(w->ssd->names, FAKE_NAMES * sizeof *w->ssd->names, name,
                  strlen(name) + 1) != NULL;
}

static void asleep(struct world *w, struct text *t)
{
    turn(w, t, 0, 0);
    world_pass(w, 100 * SEC);
}

static void of_two_names_that_end_with_one_block_both_are_there_again(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 32});
    struct text one = named("one", 4, 1), two = named("two", 4, 1);
    asleep(&w, &one);
    asleep(&w, &two);
    kill_and_restart(&w);
    assert_int_equal(kvstore_conversations(w.kv), 2);
    where(&w, &one, 0, 0, 4);
    where(&w, &two, 0, 0, 4);
    world_close(&w);
}

static void
what_is_left_of_a_conversation_whose_end_was_displaced_has_its_name(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 6});
    struct text mine = named("mine", 4, 1), other = named("other", 4, 2);
    asleep(&w, &mine);
    asleep(&w, &other);
    where(&w, &mine, 0, 0, 2);
    kill_and_restart(&w);
    assert_int_equal(kvstore_conversations(w.kv), 2);
    where(&w, &mine, 0, 0, 2);
    where(&w, &other, 0, 0, 4);
    world_close(&w);
}

static void
a_name_deleted_from_the_middle_of_anothers_path_does_not_come_back(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 6});
    struct text one = named("one", 4, 1), two = named("two", 4, 1);
    struct text other = named("other", 2, 2);
    asleep(&w, &one);
    text_add(&two, 2 * B, 3);
    asleep(&w, &two);
    assert_true(written(&w, "one"));
    assert_int_equal(kvstore_forget(w.kv, 0, "one"), 0);
    assert_false(written(&w, "one"));
    asleep(&w, &other);  // two's last two blocks are displaced
    where(&w, &two, 0, 0, 4);
    kill_and_restart(&w);
    assert_false(listed(&w, "one"));
    where(&w, &two, 0, 0, 4);
    world_close(&w);
}

static void a_turn_that_was_cut_short_is_the_conversations(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 32});
    struct text mine = named("mine", 4, 1);
    asleep(&w, &mine);
    w.ssd->depth = 1;
    text_add(&mine, 5 * B, 2);
    turn(&w, &mine, 0, 0);
    w.now += 100 * SEC;
    while (slots_used(w.o.ssd->slots) < 6) world_step(&w);
    kill_and_restart(&w);
    assert_int_equal(kvstore_conversations(w.kv), 1);
    uint32_t n = slots_used(w.o.ssd->slots);
    assert_true(n >= 6 && n < 9);
    where(&w, &mine, 0, 0, n);
    world_close(&w);
}

static void deleting_a_name_writes_no_block_that_another_ends_with_too(void **state)
{
    (void)state;
    for (uint32_t ram = 0; ram <= 16; ram += 16) {
        struct world w;
        world_open(&w, (struct sizes){16, ram, 32});
        struct text one = named("one", 4, 1), two = named("two", 4, 1);
        asleep(&w, &one);
        asleep(&w, &two);
        uint64_t stored = w.o.ssd->stored;
        assert_int_equal(kvstore_forget(w.kv, 0, "one"), 0);
        where(&w, &two, 0, ram ? 4 : 0, 4);
        world_pass(&w, 100 * SEC);
        assert_true(w.o.ssd->stored == stored);
        kill_and_restart(&w);
        assert_false(listed(&w, "one"));
        where(&w, &two, 0, ram ? 4 : 0, 4);
        world_close(&w);
    }
}

/* The kill comes when only the one or only the other has been overwritten. */
static void
a_deletion_that_was_cut_short_leaves_no_name_whichever_went_first(void **state)
{
    (void)state;
    for (int name_first = 0; name_first < 2; name_first++) {
        struct world w;
        world_open(&w, (struct sizes){16, 0, 32});
        struct text gone = named("gone", 4, 1), other = named("other", 2, 1);
        asleep(&w, &gone);
        text_add(&other, 3 * B, 2);
        asleep(&w, &other);  // they share two blocks
        struct kept_name before = w.ssd->names[0];
        assert_string_equal(before.name, "gone");
        if (name_first) {
            memset(&w.ssd->names[0], 0, sizeof before);
        } else {
            assert_int_equal(kvstore_forget(w.kv, 0, "gone"), 0);
            w.ssd->names[0] = before;
        }
        kill_and_restart(&w);
        assert_false(listed(&w, "gone") || written(&w, "gone"));
        where(&w, &other, 0, 0, 5);
        assert_int_equal(found(&w, &gone).blocks, name_first ? 4 : 2);
        world_close(&w);
    }
}

static void an_older_reply_is_nobodys_and_goes_with_its_conversation(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){24, 0, 32});
    struct text mine = named("mine", 3, 1), first = mine;
    text_add(&first, 2 * B, 2);
    asleep(&w, &first);
    text_add(&mine, 3 * B, 3);
    asleep(&w, &mine);
    kill_and_restart(&w);
    assert_int_equal(kvstore_conversations(w.kv), 1);
    where(&w, &mine, 0, 0, 6);
    assert_int_equal(found(&w, &first).blocks, 5);
    assert_int_equal(kvstore_forget(w.kv, 0, "mine"), 0);
    assert_int_equal(slots_used(w.o.ssd->slots), 0);
    world_close(&w);
}

static void what_no_name_is_known_of_gets_one_that_it_keeps(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){24, 0, 32});
    struct text a = named("a", 3, 1), b = a, c = named("c", 3, 1);
    strcpy(b.name, "b");
    text_add(&a, B, 2);
    text_add(&b, B, 3);
    text_add(&c, B, 4);
    asleep(&w, &a);
    asleep(&w, &b);
    asleep(&w, &c);
    memset(&w.ssd->names[2], 0, sizeof w.ssd->names[2]);  // damaged, say
    kill_and_restart(&w);
    assert_int_equal(kvstore_conversations(w.kv), 3);
    assert_true(listed(&w, "a") && listed(&w, "b") && !listed(&w, "c"));
    struct kv_conversation before, after;
    assert_true(kvstore_conversation_at(w.kv, 2, NULL, &before));
    assert_int_equal(before.blocks[KV_SSD], 4);
    kill_and_restart(&w);
    assert_true(kvstore_conversation_at(w.kv, 2, NULL, &after));
    assert_string_equal(before.name, after.name);
    world_close(&w);
}

static void conversations_come_in_the_order_of_their_last_use(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){24, 0, 32});
    struct text t[3] = {named("a", 2, 1), named("b", 2, 2), named("c", 2, 3)};
    for (int i = 0; i < 3; i++) asleep(&w, &t[i]);
    asleep(&w, &t[1]);  // again, and nothing new
    kill_and_restart(&w);
    static const char *const order[] = {"b", "c", "a"};
    for (uint32_t i = 0; i < 3; i++) {
        struct kv_conversation c;
        assert_true(kvstore_conversation_at(w.kv, i, NULL, &c));
        assert_string_equal(c.name, order[i]);
        assert_int_equal(c.tokens, 2 * B);
    }
    world_close(&w);
}

static void of_two_entries_of_one_name_the_later_counts_and_the_other_goes(void **state)
{
    (void)state;
    for (uint32_t later = 0; later < 2; later++) {
        struct world w;
        world_open(&w, (struct sizes){24, 0, 32});
        struct text t[2] = {named("a", 2, 1), named("b", 3, 2)};
        asleep(&w, &t[0]);
        asleep(&w, &t[1]);
        struct kept_name *n = w.ssd->names;
        strcpy(n[0].name, "same");
        strcpy(n[1].name, "same");
        n[later].sequence = 100;
        kill_and_restart(&w);
        strcpy(t[later].name, "same");
        where(&w, &t[later], 0, 0, 2 + later);
        assert_int_equal(kvstore_conversations(w.kv), 2);
        assert_string_equal(n[later].name, "same");
        assert_true(memcmp(n[!later].name, "conv-", 5) == 0);
        world_close(&w);
    }
}

static void an_entry_whose_block_is_not_there_or_anothers_goes(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){24, 0, 32});
    struct text t = named("mine", 3, 1);
    asleep(&w, &t);
    struct kept_name *n = w.ssd->names, mine = n[0];
    for (int i = 1; i < 5; i++) {
        n[i] = mine;
        snprintf(n[i].name, sizeof n[i].name, "forged-%d", i);
    }
    n[1].last.bytes[3] ^= 1;
    n[2].depth++;
    n[3].tenant = 1;
    n[4].depth = UINT32_MAX;
    kill_and_restart(&w);
    assert_int_equal(kvstore_conversations(w.kv), 1);
    where(&w, &t, 0, 0, 3);
    assert_false(memmem(n, FAKE_NAMES * sizeof *n, "forged", 6) != NULL);
    world_close(&w);
}

static void names_of_another_fingerprint_stay_while_there_is_other_room(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){24, 0, 64});
    struct kept_name *n = w.ssd->names;
    n[0].foreign = n[2].foreign = true;
    kill_and_restart(&w);
    for (uint32_t i = 0; i < FAKE_NAMES - 2; i++) {
        struct text t = chat(0, 1, 100 + i);
        asleep(&w, &t);
    }
    assert_true(n[0].foreign && n[2].foreign && n[1].name[0] && n[31].name[0]);
    struct text t = chat(0, 1, 99);
    turn(&w, &t, 0, 0);
    assert_true(n[0].foreign);  // nothing of this one has been stored yet
    world_pass(&w, 100 * SEC);
    assert_false(n[0].foreign);
    world_close(&w);
}

static void
a_table_of_another_size_than_the_records_is_read_as_far_as_both_go(void **state)
{
    (void)state;
    for (uint32_t max = 2; max <= 2 * FAKE_NAMES; max += 2 * FAKE_NAMES - 2) {
        struct world w;
        world_open(&w, (struct sizes){24, 0, 32});
        struct text t[3] = {named("a", 2, 1), named("b", 2, 2), named("c", 2, 3)};
        for (int i = 0; i < 3; i++) asleep(&w, &t[i]);
        w.o.max_conversations = max;
        kill_and_restart(&w);
        assert_true(listed(&w, "a") && listed(&w, "b"));
        assert_int_equal(listed(&w, "c"), max > 2);
        assert_int_equal(written(&w, "c"), max > 2);
        world_close(&w);
    }
}

static bool whole(const struct world *w, const struct kept_name *n)
{
    const struct slots *s = w->o.ssd->slots;
    struct block_id id = n->last;
    for (uint32_t left = n->depth + 1; left > 0; left--) {
        uint32_t i = slots_find(s, &id);
        if (i == SLOT_NONE || slots_at(s, i)->state != SLOT_READY) return false;
        id = slots_at(s, i)->meta.parent;
    }
    return true;
}

/* A restart drops a block whose parent is not there, and with it the name that ends there. */
static void no_entry_ends_with_a_block_before_which_one_is_on_its_way(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct world w;
        world_open(&w, (struct sizes){32, 0, 64});
        w.ssd->seed = seed;
        w.ssd->max_wait = 20;  // blocks land in any order
        struct text mine = named("mine", 4, 1);
        for (int turns = 0; turns < 3; turns++) {
            turn(&w, &mine, 0, 0);
            w.now += 100 * SEC;
            while (kvstore_unsaved(w.kv) || w.o.ssd->in_flight) {
                world_step(&w);
                if (w.ssd->names[0].name[0]) assert_true(whole(&w, &w.ssd->names[0]));
            }
            assert_int_equal(w.ssd->names[0].depth + 1, mine.n / B);
            text_add(&mine, 4 * B, 2 + (uint64_t)turns);
        }
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_entry_ends_with_a_block_before_which_one_is_on_its_way),
        cmocka_unit_test(of_two_names_that_end_with_one_block_both_are_there_again),
        cmocka_unit_test(
            what_is_left_of_a_conversation_whose_end_was_displaced_has_its_name),
        cmocka_unit_test(
            a_name_deleted_from_the_middle_of_anothers_path_does_not_come_back),
        cmocka_unit_test(a_turn_that_was_cut_short_is_the_conversations),
        cmocka_unit_test(deleting_a_name_writes_no_block_that_another_ends_with_too),
        cmocka_unit_test(
            a_deletion_that_was_cut_short_leaves_no_name_whichever_went_first),
        cmocka_unit_test(an_older_reply_is_nobodys_and_goes_with_its_conversation),
        cmocka_unit_test(what_no_name_is_known_of_gets_one_that_it_keeps),
        cmocka_unit_test(conversations_come_in_the_order_of_their_last_use),
        cmocka_unit_test(
            of_two_entries_of_one_name_the_later_counts_and_the_other_goes),
        cmocka_unit_test(an_entry_whose_block_is_not_there_or_anothers_goes),
        cmocka_unit_test(names_of_another_fingerprint_stay_while_there_is_other_room),
        cmocka_unit_test(
            a_table_of_another_size_than_the_records_is_read_as_far_as_both_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
