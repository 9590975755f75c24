/* internal.h - between the parts of the stand-in; neither kernels nor tests include it.
 *
 * Owns     the names: lock.c (entry, faults, counts), memory.c, order.c (operations and
 *          when they run), block.c (kernels).
 * Threads  any: every CUDA call holds the one lock from standin_enter to standin_leave,
 *          and what an operation does it does under it.
 *
 * A device address as the host holds it points into pages that nobody may touch; the
 * bytes lie device_shift() beyond.  So host code that follows a device pointer faults at
 * once.  Kernels get shifted arguments, copies shift what memory_device_bytes names.
 */
#ifndef CUDA_ON_CPU_INTERNAL_H
#define CUDA_ON_CPU_INTERNAL_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/cuda_on_cpu/device.h"
#include "tests/cuda_on_cpu/sanitizers.h"
#include "tests/cuda_on_cpu/standin.h"

/* ---- lock.c: into the stand-in and out of it ---- */

extern struct standin_counts counts;
/* Takes the lock, lets time pass (some pending operation may run), and answers the error
 * that `call` fails with, if it is its turn. */
cudaError_t standin_enter(const char *call);
cudaError_t standin_leave(cudaError_t e);  // remembers e as the last error, unlocks
cudaError_t sticky_error(void);            // why the device is dead, or cudaSuccess
void kill_device(cudaError_t e);
bool kernel_fails(const char *name, cudaError_t *e);  // by standin_fail("kernel:...")
uint64_t random_number(void);
uint64_t random_below(uint64_t n);

/* Opens a CUDA call; where it is to fail, the caller returns at once. */
#define ENTER()                                                                        \
    do {                                                                               \
        cudaError_t refused_ = standin_enter(__func__);                                \
        if (refused_) return standin_leave(refused_);                                  \
    } while (0)
#define LEAVE(e) return standin_leave(e)
/* For calls that a stream capture of theirs (enum capture_call) forbids: they end it. */
#define ENTER_UNLESS_CAPTURING(call, s)                                                \
    do {                                                                               \
        ENTER();                                                                       \
        if (capture_breaks(call, s)) LEAVE(cudaErrorStreamCaptureUnsupported);         \
    } while (0)

/* ---- memory.c ---- */
extern size_t device_capacity, pinned_capacity, node_bytes;
void memory_open(void);
/* Accesses to what nobody may touch are told from now on; a test's own handler may have come
 * between. */
void memory_watch(void);
/* So many bytes of the device's memory that nobody sees; false: there are not so many. */
bool memory_take(size_t n);
void memory_give(size_t n);
int memory_free_all(void);  // answers how many were there
bool memory_is_device_space(const void *p);
/* Whether [p, p+n) lies within one live device allocation, or one pinned range. */
bool memory_on_device(const void *p, size_t n);
bool memory_pinned(const void *p, size_t n);
/* Where the bytes of a host's view of memory lie: device addresses are shifted. */
void *memory_bytes(const void *p);
/* The device reads or writes [p, p+n), p being where the bytes lie: sanitizers are told,
 * a range outside its allocation is reported. */
void memory_touch(const void *p, size_t n, bool write);
/* The words of a kernel's arguments: device addresses become those of the bytes, and a
 * stale or unpinned one is reported. */
void memory_shift_argument(const char *kernel, unsigned argument, void *bytes,
                           size_t n);

/* ---- order.c: operations and the order in which they run ---- */
struct operation {
    const char *what;  // "copy", "event", a kernel's name
    void (*run)(void *argument);
    void *argument;  // owned; may be NULL
    size_t argument_bytes;
    struct operation **after;  // these must have run; owned references
    unsigned n_after, refs;
    unsigned stream;  // its identity
    unsigned node;    // its index in the graph that it was captured into
    bool done, marked;
    double time;
    char *enqueued, *ran;  // cells that TSan orders by
};
struct operation *operation_new(const char *what, void (*run)(void *),
                                const void *argument, size_t n, unsigned stream);
struct operation *operation_copy(const struct operation *o);  // without its order
struct operation *operation_ref(struct operation *o);
void operation_unref(struct operation *o);
void operation_after(struct operation *o, struct operation *earlier);  // NULL is fine
void operation_submit(
    struct operation *o);  // it may run from now on; takes the reference
void operation_wait(struct operation *o);  // NULL is fine
void operations_wait_all(void);
void operations_progress(void);   // time passes: one that may run does
void operations_hold(bool hold);  // while a graph is wired nothing runs
void order_open(void);
void order_set(enum standin_streams s);

/* ---- stream.c ---- */
/* Under TSan a stream and its CUDA threads are threads of their own.  The default stream is
 * the first of them; of others as many as there are identities may live before two share
 * one.  Each costs TSan two threads for every thread of its widest block, and all that
 * synchronises a time in proportion to all of them. */
enum { IDENTITIES = 9 };
struct CUstream_st {
    bool nonblocking;
    unsigned identity;
    struct operation *last;
    struct CUgraph_st *capture;  // NULL while not capturing
    struct operation *capture_last;
    struct CUstream_st *next;
};
extern struct CUstream_st *streams;
struct CUstream_st *stream_of(cudaStream_t s);
/* Puts o at the stream's end, or into the graph it captures; takes the reference. */
cudaError_t stream_push(struct CUstream_st *s, struct operation *o);
cudaError_t stream_enqueue(struct CUstream_st *s, const char *what, void (*run)(void *),
                           const void *argument, size_t n);
void streams_free_all(void);

/* ---- graph.c ---- */
struct CUgraph_st {
    struct operation **node;
    unsigned n, room;
    bool invalid;
    struct CUstream_st *origin;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;  // that began it
};
/* What CUDA calls potentially unsafe while a stream captures, a wait for one stream, and a
 * wait for all of them. */
enum capture_call { UNSAFE, WAITS_FOR, WAITS_FOR_ALL };
void graph_add(struct CUgraph_st *g, struct operation *o);
void capture_join(struct CUstream_st *s, struct CUgraph_st *g);
/* True, and the captures that forbid it invalid, where there are any: a global one forbids
 * unsafe calls to all threads, a thread's own to that thread, a relaxed one to nobody, and
 * each of them a wait for the stream that captures.  s is that of WAITS_FOR. */
bool capture_breaks(enum capture_call call, const struct CUstream_st *s);
void captures_forget(void);

/* ---- block.c, launch.c ---- */
/* Runs every block of the grid, one after another; `stream` picks TSan identities. */
void kernel_run(const struct kernel *k, dim3 grid, dim3 block, size_t shared_bytes,
                void **args, unsigned stream);
void block_set_order(enum standin_threads t);
void launch_forget(void);
size_t shared_optin(void);  // bytes a block may ask for

/* For cuBLAS, a library of its own: its name in front because it is exported. */
cudaError_t standin_enqueue_gemm(cudaStream_t s, void (*run)(void *),
                                 const void *argument, size_t n);

/* ---- block.c to warp.c and shared.c ---- */
enum thread_state { THREAD_READY, THREAD_AT_BARRIER, THREAD_IN_WARP_OP, THREAD_DONE };
struct pending_copy {
    void *to;
    const void *from;
    unsigned n, n_source, group;
};
struct thread {
    struct fiber *fiber;
    enum thread_state state;
    struct dim index;
    unsigned linear, lane;
    struct warp *warp;
    struct thread *mates;  // the first thread of the warp
    unsigned n_mates;      // fewer than 32 in a partial last warp
    const char *file;      // of the barrier it waits in
    int line;
    const struct warp_call *call;  // the warp operation it waits in
    char *sync;                    // the cell that TSan orders this rendezvous by
    struct pending_copy *copies;   // cp.async not waited for
    unsigned n_copies, group;
};
struct warp {
    unsigned waiting, at_barrier, exited;  // a bit a lane
};
extern struct thread *running;  // the CUDA thread, NULL in host code
void thread_yield(void);
static inline bool differ(const char *a, const char *b)
{
    return a != b && strcmp(a, b);
}
/* A block's shared memory, filled with NaN; fresh pages where TSan watches. */
void shared_start(size_t n);

#endif
