/* copyq.h - byte copies between host and device memory, asynchronous, in order.
 *
 * Owns     what marks progress (a stream and its events), and the host memory it
 *          hands out.  Never the bytes being copied.
 * Caller   keeps dst and src valid until the ticket is done, and does not begin a copy that
 *          reads or overwrites what one in flight touches.
 * Order    copies to the device finish in the order they were pushed, and so do those from
 *          it and those within the host; the three pass each other.
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
    void (*flush)(struct copyq *q);  // NULL: pushes go on by themselves
    int (*poll)(struct copyq *q, uint64_t ticket);
    bool (*readable)(struct copyq *q, const void *p);  // NULL: all of it
    void *(*host_alloc)(struct copyq *q, size_t bytes);
    void *(*host_alloc_most)(struct copyq *q, size_t bytes, size_t *got);  // or NULL
    void (*host_free)(struct copyq *q, void *p);
    void (*close)(struct copyq *q);
    // All NULL where copies arrive whole:
    uint32_t (*pieces)(const struct copyq *q, uint32_t slices);
    int (*push_sliced)(struct copyq *q, void *dst, const void *src, size_t bytes,
                       uint32_t slices, uint64_t *out);
    bool (*arriving)(struct copyq *q, uint64_t ticket);
    bool (*await)(struct copyq *q, uint64_t ticket);
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

/* Hand over to the device what was pushed: after a row of pushes, of which neighbours have
 * become one copy.  A poll of its ticket does so, too. */
static inline void copyq_flush(struct copyq *q)
{
    if (q->ops->flush) q->ops->flush(q);
}

/* 0: done.  -EAGAIN: still in flight.  -ENODEV: the device has failed, and whatever it was to
 * hold or to give is lost.  Anything else: it failed, and why. */
NODISCARD static inline int copyq_poll(struct copyq *q, uint64_t ticket)
{
    return q->ops->poll(q, ticket);
}

/* ---- copies that arrive slice by slice ----
 *
 * A KV block is as many equal slices as the model has layers, and a step needs them one
 * after another.  Copies to the device that are pushed sliced, with no flush and no other
 * copy between them, arrive side by side: the first slices of all, then the next ones.  So
 * a step may begin when the first have landed, and waits for the others where it needs them.
 */

/* In how many pieces, of some slices each, they come; 0: such copies arrive whole here. */
static inline uint32_t copyq_pieces(const struct copyq *q, uint32_t slices)
{
    return q->ops->pieces ? q->ops->pieces(q, slices) : 0;
}

/* As copyq_push(), and whole where it cannot be otherwise. */
NODISCARD static inline int copyq_push_sliced(struct copyq *q, void *dst,
                                              const void *src, size_t bytes,
                                              uint32_t slices, uint64_t *out)
{
    if (!q->ops->push_sliced) return q->ops->push(q, dst, src, bytes, out);
    return q->ops->push_sliced(q, dst, src, bytes, slices, out);
}

/* Its first piece has landed and the others are on their way, or all have landed: nothing
 * but a failure of the device, which no step outlives, can keep it from arriving. */
static inline bool copyq_arriving(struct copyq *q, uint64_t ticket)
{
    return q->ops->arriving && q->ops->arriving(q, ticket);
}

/* Of a copy that is arriving, as all pushed before it are: the backend's next step waits for
 * them on the device, before the attention of layer l for slice l.  So all have landed when
 * that step is finished.  False: it has landed, and nothing waits for it. */
static inline bool copyq_await(struct copyq *q, uint64_t ticket)
{
    return q->ops->await && q->ops->await(q, ticket);
}

/* Whether the CPU can read what lies at p, which is host memory or the device's. */
static inline bool copyq_readable(struct copyq *q, const void *p)
{
    return !q->ops->readable || q->ops->readable(q, p);
}

/* Page-aligned host memory that the device can reach at full speed (pinned under
 * CUDA).  NULL when there is none left. */
static inline void *copyq_host_alloc(struct copyq *q, size_t bytes)
{
    return q->ops->host_alloc(q, bytes);
}

/* The same for very much: how much of it could be had, from its beginning, goes to *got; NULL
 * where that is nothing.  Where it is less than all, something is left for other calls.  It takes
 * long where it is pinned; so this call alone may be made from another thread beside the
 * others. */
static inline void *copyq_host_alloc_most(struct copyq *q, size_t bytes, size_t *got)
{
    if (q->ops->host_alloc_most) return q->ops->host_alloc_most(q, bytes, got);
    *got = bytes;
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
