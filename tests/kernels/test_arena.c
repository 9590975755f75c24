/* test_arena.c - arrays side by side, and what becomes of their memory. */
#include "kernels/cpu/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N 200

/* From a few bytes to more than a piece holds. */
static size_t size_of(size_t i)
{
    return i % 50 == 49 ? (size_t)5 << 20 : (i * 7919) % 300000 + 1;
}

static void arrays_lie_on_lines_and_apart_until_they_are_given_back(void **state)
{
    (void)state;
    struct cpu_arena a = {0};
    unsigned char *p[N];
    for (size_t i = 0; i < N; i++) {
        p[i] = cpu_arena_alloc(&a, size_of(i));
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 64, 0);
        memset(p[i], (int)(i + 1), size_of(i));
    }
    for (size_t k = 0; k < N; k++) {
        size_t i = k * 77 % N;  // in no order
        for (size_t at = 0; at < size_of(i); at++)
            assert_int_equal(p[i][at], (unsigned char)(i + 1));
        cpu_arena_free(&a, p[i]);
    }
    assert_null(a.last);
    assert_int_equal(a.total, 0);
}

static void a_piece_that_is_not_the_last_is_given_back_too(void **state)
{
    (void)state;
    struct cpu_arena a = {0};
    void *first = cpu_arena_alloc(&a, (size_t)4 << 20),
         *second = cpu_arena_alloc(&a, (size_t)16 << 20);
    size_t both = a.total;
    cpu_arena_free(&a, first);
    assert_true(a.total < both && a.total >= (size_t)16 << 20);
    cpu_arena_free(&a, second);
    cpu_arena_free(&a, NULL);
    assert_int_equal(a.total, 0);
}

static void nothing_and_more_than_there_is_are_refused(void **state)
{
    (void)state;
    struct cpu_arena a = {0};
    assert_null(cpu_arena_alloc(&a, 0));
    assert_null(cpu_arena_alloc(&a, SIZE_MAX));
    assert_null(cpu_arena_alloc(&a, SIZE_MAX - 4096));
    assert_int_equal(a.total, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_lie_on_lines_and_apart_until_they_are_given_back),
        cmocka_unit_test(a_piece_that_is_not_the_last_is_given_back_too),
        cmocka_unit_test(nothing_and_more_than_there_is_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
