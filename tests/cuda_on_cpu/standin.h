/* standin.h - steers the device that stands in for a GPU.
 *
 * Owns     nothing; it is what a test says to the stand-in libcudart.so.13 and libcublas.so.13
 *          built beside it.  The program under test knows nothing of it.
 * Caller   declares every function weak: under a real libcudart they are NULL, so a test
 *          asks `if (standin_reset)` before it steers.
 * Threads  any; standin_fail and standin_count at any time, the others while no CUDA call
 *          runs in another.
 *
 * Without a call the environment steers.  STANDIN_STREAMS = eager | lazy | random,
 * STANDIN_THREADS = forward | reverse | shuffled, STANDIN_SEED = number,
 * STANDIN_DEVICE_MEMORY, STANDIN_PINNED_MEMORY and STANDIN_NODE_MEMORY = bytes, STANDIN_FAIL
 * = CALL:N or CALL:N:ERROR (see standin_fail), STANDIN_KERNELS = libraries of translated kernels with
 * colons between (default: kernels.so beside libcudart.so.13), STANDIN_COUNTS = a file that
 * gets the counts, one `name value` a line, when the program ends.
 */
#ifndef CUDA_ON_CPU_STANDIN_H
#define CUDA_ON_CPU_STANDIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STANDIN_API __attribute__((weak))

/* When the operations of the streams run.  Every order that streams, events and the
 * legacy default stream allow may come up, and no other. */
enum standin_streams {
    STANDIN_EAGER,   // each as it is enqueued
    STANDIN_LAZY,    // as late as a wait of the host allows, and no more than it needs
    STANDIN_RANDOM,  // in any legal order, by the seed (the default)
};

/* Which thread of a block, and which block of a grid, goes first. */
enum standin_threads { STANDIN_FORWARD, STANDIN_REVERSE, STANDIN_SHUFFLED };

struct standin_counts {
    uint64_t calls;  // those that standin_fail("any", ...) counts
    uint64_t launches, blocks, threads, switches, barriers, warp_ops;
    uint64_t copies, h2d_bytes, d2h_bytes, d2d_bytes, h2h_bytes;
    uint64_t
        pageable_async;  // asynchronous copies from or to memory that is not pinned
    uint64_t syncs, allocs, frees, gemms, graph_launches;
    uint64_t device_used, device_peak, pinned_used;  // bytes
    // With so much in all, what was refused last would have been there; 0: nothing was.
    uint64_t device_wanted, pinned_wanted;
};

/* A fresh device: everything freed, errors, faults and counts forgotten.  Answers how
 * many allocations, device or pinned, and graphs were still there: leaks. */
STANDIN_API int standin_reset(void);
STANDIN_API void standin_schedule(enum standin_streams s, enum standin_threads t,
                                  uint64_t seed);
STANDIN_API void standin_memory(size_t device_bytes, size_t pinned_bytes);
/* The compute capability that the device names, 90 for 9.0. */
STANDIN_API void standin_capability(int tenths);
/* What each node of an executable graph takes of the device's memory. */
STANDIN_API void standin_node_memory(size_t bytes);

/* The nth call from now (1: the next) of `call` fails with `error`, a cudaError_t.  Call
 * is a function's name; "any", every call that can fail on a healthy device; or
 * "kernel:NAME", the nth run of a kernel whose name contains NAME, which shows at the
 * next wait.  Errors that kill a device's context (illegal address, launch failure, ECC
 * and their kind) are sticky here as there.  At most 16 at a time. */
STANDIN_API void standin_fail(const char *call, unsigned nth, int error);
STANDIN_API void standin_count(struct standin_counts *out);

#ifdef __cplusplus
}
#endif
#endif
