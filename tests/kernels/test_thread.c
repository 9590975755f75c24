/* test_thread.c - a thread that was started takes no signals; who started it does as before. */
#include "kernels/thread.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>

#include <cmocka.h>

static void *ask_mask(void *arg)
{
    pthread_sigmask(SIG_SETMASK, NULL, arg);
    return arg;
}

static void a_thread_takes_no_signals_and_its_starter_still_does(void **state)
{
    (void)state;
    sigset_t of_thread, before, after;
    pthread_t thread;
    void *result;
    sigemptyset(&of_thread);
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &before, NULL);

    assert_int_equal(thread_start(&thread, ask_mask, &of_thread), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &of_thread);

    static const int asynchronous[] = {SIGTERM, SIGINT,  SIGHUP, SIGALRM,
                                       SIGUSR1, SIGUSR2, SIGCHLD};
    for (size_t i = 0; i < ARRAY_LEN(asynchronous); i++)
        assert_true(sigismember(&of_thread, asynchronous[i]));
    assert_false(sigismember(&of_thread, SIGSEGV));
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_true(sigismember(&after, SIGUSR2));
    assert_false(sigismember(&after, SIGTERM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_takes_no_signals_and_its_starter_still_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
