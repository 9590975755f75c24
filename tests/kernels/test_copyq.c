/* test_copyq.c - the reference copy queue: late, in order, bounded. */
#include "kernels/copyq.h"
#include "tests/allocs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct copyq *opened(void)
{
    struct copyq *q = NULL;
    struct err err;
    if (copyq_cpu_open(&q, &err) < 0) fail_msg("%s", err.msg);
    return q;
}

static uint64_t push(struct copyq *q, void *dst, const void *src, size_t n)
{
    uint64_t ticket = 0;
    assert_int_equal(copyq_push(q, dst, src, n, &ticket), 0);
    return ticket;
}

static void nothing_is_copied_before_its_ticket_is_polled(void **state)
{
    (void)state;
    struct copyq *q = opened();
    int src[3] = {1, 2, 3}, dst[3] = {0};
    uint64_t first = push(q, &dst[0], &src[0], sizeof(int));
    uint64_t second = push(q, &dst[1], &src[1], sizeof(int));
    push(q, &dst[2], &src[2], sizeof(int));
    assert_int_equal(dst[0], 0);

    src[1] = 20;  // whoever changes a source too early sees it here
    assert_int_equal(copyq_poll(q, first), 0);
    assert_int_equal(dst[0], 1);
    assert_int_equal(dst[1], 0);
    assert_int_equal(copyq_poll(q, second), 0);
    assert_int_equal(dst[1], 20);
    assert_int_equal(dst[2], 0);
    copyq_close(q);  // with a copy in flight
}

static void copies_finish_in_the_order_they_were_pushed(void **state)
{
    (void)state;
    struct copyq *q = opened();
    int a = 7, b = 0, c = 0;
    push(q, &b, &a, sizeof a);
    uint64_t second = push(q, &c, &b, sizeof b);
    assert_int_equal(copyq_poll(q, second), 0);
    assert_int_equal(b, 7);
    assert_int_equal(c, 7);
    copyq_close(q);
}

static void a_done_ticket_stays_done_and_copies_once(void **state)
{
    (void)state;
    struct copyq *q = opened();
    int src = 1, dst = 0;
    uint64_t ticket = push(q, &dst, &src, sizeof src);
    assert_int_equal(copyq_poll(q, ticket), 0);
    src = 2;
    assert_int_equal(copyq_poll(q, ticket), 0);
    assert_int_equal(dst, 1);
    copyq_close(q);
}

static void a_full_queue_says_try_again_and_takes_more_after_a_poll(void **state)
{
    (void)state;
    struct copyq *q = opened();
    enum { N = 5 * COPYQ_DEPTH };
    int src[N], dst[N] = {0};
    uint64_t ticket[N];
    for (int i = 0; i < N; i++) src[i] = i + 1;
    for (int i = 0; i < N; i++) {
        int rc = copyq_push(q, &dst[i], &src[i], sizeof src[i], &ticket[i]);
        assert_int_equal(rc, i < COPYQ_DEPTH ? 0 : -EAGAIN);
        if (rc == 0) continue;
        assert_int_equal(copyq_poll(q, ticket[i - COPYQ_DEPTH]), 0);
        assert_int_equal(dst[i - COPYQ_DEPTH], src[i - COPYQ_DEPTH]);
        assert_int_equal(dst[i - COPYQ_DEPTH + 1], 0);
        ticket[i] = push(q, &dst[i], &src[i], sizeof src[i]);
    }
    assert_int_equal(copyq_poll(q, ticket[N - 1]), 0);
    assert_memory_equal(dst, src, sizeof src);
    copyq_close(q);
}

static void a_ticket_that_was_never_handed_out_is_refused(void **state)
{
    (void)state;
    struct copyq *q = opened();
    int src = 1, dst = 0;
    assert_int_equal(copyq_poll(q, 1), -EINVAL);
    uint64_t ticket = push(q, &dst, &src, sizeof src);
    assert_int_equal(copyq_poll(q, 0), -EINVAL);
    assert_int_equal(copyq_poll(q, ticket + 1), -EINVAL);
    assert_int_equal(dst, 0);
    copyq_close(q);
}

static void pushing_and_polling_allocate_nothing(void **state)
{
    (void)state;
    struct copyq *q = opened();
    int src = 1, dst;
    unsigned long before = allocs_so_far();
    for (int i = 0; i < 1000; i++)
        assert_int_equal(copyq_poll(q, push(q, &dst, &src, sizeof src)), 0);
    assert_int_equal(allocs_so_far(), before);
    copyq_close(q);
}

static void host_memory_is_page_aligned_and_as_long_as_asked(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4095, 4096, 4097, 360 * 1024};
    struct copyq *q = opened();
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        uint8_t *p = copyq_host_alloc(q, sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 4096, 0);
        memset(p, 1, sizes[i]);
        copyq_host_free(q, p);
    }
    copyq_host_free(q, NULL);
    copyq_close(q);
}

static void memory_that_cannot_be_is_null_and_not_a_wrapped_size(void **state)
{
    (void)state;
    struct copyq *q = opened();
    volatile size_t over = SIZE_MAX;
    assert_null(copyq_host_alloc(q, over));
    assert_null(copyq_host_alloc(q, over - 4094));
    assert_null(copyq_host_alloc(q, 0));
    copyq_close(q);
    copyq_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_copied_before_its_ticket_is_polled),
        cmocka_unit_test(copies_finish_in_the_order_they_were_pushed),
        cmocka_unit_test(a_done_ticket_stays_done_and_copies_once),
        cmocka_unit_test(a_full_queue_says_try_again_and_takes_more_after_a_poll),
        cmocka_unit_test(a_ticket_that_was_never_handed_out_is_refused),
        cmocka_unit_test(pushing_and_polling_allocate_nothing),
        cmocka_unit_test(host_memory_is_page_aligned_and_as_long_as_asked),
        cmocka_unit_test(memory_that_cannot_be_is_null_and_not_a_wrapped_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
