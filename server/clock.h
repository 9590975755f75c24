/* clock.h - the monotonic clock, and waits that end by it.
 *
 * All times within this room are nanoseconds of this clock; below it a time is an argument.
 *
 * Owns     nothing.
 * Threads  any.
 */
#ifndef SERVER_CLOCK_H
#define SERVER_CLOCK_H

#include "kernels/base.h"

#include <pthread.h>

#define CLOCK_MS UINT64_C(1000000)
#define CLOCK_S  (1000 * CLOCK_MS)

uint64_t clock_ns(void);

/* A condition that clock_wait() may wait for. */
void clock_cond_open(pthread_cond_t *c);
/* Holding m: until somebody signals (or by accident: look again), or until the clock shows
 * `until`.  False: that time has come. */
bool clock_wait(pthread_cond_t *c, pthread_mutex_t *m, uint64_t until);

#endif
