/* The table of names beside the SSD's blocks: what is put there is found again, what is deleted
 * is not, and a write that fails costs nothing else. */
#include "tests/offload/names_fixture.h"

#include <pthread.h>

#define LONGEST "a-name-of-just-the-63-characters-that-there-are-for-one-0123456"

static const struct tier_kind kinds[] = {
    {.base = "/tmp"},
    {.base = "/tmp", .no_uring = true},
    {.base = "/tmp", .no_direct = true},
    {.base = "/tmp", .no_uring = true, .no_direct = true},
    {.base = "/tmp", .bounced = true},
};

static uint32_t owed(const struct world *w)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < NAME_GROUPS; i++) sum += w->tier->to_erase[i];
    return sum;
}

static uint32_t owed_for(const struct world *w, uint32_t i, const char *name)
{
    return w->tier->to_erase[name_group(i, name)];
}

// ---- the system, for writes of names ---------------------------------------------------

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int code;       // of all writes of names, or 0
    bool stop;      // they wait until it is false
    bool some_yet;  // the next one brings a few bytes, and no error
    uint32_t begun, ended, at_once, most;
} faults = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static ssize_t write_names(const struct ssd_sys *sys, int fd, const struct iovec *v,
                           int n, uint64_t at)
{
    if (!is_names(fd)) return ssd_sys_real.write(sys, fd, v, n, at);
    pthread_mutex_lock(&faults.lock);
    faults.begun++;
    if (++faults.at_once > faults.most) faults.most = faults.at_once;
    pthread_cond_broadcast(&faults.changed);
    while (faults.stop) pthread_cond_wait(&faults.changed, &faults.lock);
    int code = faults.code;
    struct iovec few = {v->iov_base, faults.some_yet ? 1000 : v->iov_len};
    if (faults.some_yet) code = 0, v = &few;
    faults.some_yet = false;
    pthread_mutex_unlock(&faults.lock);
    ssize_t rc = code ? code : ssd_sys_real.write(sys, fd, v, n, at);
    pthread_mutex_lock(&faults.lock);
    faults.at_once--;
    faults.ended++;
    pthread_mutex_unlock(&faults.lock);
    return rc;
}

static void set_faults(int code, bool stop)
{
    pthread_mutex_lock(&faults.lock);
    faults.code = code, faults.stop = stop;
    faults.begun = faults.ended = faults.most = 0;
    pthread_cond_broadcast(&faults.changed);
    pthread_mutex_unlock(&faults.lock);
}

static void let_go(void)
{
    pthread_mutex_lock(&faults.lock);
    faults.stop = false;
    pthread_cond_broadcast(&faults.changed);
    pthread_mutex_unlock(&faults.lock);
}

static uint32_t counted(const uint32_t *n)  // of faults
{
    pthread_mutex_lock(&faults.lock);
    uint32_t now = *n;
    pthread_mutex_unlock(&faults.lock);
    return now;
}

static void wait_begun(uint32_t n)
{
    pthread_mutex_lock(&faults.lock);
    while (faults.begun < n) pthread_cond_wait(&faults.changed, &faults.lock);
    pthread_mutex_unlock(&faults.lock);
}

static void open_faulty(struct world *w, struct ssd_sys *sys)
{
    world_ssd(w, "/tmp", 4);
    *sys = ssd_sys_real;
    sys->write = write_names;
    w->ssd.sys = sys;
    w->ssd.no_uring = true;
    w->ssd.max_names = NAMES;
    set_faults(0, false);
    world_start(w);
}

// ---- found again -----------------------------------------------------------------------

static void names_are_there_again_and_deleted_ones_are_not(void **state)
{
    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct world w;
        world_ssd(&w, kinds[k].base, 4);
        w.ssd.no_uring = kinds[k].no_uring;
        w.ssd.no_direct = kinds[k].no_direct;
        w.ssd.max_names = NAMES;
        world_start(&w);
        if (kinds[k].bounced) world_bounce(&w);
        assert_int_equal(strlen(LONGEST), NAME_BYTES - 1);
        put(&w, 0, "user:7_a@b.c");
        put(&w, 17, "0");
        put(&w, NAMES - 1, LONGEST);
        put(&w, 3, "gone");
        write_all(&w);
        assert_int_equal(owed(&w), 0);
        put(&w, 3, "");
        put(&w, 17, "another");
        assert_int_equal(owed_for(&w, 3, "gone"), 1);
        assert_int_equal(owed_for(&w, 17, "0"), 1);
        write_all(&w);
        assert_int_equal(owed(&w), 0);
        put(&w, 4, "at-the-close");
        world_restart(&w);
        assert_string_equal(w.found.note, "");
        expect_name(&w, 0, "user:7_a@b.c");
        expect_name(&w, 17, "another");
        expect_name(&w, 4, "at-the-close");
        expect_name(&w, NAMES - 1, LONGEST);
        for (uint32_t i = 0; i < NAMES; i++)
            if (i != 0 && i != 4 && i != 17 && i != NAMES - 1) expect_name(&w, i, "");
        const struct kept_name want = name_of("another", 17), n = found_at(&w, 17);
        assert_true(n.tenant == 17 && n.depth == 3 && n.tokens == 70);
        assert_true(n.sequence == 5 && block_id_equal(&n.last, &want.last));
        world_close(&w);
    }
}

static void what_does_not_change_is_not_written(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys;
    open_faulty(&w, &sys);
    put(&w, 1, "");
    assert_int_equal(w.tier->naming.left, 0);
    put(&w, 1, "a");
    write_all(&w);
    put(&w, 1, "a");
    assert_int_equal(w.tier->naming.left, 0);
    world_restart(&w);
    put(&w, 1, "a");
    assert_int_equal(w.tier->naming.left, 0);
    assert_int_equal(counted(&faults.begun), 1);
    world_close(&w);
}

static void changes_of_a_page_go_together_and_one_write_of_it_at_a_time(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys;
    open_faulty(&w, &sys);
    set_faults(0, true);
    put(&w, 0, "first");
    tier_flush(w.tier);
    wait_begun(1);
    for (uint32_t i = 0; i < DISK_NAMES; i++) put(&w, i, "second");
    put(&w, 0, "third");
    for (int i = 0; i < 100; i++) reap_none(&w, 1);
    assert_int_equal(counted(&faults.begun), 1);
    let_go();
    write_all(&w);
    assert_int_equal(counted(&faults.begun), 2);
    assert_int_equal(counted(&faults.most), 1);
    world_restart(&w);
    expect_name(&w, 0, "third");
    expect_name(&w, 15, "second");
    world_close(&w);
}

static void a_name_deleted_while_its_page_is_written_is_owed_to_the_end(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys;
    open_faulty(&w, &sys);
    set_faults(0, true);
    put(&w, 0, "gone");
    tier_flush(w.tier);
    wait_begun(1);
    put(&w, 0, "");
    assert_int_equal(owed_for(&w, 0, "gone"), 1);
    let_go();
    while (counted(&faults.ended) < 1) usleep(20);
    while (owed_for(&w, 0, "gone")) reap_none(&w, 1);
    assert_int_equal(counted(&faults.begun), 2);
    world_restart(&w);
    expect_name(&w, 0, "");
    world_close(&w);
}

// ---- writes that fail ------------------------------------------------------------------

static void
a_write_that_failed_is_done_again_after_a_rest_and_costs_nothing_else(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys;
    open_faulty(&w, &sys);
    put(&w, 0, "gone");
    write_all(&w);
    set_faults(-EIO, false);
    put(&w, 0, "");
    while (w.tier->naming.error == 0) reap_none(&w, 1);
    assert_int_equal(w.tier->naming.error, -EIO);
    assert_true(w.tier->naming.at == 1 + TIER_REST_NS);
    assert_int_equal(owed_for(&w, 0, "gone"), 1);
    assert_int_equal(owed(&w), 1);
    assert_int_equal(store(w.tier, 1, 0), 0);
    assert_int_equal(load(w.tier, 1, 0), 0);
    struct block_id id = block_name(1, 0);
    uint32_t other = (name_group(0, "gone") + 1) % NAME_GROUPS;
    assert_int_equal(tier_erase(w.tier, &id, other), 0);
    end_wipes(w.tier, 1);
    assert_int_equal(w.tier->to_erase[other], 0);
    assert_int_equal(w.tier->wipes.error, 0);
    for (int i = 0; i < 100; i++) reap_none(&w, TIER_REST_NS);
    assert_int_equal(counted(&faults.begun), 1);
    set_faults(0, false);
    while (w.tier->naming.left) reap_none(&w, 1 + TIER_REST_NS);
    assert_int_equal(owed(&w), 0);
    assert_int_equal(w.tier->naming.error, 0);
    world_restart(&w);
    expect_name(&w, 0, "");
    world_close(&w);
}

/* Deleted twice under names of different groups, on one page, while writes fail. */
static void each_deletion_of_a_page_is_owed_once(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys;
    open_faulty(&w, &sys);
    put(&w, 0, "one");
    put(&w, 1, "two");
    write_all(&w);
    set_faults(-EIO, false);
    put(&w, 0, "");
    while (w.tier->naming.error == 0) reap_none(&w, 1);
    put(&w, 0, "one");  // again, before the first was overwritten
    put(&w, 0, "");
    put(&w, 1, "");
    assert_int_equal(owed_for(&w, 0, "one"), 1);
    assert_int_equal(owed_for(&w, 1, "two"), 1);
    for (uint64_t now = 2; now < 6; now++)
        for (int i = 0; i < 50; i++) reap_none(&w, now * TIER_REST_NS);
    assert_int_equal(owed(&w), 2);
    set_faults(0, false);
    for (uint64_t now = 9; w.tier->naming.left; now++)  // one may fail yet
        reap_none(&w, now * TIER_REST_NS);
    assert_int_equal(owed(&w), 0);
    world_close(&w);
}

static void nobody_waits_for_a_page_that_a_full_device_never_had(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys;
    open_faulty(&w, &sys);
    for (int restarted = 0; restarted < 2; restarted++) {
        set_faults(-ENOSPC, false);
        put(&w, 0, "never");
        put(&w, 1, "nowhere");
        put(&w, 1, "");
        assert_int_equal(owed(&w), 0);
        tier_flush(w.tier);
        wait_begun(1);
        put(&w, 0, "");  // it may be there: that is not known yet
        while (w.tier->naming.error == 0) reap_none(&w, 1);
        assert_int_equal(w.tier->naming.error, -ENOSPC);
        assert_int_equal(owed(&w), 0);
        world_restart(&w);
    }
    set_faults(0, false);
    world_close(&w);
}

static void what_a_full_device_has_some_of_is_owed(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys;
    char path[128];
    open_faulty(&w, &sys);
    world_stop(&w);
    in_dir(&w, "names", path);
    assert_int_equal(unlink(path), 0);
    w.ssd.no_direct = true;
    world_start(&w);
    set_faults(-ENOSPC, false);
    faults.some_yet = true;
    put(&w, 0, "there");
    while (w.tier->naming.error == 0) reap_none(&w, 1);
    assert_int_equal(w.tier->naming.error, -ENOSPC);
    put(&w, 0, "");
    assert_int_equal(owed_for(&w, 0, "there"), 1);
    set_faults(0, false);
    while (w.tier->naming.left) reap_none(&w, 1 + TIER_REST_NS);
    assert_int_equal(owed(&w), 0);
    world_close(&w);
}

static int punch_nothing(const struct ssd_sys *sys, int fd, uint64_t at, uint64_t bytes)
{
    (void)sys, (void)fd, (void)at, (void)bytes;
    return -EOPNOTSUPP;
}

static void
what_was_deleted_and_cannot_be_overwritten_is_cut_out_at_the_close(void **state)
{
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        struct world w;
        struct ssd_sys sys;
        open_faulty(&w, &sys);
        put(&w, 0, "gone");
        put(&w, 20, "kept");
        write_all(&w);
        set_faults(-EIO, false);
        if (!cut) sys.punch = punch_nothing;
        put(&w, 0, "");
        put(&w, 20, "kept");
        put(&w, 21, "lost");
        assert_int_equal(tier_close(w.tier), !cut);
        set_faults(0, false);
        world_start(&w);
        expect_name(&w, 0, cut ? "" : "gone");
        expect_name(&w, 20, "kept");
        expect_name(&w, 21, "");
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_there_again_and_deleted_ones_are_not),
        cmocka_unit_test(what_does_not_change_is_not_written),
        cmocka_unit_test(changes_of_a_page_go_together_and_one_write_of_it_at_a_time),
        cmocka_unit_test(a_name_deleted_while_its_page_is_written_is_owed_to_the_end),
        cmocka_unit_test(
            a_write_that_failed_is_done_again_after_a_rest_and_costs_nothing_else),
        cmocka_unit_test(each_deletion_of_a_page_is_owed_once),
        cmocka_unit_test(nobody_waits_for_a_page_that_a_full_device_never_had),
        cmocka_unit_test(what_a_full_device_has_some_of_is_owed),
        cmocka_unit_test(
            what_was_deleted_and_cannot_be_overwritten_is_cut_out_at_the_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
