/* Folders of the SSD tier that are there and cannot be written. */
#include "tests/offload/tier_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

static void expect_tier_only(struct world *w, int rc, const char *text)
{
    expect_foreseen(w, rc, text);
    assert_true(w->found.tier_only);
}

static void need_root(void)
{
    if (geteuid() == 0) return;
    print_message("skipped: only root can become another user\n");
    skip();
}

/* As another user, whom modes stop.  Root's groups stay, which no file here is of. */
static void become(uid_t user)
{
    if (geteuid() != user && seteuid(user) < 0) fail_msg("cannot become user %d", user);
}

static void a_folder_without_write_permission_costs_the_tier_only(void **state)
{
    (void)state;
    struct world w;
    char below[128], bare[128];
    need_root();
    world_ssd(&w, "/tmp", 4);
    assert_int_equal(chmod(w.dir, 0755), 0);
    in_dir(&w, "kv", below);
    in_dir(&w, "bare", bare);
    assert_int_equal(mkdir(bare, 0700), 0);
    become(65534);
    expect_tier_only(&w, -EACCES, "cannot be written: Permission denied");
    w.ssd.dir = below;
    expect_tier_only(&w, -EACCES, "kv cannot be made: Permission denied");
    w.ssd.dir = bare;
    expect_tier_only(&w, -EACCES, "bare cannot be opened: Permission denied");
    become(0);
    world_close(&w);
}

static void a_folder_that_takes_no_more_files_serves_with_those_it_has(void **state)
{
    (void)state;
    struct world w;
    struct err err = {""};
    char path[128];
    need_root();
    world_ssd(&w, "/tmp", 4);
    assert_int_equal(chown(w.dir, 65534, 65534), 0);
    become(65534);
    world_start(&w);
    world_stop(&w);
    assert_int_equal(chmod(w.dir, 0500), 0);
    assert_int_equal(tier_ssd_check(&w.found, &w.ssd, &err), 0);
    world_start(&w);
    assert_int_equal(store(w.tier, 1, 0), 0);
    world_restart(&w);
    assert_int_equal(load(w.tier, 1, 0), 0);
    world_stop(&w);

    in_dir(&w, "blocks", path);
    become(0);
    assert_int_equal(unlink(path), 0);
    become(65534);
    expect_tier_only(&w, -EACCES, "/blocks cannot be opened: Permission denied");
    become(0);
    world_close(&w);
}

static void a_parent_that_cannot_be_listed_will_do(void **state)
{
    (void)state;
    struct world w;
    struct err err = {""};
    char below[128];
    world_ssd(&w, "/tmp", 4);
    in_dir(&w, "kv", below);
    w.ssd.dir = below;
    if (geteuid() == 0) assert_int_equal(chown(w.dir, 65534, 65534), 0);
    uid_t before = geteuid();
    become(before == 0 ? 65534 : before);
    assert_int_equal(chmod(w.dir, 0300), 0);
    assert_int_equal(tier_ssd_check(&w.found, &w.ssd, &err), 0);
    assert_int_equal(access(below, F_OK), -1);
    world_start(&w);
    assert_int_equal(store(w.tier, 1, 0), 0);
    world_stop(&w);
    assert_int_equal(chmod(w.dir, 0700), 0);
    become(before);
    remove_dir(below);
    world_close(&w);
}

static void a_file_system_that_is_read_only_costs_the_tier_only(void **state)
{
    (void)state;
    struct world w;
    char below[128];
    world_ssd(&w, "/tmp", 4);
    if (unshare(CLONE_NEWNS) < 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", w.dir, "tmpfs", 0, "mode=0700") < 0) {
        print_message("skipped: a file system of its own may not be mounted here\n");
        world_close(&w);
        skip();
    }
    for (int used = 0; used < 2; used++) {
        if (used) {
            assert_int_equal(mount(NULL, w.dir, NULL, MS_REMOUNT, NULL), 0);
            world_start(&w);
            world_stop(&w);
        }
        assert_int_equal(mount(NULL, w.dir, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
        w.ssd.dir = w.dir;
        expect_tier_only(&w, -EROFS,
                         used ? "/lock cannot be opened: Read-only file system"
                              : "cannot be written: Read-only file system");
        in_dir(&w, "kv", below);
        w.ssd.dir = below;
        expect_tier_only(&w, -EROFS, "kv cannot be made: Read-only file system");
        w.ssd.dir = w.dir;
    }
    assert_int_equal(umount(w.dir), 0);
    world_close(&w);
}

static int open_fails(const struct ssd_sys *sys, int dir, const char *name, int flags)
{
    (void)sys, (void)dir, (void)name, (void)flags;
    return -EIO;
}

static void a_device_that_fails_costs_the_tier_only(void **state)
{
    (void)state;
    struct world w;
    struct ssd_sys sys = ssd_sys_real;
    sys.open = open_fails;
    world_ssd(&w, "/tmp", 4);
    w.ssd.sys = &sys;
    expect_tier_only(&w, -EIO, "cannot be written: Input/output error");
    w.ssd.sys = NULL;
    world_start(&w);
    world_stop(&w);
    w.ssd.sys = &sys;
    expect_tier_only(&w, -EIO, "/lock cannot be opened: Input/output error");
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_without_write_permission_costs_the_tier_only),
        cmocka_unit_test(a_folder_that_takes_no_more_files_serves_with_those_it_has),
        cmocka_unit_test(a_parent_that_cannot_be_listed_will_do),
        cmocka_unit_test(a_file_system_that_is_read_only_costs_the_tier_only),
        cmocka_unit_test(a_device_that_fails_costs_the_tier_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
