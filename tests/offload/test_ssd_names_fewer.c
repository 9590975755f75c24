/* The table of names beside the SSD's blocks where fewer are to be kept than the file has. */
#include "tests/offload/names_fixture.h"

static void put_used(struct world *w, uint32_t i, uint64_t sequence)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "name-%u", i);
    struct kept_name n = name_of(name, i);
    n.sequence = sequence;
    tier_put_name(w->tier, i, &n);
}

/* How many of the names there are, each with a number above `least`. */
static uint32_t used_above(const struct world *w, uint64_t least)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->tier->max_names; i++) {
        struct kept_name name = found_at(w, i);
        if (!name.name[0]) continue;
        assert_true(name.sequence > least);
        n++;
    }
    return n;
}

static void those_used_last_stay_and_the_others_are_gone(void **state)
{
    (void)state;
    static const uint32_t fewer[] = {1, 5, 16, 17, 35, NAMES - 1};
    for (size_t k = 0; k < ARRAY_LEN(fewer); k++) {
        struct world w;
        open_world(&w);
        for (uint32_t i = 0; i < NAMES; i++)
            put_used(&w, i, 1 + (i * UINT64_C(7) + 3) % NAMES);
        w.ssd.max_names = fewer[k];
        world_restart(&w);
        assert_string_equal(w.found.note, "");
        assert_int_equal(used_above(&w, NAMES - fewer[k]), fewer[k]);
        for (uint32_t i = 0; i < fewer[k]; i++) put(&w, i, "");
        w.ssd.max_names = NAMES;
        world_restart(&w);
        assert_int_equal(used_above(&w, 0), 0);
        world_close(&w);
    }
}

static void those_of_another_fingerprint_stay_where_there_is_room(void **state)
{
    (void)state;
    struct world w;
    open_world(&w);
    put(&w, 20, "theirs");
    put(&w, NAMES - 1, "theirs-too");
    w.ssd.fingerprint.bytes[0] ^= 1;
    world_restart(&w);
    for (uint32_t i = 0; i < 16; i++)
        if (i != 3) put(&w, i, "mine");
    w.ssd.max_names = 16;
    world_restart(&w);
    expect_name(&w, 15, "mine");
    assert_true(found_at(&w, 3).foreign);
    w.ssd.fingerprint.bytes[0] ^= 1;
    world_restart(&w);
    expect_name(&w, 3, "theirs");
    world_close(&w);
}

static ssize_t write_no_names(const struct ssd_sys *sys, int fd, const struct iovec *v,
                              int n, uint64_t at)
{
    return is_names(fd) ? -ENOSPC : ssd_sys_real.write(sys, fd, v, n, at);
}

static void what_has_been_taken_to_an_empty_page_is_owed_once_deleted(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys = ssd_sys_real;
    open_world(&w);
    put(&w, NAMES - 1, "moved");
    w.ssd.max_names = DISK_NAMES;
    w.ssd.no_uring = true;
    w.ssd.sys = &sys;
    world_restart(&w);
    sys.write = write_no_names;
    for (uint32_t i = 0; i < DISK_NAMES; i++) put(&w, i, "");
    for (int tries = 0; tries < 2; tries++) {
        assert_int_equal(w.tier->to_erase[name_group(NAMES - 1, "moved")], 1);
        while (w.tier->naming.error == 0) reap_none(&w, 1);
    }
    sys.write = ssd_sys_real.write;
    world_close(&w);
}

static ssize_t read_first_page_alone(const struct ssd_sys *sys, int fd,
                                     const struct iovec *v, int n, uint64_t at)
{
    return is_names(fd) && at > 0 ? -EIO : ssd_sys_real.read(sys, fd, v, n, at);
}

static void what_cannot_be_read_is_told(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys = ssd_sys_real;
    open_world(&w);
    put(&w, 0, "a");
    put(&w, 20, "c");
    world_stop(&w);
    sys.read = read_first_page_alone;
    w.ssd.sys = &sys;
    w.ssd.max_names = DISK_NAMES;
    world_start(&w);
    assert_non_null(strstr(w.found.note, "names cannot all be read (Input/output"));
    expect_name(&w, 0, "a");
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_used_last_stay_and_the_others_are_gone),
        cmocka_unit_test(those_of_another_fingerprint_stay_where_there_is_room),
        cmocka_unit_test(what_has_been_taken_to_an_empty_page_is_owed_once_deleted),
        cmocka_unit_test(what_cannot_be_read_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
