/* workers.h - a few threads that run short jobs from one bounded queue.
 *
 * Owns     the threads and the queue.
 * Caller   keeps a job and what it points to alive until it has run.
 * Order    first in, first out; jobs may run at the same time.
 * Bounds   a full queue refuses (-EBUSY): nothing waits to be accepted.
 * Threads  workers_submit() from any thread; open, stop and close from one.
 */
#ifndef SERVER_WORKERS_H
#define SERVER_WORKERS_H

#include "kernels/base.h"

/* A link in the caller's own struct, lent from workers_submit() until `run` is called. */
struct job {
    void (*run)(struct job *j);
    struct job *next;
};

struct workers;
NODISCARD int workers_open(struct workers **out, uint32_t threads, uint32_t queue,
                           struct err *err);
NODISCARD int workers_submit(struct workers *w, struct job *j);
/* Runs what is queued and ends the threads; from then on every job is refused. */
void workers_stop(struct workers *w);
void workers_close(struct workers *w);  // stops first; NULL is fine

#endif
