/* ssd_queue.h - transfers between files and memory, many at a time, in any order.
 *
 * Owns     a ring of io_uring, or worker threads.  Never the memory or the files.
 * Caller   lends each struct ssd_op, and what its iov points to, from push to pop.  No more
 *          than `entries` are lent at a time.
 * Memory   all taken by open.
 * Threads  one makes every call.
 *
 * A transfer may be short; who pushed it decides what then.
 */
#ifndef OFFLOAD_SSD_QUEUE_H
#define OFFLOAD_SSD_QUEUE_H

#include "offload/ssd_sys.h"

#define SSD_OP_SEGMENTS 16

/* A request to the system: an op, or one segment of it. */
struct ssd_request {
    struct ssd_op *op;
    size_t bytes;
    ssize_t res;
};

struct ssd_op {
    int fd;
    bool write;
    struct iovec *iov;
    unsigned n_iov;  // at most SSD_OP_SEGMENTS
    uint64_t at;     // byte of the file
    ssize_t res;     // once popped: bytes, or -errno
    /* the queue's own */
    struct ssd_op *next;
    unsigned n_requests, flying;
    struct ssd_request requests[SSD_OP_SEGMENTS];
};

struct ssd_queue;

struct ssd_queue_ops {
    void (*push)(struct ssd_queue *q, struct ssd_op *op);
    void (*kick)(struct ssd_queue *q);
    struct ssd_op *(*pop)(struct ssd_queue *q, bool wait);
    int (*reg)(struct ssd_queue *q, void *base, size_t bytes, size_t unit);  // or NULL
    void (*close)(struct ssd_queue *q);
};

struct ssd_queue {
    const struct ssd_queue_ops *ops;
};

/* sys is borrowed.  The first fails where the system has no io_uring, or not
 * for us: -ENOSYS, -EPERM, -ENOMEM. */
NODISCARD int ssd_uring_open(struct ssd_queue **out, unsigned entries,
                             const struct ssd_sys *sys);
NODISCARD int ssd_threads_open(struct ssd_queue **out, unsigned entries,
                               const struct ssd_sys *sys, struct err *err);

static inline void ssd_push(struct ssd_queue *q, struct ssd_op *op)
{
    q->ops->push(q, op);
}

/* Hand over to the system what was pushed. */
static inline void ssd_kick(struct ssd_queue *q)
{
    q->ops->kick(q);
}

/* One that has ended, or NULL where there is none yet.  wait: blocks until there is one;
 * something must be in flight then. */
static inline struct ssd_op *ssd_pop(struct ssd_queue *q, bool wait)
{
    return q->ops->pop(q, wait);
}

/* Register memory with the system, so that transfers in it need not pin their pages each
 * time: for as long as the queue is open.  No segment crosses a multiple of `unit` from
 * base.  -EOPNOTSUPP where a queue does not register; -ENOMEM: locked memory is limited. */
NODISCARD static inline int ssd_register(struct ssd_queue *q, void *base, size_t bytes,
                                         size_t unit)
{
    return q->ops->reg ? q->ops->reg(q, base, bytes, unit) : -EOPNOTSUPP;
}

static inline void ssd_close(struct ssd_queue *q)
{
    if (q) q->ops->close(q);
}

#endif
