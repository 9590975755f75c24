/* One suite over the reference queue and the one with a thread: in order, bounded; and
 * what is the reference's alone: late. */
#include "kernels/copyq.h"
#include "tests/allocs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef int open_fn(struct copyq **out, struct err *err);

static struct copyq *opened_by(open_fn *open)
{
    struct copyq *q = NULL;
    struct err err;
    if (open(&q, &err) < 0) fail_msg("%s", err.msg);
    return q;
}

static struct copyq *opened(void)
{
    return opened_by(copyq_cpu_open);
}

/* Of this run of the suite. */
static struct copyq *opened_as(void **state)
{
    return opened_by(*(open_fn **)*state);
}

static int wait_for(struct copyq *q, uint64_t ticket)
{
    int rc;
    while ((rc = copyq_poll(q, ticket)) == -EAGAIN) usleep(20);
    return rc;
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
    struct copyq *q = opened_as(state);
    int a = 7, b = 0, c = 0;
    push(q, &b, &a, sizeof a);
    uint64_t second = push(q, &c, &b, sizeof b);
    assert_int_equal(wait_for(q, second), 0);
    assert_int_equal(b, 7);
    assert_int_equal(c, 7);
    copyq_close(q);
}

static void a_done_ticket_stays_done_and_copies_once(void **state)
{
    struct copyq *q = opened_as(state);
    int src = 1, dst = 0;
    uint64_t ticket = push(q, &dst, &src, sizeof src);
    assert_int_equal(wait_for(q, ticket), 0);
    src = 2;
    assert_int_equal(wait_for(q, push(q, &src, &src, 0)), 0);
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

/* Of every length and at every address; the owner works on while it is copied. */
static void a_thousand_copies_arrive_whole_and_touch_nothing_else(void **state)
{
    struct copyq *q = opened_as(state);
    enum { N = 1000, ROOM = 1024 };
    unsigned char *src = malloc(N * ROOM), *dst = calloc(N, ROOM);
    uint64_t ticket[N];
    assert_true(src && dst);
    for (int i = 0; i < N * ROOM; i++) src[i] = (unsigned char)(i * 7 % 251 + 1);
    for (int i = 0, polled = 0; i < N; i++) {
        size_t at = (size_t)i * ROOM + (size_t)i % 65, n = (size_t)(i * 37) % 900;
        while (copyq_push(q, dst + at, src + at, n, &ticket[i]) == -EAGAIN)
            assert_int_equal(wait_for(q, ticket[polled++]), 0);
    }
    assert_int_equal(wait_for(q, ticket[N - 1]), 0);
    for (int i = 0; i < N; i++) {
        size_t begin = (size_t)i % 65, end = begin + (size_t)(i * 37) % 900;
        for (size_t k = 0; k < ROOM; k++) {
            size_t at = (size_t)i * ROOM + k;
            assert_int_equal(dst[at], k >= begin && k < end ? src[at] : 0);
        }
    }
    copyq_close(q);
    free(src);
    free(dst);
}

static void a_ticket_that_was_never_handed_out_is_refused(void **state)
{
    struct copyq *q = opened_as(state);
    int src = 1, dst = 0;
    assert_int_equal(copyq_poll(q, 1), -EINVAL);
    uint64_t ticket = push(q, &dst, &src, sizeof src);
    assert_int_equal(copyq_poll(q, 0), -EINVAL);
    assert_int_equal(copyq_poll(q, ticket + 1), -EINVAL);
    assert_int_equal(wait_for(q, ticket), 0);
    copyq_close(q);
}

static void pushing_and_polling_allocate_nothing(void **state)
{
    struct copyq *q = opened_as(state);
    int src = 1, dst;
    unsigned long before = allocs_so_far();
    for (int i = 0; i < 1000; i++)
        assert_int_equal(wait_for(q, push(q, &dst, &src, sizeof src)), 0);
    assert_int_equal(allocs_so_far(), before);
    copyq_close(q);
}

static void host_memory_is_page_aligned_and_as_long_as_asked(void **state)
{
    static const size_t sizes[] = {1, 4095, 4096, 4097, 360 * 1024, 5 << 20};
    struct copyq *q = opened_as(state);
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
    struct copyq *q = opened_as(state);
    volatile size_t over = SIZE_MAX;
    assert_null(copyq_host_alloc(q, over));
    assert_null(copyq_host_alloc(q, over - 4094));
    assert_null(copyq_host_alloc(q, 0));
    copyq_close(q);
    copyq_close(NULL);
}

static open_fn *as_reference = copyq_cpu_open, *as_thread = copyq_thread_open;

#define EACH(test)                                                                     \
    {#test ": reference", test, NULL, NULL, &as_reference},                            \
    {                                                                                  \
#test ": thread", test, NULL, NULL, &as_thread                                 \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_copied_before_its_ticket_is_polled),
        cmocka_unit_test(a_full_queue_says_try_again_and_takes_more_after_a_poll),
        EACH(copies_finish_in_the_order_they_were_pushed),
        EACH(a_done_ticket_stays_done_and_copies_once),
        EACH(a_thousand_copies_arrive_whole_and_touch_nothing_else),
        EACH(a_ticket_that_was_never_handed_out_is_refused),
        EACH(pushing_and_polling_allocate_nothing),
        EACH(host_memory_is_page_aligned_and_as_long_as_asked),
        EACH(memory_that_cannot_be_is_null_and_not_a_wrapped_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
