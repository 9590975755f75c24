/* ssd_uring.c - the queue over io_uring.
 *
 * A transfer whose segments all lie in registered memory is one request for each segment,
 * as such a request has one address; the system joins a header and its block again on
 * their way to the device.  That saves the pinning of each page, which is most of what a
 * transfer costs the CPU where pages are small.  Any other transfer is one vectored
 * request: in huge pages there is little to pin, neighbours stay one large transfer, and
 * memory is taken when it is used and not when it is registered.
 */
#include "offload/ssd_queue.h"

#include <liburing.h>
#include <stdlib.h>

#define PIECES 64                 // registered at most
#define PIECE  ((size_t)1 << 30)  // the most that one of them may be, says the system

struct ssd_uring {
    struct ssd_queue base;
    struct io_uring ring;
    const struct ssd_sys *sys;  // borrowed
    struct ssd_op *waiting;     // for places in the submission ring
    bool table;                 // the system has one for the pieces
    struct iovec pieces[PIECES];
    unsigned n_pieces;
};

static struct ssd_uring *uring_of(struct ssd_queue *base)
{
    return CONTAINER_OF(base, struct ssd_uring, base);
}

// ---- registered memory ---------------------------------------------------------------

static int add_piece(struct ssd_uring *q, void *base, size_t bytes)
{
    if (q->n_pieces == PIECES) return -ENOSPC;
    int rc = q->sys->pin(q->sys);
    if (rc < 0) return rc;
    struct iovec v = {base, bytes};
    rc = io_uring_register_buffers_update_tag(&q->ring, q->n_pieces, &v, NULL, 1);
    if (rc < 0) return rc;
    q->pieces[q->n_pieces++] = v;
    return 0;
}

/* What was registered before one that is refused stays so. */
static int uring_register(struct ssd_queue *base, void *p, size_t bytes, size_t unit)
{
    struct ssd_uring *q = uring_of(base);
    size_t most = PIECE / unit * unit;
    if (most == 0) return -EOPNOTSUPP;
    int rc = q->table ? 0 : io_uring_register_buffers_sparse(&q->ring, PIECES);
    if (rc < 0) return rc;
    q->table = true;
    for (size_t at = 0; rc == 0 && at < bytes; at += most)
        rc = add_piece(q, (char *)p + at, bytes - at < most ? bytes - at : most);
    return rc;
}

/* The piece that the segment lies in; n_pieces: none. */
static unsigned piece_of(const struct ssd_uring *q, const struct iovec *v)
{
    unsigned i = 0;
    for (; i < q->n_pieces; i++) {
        uintptr_t begin = (uintptr_t)q->pieces[i].iov_base;
        uintptr_t at = (uintptr_t)v->iov_base;
        size_t bytes = q->pieces[i].iov_len;
        if (at >= begin && at - begin < bytes && v->iov_len <= bytes - (at - begin))
            break;
    }
    return i;
}

static bool all_registered(const struct ssd_uring *q, const struct ssd_op *op)
{
    if (q->n_pieces == 0) return false;
    for (unsigned i = 0; i < op->n_iov; i++)
        if (piece_of(q, &op->iov[i]) == q->n_pieces) return false;
    return true;
}

// ---- requests ------------------------------------------------------------------------

static struct io_uring_sqe *add_request(struct ssd_uring *q, struct ssd_op *op,
                                        size_t bytes)
{
    struct ssd_request *r = &op->requests[op->n_requests++];
    *r = (struct ssd_request){.op = op, .bytes = bytes};
    return io_uring_get_sqe(&q->ring);
}

static void push_registered(struct ssd_uring *q, struct ssd_op *op)
{
    uint64_t at = op->at;
    for (unsigned i = 0; i < op->n_iov; i++) {
        const struct iovec *v = &op->iov[i];
        struct io_uring_sqe *sqe = add_request(q, op, v->iov_len);
        unsigned n = (unsigned)v->iov_len;
        int piece = (int)piece_of(q, v);
        if (op->write)
            io_uring_prep_write_fixed(sqe, op->fd, v->iov_base, n, at, piece);
        else
            io_uring_prep_read_fixed(sqe, op->fd, v->iov_base, n, at, piece);
        io_uring_sqe_set_data(sqe, &op->requests[i]);
        at += v->iov_len;
    }
}

static void push_vectored(struct ssd_uring *q, struct ssd_op *op)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < op->n_iov; i++) bytes += op->iov[i].iov_len;
    struct io_uring_sqe *sqe = add_request(q, op, bytes);
    if (op->write)
        io_uring_prep_writev(sqe, op->fd, op->iov, op->n_iov, op->at);
    else
        io_uring_prep_readv(sqe, op->fd, op->iov, op->n_iov, op->at);
    io_uring_sqe_set_data(sqe, &op->requests[0]);
}

static void uring_push(struct ssd_queue *base, struct ssd_op *op)
{
    struct ssd_uring *q = uring_of(base);
    bool registered = all_registered(q, op);
    if (io_uring_sq_space_left(&q->ring) < (registered ? op->n_iov : 1)) {
        op->next = q->waiting;  // what the system has not taken yet fills the ring
        q->waiting = op;
        return;
    }
    op->n_requests = 0;
    if (registered)
        push_registered(q, op);
    else
        push_vectored(q, op);
    op->flying = op->n_requests;
}

/* The system may take less than is there (-EAGAIN, -EBUSY, little memory); the rest stays
 * in the ring for the next kick, and every pop is one. */
static void uring_kick(struct ssd_queue *base)
{
    struct ssd_uring *q = uring_of(base);
    (void)io_uring_submit(&q->ring);
    struct ssd_op *waiting = q->waiting;
    q->waiting = NULL;
    while (waiting) {
        struct ssd_op *op = waiting;
        waiting = op->next;
        uring_push(base, op);
    }
    if (io_uring_sq_ready(&q->ring)) (void)io_uring_submit(&q->ring);
}

// ---- results -------------------------------------------------------------------------

/* Waiting is in steps, so that what the system would not take is offered again. */
static int wait_a_while(struct ssd_uring *q, struct io_uring_cqe **cqe)
{
    struct __kernel_timespec step = {.tv_nsec = 50000000};
    int rc = io_uring_wait_cqe_timeout(&q->ring, cqe, &step);
    return rc == -ETIME || rc == -EINTR ? -EAGAIN : rc;
}

/* What lies in place from the beginning, without a gap; or why nothing does. */
static ssize_t moved(const struct ssd_op *op)
{
    ssize_t sum = 0;
    for (unsigned i = 0; i < op->n_requests; i++) {
        const struct ssd_request *r = &op->requests[i];
        if (r->res < 0) return sum > 0 ? sum : r->res;
        sum += r->res;
        if ((size_t)r->res < r->bytes) break;
    }
    return sum;
}

/* The op whose last request this was, or NULL. */
static struct ssd_op *land(struct ssd_uring *q, struct io_uring_cqe *cqe)
{
    struct ssd_request *r = io_uring_cqe_get_data(cqe);
    struct ssd_op *op = r->op;
    r->res = q->sys->landed(q->sys, op->write, cqe->res);
    io_uring_cqe_seen(&q->ring, cqe);
    if (--op->flying > 0) return NULL;
    op->res = moved(op);
    return op;
}

static struct ssd_op *uring_pop(struct ssd_queue *base, bool wait)
{
    struct ssd_uring *q = uring_of(base);
    struct ssd_op *op = NULL;
    while (!op) {
        struct io_uring_cqe *cqe;
        if (q->waiting || io_uring_sq_ready(&q->ring)) uring_kick(base);
        int rc = wait ? wait_a_while(q, &cqe) : io_uring_peek_cqe(&q->ring, &cqe);
        if (rc == -EAGAIN && wait) continue;
        if (rc < 0) return NULL;
        op = land(q, cqe);
    }
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
    .reg = uring_register,
    .close = uring_close,
};

int ssd_uring_open(struct ssd_queue **out, unsigned entries, const struct ssd_sys *sys)
{
    int rc = sys->ring(sys);
    if (rc < 0) return rc;
    struct ssd_uring *q = calloc(1, sizeof *q);
    if (!q) return -ENOMEM;

    rc = io_uring_queue_init(2 * entries, &q->ring, 0);
    if (rc < 0) {
        free(q);
        return rc;
    }
    q->base.ops = &uring_ops;
    q->sys = sys;
    *out = &q->base;
    return 0;
}
