/* Streams and events: who runs after whom. */
#include "tests/cuda_on_cpu/internal.h"

struct CUevent_st {
    struct operation *recorded;
    struct CUgraph_st *capture;  // the graph it was recorded into, which then owns it
    unsigned flags;
};

/* The legacy default stream waits for all blocking streams, and they for it.  It is the
 * last of the list and is never destroyed. */
static struct CUstream_st default_stream;
struct CUstream_st *streams = &default_stream;

struct CUstream_st *stream_of(cudaStream_t s)
{
    return !s || s == cudaStreamLegacy ? &default_stream : s;
}

/* ---- streams ---- */

static cudaError_t order_with_default(struct CUstream_st *s, struct operation *o)
{
    if (s->nonblocking) return cudaSuccess;
    if (s != &default_stream) {
        operation_after(o, default_stream.last);
        return cudaSuccess;
    }
    for (struct CUstream_st *t = streams; t; t = t->next) {
        if (t->nonblocking) continue;
        if (t->capture) {
            t->capture->invalid = true;
            return cudaErrorStreamCaptureImplicit;
        }
        operation_after(o, t->last);
    }
    return cudaSuccess;
}

cudaError_t stream_push(struct CUstream_st *s, struct operation *o)
{
    if (s->capture) {
        operation_after(o, s->capture_last);
        graph_add(s->capture, o);
        s->capture_last = o;
        return cudaSuccess;
    }
    cudaError_t e = order_with_default(s, o);
    if (e) {
        operation_unref(o);
        return e;
    }
    operation_after(o, s->last);
    operation_unref(s->last);
    s->last = operation_ref(o);
    operation_submit(o);
    return cudaSuccess;
}

cudaError_t stream_enqueue(struct CUstream_st *s, const char *what, void (*run)(void *),
                           const void *argument, size_t n)
{
    return stream_push(s, operation_new(what, run, argument, n, s->identity));
}

cudaError_t standin_enqueue_gemm(cudaStream_t s, void (*run)(void *),
                                 const void *argument, size_t n)
{
    return stream_enqueue(stream_of(s), "gemm", run, argument, n);
}

/* The first that fewest streams have. */
static unsigned choose_identity(void)
{
    unsigned users[IDENTITIES] = {0}, best = 1;
    for (const struct CUstream_st *s = streams; s; s = s->next) users[s->identity]++;
    for (unsigned i = 1; i < IDENTITIES; i++)
        if (users[i] < users[best]) best = i;
    return best;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags,
                                         int priority)
{
    (void)priority;
    ENTER();
    struct CUstream_st *s = raw_alloc(sizeof *s);
    s->nonblocking = flags & cudaStreamNonBlocking;
    s->identity = choose_identity();
    s->next = streams;
    streams = s;
    *out = s;
    LEAVE(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    return cudaStreamCreateWithPriority(s, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *s)
{
    return cudaStreamCreateWithPriority(s, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    ENTER();
    for (struct CUstream_st **s = &streams; *s != &default_stream; s = &(*s)->next) {
        if (*s != stream) continue;
        *s = stream->next;
        operation_unref(stream->last);  // what is pending still runs, as on a device
        raw_free(stream);
        LEAVE(cudaSuccess);
    }
    LEAVE(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    ENTER_UNLESS_CAPTURING(WAITS_FOR, stream_of(s));
    counts.syncs++;
    operation_wait(stream_of(s)->last);
    LEAVE(sticky_error());
}

static cudaError_t query(struct operation *o)
{
    if (o && !o->done) operations_progress();
    if (o && !o->done) return cudaErrorNotReady;
    if (o) sync_acquire(o->ran);
    return sticky_error();
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    ENTER_UNLESS_CAPTURING(WAITS_FOR, stream_of(s));
    LEAVE(query(stream_of(s)->last));
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER_UNLESS_CAPTURING(WAITS_FOR_ALL, NULL);
    counts.syncs++;
    operations_wait_all();
    LEAVE(sticky_error());
}

struct host_call {
    cudaHostFn_t function;
    void *argument;
};

static void run_host_call(void *argument)
{
    const struct host_call *c = argument;
    c->function(c->argument);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void *argument)
{
    ENTER();
    struct host_call c = {function, argument};
    LEAVE(stream_enqueue(stream_of(s), "host function", run_host_call, &c, sizeof c));
}

void streams_free_all(void)
{
    while (streams != &default_stream) {
        struct CUstream_st *s = streams;
        streams = s->next;
        operation_unref(s->last);
        raw_free(s);
    }
    operation_unref(default_stream.last);
    default_stream.last = NULL;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    ENTER();
    *out = raw_alloc(sizeof **out);
    (*out)->flags = flags;
    LEAVE(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

static void forget_record(cudaEvent_t e)
{
    if (!e->capture) operation_unref(e->recorded);
    e->recorded = NULL;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    ENTER();
    if (!e) LEAVE(cudaErrorInvalidResourceHandle);
    forget_record(e);
    raw_free(e);
    LEAVE(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
    ENTER();
    if (!e) LEAVE(cudaErrorInvalidResourceHandle);
    struct CUstream_st *s = stream_of(stream);
    struct operation *o = operation_new("event", NULL, NULL, 0, s->identity);
    operation_ref(o);
    cudaError_t error = stream_push(s, o);
    forget_record(e);
    e->capture = s->capture;
    e->recorded = o;
    if (s->capture) operation_unref(o);
    LEAVE(error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned flags)
{
    (void)flags;
    ENTER();
    if (!e) LEAVE(cudaErrorInvalidResourceHandle);
    if (!e->recorded) LEAVE(cudaSuccess);
    struct CUstream_st *s = stream_of(stream);
    if (e->capture && !s->capture) capture_join(s, e->capture);
    if (s->capture != e->capture) {
        s->capture->invalid = true;
        LEAVE(cudaErrorStreamCaptureIsolation);
    }
    struct operation *o = operation_new("wait", NULL, NULL, 0, s->identity);
    operation_after(o, e->recorded);
    LEAVE(stream_push(s, o));
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    ENTER_UNLESS_CAPTURING(UNSAFE, NULL);
    counts.syncs++;
    if (!e) LEAVE(cudaErrorInvalidResourceHandle);
    operation_wait(e->recorded);
    LEAVE(sticky_error());
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    ENTER_UNLESS_CAPTURING(UNSAFE, NULL);
    if (!e) LEAVE(cudaErrorInvalidResourceHandle);
    LEAVE(query(e->recorded));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    ENTER();
    if (!from || !to || !from->recorded || !to->recorded ||
        (from->flags | to->flags) & cudaEventDisableTiming)
        LEAVE(cudaErrorInvalidResourceHandle);
    if (!from->recorded->done || !to->recorded->done) LEAVE(cudaErrorNotReady);
    *ms = (float)((to->recorded->time - from->recorded->time) * 1e3);
    LEAVE(cudaSuccess);
}
