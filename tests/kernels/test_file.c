/* Opening and reading files that somebody has named. */
#include "kernels/file.h"
#include "tests/files.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

// cmocka needs these before it
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char *dir, path[256];

static int make_dir(void **state)
{
    (void)state;
    dir = files_temp_dir();
    snprintf(path, sizeof path, "%s/file", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    files_remove_dir(dir);
    return 0;
}

static void refuses(size_t most, int rc, const char *in_message)
{
    struct err err = {{0}};
    char *data = NULL;
    size_t n = 7;
    assert_int_equal(file_load(path, most, &data, &n, &err), rc);
    assert_non_null(strstr(err.msg, path));
    if (!strstr(err.msg, in_message)) fail_msg("%s", err.msg);
    assert_null(data);
    assert_int_equal(n, 7);
}

static void a_file_is_read_whole_and_a_nul_put_behind_it(void **state)
{
    (void)state;
    static const char text[] = "one\0two";
    for (size_t size = 0; size <= sizeof text; size++) {
        char *data = NULL;
        size_t n = 99;
        struct err err = {"untouched"};
        files_write(dir, "file", text, size);
        assert_int_equal(file_load(path, size, &data, &n, &err), 0);
        assert_int_equal(n, size);
        assert_memory_equal(data, text, size);
        assert_int_equal(data[size], 0);
        assert_string_equal(err.msg, "untouched");
        free(data);
    }
}

static void one_byte_more_than_is_wanted_is_refused(void **state)
{
    (void)state;
    files_write(dir, "file", "12345678", 8);
    refuses(7, -EFBIG, "has 8 bytes; at most 7 are read");
}

static void what_is_no_regular_file_is_refused_and_not_waited_for(void **state)
{
    (void)state;
    refuses(100, -ENOENT, "cannot be opened: No such file");
    assert_int_equal(mkfifo(path, 0600), 0);
    refuses(100, -EINVAL, "is not a regular file");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    refuses(100, -EINVAL, "is not a regular file");
    rmdir(path);
}

static void a_file_with_more_than_its_size_says_is_refused(void **state)
{
    (void)state;
    /* The system gives these a size of 0, and writes them as they are read. */
    snprintf(path, sizeof path, "/proc/self/status");
    refuses(1 << 20, -EBUSY, "grew while it was read");
    snprintf(path, sizeof path, "%s/file", dir);
}

static void a_descriptor_that_cannot_be_read_is_an_error(void **state)
{
    (void)state;
    struct err err = {{0}};
    char *data = NULL;
    size_t n;
    files_write(dir, "file", "1", 1);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(file_read(fd, path, 10, &data, &n, &err), -EBADF);
    assert_non_null(strstr(err.msg, "cannot be read: Bad file descriptor"));
    assert_null(data);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define FRESH(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)
        FRESH(a_file_is_read_whole_and_a_nul_put_behind_it),
        FRESH(one_byte_more_than_is_wanted_is_refused),
        FRESH(what_is_no_regular_file_is_refused_and_not_waited_for),
        FRESH(a_file_with_more_than_its_size_says_is_refused),
        FRESH(a_descriptor_that_cannot_be_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
