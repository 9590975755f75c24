/* What is deleted from the SSD is overwritten, or not said to be. */
#include "offload/disk_format.h"
#include "tests/offload/tier_fixture.h"

#include <fcntl.h>

static ssize_t write_no_zeros(const struct ssd_sys *sys, int fd, const struct iovec *v,
                              int n, uint64_t at)
{
    if (*(const char *)v->iov_base == 0) return -EIO;
    return ssd_sys_real.write(sys, fd, v, n, at);
}

/* One slot; its block is to be erased, and the device refuses that. */
static void open_and_erase(struct world *w, struct ssd_sys *sys)
{
    world_ssd(w, "/tmp", 1);
    *sys = ssd_sys_real;
    w->ssd.sys = sys;
    w->ssd.no_uring = true;
    world_start(w);
    assert_int_equal(store(w->tier, 1, 0), 0);
    sys->write = write_no_zeros;
    struct block_id id = block_name(1, 0);
    assert_int_equal(tier_erase(w->tier, &id, 0), 0);
}

static void open_and_refuse(struct world *w, struct ssd_sys *sys)
{
    open_and_erase(w, sys);
    struct tier_io *none;
    while (w->tier->wipes.error == 0)
        assert_int_equal(tier_reap(w->tier, &none, 1, 1), 0);
    assert_int_equal(w->tier->wipes.error, -EIO);
    assert_int_equal(w->tier->to_erase[0], 1);
    assert_true(w->tier->wipes.at == 1 + TIER_REST_NS);
}

static void expect_zeros(const struct world *w)
{
    char path[128];
    unsigned char bytes[SLOT_BYTES];
    snprintf(path, sizeof path, "%s/blocks", w->dir);
    int fd = open(path, O_RDONLY);
    off_t at = (off_t)disk_slot_at(SLOT_BYTES, 0);
    assert_int_equal(pread(fd, bytes, sizeof bytes, at), sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) assert_int_equal(bytes[i], 0);
    close(fd);
}

static void a_wipe_that_failed_is_done_again_after_a_rest(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys;
    struct tier_io *none;
    open_and_refuse(&w, &sys);
    sys.write = ssd_sys_real.write;
    for (int i = 0; i < 100; i++)
        assert_int_equal(tier_reap(w.tier, &none, 1, TIER_REST_NS), 0);
    assert_int_equal(w.tier->to_erase[0], 1);
    end_wipes(w.tier, 1 + TIER_REST_NS);
    assert_int_equal(w.tier->to_erase[0], 0);
    assert_int_equal(w.tier->wipes.error, 0);
    expect_zeros(&w);
    world_close(&w);
}

static ssize_t write_no_zeros_at_0(const struct ssd_sys *sys, int fd,
                                   const struct iovec *v, int n, uint64_t at)
{
    bool first = at == disk_slot_at(SLOT_BYTES, 0);
    return first ? write_no_zeros(sys, fd, v, n, at)
                 : ssd_sys_real.write(sys, fd, v, n, at);
}

static void a_slot_that_cannot_be_wiped_holds_up_its_own_group_alone(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys = ssd_sys_real;
    struct tier_io *none;
    world_ssd(&w, "/tmp", 40);
    w.ssd.sys = &sys;
    w.ssd.no_uring = true;
    world_start(&w);
    for (uint32_t i = 0; i < 40; i++) assert_int_equal(store(w.tier, i, 0), 0);
    sys.write = write_no_zeros_at_0;
    for (uint32_t i = 0; i < 40; i++) {  // the first lies in slot 0
        struct block_id id = block_name(i, 0);
        assert_int_equal(tier_erase(w.tier, &id, i / 4), 0);
        assert_int_equal(w.tier->to_erase[i / 4], i % 4 + 1);
    }
    for (uint64_t now = 1; now < 20; now++)
        for (int i = 0; i < 100; i++, usleep(20))
            assert_int_equal(tier_reap(w.tier, &none, 1, now * TIER_REST_NS), 0);
    assert_int_equal(w.tier->to_erase[0], 1);
    for (int g = 1; g < NAME_GROUPS; g++) assert_int_equal(w.tier->to_erase[g], 0);
    assert_int_equal(w.tier->wipes.error, -EIO);
    sys.write = ssd_sys_real.write;
    world_close(&w);
}

static void what_is_stored_over_a_block_erases_it_too(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys;
    open_and_refuse(&w, &sys);
    assert_int_equal(w.tier->wipes.left, 1);
    assert_int_equal(store(w.tier, 2, 0), 0);
    assert_int_equal(w.tier->to_erase[0], 0);
    assert_int_equal(w.tier->wipes.left, 0);
    assert_int_equal(w.tier->wipes.error, 0);
    sys.write = ssd_sys_real.write;
    end_wipes(w.tier, 1 + TIER_REST_NS);
    assert_int_equal(load(w.tier, 2, 0), 0);
    world_close(&w);
}

static void what_could_not_be_wiped_until_the_close_is_not_found_again(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys;
    open_and_refuse(&w, &sys);
    world_restart(&w);
    assert_int_equal(w.found.blocks, 0);
    assert_int_equal(w.found.damaged, 0);
    expect_zeros(&w);
    world_close(&w);
}

static int punch_nothing(const struct ssd_sys *sys, int fd, uint64_t at, uint64_t bytes)
{
    (void)sys, (void)fd, (void)at, (void)bytes;
    return -EOPNOTSUPP;
}

static void what_can_neither_be_wiped_nor_cut_out_is_counted_by_the_close(void **state)
{
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        struct world w;
        struct ssd_sys sys;
        open_and_refuse(&w, &sys);
        if (!cut) sys.punch = punch_nothing;
        assert_int_equal(tier_close(w.tier), !cut);
        world_start(&w);
        assert_int_equal(w.found.blocks, !cut);
        assert_int_equal(tier_close(w.tier), 0);
        w.tier = NULL;
        world_close(&w);
    }
}

/* A store waits for the wipe of its slot, and so is who hears that it failed. */
static void a_wipe_whose_failure_a_store_finds_out_rests_from_then(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys;
    _Alignas(TIER_ALIGN) unsigned char buf[BUFFER_BYTES] = {0};
    open_and_erase(&w, &sys);
    tier_flush(w.tier);
    struct tier_io *done, io = {.meta = block_meta_of(2, 0), .buf = buf};
    int rc;
    while ((rc = tier_submit(w.tier, &io, 7)) == -EAGAIN) usleep(100);
    assert_int_equal(rc, 0);
    assert_int_equal(w.tier->wipes.error, -EIO);
    assert_true(w.tier->wipes.at == 7 + TIER_REST_NS);
    while (tier_reap(w.tier, &done, 1, 7) == 0) tier_flush(w.tier);
    assert_int_equal(io.res, 0);
    assert_int_equal(w.tier->wipes.error, 0);
    world_close(&w);
}

static ssize_t write_no_headers(const struct ssd_sys *sys, int fd,
                                const struct iovec *v, int n, uint64_t at)
{
    if (*(const char *)v->iov_base) return -EIO;
    return ssd_sys_real.write(sys, fd, v, n, at);
}

static void
erased_bytes_are_gone_though_what_comes_next_fails_to_be_written(void **state)
{
    (void)state;
    struct world w;
    world_ssd(&w, "/tmp", 1);
    struct ssd_sys sys = ssd_sys_real;
    w.ssd.sys = &sys;
    w.ssd.no_uring = true;
    world_start(&w);
    assert_int_equal(store(w.tier, 1, 0), 0);
    struct block_id id = block_name(1, 0);
    assert_int_equal(tier_erase(w.tier, &id, 0), 0);
    sys.write = write_no_headers;
    assert_int_equal(store(w.tier, 2, 0), -EIO);  // in the same slot
    end_wipes(w.tier, 1);

    expect_zeros(&w);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            erased_bytes_are_gone_though_what_comes_next_fails_to_be_written),
        cmocka_unit_test(a_wipe_that_failed_is_done_again_after_a_rest),
        cmocka_unit_test(a_slot_that_cannot_be_wiped_holds_up_its_own_group_alone),
        cmocka_unit_test(what_is_stored_over_a_block_erases_it_too),
        cmocka_unit_test(what_can_neither_be_wiped_nor_cut_out_is_counted_by_the_close),
        cmocka_unit_test(a_wipe_whose_failure_a_store_finds_out_rests_from_then),
        cmocka_unit_test(what_could_not_be_wiped_until_the_close_is_not_found_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
