/* fast_clock.c - for LD_PRELOAD: from one look at the monotonic clock to the next at least a second
 * passes, so that what is told every few seconds is told at once. */
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *t)
{
    static atomic_long looks;
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && id == CLOCK_MONOTONIC) t->tv_sec += atomic_fetch_add(&looks, 1);
    return rc;
}
