/* Devices that fail, or do less than was asked: every result that they give is used right. */
#include "offload/ssd_queue.h"
#include "tests/offload/fault_sys.h"
#include "tests/offload/tier_fixture.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#define CONVERSATIONS 12

/* To the device; REGISTERED: by the ring, in registered memory. */
enum way { RING, THREADS, REGISTERED, WAYS };

static void open_world(struct world *w, struct fault_sys *f, enum way way)
{
    world_ssd(w, "/tmp", 16);
    fault_sys_init(f);
    w->ssd.sys = &f->sys;
    w->ssd.no_uring = way == THREADS;
    world_start(w);
    if (way == THREADS || w->found.uring) return;
    world_close(w);
    skip();
}

struct batch {
    struct tier_io io[CONVERSATIONS];
    unsigned char *buf;
    int failed;
};

/* All at once, so that neighbours are moved together; `now` far beyond any pause. */
static void move_all(struct world *w, struct batch *b, enum tier_dir dir)
{
    static uint64_t now;
    now += 2 * TIER_PAUSE_MAX_NS;
    size_t n = 0;
    b->failed = 0;
    for (uint32_t c = 0; c < CONVERSATIONS; c++) {
        struct tier_io *io = &b->io[n];
        *io = (struct tier_io){
            .meta = block_meta_of(c, 0), .dir = dir, .buf = b->buf + c * BUFFER_BYTES};
        if (dir == TIER_STORE)
            block_fill(io->buf, BLOCK_BYTES, &io->meta);
        else
            memset(io->buf, 0xaa, BUFFER_BYTES);
        n += tier_submit(w->tier, io, now) == 0;
    }
    tier_flush(w->tier);
    for (size_t i = 0; i < n; i++) {
        struct tier_io *io = reap_one(w->tier, now);
        b->failed += io->res < 0;
        if (io->res == 0) assert_true(block_holds(io->buf, BLOCK_BYTES, &io->meta));
        assert_int_equal(finds(w->tier, &io->meta), io->res == 0);
    }
    assert_true(slots_check(w->tier->slots));
}

static void check_what_is_there(struct world *w)
{
    for (uint32_t c = 0; c < CONVERSATIONS; c++)
        assert_int_equal(load(w->tier, c, 0), has(w->tier, c, 0) ? 0 : -ENOENT);
}

/* For n = 1 until none is hit, the n-th transfer and those after it, `count` in all. */
static void each_transfer_in_turn(enum way way, bool write, uint64_t count, int code,
                                  ssize_t bytes, int may_fail)
{
    struct batch b = {.buf = take_buffer(CONVERSATIONS * BUFFER_BYTES)};
    uint64_t hits = 1;
    for (uint64_t n = 1; hits > 0; n++) {
        struct world w;
        struct fault_sys f;
        open_world(&w, &f, way);
        if (way == REGISTERED) world_register(&w, b.buf, CONVERSATIONS * BUFFER_BYTES);
        if (write) fault_sys_set(&f, false, true, n, n + count, code, bytes);
        move_all(&w, &b, TIER_STORE);
        int failed = b.failed;
        if (!write) {
            fault_sys_set(&f, true, false, n, n + count, code, bytes);
            move_all(&w, &b, TIER_LOAD);
            failed += b.failed;
            assert_true(w.tier->health.writable);
        }
        if (failed > may_fail) fail_msg("%d failed, not %d", failed, may_fail);
        hits = fault_sys_set(&f, false, false, 0, 0, 0, 0);
        check_what_is_there(&w);
        world_restart(&w);
        assert_int_equal(w.found.blocks + w.found.damaged, CONVERSATIONS - failed);
        check_what_is_there(&w);
        world_close(&w);
        assert_true(n < 100);
    }
    free(b.buf);
}

static void a_short_transfer_is_continued(void **state)
{
    (void)state;
    static const ssize_t bytes[] = {0, 1, 4095, 4096, 4097, SLOT_BYTES - 1, SLOT_BYTES};
    for (size_t i = 0; i < ARRAY_LEN(bytes); i++)
        for (int k = 0; k < 2 * WAYS; k++)
            each_transfer_in_turn(k % WAYS, k / WAYS, 1, 0, bytes[i], 0);
}

static void transfers_that_are_all_short_get_there_as_long_as_they_move(void **state)
{
    (void)state;
    for (int k = 0; k < 2 * WAYS; k++)
        each_transfer_in_turn(k % WAYS, k / WAYS, UINT64_MAX / 2, 0, 4097, 0);
}

static void a_block_may_take_as_many_steps_as_it_has_pages(void **state)
{
    (void)state;
    unsigned char *buf = take_buffer(64 * DISK_PAGE);
    for (int threads = 0; threads < 2; threads++) {
        struct world w;
        struct fault_sys f;
        world_ssd(&w, "/tmp", 16);
        fault_sys_init(&f);
        w.ssd.sys = &f.sys;
        w.ssd.no_uring = threads;
        w.ssd.block_bytes = 64 * DISK_PAGE;
        w.ssd.bytes = (uint64_t)200 * DISK_PAGE;
        world_start(&w);
        fault_sys_set(&f, true, true, 1, UINT64_MAX, 0, DISK_PAGE + 1);
        struct block_meta m = block_meta_of(1, 0);
        block_fill(buf, 64 * DISK_PAGE, &m);
        assert_int_equal(move(w.tier, TIER_STORE, &m, buf, 1), 0);
        memset(buf, 0, 64 * DISK_PAGE);
        assert_int_equal(move(w.tier, TIER_LOAD, &m, buf, 1), 0);
        assert_true(block_holds(buf, 64 * DISK_PAGE, &m));
        assert_int_equal(fault_sys_set(&f, false, false, 0, 0, 0, 0), 2 * 65);
        world_close(&w);
    }
    free(buf);
}

static void a_transfer_that_does_not_move_is_given_up(void **state)
{
    (void)state;
    for (int k = 0; k < 2 * WAYS; k++)
        each_transfer_in_turn(k % WAYS, k / WAYS, UINT64_MAX / 2, 0, 1, CONVERSATIONS);
}

static void an_interrupted_transfer_is_done_again_but_not_for_ever(void **state)
{
    (void)state;
    for (int k = 0; k < 2 * WAYS; k++) {
        each_transfer_in_turn(k % WAYS, k / WAYS, 3, -EINTR, 0, 0);
        each_transfer_in_turn(k % WAYS, k / WAYS, UINT64_MAX / 2, -EAGAIN, 0,
                              CONVERSATIONS);
    }
}

static void neighbours_of_what_fails_once_are_done_one_by_one(void **state)
{
    (void)state;
    for (int k = 0; k < 2 * WAYS; k++)
        each_transfer_in_turn(k % WAYS, k / WAYS, 1, -EIO, 0, 1);
}

static void a_device_that_always_fails_costs_blocks_and_nothing_else(void **state)
{
    (void)state;
    for (int k = 0; k < 2 * WAYS; k++)
        each_transfer_in_turn(k % WAYS, k / WAYS, UINT64_MAX / 2, -EIO, 0,
                              CONVERSATIONS);
}

#define SEGMENTS 4

/* What lies in place from the beginning, by what each segment came to. */
static ssize_t without_gap(const struct ssd_op *op)
{
    ssize_t sum = 0;
    for (int i = 0; i < SEGMENTS; i++) {
        if (op->requests[i].res < 0) return sum ? sum : op->requests[i].res;
        sum += op->requests[i].res;
        if (op->requests[i].res < DISK_PAGE) return sum;
    }
    return sum;
}

static void what_lies_behind_a_gap_does_not_count(void **state)
{
    (void)state;
    struct fault_sys f;
    struct ssd_queue *q;
    char path[] = "/tmp/dormouse-gap-XXXXXX", *buf = take_buffer(SEGMENTS * DISK_PAGE);
    int fd = mkstemp(path);
    assert_true(fd >= 0 && unlink(path) == 0);
    assert_int_equal(ftruncate(fd, SEGMENTS * DISK_PAGE), 0);
    fault_sys_init(&f);
    if (ssd_uring_open(&q, SEGMENTS, &f.sys) < 0) skip();
    if (ssd_register(q, buf, SEGMENTS * DISK_PAGE, DISK_PAGE) < 0) skip();
    for (int k = 0; k < 4 * SEGMENTS; k++) {
        uint64_t n = 1 + (uint64_t)k % SEGMENTS;
        bool write = k / SEGMENTS % 2, is_short = k / SEGMENTS / 2;
        fault_sys_set(&f, !write, write, n, n + 1, is_short ? 0 : -EIO, 100);
        struct iovec v[SEGMENTS];
        for (int i = 0; i < SEGMENTS; i++)
            v[i] = (struct iovec){buf + i * DISK_PAGE, DISK_PAGE};
        struct ssd_op op = {.fd = fd, .write = write, .iov = v, .n_iov = SEGMENTS};
        ssd_push(q, &op);
        ssd_kick(q);
        assert_ptr_equal(ssd_pop(q, true), &op);
        assert_int_equal(op.n_requests, SEGMENTS);
        assert_int_equal(op.res, without_gap(&op));
        assert_true(op.res < SEGMENTS * DISK_PAGE);
    }
    ssd_close(q);
    close(fd);
    free(buf);
}

static uint64_t bad_page;  // byte of the file

static ssize_t read_around(const struct ssd_sys *sys, int fd, const struct iovec *v,
                           int n, uint64_t at)
{
    uint64_t end = at;
    for (int i = 0; i < n; i++) end += v[i].iov_len;
    if (at <= bad_page && bad_page < end) return -EIO;
    return ssd_sys_real.read(sys, fd, v, n, at);
}

static void a_bad_page_costs_one_block_of_its_neighbours(void **state)
{
    (void)state;
    struct batch b = {.buf = take_buffer(CONVERSATIONS * BUFFER_BYTES)};
    for (uint64_t page = 0; page < 3; page++) {
        struct world w;
        struct fault_sys f;
        open_world(&w, &f, THREADS);
        move_all(&w, &b, TIER_STORE);
        f.sys.read = read_around;
        bad_page = disk_slot_at(SLOT_BYTES, 4) + page * DISK_PAGE;
        move_all(&w, &b, TIER_LOAD);
        assert_int_equal(b.failed, 1);
        assert_int_equal(w.tier->health.last_error, -EIO);
        assert_int_equal(w.tier->dropped_bad, 1);
        assert_false(has(w.tier, 4, 0));
        world_close(&w);
    }
    free(b.buf);
}

static ssize_t write_nothing(const struct ssd_sys *sys, int fd, const struct iovec *v,
                             int n, uint64_t at)
{
    (void)sys, (void)fd, (void)v, (void)n, (void)at;
    return 0;
}

static void a_write_of_nothing_is_a_failure(void **state)
{
    (void)state;
    struct batch b = {.buf = take_buffer(CONVERSATIONS * BUFFER_BYTES)};
    struct world w;
    struct fault_sys f;
    open_world(&w, &f, THREADS);
    f.sys.write = write_nothing;
    move_all(&w, &b, TIER_STORE);
    assert_int_equal(b.failed, CONVERSATIONS);
    assert_int_equal(w.tier->health.last_error, -EIO);
    assert_false(w.tier->health.writable);
    world_close(&w);
    free(b.buf);
}

static void a_header_that_cannot_be_read_is_damaged(void **state)
{
    (void)state;
    struct batch b = {.buf = take_buffer(CONVERSATIONS * BUFFER_BYTES)};
    for (int threads = 0; threads < 2; threads++) {
        // The first page of the file is read outside the ring.
        for (uint64_t n = 1 + (uint64_t)threads; n <= CONVERSATIONS; n++) {
            struct world w;
            struct fault_sys f;
            open_world(&w, &f, threads);
            move_all(&w, &b, TIER_STORE);
            world_stop(&w);
            fault_sys_set(&f, true, false, 1 + n, 2 + n, -EIO, 0);
            world_start(&w);
            fault_sys_set(&f, false, false, 0, 0, 0, 0);
            assert_int_equal(w.found.blocks + w.found.damaged,
                             CONVERSATIONS + (w.found.blocks == CONVERSATIONS));
            assert_int_equal(w.found.damaged, 1);
            check_what_is_there(&w);
            world_close(&w);
        }
    }
    free(b.buf);
}

// ---- a full file system ----------------------------------------------------------------

/* Stores until the system has no more; what is there stays right, what is dropped makes
 * room again. */
static void fill_up(struct world *w, int want)
{
    uint64_t now = 1;
    uint32_t c = 0;
    int rc = 0;
    unsigned char *buf = take_buffer(BUFFER_BYTES);
    for (; rc == 0; c++) {
        struct block_meta m = block_meta_of(c, 0);
        block_fill(buf, BLOCK_BYTES, &m);
        rc = move(w->tier, TIER_STORE, &m, buf, now);
    }
    assert_int_equal(rc, want);
    assert_true(c > 3);
    assert_int_equal(w->tier->health.last_error, want);
    for (uint32_t i = 0; i < c; i++)
        assert_int_equal(load(w->tier, i, 0), i + 1 < c ? 0 : -ENOENT);

    now = w->tier->health.retry_at;
    struct block_meta m = block_meta_of(c, 0), victim;
    block_fill(buf, BLOCK_BYTES, &m);
    assert_true(coldest(w->tier, NULL, &victim));
    assert_int_equal(tier_drop(w->tier, &victim.id), 0);
    assert_int_equal(move(w->tier, TIER_STORE, &m, buf, now), 0);
    assert_int_equal(load(w->tier, c, 0), 0);
    free(buf);
}

static void a_limit_on_the_size_of_files_is_a_full_device(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    for (int threads = 0; threads < 2; threads++) {
        struct rlimit before, limit;
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        limit = before;
        limit.rlim_cur = disk_slot_at(SLOT_BYTES, 6) + DISK_PAGE;
        struct world w;
        struct fault_sys f;
        open_world(&w, &f, threads);
        world_stop(&w);
        remove_dir(w.dir);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        world_start(&w);
        fill_up(&w, -EFBIG);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        world_restart(&w);
        assert_int_equal(w.found.blocks, 6);
        world_close(&w);
    }
}

static void a_full_file_system_costs_blocks_and_nothing_else(void **state)
{
    (void)state;
    if (unshare(CLONE_NEWNS) < 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
        print_message("a file system of its own may not be mounted here\n");
        skip();
    }
    for (int threads = 0; threads < 2; threads++) {
        struct world w;
        struct fault_sys f;
        world_ssd(&w, "/tmp", 1000);
        fault_sys_init(&f);
        w.ssd.no_uring = threads;
        assert_int_equal(mount("tmpfs", w.dir, "tmpfs", 0, "size=1m,mode=0700"), 0);
        world_start(&w);
        assert_non_null(strstr(w.found.note, "No space left on device"));
        fill_up(&w, -ENOSPC);
        uint32_t used = slots_used(w.tier->slots);
        assert_true(used > 50 && used < 90);
        world_restart(&w);
        assert_int_equal(w.found.blocks, used);
        world_stop(&w);
        assert_int_equal(umount(w.dir), 0);
        world_close(&w);
    }
}

static void what_leaves_a_full_device_makes_room_at_once(void **state)
{
    (void)state;
    _Alignas(TIER_ALIGN) unsigned char buf[BUFFER_BYTES] = {0};
    signal(SIGXFSZ, SIG_IGN);
    for (int erase = 0; erase < 2; erase++) {
        struct rlimit before, limit;
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        limit = before;
        limit.rlim_cur = disk_slot_at(SLOT_BYTES, 6);
        struct world w;
        world_ssd(&w, "/tmp", 16);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        world_start(&w);
        for (uint32_t c = 0; c < 6; c++) assert_int_equal(store(w.tier, c, 0), 0);
        assert_int_equal(store(w.tier, 6, 0), -EFBIG);
        assert_int_equal(store(w.tier, 6, 0), -EROFS);
        end_wipes(w.tier, 1);
        assert_int_equal(w.tier->wipes.error, 0);  // there was nothing to wipe
        for (uint32_t c = 0; c < 3; c++) {
            struct block_id id = block_name(c, 0);
            int rc = erase ? tier_erase(w.tier, &id, 0) : tier_drop(w.tier, &id);
            assert_int_equal(rc, 0);
            struct block_meta m = block_meta_of(c + 6, 0);
            block_fill(buf, BLOCK_BYTES, &m);
            assert_int_equal(move(w.tier, TIER_STORE, &m, buf, 2), 0);
        }
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_leaves_a_full_device_makes_room_at_once),
        cmocka_unit_test(a_short_transfer_is_continued),
        cmocka_unit_test(transfers_that_are_all_short_get_there_as_long_as_they_move),
        cmocka_unit_test(a_block_may_take_as_many_steps_as_it_has_pages),
        cmocka_unit_test(a_transfer_that_does_not_move_is_given_up),
        cmocka_unit_test(an_interrupted_transfer_is_done_again_but_not_for_ever),
        cmocka_unit_test(neighbours_of_what_fails_once_are_done_one_by_one),
        cmocka_unit_test(a_device_that_always_fails_costs_blocks_and_nothing_else),
        cmocka_unit_test(what_lies_behind_a_gap_does_not_count),
        cmocka_unit_test(a_bad_page_costs_one_block_of_its_neighbours),
        cmocka_unit_test(a_write_of_nothing_is_a_failure),
        cmocka_unit_test(a_header_that_cannot_be_read_is_damaged),
        cmocka_unit_test(a_limit_on_the_size_of_files_is_a_full_device),
        cmocka_unit_test(a_full_file_system_costs_blocks_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
