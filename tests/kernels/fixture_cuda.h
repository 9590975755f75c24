/* fixture_cuda.h - what the tests of the CUDA backend share: a device, and moving numbers to
 * it and back.
 *
 * They use kernels.h and copyq.h only.  Where the build or the machine has no CUDA, they
 * skip and say so.  Where a CPU stands in for the device, they run in each order of threads.
 */
#ifndef TESTS_KERNELS_FIXTURE_CUDA_H
#define TESTS_KERNELS_FIXTURE_CUDA_H

#include "kernels/copyq.h"
#include "tests/cuda_on_cpu/sanitizers.h"
#include "tests/cuda_on_cpu/standin.h"
#include "tests/kernels/fixture.h"

struct device {
    struct backend *b;
    struct copyq *q;
    void *pinned;  // PINNED bytes
};
#define PINNED ((size_t)8 << 20)

/* How the stand-in's threads go, and its streams meanwhile.  Nothing on a real device. */
static enum standin_threads thread_order;

static inline void order_streams(enum standin_streams streams)
{
    if (standin_schedule) standin_schedule(streams, thread_order, thread_order);
}

/* All tests with threads forward, reversed and shuffled.  A real device has its own order; under
 * TSan, which sees a race in any, and where a thread costs a hundred times as much, one does. */
static inline int run_in_each_order(const struct CMUnitTest *tests, size_t n)
{
    static const char *const names[] = {"forward", "reversed", "shuffled"};
    int failed = 0;
    for (int i = TSAN ? STANDIN_SHUFFLED : STANDIN_FORWARD; i <= STANDIN_SHUFFLED;
         i++) {
        thread_order = (enum standin_threads)i;
        order_streams(STANDIN_RANDOM);
        failed += _cmocka_run_group_tests(names[i], tests, n, NULL, NULL);
        if (!standin_schedule) break;
    }
    return failed;
}

/* Ends the test as skipped where there is no such device. */
static inline struct device open_device_as(bool exact)
{
    struct device d = {0};
    struct backend_options o = {.exact = exact, .limits = wide_limits};
    o.limits.max_head_dim = 256;
    struct err err = {{0}};
    int rc = backend_open(&d.b, "cuda", &o, &err);
    if (rc == -ENODEV) {
        print_message("skipped: %s\n", err.msg);
        skip();
    }
    if (rc == 0) rc = backend_copyq_open(d.b, &d.q, &err);
    if (rc) fail_msg("%s", err.msg);
    d.pinned = copyq_host_alloc(d.q, PINNED);
    assert_non_null(d.pinned);
    return d;
}

static inline struct device open_device(void)
{
    return open_device_as(false);
}

static inline void close_device(struct device *d)
{
    copyq_host_free(d->q, d->pinned);
    copyq_close(d->q);
    backend_close(d->b);
}

static inline void wait_for(struct device *d, uint64_t ticket)
{
    int rc;
    while ((rc = copyq_poll(d->q, ticket)) == -EAGAIN) {
    }
    assert_int_equal(rc, 0);
}

static inline void put(struct device *d, void *to, const void *from, size_t bytes)
{
    uint64_t ticket;
    assert_true(bytes <= PINNED);
    memcpy(d->pinned, from, bytes);
    assert_int_equal(copyq_push(d->q, to, d->pinned, bytes, &ticket), 0);
    wait_for(d, ticket);
}

static inline void get(struct device *d, void *to, const void *from, size_t bytes)
{
    uint64_t ticket;
    assert_true(bytes <= PINNED);
    assert_int_equal(copyq_push(d->q, d->pinned, from, bytes, &ticket), 0);
    wait_for(d, ticket);
    memcpy(to, d->pinned, bytes);
}

static inline void put_rows(struct device *d, struct buffer *x, const float *from,
                            uint32_t rows)
{
    put(d, x->data, from, (size_t)rows * x->cols * sizeof *from);
}

/* The caller frees them. */
static inline float *get_rows(struct device *d, const struct buffer *x, uint32_t rows)
{
    size_t bytes = (size_t)rows * x->cols * sizeof(float);
    float *to = malloc(bytes);
    assert_non_null(to);
    get(d, to, x->data, bytes);
    return to;
}

/* As CUDA's kernels lay a block out: K and V by tokens. */
static inline float cuda_stored(const struct kv_pool_mem *kv, const uint32_t *table,
                                uint32_t pos, int v, uint32_t head, uint32_t d)
{
    size_t token = pos % KV_BLOCK_TOKENS;
    return plane_number(kv, table, pos, v, head, token * kv->shape.head_dim + d);
}

/* n numbers as type t holds them. */
static inline void round_to(enum dtype t, float *v, size_t n)
{
    char *typed = malloc(n * dtype_bytes(t));
    assert_non_null(typed);
    dtype_from_f32(typed, v, t, n);
    dtype_to_f32(v, typed, t, n);
    free(typed);
}

#endif
