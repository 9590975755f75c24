/* The store: what a restart finds on the SSD is found from its beginning, also of what others
 * use all the time. */
#include "tests/offload/kvstore_storm.h"

#define SHARED 4  // blocks that all conversations begin with
#define OWN    3
#define CHATS  4

static const struct sizes with_ram = {48, 48, 64}, without_ram = {48, 0, 64};

static struct text shared(void)
{
    return chat(0, SHARED, 77);
}

static struct text chat_after(struct text prefix, uint64_t seed)
{
    text_add(&prefix, OWN * B, seed);
    return prefix;
}

/* As many blocks as a restart would find: those whose way to the first one is whole. */
static uint32_t found_from_the_beginning(const struct world *w)
{
    const struct slots *s = w->o.ssd->slots;
    uint32_t n = 0;
    for (uint32_t i = 0; i < slots_capacity(s); i++) {
        uint32_t at = slots_at(s, i)->state == SLOT_READY ? i : SLOT_NONE;
        while (at != SLOT_NONE && slots_at(s, at)->meta.depth > 0)
            at = slots_find(s, &slots_at(s, at)->meta.parent);
        n += at != SLOT_NONE;
    }
    return n;
}

static void chats_fall_quiet(struct world *w, struct text *chats)
{
    for (uint32_t i = 0; i < CHATS; i++) {
        chats[i] = chat_after(shared(), 100 + i);
        turn(w, &chats[i], 0, 0);
        w->now += SEC / 10;
    }
}

/* Somebody uses the shared blocks, and one of his own, ten times a second. */
static void ping(struct world *w, struct text *t, uint64_t seconds)
{
    for (uint64_t i = 0; i < 10 * seconds; i++) {
        turn(w, t, 0, 0);
        world_step(w);
        w->now += SEC / 10;
        world_step(w);
    }
}

static struct text pinger(void)
{
    struct text t = shared();
    text_add(&t, 5, 1);
    return t;
}

static void what_others_use_all_the_time_goes_down_with_what_follows_it(void **state)
{
    (void)state;
    const struct sizes sizes[] = {with_ram, without_ram};
    for (int i = 0; i < 2; i++) {
        struct world w;
        struct text chats[CHATS], hot = pinger();
        world_open(&w, sizes[i]);
        chats_fall_quiet(&w, chats);
        ping(&w, &hot, 40);
        assert_int_equal(found_from_the_beginning(&w), SHARED + CHATS * OWN);
        assert_int_equal(w.ssd->base.stored, SHARED + CHATS * OWN);  // and none twice
        world_close(&w);
    }
}

static void so_does_what_a_long_reply_reads_all_the_time(void **state)
{
    (void)state;
    const struct sizes sizes[] = {with_ram, without_ram};
    for (int i = 0; i < 2; i++) {
        struct world w;
        struct text chats[CHATS], hot = pinger();
        struct request r;
        world_open(&w, sizes[i]);
        turn(&w, &hot, 0, 0);
        request_begin(&w, &r, &hot);
        request_wait(&w, &r);
        chats_fall_quiet(&w, chats);
        uint32_t there = kvstore_available(w.kv);
        w.now += 5 * SEC;
        world_step(&w);  // some of what it reads is on its way, and counts once
        assert_true(kvstore_available(w.kv) == there);
        world_pass(&w, 40 * SEC);
        assert_int_equal(found_from_the_beginning(&w), SHARED + CHATS * OWN);
        assert_true(request_ready(&w, &r));
        for (uint32_t b = 0; b < r.n; b++)
            assert_true(page_right(&w, r.blocks[b], r.text, b));
        request_end(&w, &r);
        world_close(&w);
    }
}

static void nobody_is_short_of_the_pages_that_go_down_while_they_are_read(void **state)
{
    (void)state;
    static const struct kv_found nothing;
    struct world w;
    struct text chats[CHATS], hot = pinger();
    struct request r;
    world_open(&w, without_ram);
    turn(&w, &hot, 0, 0);
    request_begin(&w, &r, &hot);
    request_wait(&w, &r);
    chats_fall_quiet(&w, chats);
    w.ssd->max_wait = UINT32_MAX;
    w.now += 5 * SEC;
    world_step(&w);
    assert_int_equal(w.ssd->n_flying, w.o.policy.max_stores);
    uint32_t own_flying = w.ssd->n_flying - SHARED;
    uint32_t most = kvstore_available(w.kv) - own_flying;
    assert_int_equal(kvstore_wait_room(w.kv, most, &nothing, w.now), KV_LATER);
    assert_int_equal(kvstore_wait_room(w.kv, most + 1, &nothing, w.now), KV_NEVER);
    w.ssd->max_wait = 0;
    memset(w.ssd->wait, 0, sizeof w.ssd->wait);
    request_end(&w, &r);
    world_close(&w);
}

static void a_budget_that_ends_amid_a_chain_leaves_its_beginning(void **state)
{
    (void)state;
    for (uint32_t blocks = 1; blocks < SHARED + OWN; blocks++) {
        struct world w;
        struct text hot = pinger(), one = chat_after(shared(), 100);
        world_open(&w, blocks % 2 ? with_ram : without_ram);
        w.o.policy.ssd_bytes_per_day = blocks * PAGE;
        restart_with(&w, &w.o.policy);
        turn(&w, &one, 0, 0);
        ping(&w, &hot, 40);
        assert_int_equal(w.ssd->base.stored, blocks);
        assert_int_equal(found_from_the_beginning(&w), blocks);
        world_close(&w);
    }
}

static void of_a_chain_that_is_not_whole_the_last_block_goes_first(void **state)
{
    (void)state;
    struct world w;
    struct text one = chat(0, 6, 100);
    world_open(&w, with_ram);
    w.o.policy.ssd_bytes_per_day = 4 * PAGE;
    restart_with(&w, &w.o.policy);
    turn(&w, &one, 0, 0);
    world_pass(&w, 40 * SEC);
    for (int l = KV_RAM; l < KV_SOURCES; l++) {
        const struct slots *s = l == KV_RAM ? w.o.ram->slots : w.o.ssd->slots;
        assert_int_equal(slots_used(s), l == KV_RAM ? 6 : 4);
        assert_int_equal(slots_at(s, slots_coldest(s, NULL))->meta.depth,
                         slots_used(s) - 1);
    }
    world_close(&w);
}

static void
with_second_touch_what_comes_before_a_block_used_twice_goes_too(void **state)
{
    (void)state;
    struct world w;
    struct text hot = pinger(), one = chat_after(shared(), 100);
    world_open(&w, with_ram);
    w.o.policy.second_touch = true;
    restart_with(&w, &w.o.policy);
    turn(&w, &one, 0, 0);
    text_add(&one, 1, 1);
    turn(&w, &one, 0, 0);
    ping(&w, &hot, 40);
    assert_int_equal(found_from_the_beginning(&w), SHARED + OWN);
    world_close(&w);
}

static void a_block_whose_store_failed_goes_again_before_its_turn(void **state)
{
    (void)state;
    struct world w;
    struct text hot = pinger(), one = chat_after(shared(), 100);
    world_open(&w, without_ram);
    turn(&w, &one, 0, 0);
    // All but the first land.
    w.ssd->max_wait = 1;
    for (int i = 0; i < 49; i++, w.now += SEC / 10) turn(&w, &hot, 0, 0);
    w.ssd->fail_at = w.ssd->calls + SHARED + OWN + 1;
    w.ssd->fail_until = w.ssd->fail_at + 1;
    ping(&w, &hot, 1);
    assert_int_equal(w.ssd->base.failed, 1);
    assert_int_equal(w.ssd->base.stored, SHARED + OWN - 1);
    assert_int_equal(found_from_the_beginning(&w), 0);
    ping(&w, &hot, 2);  // the SSD takes stores again after a second
    assert_int_equal(found_from_the_beginning(&w), SHARED + OWN);
    world_close(&w);
}

static void a_block_that_was_damaged_goes_down_again_before_its_turn(void **state)
{
    (void)state;
    struct world w;
    struct text hot = pinger(), one = chat_after(shared(), 100);
    world_open(&w, without_ram);
    turn(&w, &one, 0, 0);
    sleep_now(&w, &one);
    assert_int_equal(found_from_the_beginning(&w), SHARED + OWN);
    w.ssd->damage = 1000;
    struct request r;
    request_begin(&w, &r, &hot);
    request_wait(&w, &r);
    w.ssd->damage = 0;
    assert_int_equal(found_from_the_beginning(&w), 0);
    assert_true(request_compute(&w, &r));
    request_end(&w, &r);
    ping(&w, &hot, 1);
    assert_int_equal(found_from_the_beginning(&w), SHARED + OWN);
    world_close(&w);
}

static void
what_is_read_is_not_put_off_by_being_used_again_on_its_way_to_the_front(void **state)
{
    (void)state;
    struct world w;
    struct text hot = chat(0, 130, 5), one = hot;
    world_open(&w, (struct sizes){160, 0, 160});
    w.o.policy.high = w.o.policy.low = 1;  // nothing goes for want of room
    restart_with(&w, &w.o.policy);
    text_add(&one, 2 * B, 6);
    text_add(&hot, 5, 7);
    turn(&w, &one, 0, 0);
    w.now += 5 * SEC;
    // Each touches all that is called for, and there is more of it than one step looks at.
    for (int i = 0; i < 30; i++, w.now += SEC / 10) {
        turn(&w, &hot, 0, 0);
        world_step(&w);
    }
    assert_int_equal(found_from_the_beginning(&w), 132);
    world_close(&w);
}

/* No transfer fails, so that after each step every block in a tier is found from its
 * beginning (kvstore_check). */
static void calm(struct sizes sizes, struct policy policy, bool weak, uint64_t seed)
{
    struct storm *s = calloc(1, sizeof *s);
    assert_non_null(s);
    storm_open(s, sizes, &policy, weak, seed);
    s->calm = true;
    for (uint32_t n = 0; n < 3000; n++) storm_step(s);
    assert_true(s->woken > 20);
    assert_true(s->w.ssd->base.stored > 100);
    assert_int_equal(s->w.ssd->base.failed, 0);
    if (s->w.o.ram) assert_int_equal(s->w.o.ram->failed, 0);
    storm_close(s);
    free(s);
}

static void in_any_history_without_failures_no_block_is_in_a_tier_alone(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 16; seed++) {
        bool weak = seed % 4 == 0;
        struct policy p = storm_policy();
        calm((struct sizes){32, 24, 60}, p, weak, seed);
        calm((struct sizes){28, 0, 40}, p, weak, seed);
        calm((struct sizes){24, 40, 24}, p, weak, seed);  // an SSD that is always full
        p.keep_for = 0;
        calm((struct sizes){28, 10, 20}, p, weak, seed);
        p.ram_quota = 9 * PAGE;
        p.ssd_quota = 15 * PAGE;
        p.ssd_bytes_per_day = 86400 * PAGE;
        p.max_stores = 8;
        calm((struct sizes){32, 24, 40}, p, weak, seed);
        p.second_touch = true;
        calm((struct sizes){32, 24, 40}, p, weak, seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_others_use_all_the_time_goes_down_with_what_follows_it),
        cmocka_unit_test(so_does_what_a_long_reply_reads_all_the_time),
        cmocka_unit_test(nobody_is_short_of_the_pages_that_go_down_while_they_are_read),
        cmocka_unit_test(a_budget_that_ends_amid_a_chain_leaves_its_beginning),
        cmocka_unit_test(of_a_chain_that_is_not_whole_the_last_block_goes_first),
        cmocka_unit_test(
            with_second_touch_what_comes_before_a_block_used_twice_goes_too),
        cmocka_unit_test(a_block_whose_store_failed_goes_again_before_its_turn),
        cmocka_unit_test(a_block_that_was_damaged_goes_down_again_before_its_turn),
        cmocka_unit_test(
            what_is_read_is_not_put_off_by_being_used_again_on_its_way_to_the_front),
        cmocka_unit_test(in_any_history_without_failures_no_block_is_in_a_tier_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
