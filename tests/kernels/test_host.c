/* test_host.c - host memory lies where streaming and direct I/O want it. */
#include "kernels/host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAGE ((size_t)4096)
#define HUGE ((size_t)2 << 20)

static void expect_align(size_t bytes, size_t least, size_t align)
{
    char *p = host_alloc(bytes, least);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % align, 0);
    memset(p, 1, bytes);
    free(p);
}

static void memory_lies_on_lines_pages_or_huge_pages_by_its_size(void **state)
{
    (void)state;
    expect_align(1, 64, 64);
    expect_align(PAGE - 1, 64, 64);
    expect_align(1, PAGE, PAGE);
    expect_align(PAGE, 64, PAGE);
    expect_align(PAGE + 1, 64, PAGE);
    expect_align(2 * HUGE - 1, 64, PAGE);
    expect_align(2 * HUGE, 64, HUGE);
    expect_align(2 * HUGE + 1, PAGE, HUGE);
}

static void nothing_and_more_than_there_is_are_refused(void **state)
{
    (void)state;
    assert_null(host_alloc(0, 64));
    assert_null(host_alloc(SIZE_MAX, 64));
    assert_null(host_alloc(SIZE_MAX - HUGE + 1, 64));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_lies_on_lines_pages_or_huge_pages_by_its_size),
        cmocka_unit_test(nothing_and_more_than_there_is_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
