#include "kernels/pool.h"
#include "tests/allocs.h"
#include "tests/kernels/fixture.h"

#include <stdatomic.h>
#include <time.h>

#define ITEMS 2000

struct job {
    _Atomic uint32_t calls[ITEMS];
    uint32_t threads;
    _Atomic uint32_t wrong;
    uint64_t value[ITEMS];  // written without atomics: pool_run must publish it
};

static void count(void *arg, uint32_t i, uint32_t thread)
{
    struct job *j = arg;
    atomic_fetch_add(&j->calls[i], 1);
    if (thread >= j->threads) atomic_fetch_add(&j->wrong, 1);
    j->value[i] = (uint64_t)i * i;
}

static struct pool *open_pool(uint32_t threads)
{
    struct pool *p = NULL;
    struct err err;
    if (pool_open(&p, threads, &err)) fail_msg("%s", err.msg);
    return p;
}

static void nap(long ms)
{
    struct timespec t = {0, ms * 1000000};
    nanosleep(&t, NULL);
}

static void every_item_runs_once_and_is_visible(void **state)
{
    (void)state;
    static struct job j;
    static const uint32_t counts[] = {0, 1, 2, 3, 7, 64, ITEMS};
    for (uint32_t threads = 1; threads <= 5; threads++) {
        struct pool *p = open_pool(threads);
        for (size_t c = 0; c < ARRAY_LEN(counts); c++) {
            memset(&j, 0, sizeof j);
            j.threads = threads;
            pool_run(p, counts[c], count, &j);
            for (uint32_t i = 0; i < ITEMS; i++) {
                assert_int_equal(j.calls[i], i < counts[c]);
                assert_int_equal(j.value[i], i < counts[c] ? (uint64_t)i * i : 0);
            }
            assert_int_equal(j.wrong, 0);
        }
        pool_close(p);
    }
}

/* Many jobs back to back, more threads than cores, each with its own array: an item taken
 * from the wrong job would be missing in one and double in another. */
static void a_late_worker_never_takes_from_the_next_job(void **state)
{
    (void)state;
    static struct job jobs[2];
    struct pool *p = open_pool(4);
    for (uint32_t n = 0; n < 3000; n++) {
        struct job *j = &jobs[n % 2];
        uint32_t items = 1 + n * 7 % 61;
        for (uint32_t i = 0; i < items; i++) j->calls[i] = 0;
        j->threads = 4;
        pool_run(p, items, count, j);
        for (uint32_t i = 0; i < items; i++) assert_int_equal(j->calls[i], 1);
    }
    assert_int_equal(jobs[0].wrong + jobs[1].wrong, 0);
    pool_close(p);
}

/* Items that each wait for the other can only end on two threads. */
struct meeting {
    _Atomic uint32_t here;
};

static void meet(void *arg, uint32_t i, uint32_t thread)
{
    (void)i;
    (void)thread;
    struct meeting *m = arg;
    atomic_fetch_add(&m->here, 1);
    while (atomic_load(&m->here) < 2) nap(1);
}

static void parked_workers_wake_up(void **state)
{
    (void)state;
    struct pool *p = open_pool(2);
    for (int n = 0; n < 3; n++) {
        struct meeting m = {0};
        nap(20);  // far longer than a worker spins
        pool_run(p, 2, meet, &m);
        assert_int_equal(m.here, 2);
    }
    pool_close(p);
}

static void a_pool_closes_parked_awake_or_never_used(void **state)
{
    (void)state;
    pool_close(NULL);
    for (uint32_t threads = 1; threads <= 4; threads++) {
        pool_close(open_pool(threads));
        struct pool *p = open_pool(threads);
        nap(5);  // its workers park
        pool_close(p);

        static struct job j;
        j.threads = threads;
        p = open_pool(threads);
        pool_run(p, 50, count, &j);
        pool_close(p);  // while they still look for more
    }
}

static void running_allocates_nothing(void **state)
{
    (void)state;
    static struct job j;
    j.threads = 3;
    struct pool *p = open_pool(3);
    unsigned long before = allocs_so_far();
    for (int n = 0; n < 100; n++) pool_run(p, 50, count, &j);
    assert_int_equal(allocs_so_far(), before);
    pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_runs_once_and_is_visible),
        cmocka_unit_test(a_late_worker_never_takes_from_the_next_job),
        cmocka_unit_test(parked_workers_wake_up),
        cmocka_unit_test(a_pool_closes_parked_awake_or_never_used),
        cmocka_unit_test(running_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
