/* Stream capture and graphs: what a stream is given is kept instead of run, and a launch
 * submits copies of it that run in any order the capture allows. */
#include <string.h>

#include "tests/cuda_on_cpu/internal.h"

/* An executable graph: nodes of its own, so that an update may change their arguments. */
struct CUgraphExec_st {
    struct operation **node;
    unsigned n;
    size_t bytes;  // of the device's memory
};

static unsigned n_capturing;  // streams

/* ---- capture ---- */

void graph_add(struct CUgraph_st *g, struct operation *o)
{
    if (g->n == g->room) {
        g->room = g->room ? 2 * g->room : 64;
        struct operation **more = raw_alloc(g->room * sizeof *more);
        raw_copy(more, g->node, g->n * sizeof *more);
        raw_free(g->node);
        g->node = more;
    }
    o->node = g->n;
    g->node[g->n++] = o;
}

void capture_join(struct CUstream_st *s, struct CUgraph_st *g)
{
    s->capture = g;
    s->capture_last = NULL;
    n_capturing++;
}

static bool forbids(const struct CUgraph_st *g)
{
    return g->mode == cudaStreamCaptureModeGlobal ||
           (g->mode == cudaStreamCaptureModeThreadLocal &&
            pthread_equal(g->thread, pthread_self()));
}

bool capture_breaks(enum capture_call call, const struct CUstream_st *waited)
{
    bool breaks = false;
    for (struct CUstream_st *s = streams; s && n_capturing; s = s->next) {
        if (!s->capture) continue;
        bool waits = call == WAITS_FOR_ALL || (call == WAITS_FOR && s == waited);
        if (!waits && !forbids(s->capture)) continue;
        s->capture->invalid = breaks = true;
    }
    return breaks;
}

void captures_forget(void)
{
    n_capturing = 0;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    ENTER();
    struct CUstream_st *s = stream_of(stream);
    if (s == stream_of(NULL)) LEAVE(cudaErrorStreamCaptureUnsupported);
    if (s->capture) LEAVE(cudaErrorIllegalState);
    struct CUgraph_st *g = raw_alloc(sizeof *g);
    g->origin = s;
    g->mode = mode;
    g->thread = pthread_self();
    capture_join(s, g);
    LEAVE(cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  enum cudaStreamCaptureStatus *out)
{
    ENTER();
    const struct CUgraph_st *g = stream_of(stream)->capture;
    *out = !g           ? cudaStreamCaptureStatusNone
           : g->invalid ? cudaStreamCaptureStatusInvalidated
                        : cudaStreamCaptureStatusActive;
    LEAVE(cudaSuccess);
}

static void graph_free(struct CUgraph_st *g)
{
    for (unsigned i = g->n; i-- > 0;) operation_unref(g->node[i]);
    raw_free(g->node);
    raw_free(g);
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    ENTER();
    if (!g) LEAVE(cudaErrorInvalidValue);
    graph_free(g);
    LEAVE(cudaSuccess);
}

/* Every stream leaves the capture; whether one had work that its origin does not wait
 * for. */
static bool end_capture(struct CUgraph_st *g)
{
    const struct operation *last = g->origin->capture_last;
    for (unsigned i = 0; i < g->n; i++) g->node[i]->marked = g->node[i] == last;
    for (unsigned i = g->n; i-- > 0;)
        for (unsigned j = 0; g->node[i]->marked && j < g->node[i]->n_after; j++)
            g->node[i]->after[j]->marked = true;
    bool unjoined = false;
    for (struct CUstream_st *s = streams; s; s = s->next) {
        if (s->capture != g) continue;
        unjoined |= s->capture_last && !s->capture_last->marked;
        s->capture = NULL;
        s->capture_last = NULL;
        n_capturing--;
    }
    return unjoined;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    ENTER();
    *out = NULL;
    struct CUgraph_st *g = stream_of(stream)->capture;
    if (!g) LEAVE(cudaErrorIllegalState);
    if (g->origin != stream) LEAVE(cudaErrorStreamCaptureUnmatched);
    bool unjoined = end_capture(g);
    if (!g->invalid && !unjoined) {
        *out = g;
        LEAVE(cudaSuccess);
    }
    cudaError_t e =
        g->invalid ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined;
    graph_free(g);
    LEAVE(e);
}

/* ---- executable graphs ---- */

static void wire(struct operation **copies, struct operation *const *nodes, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        copies[i] = operation_copy(nodes[i]);
        copies[i]->node = i;
        for (unsigned j = 0; j < nodes[i]->n_after; j++)
            operation_after(copies[i], copies[nodes[i]->after[j]->node]);
    }
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g,
                                 unsigned long long flags)
{
    (void)flags;
    ENTER();
    if (!out || !g) LEAVE(cudaErrorInvalidValue);
    if (!memory_take(g->n * node_bytes)) LEAVE(cudaErrorMemoryAllocation);
    struct CUgraphExec_st *x = raw_alloc(sizeof *x);
    x->n = g->n;
    x->bytes = g->n * node_bytes;
    x->node = raw_alloc(x->n * sizeof *x->node);
    wire(x->node, g->node, x->n);
    *out = x;
    LEAVE(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    ENTER();
    if (!x) LEAVE(cudaErrorInvalidValue);
    for (unsigned i = x->n; i-- > 0;) operation_unref(x->node[i]);
    memory_give(x->bytes);
    raw_free(x->node);
    raw_free(x);
    LEAVE(cudaSuccess);
}

/* What it takes of the device it has taken already. */
cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t stream)
{
    ENTER();
    struct CUstream_st *s = stream_of(stream);
    if (!x) LEAVE(cudaErrorInvalidValue);
    LEAVE(s->capture ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

/* An update may change arguments, never what is done or its order. */
static bool same_node(const struct operation *a, const struct operation *b)
{
    if (a->run != b->run || a->what != b->what || a->n_after != b->n_after)
        return false;
    for (unsigned i = 0; i < a->n_after; i++)
        if (a->after[i]->node != b->after[i]->node) return false;
    return true;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t x, cudaGraph_t g,
                                cudaGraphExecUpdateResultInfo *info)
{
    ENTER();
    if (!x || !g || !info) LEAVE(cudaErrorInvalidValue);
    memset(info, 0, sizeof *info);
    info->result = cudaGraphExecUpdateErrorTopologyChanged;
    if (x->n != g->n) LEAVE(cudaErrorGraphExecUpdateFailure);
    for (unsigned i = 0; i < x->n; i++)
        if (!same_node(x->node[i], g->node[i])) LEAVE(cudaErrorGraphExecUpdateFailure);
    info->result = cudaGraphExecUpdateSuccess;
    for (unsigned i = x->n; i-- > 0;) operation_unref(x->node[i]);
    wire(x->node, g->node, x->n);
    LEAVE(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t stream)
{
    ENTER();
    struct CUstream_st *s = stream_of(stream);
    if (!x) LEAVE(cudaErrorInvalidValue);
    if (s->capture) LEAVE(cudaErrorStreamCaptureUnsupported);
    counts.graph_launches++;
    operations_hold(true);
    struct operation *first = operation_new("graph begin", NULL, NULL, 0, s->identity),
                     *last = operation_new("graph end", NULL, NULL, 0, s->identity);
    operation_ref(first);
    cudaError_t e = stream_push(s, first);
    struct operation **copies = raw_alloc(x->n * sizeof *copies);
    wire(copies, x->node, x->n);
    for (unsigned i = 0; i < x->n; i++) {
        operation_after(copies[i], first);
        operation_after(last, copies[i]);
        operation_submit(copies[i]);
    }
    raw_free(copies);
    operation_unref(first);
    if (!e) e = stream_push(s, last);
    operations_hold(false);
    LEAVE(e);
}
