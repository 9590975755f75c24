/* What the SSD tier makes of its file, and of a system that refuses. */
#include "tests/offload/fault_sys.h"
#include "tests/offload/tier_fixture.h"

#include <sys/stat.h>

static void expect_note(const struct world *w, const char *text)
{
    const char *at = strstr(w->found.note, text);
    if (!at) fail_msg("\"%s\" does not say %s", w->found.note, text);
    assert_null(strstr(at + 1, text));  // once
}

static void put_and_get(struct world *w)
{
    for (uint32_t c = 0; c < 3; c++) assert_int_equal(store(w->tier, c, 0), 0);
    world_restart(w);
    for (uint32_t c = 0; c < 3; c++) assert_int_equal(load(w->tier, c, 0), 0);
}

static void threads_serve_where_io_uring_is_refused(void **state)
{
    (void)state;
    static const int why[] = {-ENOSYS, -EPERM, -ENOMEM};
    for (size_t i = 0; i < ARRAY_LEN(why); i++) {
        struct world w;
        struct fault_sys f;
        world_ssd(&w, "/tmp", 4);
        fault_sys_init(&f);
        f.ring = why[i];
        w.ssd.sys = &f.sys;
        world_start(&w);
        assert_false(w.found.uring);
        expect_note(&w, "io_uring is not to be had here");
        expect_note(&w, strerror(-why[i]));
        put_and_get(&w);
        world_close(&w);
    }
}

static void memory_that_may_not_be_pinned_serves_as_before(void **state)
{
    (void)state;
    static const int why[] = {-ENOMEM, -EPERM};
    unsigned char *buf = take_buffer(3 * BUFFER_BYTES);
    for (int i = 0; i < 6; i++) {
        struct world w;
        struct fault_sys f;
        world_ssd(&w, "/tmp", 4);
        fault_sys_init(&f);
        f.pin = why[i % 2];
        f.pins_well = i / 2;  // of the headers, and of the buffers
        w.ssd.sys = &f.sys;
        world_start(&w);
        int want = f.pins_well == 2 ? 0 : f.pin;
        if (w.found.uring)
            assert_int_equal(tier_register(w.tier, buf, 3 * BUFFER_BYTES), want);
        for (uint32_t c = 0; c < 6; c++) {
            struct block_meta m = block_meta_of(c % 3, 0);
            void *at = buf + c % 3 * BUFFER_BYTES;
            if (c < 3) block_fill(at, BLOCK_BYTES, &m);
            assert_int_equal(move(w.tier, c < 3 ? TIER_STORE : TIER_LOAD, &m, at, 1),
                             0);
            assert_true(block_holds(at, BLOCK_BYTES, &m));
            memset(at, 0, BUFFER_BYTES);
        }
        world_restart(&w);
        for (uint32_t c = 0; c < 3; c++) assert_int_equal(load(w.tier, c, 0), 0);
        world_close(&w);
    }
    free(buf);
}

static void nothing_is_pinned_without_a_ring_or_for_small_blocks(void **state)
{
    (void)state;
    void *buf = take_buffer(BUFFER_BYTES);
    for (int small = 0; small < 2; small++) {
        struct world w;
        world_ssd(&w, "/tmp", 4);
        w.ssd.no_uring = !small;
        w.ssd.register_from = small ? BLOCK_BYTES + 1 : BLOCK_BYTES;
        world_start(&w);
        assert_int_equal(tier_register(w.tier, buf, BUFFER_BYTES), -EOPNOTSUPP);
        world_close(&w);
    }
    free(buf);
}

static void the_page_cache_serves_where_direct_io_is_refused(void **state)
{
    (void)state;
    for (int at_first_io = 0; at_first_io < 2; at_first_io++) {
        struct world w;
        struct fault_sys f;
        world_ssd(&w, "/tmp", 4);
        fault_sys_init(&f);
        *(at_first_io ? &f.direct_io : &f.open_direct) = -EINVAL;
        w.ssd.sys = &f.sys;
        world_start(&w);
        assert_false(w.found.direct);
        expect_note(&w, "refuses direct I/O");
        put_and_get(&w);
        world_close(&w);
    }
}

static void without_reservation_the_tier_opens_and_says_so(void **state)
{
    (void)state;
    static const int why[] = {-ENOSPC, -EOPNOTSUPP};
    for (size_t i = 0; i < ARRAY_LEN(why); i++) {
        struct world w;
        struct fault_sys f;
        world_ssd(&w, "/tmp", 4);
        fault_sys_init(&f);
        f.reserve = why[i];
        w.ssd.sys = &f.sys;
        world_start(&w);
        expect_note(&w, strerror(-why[i]));
        put_and_get(&w);
        world_close(&w);
    }
}

static void more_than_the_device_has_is_not_asked_of_it(void **state)
{
    (void)state;
    struct world w;
    struct fault_sys f;
    world_ssd(&w, "/tmp", 4);
    fault_sys_init(&f);
    f.reserve = -EIO;  // which the note would say, and nothing is taken
    w.ssd.sys = &f.sys;
    w.ssd.block_bytes = 1 << 30;
    w.ssd.bytes = 1ull << 43;  // a sparse file of 8 TiB
    world_start(&w);
    expect_note(&w, "No space left on device");
    struct stat st;
    char path[128];
    in_dir(&w, "blocks", path);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_blocks * 512 < 1 << 20);
    world_close(&w);
}

static void a_first_page_that_cannot_be_read_is_an_error(void **state)
{
    (void)state;
    struct world w;
    struct fault_sys f;
    world_ssd(&w, "/tmp", 4);
    fault_sys_init(&f);
    fault_sys_set(&f, true, false, 1, 2, -EIO, 0);
    w.ssd.sys = &f.sys;
    struct err err = {""};
    assert_int_equal(tier_ssd_check(&w.found, &w.ssd, &err), -EIO);
    fault_sys_set(&f, true, false, 1, 2, -EIO, 0);
    expect_refused(&w, -EIO, "/blocks cannot be read: Input/output error");
    assert_string_equal(err.msg, w.err.msg);
    assert_true(w.found.tier_only);
    world_start(&w);
    put_and_get(&w);
    world_close(&w);
}

static void a_file_that_was_deleted_is_missed_and_serves_on(void **state)
{
    (void)state;
    for (int bounced = 0; bounced < 2; bounced++) {
        struct world w;
        char path[128];
        world_ssd(&w, "/tmp", 4);
        world_start(&w);
        put_and_get(&w);
        if (bounced) world_bounce(&w);
        assert_true(tier_lasts(w.tier));
        in_dir(&w, "blocks", path);
        assert_int_equal(unlink(path), 0);
        assert_false(tier_lasts(w.tier));
        assert_int_equal(load(w.tier, 1, 0), 0);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_serve_where_io_uring_is_refused),
        cmocka_unit_test(memory_that_may_not_be_pinned_serves_as_before),
        cmocka_unit_test(nothing_is_pinned_without_a_ring_or_for_small_blocks),
        cmocka_unit_test(the_page_cache_serves_where_direct_io_is_refused),
        cmocka_unit_test(without_reservation_the_tier_opens_and_says_so),
        cmocka_unit_test(more_than_the_device_has_is_not_asked_of_it),
        cmocka_unit_test(a_first_page_that_cannot_be_read_is_an_error),
        cmocka_unit_test(a_file_that_was_deleted_is_missed_and_serves_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
