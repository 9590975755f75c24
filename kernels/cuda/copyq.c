/* copyq.c - copies between host and device beside the computing: one stream for each
 * direction, neighbours in one copy.
 *
 * A copy whose source and destination both follow those of the one pushed before it becomes a
 * part of it, until flush or poll hands it to the device.  A run of copies has one event.
 * Copies that are pushed sliced go as a train: all that were pushed together are cut into
 * pieces of some slices, and the first piece of all of them goes first.  A mark is recorded
 * behind each piece.  Marks are used again by later trains of the same stream, so that a
 * mark can only be later than what it is asked for.
 *
 * What lies in host memory on both sides is for a thread (copyq_thread.c), and goes on when
 * the device has failed.
 */
#include "kernels/copyq.h"
#include "kernels/cuda/cuda.h"

#include <stdlib.h>

#define RUN_BYTES ((size_t)32 << 20)  // at which a run takes no more neighbours

#define PIECES 8  // of a train at most, so that each copy stays large
#define TRAINS 4  // that have marks of their own

enum lane_name { UP, DOWN, LANES };
#define HOST LANES  // a ticket is number * WAYS + lane, or + HOST
#define WAYS 3

/* Some copies that became one. */
struct run {
    char *dst;
    const char *src;
    size_t bytes;
    uint64_t last;    // number of its last copy
    uint32_t slices;  // of each of its copies; 0: they arrive whole
    size_t each;      // bytes of one, where sliced
    uint64_t train;   // where sliced and sent
    cudaEvent_t event;
};

struct lane {
    cudaStream_t stream;
    struct run ring[COPYQ_DEPTH];  // run n lies at n % COPYQ_DEPTH
    uint64_t runs, sent, done;     // runs begun, handed over, landed
    uint64_t pushed, landed;       // copies
};

struct copyq_cuda {
    struct copyq base;
    struct cuda *cuda;     // borrowed
    cudaEvent_t computed;  // what is sent beside a block on its way waits for it
    bool failed;
    struct lane lanes[LANES];
    cudaEvent_t marks[TRAINS][PIECES];  // train n's are at n % TRAINS
    uint64_t trains, arriving;          // that were sent; whose first piece has landed
    struct copyq *host;                 // within the host's memory
    struct cuda_arena arenas[CUDA_ARENAS];
};

static struct copyq_cuda *queue_of(struct copyq *q)
{
    return CONTAINER_OF(q, struct copyq_cuda, base);
}

static bool ok(struct copyq_cuda *q, cudaError_t e)
{
    if (e != cudaSuccess) q->failed = true;
    return cuda_ok(q->cuda, e, "copying blocks");
}

static struct run *newest(struct lane *l)
{
    return &l->ring[(l->runs - 1) % COPYQ_DEPTH];
}

/* Steps have been waited for; only a block that was copied between two may still be on its
 * way, and what overwrites its source must wait for it. */
static void wait_for_compute(struct copyq_cuda *q, struct lane *l)
{
    if (q->cuda->copying && ok(q, cudaEventRecord(q->computed, q->cuda->compute)))
        ok(q, cudaStreamWaitEvent(l->stream, q->computed, 0));
}

static uint32_t pieces(const struct copyq *q, uint32_t slices)
{
    (void)q;
    return slices < PIECES ? slices : PIECES;
}

/* The first slice that is not in a piece before piece p. */
static uint32_t slice_of(uint32_t p, uint32_t slices)
{
    return (uint32_t)((uint64_t)p * slices / pieces(NULL, slices));
}

static void send_piece(struct copyq_cuda *q, const struct lane *l, const struct run *r,
                       uint32_t p)
{
    size_t slice = r->each / r->slices, from = slice_of(p, r->slices) * slice;
    size_t width = slice_of(p + 1, r->slices) * slice - from;
    ok(q, cudaMemcpy2DAsync(r->dst + from, r->each, r->src + from, r->each, width,
                            r->bytes / r->each, cudaMemcpyHostToDevice, l->stream));
}

/* All runs that have not been sent: they are sliced alike. */
static void send_train(struct copyq_cuda *q, struct lane *l)
{
    uint32_t n = pieces(&q->base, newest(l)->slices);
    uint64_t train = ++q->trains;
    for (uint32_t p = 0; p < n && !q->failed; p++) {
        for (uint64_t i = l->sent; i < l->runs; i++)
            send_piece(q, l, &l->ring[i % COPYQ_DEPTH], p);
        ok(q, cudaEventRecord(q->marks[train % TRAINS][p], l->stream));
    }
    for (; l->sent < l->runs; l->sent++) {
        struct run *r = &l->ring[l->sent % COPYQ_DEPTH];
        r->train = train;
        ok(q, cudaEventRecord(r->event, l->stream));
    }
}

static void send(struct copyq_cuda *q, enum lane_name name)
{
    struct lane *l = &q->lanes[name];
    if (l->sent == l->runs) return;
    const struct run *r = newest(l);
    wait_for_compute(q, l);
    if (r->slices > 0) {
        send_train(q, l);
        return;
    }
    l->sent = l->runs;
    enum cudaMemcpyKind kind =
        name == UP ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    if (ok(q, cudaMemcpyAsync(r->dst, r->src, r->bytes, kind, l->stream)))
        ok(q, cudaEventRecord(r->event, l->stream));
}

/* Take note of what has landed, up to copy `number`. */
static void land(struct copyq_cuda *q, enum lane_name name, uint64_t number)
{
    struct lane *l = &q->lanes[name];
    while (l->done < l->sent && l->landed < number) {
        const struct run *r = &l->ring[l->done % COPYQ_DEPTH];
        cudaError_t e = cudaEventQuery(r->event);
        if (e == cudaErrorNotReady || !ok(q, e)) return;
        l->landed = r->last;
        l->done++;
    }
}

static bool works(struct copyq_cuda *q)
{
    return !q->failed && cuda_enter(q->cuda);
}

static bool follows(const struct run *r, const void *dst, const void *src, size_t bytes)
{
    return r->dst + r->bytes == dst && r->src + r->bytes == src &&
           r->bytes + bytes <= RUN_BYTES;
}

/* Add a copy to what is to be sent; slices 0: whole. */
static void add(struct copyq_cuda *q, enum lane_name name, void *dst, const void *src,
                size_t bytes, uint32_t slices)
{
    struct lane *l = &q->lanes[name];
    struct run *r = l->sent < l->runs ? newest(l) : NULL;
    bool alike = r && r->slices == slices && (slices == 0 || r->each == bytes);
    if (alike && follows(r, dst, src, bytes)) {
        r->bytes += bytes;
    } else {
        if (slices == 0 || !alike) send(q, name);
        l->runs++;
        r = newest(l);
        r->dst = dst;
        r->src = src;
        r->bytes = r->each = bytes;
        r->slices = slices;
    }
    r->last = ++l->pushed;
}

static int push_host(struct copyq_cuda *q, void *dst, const void *src, size_t bytes,
                     uint64_t *out)
{
    int rc = copyq_push(q->host, dst, src, bytes, out);
    if (rc == 0) *out = *out * WAYS + HOST;
    return rc;
}

static int push_sliced(struct copyq *base, void *dst, const void *src, size_t bytes,
                       uint32_t slices, uint64_t *out)
{
    struct copyq_cuda *q = queue_of(base);
    bool up = cuda_on_device(q->cuda, dst);
    if (!up && !cuda_on_device(q->cuda, src)) return push_host(q, dst, src, bytes, out);
    enum lane_name name = up ? UP : DOWN;
    struct lane *l = &q->lanes[name];
    if (!works(q)) return -ENODEV;
    if (l->pushed - l->landed == COPYQ_DEPTH) return -EAGAIN;

    bool whole = !up || slices < 2 || bytes % slices;
    add(q, name, dst, src, bytes, whole ? 0 : slices);
    *out = l->pushed * WAYS + name;
    return 0;
}

static int push(struct copyq *base, void *dst, const void *src, size_t bytes,
                uint64_t *out)
{
    return push_sliced(base, dst, src, bytes, 0, out);
}

static void flush(struct copyq *base)
{
    struct copyq_cuda *q = queue_of(base);
    copyq_flush(q->host);
    for (int i = 0; i < LANES; i++)
        if (works(q)) send(q, (enum lane_name)i);
}

static int poll(struct copyq *base, uint64_t ticket)
{
    struct copyq_cuda *q = queue_of(base);
    uint64_t number = ticket / WAYS;
    if (ticket % WAYS == HOST) return copyq_poll(q->host, number);
    enum lane_name name = (enum lane_name)(ticket % WAYS);
    struct lane *l = &q->lanes[name];
    if (number == 0 || number > l->pushed) return -EINVAL;
    if (number <= l->landed) return 0;
    if (!works(q)) return -ENODEV;
    send(q, name);
    land(q, name, number);
    return number <= l->landed ? 0 : works(q) ? -EAGAIN : -ENODEV;
}

/* ---- what arrives ---- */

/* The run of a copy that has been sent sliced and has not been seen to land; NULL. */
static const struct run *train_of(const struct copyq_cuda *q, uint64_t ticket)
{
    const struct lane *l = &q->lanes[UP];
    if (ticket % WAYS != UP) return NULL;
    for (uint64_t i = l->done; i < l->sent; i++) {
        const struct run *r = &l->ring[i % COPYQ_DEPTH];
        if (r->last >= ticket / WAYS) return r->slices > 0 ? r : NULL;
    }
    return NULL;
}

static bool arriving(struct copyq *base, uint64_t ticket)
{
    struct copyq_cuda *q = queue_of(base);
    const struct run *r = works(q) ? train_of(q, ticket) : NULL;
    if (!r) return poll(base, ticket) == 0;
    if (r->train > q->arriving) {
        cudaError_t e = cudaEventQuery(q->marks[r->train % TRAINS][0]);
        if (e == cudaErrorNotReady || !ok(q, e)) return false;
        q->arriving = r->train;
    }
    return true;
}

/* The later train of one queue stands for the earlier; that of another queue is waited for as
 * a whole. */
static bool await(struct copyq *base, uint64_t ticket)
{
    struct copyq_cuda *q = queue_of(base);
    struct cuda_arrival *a = &q->cuda->arriving;
    const struct run *r = works(q) ? train_of(q, ticket) : NULL;
    if (!r) return false;
    if (a->from == base && a->train >= r->train) return true;
    if (a->from && a->from != base) {
        ok(q, cudaStreamWaitEvent(q->cuda->compute, r->event, 0));
        return true;
    }
    *a = (struct cuda_arrival){
        .from = base,
        .marks = q->marks[r->train % TRAINS],
        .pieces = pieces(base, r->slices),
        .slices = r->slices,
        .train = r->train,
    };
    return true;
}

/* A pool of other layers than the slices were cut for waits for all at once. */
void cuda_await_layer(struct cuda *c, uint32_t layer, uint32_t layers)
{
    struct cuda_arrival *a = &c->arriving;
    if (!a->from) return;
    while (a->waited < a->pieces &&
           (layers != a->slices || slice_of(a->waited, a->slices) <= layer))
        cuda_ok(c, cudaStreamWaitEvent(c->compute, a->marks[a->waited++], 0),
                "waiting for blocks");
    if (a->waited == a->pieces) *a = (struct cuda_arrival){0};
}

static bool readable(struct copyq *base, const void *p)
{
    return !cuda_on_device(queue_of(base)->cuda, p);
}

static void *host_alloc(struct copyq *base, size_t bytes)
{
    return cuda_pin(queue_of(base)->cuda, bytes);
}

static void *host_alloc_most(struct copyq *base, size_t bytes, size_t *got)
{
    struct copyq_cuda *q = queue_of(base);
    return cuda_pin_most(q->cuda, q->arenas, bytes, got);
}

static void host_free(struct copyq *base, void *p)
{
    cuda_unpin(queue_of(base)->arenas, p);
}

static void close_queue(struct copyq *base)
{
    struct copyq_cuda *q = queue_of(base);
    (void)cudaSetDevice(q->cuda->device);
    if (q->cuda->arriving.from == base) q->cuda->arriving = (struct cuda_arrival){0};
    for (int i = 0; i < TRAINS * PIECES; i++) {
        cudaEvent_t mark = q->marks[i / PIECES][i % PIECES];
        if (mark) (void)cudaEventDestroy(mark);
    }
    for (int i = 0; i < LANES; i++) {
        struct lane *l = &q->lanes[i];
        if (l->stream) (void)cudaStreamSynchronize(l->stream);
        for (int r = 0; r < COPYQ_DEPTH; r++)
            if (l->ring[r].event) (void)cudaEventDestroy(l->ring[r].event);
        if (l->stream) (void)cudaStreamDestroy(l->stream);
    }
    if (q->computed) (void)cudaEventDestroy(q->computed);
    copyq_close(q->host);
    free(q);
}

static const struct copyq_ops queue_ops = {
    .push = push,
    .flush = flush,
    .poll = poll,
    .readable = readable,
    .host_alloc = host_alloc,
    .host_alloc_most = host_alloc_most,
    .host_free = host_free,
    .close = close_queue,
    .pieces = pieces,
    .push_sliced = push_sliced,
    .arriving = arriving,
    .await = await,
};

static void open_lane(struct copyq_cuda *q, struct lane *l)
{
    const unsigned flags = cudaEventDisableTiming;
    ok(q, cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
    for (int i = 0; i < COPYQ_DEPTH && !q->failed; i++)
        ok(q, cudaEventCreateWithFlags(&l->ring[i].event, flags));
}

int cuda_copyq_open(struct backend *b, struct copyq **out, struct err *err)
{
    struct cuda *c = cuda_of(b);
    if (!cuda_enter(c)) return err_set(err, -EIO, "%s", c->why_dead.msg);
    struct copyq_cuda *q = calloc(1, sizeof *q);
    if (!q) return err_set(err, -ENOMEM, "no memory for a copy queue");
    q->base.ops = &queue_ops;
    q->cuda = c;
    int rc = copyq_thread_open(&q->host, err);
    if (rc < 0) {
        close_queue(&q->base);
        return rc;
    }
    ok(q, cudaEventCreateWithFlags(&q->computed, cudaEventDisableTiming));
    for (int i = 0; i < TRAINS * PIECES && !q->failed; i++)
        ok(q, cudaEventCreateWithFlags(&q->marks[i / PIECES][i % PIECES],
                                       cudaEventDisableTiming));
    open_lane(q, &q->lanes[UP]);
    open_lane(q, &q->lanes[DOWN]);
    if (q->failed) {
        close_queue(&q->base);
        return err_set(err, -EIO, "%s", c->why_dead.msg);
    }
    *out = &q->base;
    return 0;
}
