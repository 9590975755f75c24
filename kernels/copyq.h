/* copyq.h - byte copies between host and device memory, asynchronous, in order.
 *
 * Owns     what marks progress (a stream and its events), and the host memory it
 *          hands out.  Never the bytes being copied.
 * Caller   keeps dst and src valid until the ticket is done.
 * Order    copies finish in the order they were pushed.
 * Threads  the engine thread makes every call.
 *
 * The reference queue copies at poll, not at push: whoever forgets to wait for a ticket
 * fails its tests on a laptop instead of corrupting a cache on a GPU.  The queue with a
 * thread is what serves without a GPU: copies go on while the engine computes.
 */
#ifndef KERNELS_COPYQ_H
#define KERNELS_COPYQ_H

#include "kernels/base.h"

BASE_BEGIN

#define COPYQ_DEPTH 64  // copies in flight before push answers -EAGAIN

struct copyq;

struct copyq_ops {
    int (*push)(struct copyq *q, void *dst, const void *src, size_t bytes,
                uint64_t *out);
    int (*poll)(struct copyq *q, uint64_t ticket);
    void *(*host_alloc)(struct copyq *q, size_t bytes);
    void (*host_free)(struct copyq *q, void *p);
    void (*close)(struct copyq *q);
};

struct copyq {
    const struct copyq_ops *ops;
};

NODISCARD int copyq_cpu_open(struct copyq **out, struct err *err);
NODISCARD int copyq_thread_open(struct copyq **out, struct err *err);

/* Host memory of both of these. */
void *copyq_cpu_host_alloc(struct copyq *q, size_t bytes);
void copyq_cpu_host_free(struct copyq *q, void *p);

/* Begin a copy.  -EAGAIN: COPYQ_DEPTH are in flight; poll an older ticket first. */
NODISCARD static inline int copyq_push(struct copyq *q, void *dst, const void *src,
                                       size_t bytes, uint64_t *out)
{
    return q->ops->push(q, dst, src, bytes, out);
}

/* 0: done.  -EAGAIN: still in flight.  Anything else: it failed, and why. */
NODISCARD static inline int copyq_poll(struct copyq *q, uint64_t ticket)
{
    return q->ops->poll(q, ticket);
}

/* Page-aligned host memory that the device can reach at full speed (pinned under
 * CUDA).  NULL when there is none left. */
static inline void *copyq_host_alloc(struct copyq *q, size_t bytes)
{
    return q->ops->host_alloc(q, bytes);
}

static inline void copyq_host_free(struct copyq *q, void *p)
{
    q->ops->host_free(q, p);
}

static inline void copyq_close(struct copyq *q)
{
    if (q) q->ops->close(q);
}

BASE_END

#endif
