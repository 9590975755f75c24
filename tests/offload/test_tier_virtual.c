/* The virtual tier: transfers end when bandwidth, queue and latency say so. */
#include "offload/tier_virtual.h"

// cmocka needs these before it
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define BLOCKS 4

static struct tier *open_tier(const uint64_t *now)
{
    struct tier *t = NULL;
    struct err err;
    const struct tier_virtual_options o = {.name = "virtual",
                                           .now = now,
                                           .block_bytes = 1000,
                                           .capacity = BLOCKS,
                                           .depth = 3,
                                           .read = 1e9,
                                           .write = 5e8,
                                           .latency = 100};
    assert_int_equal(tier_virtual_open(&t, &o, &err), 0);
    return t;
}

static struct tier_io io_of(enum tier_dir dir, uint8_t id)
{
    struct tier_io io = {.dir = dir};
    io.meta.id.bytes[0] = id;
    io.meta.tokens[0] = id;
    return io;
}

static void transfers_of_one_direction_follow_one_another(void **state)
{
    (void)state;
    uint64_t now = 50;
    struct tier *t = open_tier(&now);
    struct tier_io a = io_of(TIER_STORE, 1), b = io_of(TIER_STORE, 2), *done[4];
    assert_int_equal(tier_virtual_next(t), UINT64_MAX);
    assert_int_equal(tier_submit(t, &a, now), 0);
    assert_int_equal(tier_submit(t, &b, now), 0);
    /* 2000 ns each, and the latency beside them. */
    assert_int_equal(tier_virtual_next(t), 50 + 2000 + 100);
    now = 2149;
    assert_int_equal(tier_reap(t, done, 4, now), 0);
    now = 2150;
    assert_int_equal(tier_reap(t, done, 4, now), 1);
    assert_ptr_equal(done[0], &a);
    assert_int_equal(tier_virtual_next(t), 4150);
    assert_true(slots_match(t->slots, &a.meta) != SLOT_NONE);
    assert_true(slots_match(t->slots, &b.meta) == SLOT_NONE);
    now = 9000;
    assert_int_equal(tier_reap(t, done, 4, now), 1);
    assert_int_equal(tier_virtual_next(t), UINT64_MAX);
    tier_close(t);
}

static void loads_and_stores_do_not_wait_for_each_other(void **state)
{
    (void)state;
    uint64_t now = 0;
    struct tier *t = open_tier(&now);
    struct tier_io a = io_of(TIER_STORE, 1), b = io_of(TIER_STORE, 2), *done[4];
    assert_int_equal(tier_submit(t, &a, now), 0);
    now = 10000;
    assert_int_equal(tier_reap(t, done, 4, now), 1);
    struct tier_io load = io_of(TIER_LOAD, 1);
    assert_int_equal(tier_submit(t, &b, now), 0);
    assert_int_equal(tier_submit(t, &load, now), 0);
    assert_int_equal(tier_virtual_next(t), 10000 + 1000 + 100);
    now = 11100;
    assert_int_equal(tier_reap(t, done, 4, now), 1);
    assert_ptr_equal(done[0], &load);
    now = 12100;
    assert_int_equal(tier_reap(t, done, 4, now), 1);
    tier_close(t);
}

static void one_more_than_its_depth_is_asked_to_try_again(void **state)
{
    (void)state;
    uint64_t now = 0;
    struct tier *t = open_tier(&now);
    struct tier_io io[4], *done[4];
    for (uint8_t i = 0; i < 4; i++) {
        io[i] = io_of(TIER_STORE, i);
        assert_int_equal(tier_submit(t, &io[i], now), i < 3 ? 0 : -EAGAIN);
    }
    now = 100000;
    assert_int_equal(tier_reap(t, done, 4, now), 3);
    assert_int_equal(tier_submit(t, &io[3], now), 0);
    now = 200000;
    assert_int_equal(tier_reap(t, done, 4, now), 1);
    tier_close(t);
}

static void a_tier_without_bandwidth_is_refused(void **state)
{
    (void)state;
    struct tier *t = NULL;
    struct err err;
    uint64_t now = 0;
    const struct tier_virtual_options o = {.name = "virtual",
                                           .now = &now,
                                           .block_bytes = 1000,
                                           .capacity = 1,
                                           .depth = 1,
                                           .read = 1e9};
    assert_int_equal(tier_virtual_open(&t, &o, &err), -EINVAL);
    assert_null(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_of_one_direction_follow_one_another),
        cmocka_unit_test(loads_and_stores_do_not_wait_for_each_other),
        cmocka_unit_test(one_more_than_its_depth_is_asked_to_try_again),
        cmocka_unit_test(a_tier_without_bandwidth_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
