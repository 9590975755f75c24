#include "server/clock.h"

#include <time.h>

uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * CLOCK_S + (uint64_t)t.tv_nsec;
}

void clock_cond_open(pthread_cond_t *c)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(c, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool clock_wait(pthread_cond_t *c, pthread_mutex_t *m, uint64_t until)
{
    const struct timespec t = {.tv_sec = (time_t)(until / CLOCK_S),
                               .tv_nsec = (long)(until % CLOCK_S)};
    return pthread_cond_timedwait(c, m, &t) != ETIMEDOUT;
}
