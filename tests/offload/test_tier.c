/* One suite over every tier: RAM, and an SSD by each way there is to one. */
#include "tests/allocs.h"
#include "tests/offload/fault_medium.h"
#include "tests/offload/tier_fixture.h"

static const struct tier_kind KINDS[] = {
    {"ram", NULL, false, false, false, false},
    {"ssd: io_uring, direct", "/tmp", false, false, false, false},
    {"ssd: io_uring, direct, registered", "/tmp", false, false, false, true},
    {"ssd: io_uring, page cache, registered", "/tmp", false, true, false, true},
    {"ssd: io_uring, page cache", "/tmp", false, true, false, false},
    {"ssd: threads, direct", "/tmp", true, false, false, false},
    {"ssd: threads, page cache", "/tmp", true, true, false, false},
    {"ssd: io_uring on a tmpfs", "/dev/shm", false, false, false, false},
    {"ssd: threads on a tmpfs", "/dev/shm", true, false, false, false},
    {"ssd: for a device, io_uring", "/tmp", false, false, true, false},
    {"ssd: for a device, threads", "/tmp", true, true, true, false},
};
static const struct tier_kind *kind;

static void open_world(struct world *w, uint32_t capacity)
{
    world_open(w, kind, capacity);
    if (!kind->base ||
        (w->found.uring == !kind->no_uring &&
         (w->found.direct || kind->no_direct || strcmp(kind->base, "/dev/shm") == 0)))
        return;
    print_message("%s\n", w->found.note);
    world_close(w);
    skip();
}

static void a_loaded_block_is_the_stored_one(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 40);
    for (uint32_t d = 0; d < 40; d++) assert_int_equal(store(w.tier, 1, d), 0);
    for (uint32_t d = 40; d-- > 0;) assert_int_equal(load(w.tier, 1, d * 7 % 40), 0);
    assert_int_equal(w.tier->stored, 40);
    assert_int_equal(w.tier->loaded, 40);
    assert_int_equal(w.tier->bytes_in, 40 * BLOCK_BYTES);
    assert_int_equal(w.tier->bytes_out, 40 * BLOCK_BYTES);
    world_close(&w);
}

static void blocks_in_flight_together_do_not_mix(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, DEPTH);
    struct tier_io io[DEPTH], *done[DEPTH];
    unsigned char *buf = world_buffer(&w, kind, DEPTH * BUFFER_BYTES);
    for (int dir = TIER_STORE; dir <= TIER_LOAD; dir++) {
        for (uint32_t i = 0; i < DEPTH; i++) {
            // Stores in order, so neighbours; loads in disorder.
            uint32_t d = dir == TIER_LOAD ? i * 5 % DEPTH : i;
            io[i] = (struct tier_io){.meta = block_meta_of(3, d),
                                     .dir = (enum tier_dir)dir,
                                     .buf = buf + i * BUFFER_BYTES};
            if (dir == TIER_STORE)
                block_fill(io[i].buf, BLOCK_BYTES, &io[i].meta);
            else
                memset(io[i].buf, 0, BUFFER_BYTES);
            assert_int_equal(tier_submit(w.tier, &io[i], 1), 0);
        }
        assert_int_equal(w.tier->in_flight, DEPTH);
        for (size_t n = 0; n < DEPTH;) {
            n += tier_reap(w.tier, done + n, DEPTH - n, 1);
            usleep(20);
        }
        assert_int_equal(w.tier->in_flight, 0);
        for (uint32_t i = 0; i < DEPTH; i++) {
            assert_int_equal(io[i].res, 0);
            assert_true(block_holds(io[i].buf, BLOCK_BYTES, &io[i].meta));
            for (uint32_t k = 0; k < i; k++) assert_ptr_not_equal(done[i], done[k]);
        }
    }
    assert_true(slots_check(w.tier->slots));
    free(buf);
    world_close(&w);
}

static void a_block_is_invisible_until_its_store_is_reaped(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 2);
    void *buf = world_buffer(&w, kind, BUFFER_BYTES);
    struct tier_io io = {.meta = block_meta_of(1, 0), .dir = TIER_STORE, .buf = buf};
    assert_int_equal(tier_submit(w.tier, &io, 1), 0);
    tier_flush(w.tier);
    assert_false(has(w.tier, 1, 0));
    assert_int_equal(load(w.tier, 1, 0), -ENOENT);
    assert_int_equal(store(w.tier, 1, 0), -EEXIST);
    assert_int_equal(tier_drop(w.tier, &io.meta.id), -EBUSY);
    assert_int_equal(tier_erase(w.tier, &io.meta.id, 0), -EBUSY);
    assert_ptr_equal(reap_one(w.tier, 1), &io);
    assert_true(has(w.tier, 1, 0));
    free(buf);
    world_close(&w);
}

static void a_full_tier_offers_its_coldest_block(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 2);
    assert_int_equal(store(w.tier, 1, 0), 0);
    assert_int_equal(store(w.tier, 2, 0), 0);
    assert_int_equal(load(w.tier, 1, 0), 0);
    assert_int_equal(store(w.tier, 3, 0), -ENOSPC);

    struct block_meta victim;
    struct block_id id = block_name(1, 0);
    uint64_t tenant = 1, nobody = 9;
    assert_true(coldest(w.tier, NULL, &victim) && victim.tenant == 1);
    slots_touch(w.tier->slots, slots_find(w.tier->slots, &id));  // now the warmer
    assert_true(coldest(w.tier, &tenant, &victim) && victim.tenant == 1);
    assert_false(coldest(w.tier, &nobody, &victim));
    assert_true(coldest(w.tier, NULL, &victim) && victim.tenant == 2);
    assert_int_equal(tier_drop(w.tier, &victim.id), 0);
    assert_int_equal(tier_drop(w.tier, &victim.id), -ENOENT);
    assert_int_equal(store(w.tier, 3, 0), 0);
    assert_true(has(w.tier, 1, 0) && !has(w.tier, 2, 0) && has(w.tier, 3, 0));
    slots_touch(w.tier->slots, slots_find(w.tier->slots, &id));
    assert_true(coldest(w.tier, NULL, &victim) && victim.tenant == 3);
    world_close(&w);
}

static void a_block_being_loaded_is_never_a_victim(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 1);
    assert_int_equal(store(w.tier, 1, 0), 0);
    void *buf = world_buffer(&w, kind, BUFFER_BYTES);
    struct tier_io io = {.meta = block_meta_of(1, 0), .dir = TIER_LOAD, .buf = buf};
    struct block_meta victim;
    assert_int_equal(tier_submit(w.tier, &io, 1), 0);
    assert_false(coldest(w.tier, NULL, &victim));
    assert_int_equal(tier_drop(w.tier, &io.meta.id), -EBUSY);
    assert_ptr_equal(reap_one(w.tier, 1), &io);
    assert_int_equal(tier_drop(w.tier, &io.meta.id), 0);
    free(buf);
    world_close(&w);
}

static void a_busy_medium_leaves_no_trace(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, COPYQ_DEPTH + 1);
    uint32_t depth = kind->base ? DEPTH : COPYQ_DEPTH;
    struct tier_io io[COPYQ_DEPTH + 1], *done[COPYQ_DEPTH + 1];
    void *buf = world_buffer(&w, kind, BUFFER_BYTES);
    for (uint32_t i = 0; i <= depth; i++) {
        io[i] = (struct tier_io){
            .meta = block_meta_of(1, i), .dir = TIER_STORE, .buf = buf};
        assert_int_equal(tier_submit(w.tier, &io[i], 1), i < depth ? 0 : -EAGAIN);
    }
    assert_int_equal(slots_used(w.tier->slots), depth);
    assert_int_equal(w.tier->in_flight, depth);
    for (size_t n = 0; n < depth;) n += tier_reap(w.tier, done, ARRAY_LEN(done), 1);
    assert_true(slots_check(w.tier->slots));
    assert_int_equal(store(w.tier, 1, depth), 0);
    free(buf);
    world_close(&w);
}

static void a_store_that_failed_pauses_stores_longer_each_time(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4);
    void *buf = world_buffer(&w, kind, BUFFER_BYTES);
    struct block_meta m = block_meta_of(1, 0), n = block_meta_of(2, 0);
    assert_int_equal(move(w.tier, TIER_STORE, &n, buf, 1), 0);
    struct fault_medium f;
    fault_install(&f, w.tier, 1, UINT64_MAX - 1, -ENOSPC);
    f.medium.start = f.real->start;  // only what comes back fails

    uint64_t now = 1, pause = TIER_PAUSE_MIN_NS;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(move(w.tier, TIER_STORE, &m, buf, now), -ENOSPC);
        assert_false(w.tier->health.writable);
        assert_int_equal(w.tier->health.last_error, -ENOSPC);
        assert_int_equal(w.tier->health.retry_at, now + pause);
        assert_int_equal(move(w.tier, TIER_STORE, &m, buf, now + pause - 1), -EROFS);
        assert_int_equal(w.tier->failed, i + 1);
        now += pause;
        pause = pause * 2 < TIER_PAUSE_MAX_NS ? pause * 2 : TIER_PAUSE_MAX_NS;
    }
    assert_int_equal(pause, TIER_PAUSE_MAX_NS);
    fault_remove(&f, w.tier);
    assert_false(w.tier->health.writable);
    assert_int_equal(move(w.tier, TIER_LOAD, &n, buf, now - 1), 0);  // loads go on
    struct tier_io *none;
    assert_int_equal(tier_reap(w.tier, &none, 1, now), 0);
    assert_true(w.tier->health.writable);
    assert_int_equal(move(w.tier, TIER_STORE, &m, buf, now), 0);
    assert_int_equal(w.tier->health.pause, 0);
    assert_int_equal(w.tier->dropped_bad, 0);
    free(buf);
    world_close(&w);
}

/* Whatever was before: room does not mend a device. */
static void a_block_that_leaves_ends_a_pause_for_want_of_room_only(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 8);
    void *buf = world_buffer(&w, kind, BUFFER_BYTES);
    static const int why[] = {-ENOSPC, -EIO, -EFBIG, -EIO, -EDQUOT};
    uint64_t now = 1;
    for (uint32_t i = 0; i < ARRAY_LEN(why); i++) {
        struct block_meta there = block_meta_of(1, i), m = block_meta_of(2, i);
        assert_int_equal(move(w.tier, TIER_STORE, &there, buf, now), 0);
        struct fault_medium f;
        fault_install(&f, w.tier, 1, UINT64_MAX - 1, why[i]);
        f.medium.start = f.real->start;
        assert_int_equal(move(w.tier, TIER_STORE, &m, buf, now), why[i]);
        fault_remove(&f, w.tier);
        bool room = tier_lacks_room(why[i]);
        assert_int_equal(tier_waits_for_room(w.tier), room);
        assert_int_equal(tier_drop(w.tier, &there.id), 0);
        assert_int_equal(move(w.tier, TIER_STORE, &m, buf, now), room ? 0 : -EROFS);
        now += 2 * TIER_PAUSE_MAX_NS;
    }
    free(buf);
    world_close(&w);
}

static void a_device_is_full_until_a_store_finds_room_on_it(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 8);
    void *buf = world_buffer(&w, kind, BUFFER_BYTES);
    struct block_meta m[5];
    for (uint32_t i = 0; i < 5; i++) m[i] = block_meta_of(1, i);
    for (int i = 0; i < 3; i++)
        assert_int_equal(move(w.tier, TIER_STORE, &m[i], buf, 1), 0);
    struct fault_medium f;
    fault_install(&f, w.tier, 1, UINT64_MAX - 1, -ENOSPC);
    f.medium.start = f.real->start;
    assert_int_equal(move(w.tier, TIER_STORE, &m[3], buf, 1), -ENOSPC);
    fault_remove(&f, w.tier);

    // The slots of two that leave have their room, and say nothing of the device.
    uint32_t slots[2];
    for (int i = 0; i < 2; i++) {
        slots[i] = slots_find(w.tier->slots, &m[i].id);
        assert_int_equal(tier_erase(w.tier, &m[i].id, 0), 0);
    }
    end_wipes(w.tier, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(move(w.tier, TIER_STORE, &m[3 + i], buf, 2), 0);
        assert_int_equal(slots_find(w.tier->slots, &m[3 + i].id), slots[1 - i]);
        assert_true(w.tier->health.full);
    }
    assert_int_equal(move(w.tier, TIER_STORE, &m[0], buf, 2), 0);
    assert_false(w.tier->health.full);
    free(buf);
    world_close(&w);
}

static void stores_that_fail_together_count_once(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4);
    void *buf = world_buffer(&w, kind, BUFFER_BYTES);
    struct fault_medium f;
    fault_install(&f, w.tier, 1, UINT64_MAX - 1, -EIO);
    f.medium.start = f.real->start;
    struct tier_io io[3], *done[3];
    for (uint32_t i = 0; i < 3; i++) {
        io[i] = (struct tier_io){
            .meta = block_meta_of(1, i), .dir = TIER_STORE, .buf = buf};
        assert_int_equal(tier_submit(w.tier, &io[i], 1), 0);
    }
    for (size_t n = 0; n < 3;) n += tier_reap(w.tier, done, 3, 1);
    assert_int_equal(w.tier->health.pause, TIER_PAUSE_MIN_NS);
    assert_int_equal(w.tier->failed, 3);
    fault_remove(&f, w.tier);
    // Their slots may be at fault: the one that was not used comes first.
    struct block_meta m = block_meta_of(1, 3);
    assert_int_equal(move(w.tier, TIER_STORE, &m, buf, 2 * TIER_PAUSE_MIN_NS), 0);
    for (int i = 0; i < 3; i++)
        assert_int_not_equal(slots_find(w.tier->slots, &m.id), io[i].slot);
    free(buf);
    world_close(&w);
}

static void a_load_that_failed_drops_the_block_with_its_last_load(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 2);
    assert_int_equal(store(w.tier, 1, 0), 0);
    void *buf = world_buffer(&w, kind, 2 * BUFFER_BYTES);
    struct tier_io io[2], *done;
    for (int i = 0; i < 2; i++) {
        io[i] = (struct tier_io){.meta = block_meta_of(1, 0),
                                 .dir = TIER_LOAD,
                                 .buf = (char *)buf + i * BUFFER_BYTES};
        assert_int_equal(tier_submit(w.tier, &io[i], 1), 0);
    }
    struct fault_medium f;
    fault_install(&f, w.tier, 1, 1, -EBADMSG);
    done = reap_one(w.tier, 1);
    assert_int_equal(done->res, -EBADMSG);
    assert_false(has(w.tier, 1, 0));
    assert_int_equal(slots_used(w.tier->slots), 1);
    assert_int_equal(store(w.tier, 1, 0), -EEXIST);
    done = reap_one(w.tier, 1);
    assert_int_equal(done->res, 0);
    assert_int_equal(slots_used(w.tier->slots), 0);
    assert_true(w.tier->health.writable);
    assert_int_equal(w.tier->dropped_bad, 1);
    fault_remove(&f, w.tier);
    assert_int_equal(load(w.tier, 1, 0), -ENOENT);
    assert_int_equal(store(w.tier, 1, 0), 0);
    assert_int_equal(load(w.tier, 1, 0), 0);
    free(buf);
    world_close(&w);
}

static void moving_blocks_allocates_nothing(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 8);
    unsigned long before = allocs_so_far();
    for (uint32_t n = 0; n < 300; n++) {
        struct block_meta victim;
        if (slots_used(w.tier->slots) == 8) {
            assert_true(coldest(w.tier, NULL, &victim));
            int rc = n % 3 ? tier_drop(w.tier, &victim.id)
                           : tier_erase(w.tier, &victim.id, 0);
            assert_int_equal(rc, 0);
        }
        _Alignas(TIER_ALIGN) unsigned char buf[BUFFER_BYTES] = {0};
        struct tier_io io = {
            .meta = block_meta_of(n, 0), .dir = TIER_STORE, .buf = buf};
        struct tier_io *done;
        int rc;
        while ((rc = tier_submit(w.tier, &io, 1)) == -EAGAIN)
            assert_int_equal(tier_reap(w.tier, &done, 1, 1), 0);
        assert_int_equal(rc, 0);
        assert_ptr_equal(reap_one(w.tier, 1), &io);
        io.dir = TIER_LOAD;
        assert_int_equal(tier_submit(w.tier, &io, 1), 0);
        assert_ptr_equal(reap_one(w.tier, 1), &io);
    }
    assert_int_equal(allocs_so_far() - before, 0);
    world_close(&w);
}

// ---- every call fails once -------------------------------------------------------------

/* Ten blocks go in and are read; whatever fails on the way, what the tier then says it has
 * can be loaded and is right.  True if nothing failed. */
static bool errand(struct world *w, struct fault_medium *f, uint64_t fail_at)
{
    fault_install(f, w->tier, fail_at, 1, -EIO);
    uint64_t now = 1;
    _Alignas(TIER_ALIGN) static unsigned char buf[BUFFER_BYTES];
    for (uint32_t d = 0; d < 10; d++, now += 1000000000u) {
        struct block_meta m = block_meta_of(1, d);
        block_fill(buf, BLOCK_BYTES, &m);
        int rc = move(w->tier, TIER_STORE, &m, buf, now);
        assert_true(rc == 0 || rc == -EIO || rc == -EAGAIN);
        assert_int_equal(finds(w->tier, &m), rc == 0);
    }
    for (uint32_t d = 0; d < 10; d++, now += 1000000000u) {
        struct block_meta m = block_meta_of(1, d);
        bool there = finds(w->tier, &m);
        int rc = move(w->tier, TIER_LOAD, &m, buf, now);
        assert_true(rc == 0 || rc == -EAGAIN || rc == (there ? -EIO : -ENOENT));
        if (rc == 0) assert_true(there && block_holds(buf, BLOCK_BYTES, &m));
        if (rc == -EIO) assert_false(finds(w->tier, &m));
    }
    fault_remove(f, w->tier);
    for (uint32_t d = 0; d < 10; d++)
        assert_int_equal(load(w->tier, 1, d), has(w->tier, 1, d) ? 0 : -ENOENT);
    return f->failed == 0;
}

static void whichever_call_fails_the_tier_keeps_its_word(void **state)
{
    (void)state;
    struct fault_medium f;
    uint64_t n = 0;
    for (bool passed = false; !passed;) {
        struct world w;
        open_world(&w, 12);
        passed = errand(&w, &f, ++n);
        world_close(&w);
    }
    assert_int_equal(n, 41);  // 20 starts and 20 transfers, and the run that passes
}

// ---- a storm -----------------------------------------------------------------------------

#define STORM_NAMES 30
#define STORM_IOS   12

struct storm {
    struct tier_io io[STORM_IOS];
    bool busy[STORM_IOS];
    unsigned char *buf;
    uint64_t random, done;
};

static void storm_act(struct storm *x, struct tier *t)
{
    uint64_t r = mix64(&x->random);
    uint32_t i = (uint32_t)(r >> 8) % STORM_IOS, n = (uint32_t)(r >> 16) % STORM_NAMES;
    struct block_meta m = block_meta_of(n % 3, n / 3), victim;
    uint64_t tenant = n % 3;
    switch (r % 8) {
    case 0: (void)!tier_drop(t, &m.id); break;
    case 1: (void)!tier_erase(t, &m.id, 0); break;
    case 2:
        if (coldest(t, r >> 32 & 1 ? &tenant : NULL, &victim))
            assert_int_equal(tier_drop(t, &victim.id), 0);
        break;
    case 3: tier_flush(t); break;
    default:
        if (x->busy[i]) break;
        x->io[i] = (struct tier_io){.meta = m,
                                    .dir = r % 8 < 6 ? TIER_STORE : TIER_LOAD,
                                    .buf = x->buf + i * BUFFER_BYTES};
        memset(x->io[i].buf, 0x55, BUFFER_BYTES);
        if (x->io[i].dir == TIER_STORE) block_fill(x->io[i].buf, BLOCK_BYTES, &m);
        x->busy[i] = tier_submit(t, &x->io[i], 1) == 0;
    }
}

static void storm_reap(struct storm *x, struct tier *t)
{
    struct tier_io *done[4];
    size_t n = tier_reap(t, done, 4, 1);
    for (size_t k = 0; k < n; k++, x->done++) {
        assert_int_equal(done[k]->res, 0);
        assert_true(block_holds(done[k]->buf, BLOCK_BYTES, &done[k]->meta));
        assert_true(x->busy[done[k] - x->io]);
        x->busy[done[k] - x->io] = false;
    }
}

static void a_storm_of_calls_never_brings_a_wrong_block(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 10);
    struct storm x = {.buf = world_buffer(&w, kind, STORM_IOS * BUFFER_BYTES),
                      .random = 7};
    for (int step = 0; x.done < 500; step++) {
        storm_act(&x, w.tier);
        if (mix64(&x.random) % 3 == 0) storm_reap(&x, w.tier);
        if (step % 16 == 0) assert_true(slots_check(w.tier->slots));
    }
    while (w.tier->in_flight > 0) storm_reap(&x, w.tier);
    assert_int_equal(w.tier->failed, 0);
    free(x.buf);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loaded_block_is_the_stored_one),
        cmocka_unit_test(blocks_in_flight_together_do_not_mix),
        cmocka_unit_test(a_block_is_invisible_until_its_store_is_reaped),
        cmocka_unit_test(a_full_tier_offers_its_coldest_block),
        cmocka_unit_test(a_block_being_loaded_is_never_a_victim),
        cmocka_unit_test(a_busy_medium_leaves_no_trace),
        cmocka_unit_test(a_store_that_failed_pauses_stores_longer_each_time),
        cmocka_unit_test(a_block_that_leaves_ends_a_pause_for_want_of_room_only),
        cmocka_unit_test(a_device_is_full_until_a_store_finds_room_on_it),
        cmocka_unit_test(stores_that_fail_together_count_once),
        cmocka_unit_test(a_load_that_failed_drops_the_block_with_its_last_load),
        cmocka_unit_test(moving_blocks_allocates_nothing),
        cmocka_unit_test(whichever_call_fails_the_tier_keeps_its_word),
        cmocka_unit_test(a_storm_of_calls_never_brings_a_wrong_block),
    };
    int failed = 0;
    for (size_t i = 0; i < ARRAY_LEN(KINDS); i++) {
        kind = &KINDS[i];
        if (kind->base && access(kind->base, W_OK) < 0) continue;
        failed += cmocka_run_group_tests_name(kind->name, tests, NULL, NULL);
    }
    return failed;
}
