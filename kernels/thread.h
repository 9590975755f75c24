/* thread.h - starting a thread that takes no signals.
 *
 * Signals are for the thread that waits for them: any other one would have its waits and
 * its system calls cut short.
 *
 * Owns     nothing; the caller joins the thread.
 * Threads  any.
 */
#ifndef KERNELS_THREAD_H
#define KERNELS_THREAD_H

#include "kernels/base.h"

#include <pthread.h>

/* fn(arg) in a thread that has all signals blocked but those of a fault of its own, which a
 * sanitizer reports; the caller's mask stays as it is.  -EAGAIN where the system has no
 * more threads. */
NODISCARD int thread_start(pthread_t *out, void *(*fn)(void *arg), void *arg);

#endif
