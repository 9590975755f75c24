/* What the SSD tier makes of the folder it is given. */
#include "tests/offload/tier_fixture.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static void the_folder_and_its_files_are_the_owners_alone(void **state)
{
    (void)state;
    struct world w;
    world_ssd(&w, "/tmp", 4);
    assert_int_equal(rmdir(w.dir), 0);
    mode_t before = umask(0);
    world_start(&w);
    umask(before);
    struct stat st;
    char path[128];
    assert_int_equal(stat(w.dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    static const char *names[] = {"lock", "blocks"};
    for (int i = 0; i < 2; i++) {
        in_dir(&w, names[i], path);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        assert_int_equal(chmod(path, 0644), 0);
    }
    world_restart(&w);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);  // and are so again
    world_close(&w);
}

static void all_of_the_file_is_reserved(void **state)
{
    (void)state;
    struct world w;
    world_ssd(&w, "/tmp", 100);
    world_start(&w);
    struct stat st;
    char path[128];
    in_dir(&w, "blocks", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, w.ssd.bytes);
    assert_true((uint64_t)st.st_blocks * 512 >= w.ssd.bytes);
    world_close(&w);
}

static void a_folder_that_others_may_write_is_refused(void **state)
{
    (void)state;
    struct world w;
    world_ssd(&w, "/tmp", 4);
    assert_int_equal(chmod(w.dir, 0770), 0);
    expect_foreseen(&w, -EPERM, "may be written by other users; expected mode 0700");
    world_close(&w);
}

static void put_text(const struct world *w, const char *name, const char *text)
{
    char path[128];
    in_dir(w, name, path);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void put(const struct world *w, const char *name)
{
    put_text(w, name, "");
}

static bool holds(const struct world *w, const char *name)
{
    char path[128];
    in_dir(w, name, path);
    return access(path, F_OK) == 0;
}

static void a_folder_of_other_things_is_refused_and_left_as_it_was(void **state)
{
    (void)state;
    static const char text[] =
        "holds other things than the tier's; expected one of its "
        "own, which is made where it is not there";
    struct world w;
    world_ssd(&w, "/tmp", 4);
    put(&w, "photo");
    expect_foreseen(&w, -ENOTEMPTY, text);
    assert_false(w.found.tier_only);
    assert_false(holds(&w, "lock"));
    put(&w, "lock");  // others have locks, too
    expect_foreseen(&w, -ENOTEMPTY, text);
    assert_true(holds(&w, "lock") && holds(&w, "photo") && !holds(&w, "blocks"));
    world_close(&w);
}

/* Where there is nothing else, a file is the tier's if it begins like one, or is empty, or was
 * never written. */
static void check_somebody_elses(const char *name, const char *other)
{
    static const char text[DISK_PAGE] = "Ann\nBob\n", none[DISK_PAGE], one[300] = "\1";
    static const struct {
        const char *bytes;
        size_t n;
        bool ours;
    } cases[] = {
        {text, 8, false},         {text, sizeof text, false},
        {one, sizeof one, false}, {none, 255, false},
        {none, 0, true},          {none, sizeof none, true},
    };
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        struct world w;
        char path[128], after[DISK_PAGE];
        world_ssd(&w, "/tmp", 4);
        w.ssd.max_names = 40;
        in_dir(&w, name, path);
        int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, cases[k].bytes, cases[k].n), cases[k].n);
        if (cases[k].ours)
            world_start(&w);
        else
            expect_foreseen(&w, -ENOTEMPTY, "holds other things than the tier's");
        assert_int_equal(holds(&w, other), cases[k].ours);
        if (!cases[k].ours) {
            assert_int_equal(pread(fd, after, sizeof after, 0), cases[k].n);
            assert_memory_equal(cases[k].bytes, after, cases[k].n);
        }
        close(fd);
        world_close(&w);
    }
}

static void
files_of_somebody_else_called_names_or_blocks_are_left_as_they_were(void **s)
{
    (void)s;
    check_somebody_elses("names", "blocks");
    check_somebody_elses("blocks", "names");
    static const struct {
        const char *blocks, *other, *text;
        mode_t mode;  // of the other
    } cases[] = {{"precious", "lock", "123", 0600},
                 {"precious", "lock", "", 0644},
                 {"", "names", "Ann\nBob\n", 0600}};
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        struct world w;
        char path[128];
        struct stat st;
        world_ssd(&w, "/tmp", 4);
        w.ssd.max_names = 40;
        put_text(&w, "blocks", cases[k].blocks);
        put_text(&w, cases[k].other, cases[k].text);
        in_dir(&w, cases[k].other, path);
        assert_int_equal(chmod(path, cases[k].mode), 0);
        expect_foreseen(&w, -ENOTEMPTY, "holds other things than the tier's");
        in_dir(&w, "blocks", path);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, strlen(cases[k].blocks));
        in_dir(&w, cases[k].other, path);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, strlen(cases[k].text));
        assert_int_equal(st.st_mode & 0777, cases[k].mode);
        world_close(&w);
    }
}

static void a_folder_as_good_as_empty_will_do_and_so_will_one_with_our_blocks(void **s)
{
    (void)s;
    struct world w;
    world_ssd(&w, "/tmp", 4);
    put(&w, ".keep");
    put(&w, "lost+found");
    world_start(&w);
    assert_int_equal(store(w.tier, 1, 0), 0);
    world_stop(&w);
    put(&w, "notes");
    world_start(&w);
    assert_int_equal(load(w.tier, 1, 0), 0);
    world_close(&w);
}

static void a_folder_that_cannot_be_made_is_named(void **state)
{
    (void)state;
    struct world w;
    world_ssd(&w, "/tmp", 4);
    w.ssd.dir = "/tmp/dormouse-not-there/kv";
    expect_foreseen(&w, -ENOENT,
                    "folder /tmp/dormouse-not-there/kv cannot be made: No such");
    w.ssd.dir = "/dev/null";
    expect_foreseen(&w, -ENOTDIR, "folder /dev/null cannot be opened");
    w.ssd.dir = "";
    expect_foreseen(&w, -EINVAL, "has no folder");
    char link[128], below[140];
    in_dir(&w, "itself", link);
    snprintf(below, sizeof below, "%s/kv", link);
    assert_int_equal(symlink("itself", link), 0);
    w.ssd.dir = link;
    expect_foreseen(&w, -ELOOP, "cannot be opened: Too many levels");
    w.ssd.dir = below;
    expect_foreseen(&w, -ELOOP, "cannot be made: Too many levels");
    world_close(&w);
}

/* Their permissions say nothing of it: it has to be tried. */
static void a_folder_of_the_system_that_takes_no_files_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *text;
    } cases[] = {{"/proc/dormouse", "cannot be made"},
                 {"/proc", "cannot be written"},
                 {"/proc/self", "cannot be written"}};
    struct world w;
    world_ssd(&w, "/tmp", 4);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        w.ssd.dir = cases[i].dir;
        expect_foreseen(&w, -ENOENT, cases[i].text);
        assert_false(w.found.tier_only);
    }
    world_close(&w);
}

static void sizes_that_make_no_sense_are_refused_with_their_numbers(void **state)
{
    (void)state;
    struct world w;
    world_ssd(&w, "/tmp", 4);
    struct tier_ssd_options good = w.ssd;
    w.ssd.block_bytes = 0;
    expect_foreseen(&w, -EINVAL, "blocks of 0 bytes");
    w.ssd = good, w.ssd.block_bytes = SIZE_MAX - 100;
    expect_foreseen(&w, -EINVAL, "cannot be kept on an SSD");
    w.ssd = good, w.ssd.bytes = DISK_PAGE + SLOT_BYTES - 1;
    expect_foreseen(&w, -EINVAL, "of 16383 bytes holds no block of 5000 bytes");
    w.ssd = good, w.ssd.bytes = UINT64_MAX;
    expect_foreseen(&w, -EINVAL, "holds no block");
    w.ssd = good, w.ssd.depth = 0;
    expect_foreseen(&w, -EINVAL, "a depth of 0");
    w.ssd = good, w.ssd.depth = 5000;
    expect_foreseen(&w, -EINVAL, "a depth of 5000");
    world_close(&w);
}

static void a_look_changes_nothing_and_says_what_room_is_missing(void **state)
{
    (void)state;
    struct world w;
    struct err err = {""};
    world_ssd(&w, "/tmp", 4);
    w.ssd.no_direct = true;  // where it is refused, that is noted
    assert_int_equal(tier_ssd_check(&w.found, &w.ssd, &err), 0);
    assert_string_equal(w.found.note, "");
    assert_int_equal(rmdir(w.dir), 0);  // it is still empty
    assert_int_equal(tier_ssd_check(&w.found, &w.ssd, &err), 0);
    assert_int_equal(access(w.dir, F_OK), -1);

    struct tier_ssd_options good = w.ssd;
    w.ssd.block_bytes = 1 << 30;
    w.ssd.bytes = 1ull << 43;
    assert_int_equal(tier_ssd_check(&w.found, &w.ssd, &err), 0);
    assert_non_null(strstr(w.found.note, "Only 0 of the SSD tier's"));

    w.ssd = good;
    world_start(&w);
    assert_int_equal(store(w.tier, 1, 0), 0);
    world_stop(&w);
    assert_int_equal(tier_ssd_check(&w.found, &w.ssd, &err), 0);
    assert_string_equal(w.found.note, "");
    world_start(&w);
    assert_int_equal(load(w.tier, 1, 0), 0);
    world_close(&w);
}

static void a_second_process_is_refused_and_told_which_folder(void **state)
{
    (void)state;
    struct world w;
    world_ssd(&w, "/tmp", 4);
    world_start(&w);
    char text[128];
    snprintf(text, sizeof text, "folder %s is in use by another process", w.dir);
    expect_foreseen(&w, -EBUSY, text);  // locks are of descriptors: no fork is needed
    assert_int_equal(store(w.tier, 1, 0), 0);
    world_restart(&w);
    assert_int_equal(load(w.tier, 1, 0), 0);
    world_close(&w);
}

static void make_link(const char *path)
{
    assert_int_equal(symlink("/etc/hostname", path), 0);
}
static void make_dangling(const char *path)
{
    assert_int_equal(symlink("/tmp/dormouse-not-there", path), 0);
}
static void make_folder(const char *path)
{
    assert_int_equal(mkdir(path, 0700), 0);
}
static void make_pipe(const char *path)
{
    assert_int_equal(mkfifo(path, 0600), 0);
}
static void make_socket(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd);
}

static void what_is_no_file_is_refused_by_its_kind(void **state)
{
    (void)state;
    static const struct {
        void (*make)(const char *path);
        const char *kind;
    } cases[] = {
        {make_link, "a symbolic link"}, {make_dangling, "a symbolic link"},
        {make_folder, "a folder"},      {make_pipe, "a pipe"},
        {make_socket, "a socket"},
    };
    static const char *names[] = {"blocks", "lock"};
    for (size_t i = 0; i < 2 * ARRAY_LEN(cases); i++) {
        struct world w;
        world_ssd(&w, "/tmp", 4);
        char path[128], text[256];
        in_dir(&w, names[i % 2], path);
        cases[i / 2].make(path);
        snprintf(text, sizeof text, "%s is %s; expected a regular file", path,
                 cases[i / 2].kind);
        expect_foreseen(&w, -EINVAL, text);
        assert_true(w.found.tier_only);
        w.ssd.no_direct = true;
        expect_foreseen(&w, -EINVAL, text);
        assert_int_not_equal(access("/tmp/dormouse-not-there", F_OK), 0);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_folder_and_its_files_are_the_owners_alone),
        cmocka_unit_test(all_of_the_file_is_reserved),
        cmocka_unit_test(a_folder_that_others_may_write_is_refused),
        cmocka_unit_test(a_folder_of_other_things_is_refused_and_left_as_it_was),
        cmocka_unit_test(
            files_of_somebody_else_called_names_or_blocks_are_left_as_they_were),
        cmocka_unit_test(
            a_folder_as_good_as_empty_will_do_and_so_will_one_with_our_blocks),
        cmocka_unit_test(a_folder_that_cannot_be_made_is_named),
        cmocka_unit_test(a_folder_of_the_system_that_takes_no_files_is_refused),
        cmocka_unit_test(sizes_that_make_no_sense_are_refused_with_their_numbers),
        cmocka_unit_test(a_look_changes_nothing_and_says_what_room_is_missing),
        cmocka_unit_test(a_second_process_is_refused_and_told_which_folder),
        cmocka_unit_test(what_is_no_file_is_refused_by_its_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
