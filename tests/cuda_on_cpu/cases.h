/* cases.h - runs deliberate mistakes, each in processes of its own, and asks who saw them.
 *
 * Owns     a table of cases made into cmocka tests.
 * Caller   fills `struct mistake` and gives it to RUN_CASES from main().
 *
 * A case runs under several orders of streams and threads.  A mistake counts as seen when
 * at least one run fails and says why, and none fails in another way; what is right must
 * end well every time.
 */
#ifndef CUDA_ON_CPU_CASES_H
#define CUDA_ON_CPU_CASES_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#include "kernels/base.h"
#include "tests/cuda_on_cpu/planted.h"
#include "tests/cuda_on_cpu/standin.h"

/* The builds that see a mistake. */
enum { PTX = 1, SOURCE = 2, ADDRESS = 4, THREAD = 8, ALL = 15 };
enum { BOUNDS = PTX | ADDRESS };  // translated PTX checks every access itself

#if WATCHED_ADDRESS
static const int this_build = ADDRESS;
#elif WATCHED_THREAD
static const int this_build = THREAD;
#elif defined(CUDA_ON_CPU)
static const int this_build = SOURCE;
#else
static const int this_build = PTX;
#endif

struct mistake {
    const char *name;
    void (*run)(void);
    int seen_by;       // 0: there is none
    const char *says;  // one of these, with | between; "wrong result" is wrong()'s
};

/* ---- inside a case ---- */

static inline void wrong(bool yes)
{
    if (!yes) return;
    fputs("wrong result\n", stderr);
    _exit(3);
}
#define GIVES(call, error)                                                             \
    do {                                                                               \
        cudaError_t e_ = (call);                                                       \
        if (e_ == (error)) break;                                                      \
        fprintf(stderr, "line %d: %s gave %d\n", __LINE__, #call, (int)e_);            \
        _exit(9);                                                                      \
    } while (0)
#define OK(call) GIVES(call, cudaSuccess)

static float host[4096];  // pageable

static inline float *device(int n)
{
    void *p;
    OK(cudaMalloc(&p, (size_t)n * sizeof(float)));
    OK(cudaMemset(p, 0, (size_t)n * sizeof(float)));
    OK(cudaDeviceSynchronize());
    return p;
}
static inline float *pinned(int n, float value)
{
    void *p;
    OK(cudaHostAlloc(&p, (size_t)n * sizeof(float), 0));
    for (int i = 0; i < n; i++) ((float *)p)[i] = value;
    return p;
}
static inline void fetch(const float *p, int n)
{
    OK(cudaMemcpy(host, p, (size_t)n * sizeof(float), cudaMemcpyDeviceToHost));
}
static inline cudaStream_t stream(void)
{
    cudaStream_t s;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}
static inline void launch(const char *kernel, unsigned blocks, unsigned threads,
                          float *out, const float *in, int n)
{
    OK(planted_launch(kernel, (dim3){blocks, 1, 1}, threads, 0, NULL, out, in, n));
    OK(cudaDeviceSynchronize());
}

/* ---- running a case ---- */

/* TSan's: no pause as a process ends; there are many. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=0";
}

static inline bool says(const char *output, const char *alternatives)
{
    char words[200], *state, *word;
    snprintf(words, sizeof words, "%s", alternatives);
    for (word = strtok_r(words, "|", &state); word; word = strtok_r(NULL, "|", &state))
        if (strstr(output, word)) return true;
    return false;
}

/* The status that one run ends with, and what it writes to stderr. */
static inline int run_once(const struct mistake *m, unsigned run, char *output,
                           size_t size)
{
    int fd[2], status;
    assert_return_code(pipe(fd), 0);
    pid_t child = fork();
    if (!child) {
        dup2(fd[1], STDERR_FILENO);
        close(fd[0]);
        signal(SIGSEGV, SIG_DFL);  // cmocka's handler would go on with the next test
        standin_schedule(run % 4 ? STANDIN_RANDOM : STANDIN_LAZY,
                         (enum standin_threads)(run % 3), 100 + run);
        m->run();
        _exit(0);
    }
    close(fd[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(fd[0], output + n, size - 1 - n)) > 0;)
        n += (size_t)got;
    output[n] = 0;
    close(fd[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return strstr(output, "WARNING: ThreadSanitizer") ? 1 : status;
}

static inline void run_case(void **state)
{
    static char output[1 << 16];
    const struct mistake *m = *state;
    unsigned runs = this_build & (PTX | SOURCE) ? 12 : 4, seen = 0;
    if (!standin_schedule) skip();
    for (unsigned run = 0; run < runs; run++) {
        int status = run_once(m, run, output, sizeof output);
        if (status && !(m->seen_by && says(output, m->says)))
            fail_msg("run %u ended with status %x:\n%s", run, status, output);
        seen += status != 0;
    }
    if (m->seen_by & this_build && !seen) fail_msg("no run of %u saw it", runs);
}

/* Translated kernels lie beside the program's own folder; see kernels/cuda/cuda.mk. */
static inline void name_kernels(void)
{
    char path[4096] = "";
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    char *folder = n > 0 ? strstr(path, "/tests/cuda_on_cpu/") : NULL;
    if (!folder) return;
    strcpy(folder, "/standin/planted.so");
    setenv("STANDIN_KERNELS", path, 0);
}

static inline int run_cases(const struct mistake *mistakes, size_t n)
{
    struct CMUnitTest tests[64];
    for (size_t i = 0; i < n; i++)
        tests[i] = (struct CMUnitTest){mistakes[i].name, run_case, NULL, NULL,
                                       (void *)&mistakes[i]};
    name_kernels();
    return _cmocka_run_group_tests("mistakes", tests, n, NULL, NULL);
}

#endif
