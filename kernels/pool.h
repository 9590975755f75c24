/* pool.h - a fixed set of threads that share out the items of one job at a time.
 *
 * Owns     its worker threads.  The caller's own thread is thread 0 and takes part.
 * Policy   items are handed out one by one in ascending order to whoever asks, so a
 *          thread that lost its core delays at most the item it holds; one that never
 *          woke up delays nothing.  Idle workers spin for a moment, then park.
 * Memory   all taken by pool_open; pool_run allocates nothing.
 * Threads  one thread at a time opens, runs and closes.
 */
#ifndef KERNELS_POOL_H
#define KERNELS_POOL_H

#include "kernels/base.h"

struct pool;

/* Item `i` of a job, on thread `thread` (0 .. threads - 1). */
typedef void pool_fn(void *arg, uint32_t i, uint32_t thread);

/* threads counts the caller.  -ENOMEM, -EAGAIN where the system grants no more. */
NODISCARD int pool_open(struct pool **out, uint32_t threads, struct err *err);
void pool_close(struct pool *p);  // NULL is fine

/* Call fn for 0 .. n - 1, each once, and return when all have returned.  What the items
 * wrote is then visible to the caller. */
void pool_run(struct pool *p, uint32_t n, pool_fn *fn, void *arg);

#endif
