/* The table of names beside the SSD's blocks, damaged or not there: that costs names alone. */
#include "kernels/checksum.h"
#include "tests/offload/names_fixture.h"

#include <fcntl.h>
#include <sys/stat.h>

static void change_file(struct world *w, uint64_t at, const void *bytes, size_t n)
{
    char path[128];
    in_dir(w, "names", path);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0 && pwrite(fd, bytes, n, (off_t)at) == (ssize_t)n);
    close(fd);
}

static struct disk_name entry_at(struct world *w, uint32_t i)
{
    char path[128];
    struct disk_name e;
    in_dir(w, "names", path);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &e, sizeof e, (off_t)(i * sizeof e)), sizeof e);
    close(fd);
    return e;
}

static void open_with_three(struct world *w)
{
    open_world(w);
    put(w, 0, "a");
    put(w, 1, "b");
    put(w, 20, "c");
    write_all(w);
}

static void a_flipped_bit_anywhere_costs_that_name_alone(void **state)
{
    (void)state;
    struct world w;
    open_with_three(&w);
    for (uint32_t bit = 0; bit < 8 * sizeof(struct disk_name); bit += 13) {
        world_stop(&w);
        struct disk_name e = entry_at(&w, 1), damaged = e;
        ((uint8_t *)&damaged)[bit / 8] ^= (uint8_t)(1 << bit % 8);
        change_file(&w, sizeof e, &damaged, sizeof e);
        world_start(&w);
        assert_non_null(strstr(w.found.note, "1 names of conversations"));
        expect_name(&w, 0, "a");
        expect_name(&w, 1, "");
        expect_name(&w, 20, "c");
        write_all(&w);  // it does not stay in the file, either
        static const struct disk_name empty;
        struct disk_name now = entry_at(&w, 1);
        assert_memory_equal(&now, &empty, sizeof now);
        put(&w, 1, "b");
        write_all(&w);
    }
    world_close(&w);
}

static void what_could_not_be_a_name_is_none_though_its_sum_is_right(void **state)
{
    (void)state;
    static const char odd[][NAME_BYTES] = {"with space", "-first", "", "quo\"te",
                                           "\xc3\xa9"};
    struct world w;
    open_with_three(&w);
    for (size_t k = 0; k < ARRAY_LEN(odd) + 2; k++) {
        world_stop(&w);
        struct disk_name e = entry_at(&w, 0);
        memset(e.name, 0, sizeof e.name);
        if (k < ARRAY_LEN(odd)) memcpy(e.name, odd[k], sizeof e.name);
        if (k == ARRAY_LEN(odd)) memset(e.name, 'x', sizeof e.name);  // no end
        if (k == ARRAY_LEN(odd) + 1) e.name[0] = 'x', e.name[5] = 'y';
        e.sum = checksum_xxh3(&e, offsetof(struct disk_name, sum));
        change_file(&w, 0, &e, sizeof e);
        world_start(&w);
        expect_name(&w, 0, "");
        expect_name(&w, 1, "b");
        put(&w, 0, "a");
        write_all(&w);
    }
    world_close(&w);
}

static void names_of_another_fingerprint_or_version_are_left_and_not_told(void **state)
{
    (void)state;
    struct world w;
    open_with_three(&w);
    world_stop(&w);
    struct disk_name e = entry_at(&w, 20);
    e.version++;
    e.sum = checksum_xxh3(&e, offsetof(struct disk_name, sum));
    change_file(&w, 20 * sizeof e, &e, sizeof e);
    w.ssd.fingerprint.bytes[0] ^= 1;
    world_start(&w);
    for (uint32_t i = 0; i < NAMES; i++) {
        expect_name(&w, i, "");
        assert_int_equal(found_at(&w, i).foreign, i == 0 || i == 1 || i == 20);
    }
    put(&w, 2, "mine");
    put(&w, 1, "over-b");
    write_all(&w);
    w.ssd.fingerprint.bytes[0] ^= 1;
    world_restart(&w);
    expect_name(&w, 0, "a");
    assert_true(found_at(&w, 1).foreign && found_at(&w, 2).foreign);
    world_close(&w);
}

static void a_file_of_another_size_keeps_what_fits_and_gets_its_own(void **state)
{
    (void)state;
    static const off_t sizes[] = {0,    100,      256 + 255,   4096,
                                  5000, 3 * 4096, 9 * 4096 + 5};
    for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
        struct world w;
        char path[128];
        struct stat st;
        open_with_three(&w);
        world_stop(&w);
        in_dir(&w, "names", path);
        assert_int_equal(truncate(path, sizes[k]), 0);
        world_start(&w);
        expect_name(&w, 0, sizes[k] >= 256 ? "a" : "");
        expect_name(&w, 1, sizes[k] >= 512 ? "b" : "");
        expect_name(&w, 20, sizes[k] >= 21 * 256 ? "c" : "");
        put(&w, NAMES - 1, "last");
        write_all(&w);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, 3 * DISK_PAGE);
        assert_int_equal(st.st_mode & 0777, 0600);
        world_restart(&w);
        expect_name(&w, NAMES - 1, "last");
        world_close(&w);
    }
}

static void names_whose_blocks_were_deleted_are_no_strangers(void **state)
{
    (void)state;
    struct world w;
    char path[128];
    open_with_three(&w);
    world_stop(&w);
    in_dir(&w, "blocks", path);
    assert_int_equal(unlink(path), 0);
    world_start(&w);
    assert_string_equal(w.found.note, "");
    expect_name(&w, 20, "c");
    world_stop(&w);
    assert_int_equal(unlink(path), 0);
    in_dir(&w, "names", path);
    assert_int_equal(truncate(path, 100), 0);  // damaged, they are none either
    world_start(&w);
    expect_name(&w, 20, "");
    world_close(&w);
}

static void what_lies_in_the_files_place_costs_the_names_alone(void **state)
{
    (void)state;
    static const char *const kind[] = {"a symbolic link", "a pipe", "a folder"};
    for (int k = 0; k < 3; k++) {
        struct world w;
        char path[128], want[64];
        world_ssd(&w, "/tmp", 4);
        w.ssd.max_names = NAMES;
        in_dir(&w, "names", path);
        int rc = k == 0   ? symlink("/etc/passwd", path)
                 : k == 1 ? mkfifo(path, 0600)
                          : mkdir(path, 0700);
        assert_int_equal(rc, 0);
        snprintf(want, sizeof want, "names is %s; expected a regular file", kind[k]);
        assert_int_equal(tier_ssd_check(&w.found, &w.ssd, &w.err), 0);
        assert_non_null(strstr(w.found.note, want));
        world_start(&w);
        assert_non_null(strstr(w.found.note, want));
        assert_non_null(strstr(w.found.note, "no names of conversations are kept"));
        assert_int_equal(w.tier->max_names, 0);
        put(&w, 0, "a");
        assert_int_equal(w.tier->naming.left, 0);
        assert_int_equal(store(w.tier, 1, 0), 0);
        assert_int_equal(load(w.tier, 1, 0), 0);
        world_close(&w);
    }
}

static int refuse_names_that_are_there(const struct ssd_sys *sys, int dir,
                                       const char *name, int flags)
{
    bool there = strcmp(name, "names") == 0 && faccessat(dir, name, F_OK, 0) == 0;
    return there ? -EACCES : ssd_sys_real.open(sys, dir, name, flags);
}

/* What is deleted meanwhile would be in it. */
static void a_file_that_may_not_be_opened_is_made_anew(void **state)
{
    (void)state;
    static const char want[] = "names cannot be opened (Permission denied) and is made "
                               "anew, so names of conversations are lost.";
    struct world w;
    struct ssd_sys sys = ssd_sys_real;
    open_with_three(&w);
    world_stop(&w);
    sys.open = refuse_names_that_are_there;
    w.ssd.sys = &sys;
    assert_int_equal(tier_ssd_check(&w.found, &w.ssd, &w.err), 0);
    assert_non_null(strstr(w.found.note, want));
    assert_true(entry_at(&w, 0).sum != 0);
    world_start(&w);
    assert_non_null(strstr(w.found.note, want));
    expect_name(&w, 0, "");
    put(&w, 5, "new");
    sys.open = ssd_sys_real.open;
    world_restart(&w);
    assert_string_equal(w.found.note, "");
    for (uint32_t i = 0; i < NAMES; i++) expect_name(&w, i, i == 5 ? "new" : "");
    world_close(&w);
}

static ssize_t read_all_but_page_1(const struct ssd_sys *sys, int fd,
                                   const struct iovec *v, int n, uint64_t at)
{
    struct iovec less = *v;
    if (!is_names(fd)) return ssd_sys_real.read(sys, fd, v, n, at);
    if (at == DISK_PAGE) return -EIO;
    if (at < DISK_PAGE && less.iov_len > DISK_PAGE) less.iov_len = DISK_PAGE;
    return ssd_sys_real.read(sys, fd, &less, 1, at);
}

static void a_page_that_cannot_be_read_is_told_and_written_anew(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys = ssd_sys_real;
    open_with_three(&w);
    put(&w, NAMES - 1, "d");
    world_stop(&w);
    sys.read = read_all_but_page_1;
    w.ssd.sys = &sys;
    world_start(&w);
    assert_non_null(strstr(w.found.note, "names cannot all be read (Input/output"));
    expect_name(&w, 0, "a");
    expect_name(&w, 20, "");
    expect_name(&w, NAMES - 1, "d");
    write_all(&w);
    sys.read = ssd_sys_real.read;
    world_restart(&w);
    assert_string_equal(w.found.note, "");
    expect_name(&w, 1, "b");
    expect_name(&w, 20, "");
    world_close(&w);
}

static void a_look_makes_no_file_and_changes_none(void **state)
{
    (void)state;
    struct world w;
    char path[128];
    struct stat st;
    world_ssd(&w, "/tmp", 4);
    w.ssd.max_names = NAMES;
    in_dir(&w, "names", path);
    assert_int_equal(tier_ssd_check(&w.found, &w.ssd, &w.err), 0);
    assert_int_equal(stat(path, &st), -1);
    world_start(&w);
    world_stop(&w);
    assert_int_equal(truncate(path, 77), 0);
    assert_int_equal(tier_ssd_check(&w.found, &w.ssd, &w.err), 0);
    assert_string_equal(w.found.note, "");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 77);
    world_start(&w);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_bit_anywhere_costs_that_name_alone),
        cmocka_unit_test(what_could_not_be_a_name_is_none_though_its_sum_is_right),
        cmocka_unit_test(names_of_another_fingerprint_or_version_are_left_and_not_told),
        cmocka_unit_test(a_file_of_another_size_keeps_what_fits_and_gets_its_own),
        cmocka_unit_test(names_whose_blocks_were_deleted_are_no_strangers),
        cmocka_unit_test(what_lies_in_the_files_place_costs_the_names_alone),
        cmocka_unit_test(a_file_that_may_not_be_opened_is_made_anew),
        cmocka_unit_test(a_page_that_cannot_be_read_is_told_and_written_anew),
        cmocka_unit_test(a_look_makes_no_file_and_changes_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
