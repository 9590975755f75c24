#include "kernels/thread.h"

#include <signal.h>

int thread_start(pthread_t *out, void *(*fn)(void *arg), void *arg)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t block, before;
    sigfillset(&block);
    for (size_t i = 0; i < ARRAY_LEN(faults); i++) sigdelset(&block, faults[i]);
    int rc = pthread_sigmask(SIG_BLOCK, &block, &before);
    if (rc) return -rc;
    rc = pthread_create(out, NULL, fn, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -rc;
}
