/* ssd_uring.c - the queue over io_uring.
 *
 * Transfers are vectored (headers from the tier's pages, payloads straight from and to
 * the caller's buffers), so that nothing is copied and neighbouring slots are one
 * transfer.  Registered buffers would need one contiguous copy of all that.
 */
#include "offload/ssd_queue.h"

#include <liburing.h>
#include <stdlib.h>

struct ssd_uring {
    struct ssd_queue base;
    struct io_uring ring;
    const struct ssd_sys *sys;  // borrowed
    int fd;                     // borrowed
    struct ssd_op *waiting;     // for a place in the submission ring
};

static struct ssd_uring *uring_of(struct ssd_queue *base)
{
    return CONTAINER_OF(base, struct ssd_uring, base);
}

static void uring_push(struct ssd_queue *base, struct ssd_op *op)
{
    struct ssd_uring *q = uring_of(base);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&q->ring);
    if (!sqe) {  // what the system has not taken yet fills the ring
        op->next = q->waiting;
        q->waiting = op;
        return;
    }
    if (op->write) {
        io_uring_prep_writev(sqe, q->fd, op->iov, op->n_iov, op->at);
    } else {
        io_uring_prep_readv(sqe, q->fd, op->iov, op->n_iov, op->at);
    }
    io_uring_sqe_set_data(sqe, op);
}

/* The system may take less than is there (-EAGAIN, -EBUSY, little memory); the rest stays
 * in the ring for the next kick, and every pop is one. */
static void uring_kick(struct ssd_queue *base)
{
    struct ssd_uring *q = uring_of(base);
    (void)io_uring_submit(&q->ring);
    while (q->waiting && io_uring_sq_space_left(&q->ring)) {
        struct ssd_op *op = q->waiting;
        q->waiting = op->next;
        uring_push(base, op);
        if (!q->waiting || !io_uring_sq_space_left(&q->ring))
            (void)io_uring_submit(&q->ring);
    }
}

/* Waiting is in steps, so that what the system would not take is offered again. */
static int wait_a_while(struct ssd_uring *q, struct io_uring_cqe **cqe)
{
    struct __kernel_timespec step = {.tv_nsec = 50000000};
    int rc = io_uring_wait_cqe_timeout(&q->ring, cqe, &step);
    return rc == -ETIME || rc == -EINTR ? -EAGAIN : rc;
}

static struct ssd_op *uring_pop(struct ssd_queue *base, bool wait)
{
    struct ssd_uring *q = uring_of(base);
    struct io_uring_cqe *cqe;
    int rc;
    do {
        if (q->waiting || io_uring_sq_ready(&q->ring)) uring_kick(base);
        rc = wait ? wait_a_while(q, &cqe) : io_uring_peek_cqe(&q->ring, &cqe);
    } while (wait && rc == -EAGAIN);
    if (rc < 0) return NULL;

    struct ssd_op *op = io_uring_cqe_get_data(cqe);
    op->res = q->sys->landed(q->sys, op->write, cqe->res);
    io_uring_cqe_seen(&q->ring, cqe);
    return op;
}

static void uring_close(struct ssd_queue *base)
{
    struct ssd_uring *q = uring_of(base);
    io_uring_queue_exit(&q->ring);
    free(q);
}

static const struct ssd_queue_ops uring_ops = {
    .push = uring_push,
    .kick = uring_kick,
    .pop = uring_pop,
    .close = uring_close,
};

int ssd_uring_open(struct ssd_queue **out, int fd, unsigned entries,
                   const struct ssd_sys *sys)
{
    int rc = sys->ring(sys);
    if (rc < 0) return rc;
    struct ssd_uring *q = calloc(1, sizeof *q);
    if (!q) return -ENOMEM;

    rc = io_uring_queue_init(entries, &q->ring, 0);
    if (rc < 0) {
        free(q);
        return rc;
    }
    q->base.ops = &uring_ops;
    q->sys = sys;
    q->fd = fd;
    *out = &q->base;
    return 0;
}
