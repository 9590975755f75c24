#include "tests/machine.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BUFFER  ((size_t)256 << 20)
#define TRIES   7
#define SUMS    12  // independent chains: enough to hide the latency of an FMA
#define STEPS   4000000u
#define THREADS 64

typedef float f32x8 __attribute__((vector_size(32)));

double machine_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double machine_median(double *x, uint32_t n)
{
    qsort(x, n, sizeof *x, by_size);
    return x[n / 2];
}

typedef float f32x16 __attribute__((vector_size(64)));

enum work { READ, MULTIPLY, MULTIPLY_PAIRS };

struct part {
    enum work work;
    pthread_t thread;
    pthread_barrier_t *start;
    const float *from;
    size_t floats;
    double flops;
    double began, ended;
    float result;  // keeps the compiler from leaving the work out
};

#ifdef __x86_64__
#define WIDE  __attribute__((target("avx2,fma")))
#define PAIRS __attribute__((target("avx512f,avx512bf16")))
#else
#define WIDE
#define PAIRS
#endif

WIDE static void read_part(struct part *p)
{
    f32x8 sum[4] = {0};
    const f32x8 *v = (const f32x8 *)p->from;
    for (size_t i = 0; i < p->floats / 8; i += 4) {
        for (int k = 0; k < 4; k++) sum[k] += v[i + (size_t)k];
    }
    sum[0] += sum[1] + sum[2] + sum[3];
    p->result = sum[0][0];
}

WIDE static void multiply_part(struct part *p)
{
    // Twelve names, not an array: compilers keep these in registers.
    f32x8 a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0};
    f32x8 g = {0}, h = {0}, i = {0}, j = {0}, k = {0}, l = {0}, v = {0};
    for (uint32_t n = 0; n < STEPS; n++) {
#ifdef __x86_64__
        __asm__ volatile("vfmadd231ps %12, %12, %0\n\tvfmadd231ps %12, %12, %1\n\t"
                         "vfmadd231ps %12, %12, %2\n\tvfmadd231ps %12, %12, %3\n\t"
                         "vfmadd231ps %12, %12, %4\n\tvfmadd231ps %12, %12, %5\n\t"
                         "vfmadd231ps %12, %12, %6\n\tvfmadd231ps %12, %12, %7\n\t"
                         "vfmadd231ps %12, %12, %8\n\tvfmadd231ps %12, %12, %9\n\t"
                         "vfmadd231ps %12, %12, %10\n\tvfmadd231ps %12, %12, %11"
                         : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f),
                           "+x"(g), "+x"(h), "+x"(i), "+x"(j), "+x"(k), "+x"(l)
                         : "x"(v));
#else
        a += v * v, b += v * v, c += v * v, d += v * v, e += v * v, f += v * v;
        g += v * v, h += v * v, i += v * v, j += v * v, k += v * v, l += v * v;
#endif
    }
    a += b + c + d + e + f + g + h + i + j + k + l;
    p->result = a[0];
    p->flops = 2.0 * 8 * SUMS * STEPS;
}

PAIRS static void multiply_pairs_part(struct part *p)
{
    f32x16 a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0};
    f32x16 g = {0}, h = {0}, i = {0}, j = {0}, k = {0}, l = {0}, v = {0};
    for (uint32_t n = 0; n < STEPS; n++) {
#ifdef __x86_64__
        __asm__ volatile("vdpbf16ps %12, %12, %0\n\tvdpbf16ps %12, %12, %1\n\t"
                         "vdpbf16ps %12, %12, %2\n\tvdpbf16ps %12, %12, %3\n\t"
                         "vdpbf16ps %12, %12, %4\n\tvdpbf16ps %12, %12, %5\n\t"
                         "vdpbf16ps %12, %12, %6\n\tvdpbf16ps %12, %12, %7\n\t"
                         "vdpbf16ps %12, %12, %8\n\tvdpbf16ps %12, %12, %9\n\t"
                         "vdpbf16ps %12, %12, %10\n\tvdpbf16ps %12, %12, %11"
                         : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f),
                           "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l)
                         : "v"(v));
#endif
    }
    a += b + c + d + e + f + g + h + i + j + k + l;
    p->result = a[0];
    p->flops = 2.0 * 32 * SUMS * STEPS;
}

static bool has_pairs(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

static void *work(void *arg)
{
    struct part *p = arg;
    pthread_barrier_wait(p->start);
    p->began = machine_now();
    switch (p->work) {
    case READ: read_part(p); break;
    case MULTIPLY: multiply_part(p); break;
    case MULTIPLY_PAIRS: multiply_pairs_part(p); break;
    }
    p->ended = machine_now();
    return NULL;
}

/* Seconds from the first start to the last end. */
static double run(struct part *parts, uint32_t threads, enum work kind)
{
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, threads);
    for (uint32_t i = 0; i < threads; i++) {
        parts[i].work = kind;
        parts[i].start = &start;
        if (pthread_create(&parts[i].thread, NULL, work, &parts[i])) abort();
    }
    double began = 1e300, ended = 0;
    for (uint32_t i = 0; i < threads; i++) {
        pthread_join(parts[i].thread, NULL);
        if (parts[i].began < began) began = parts[i].began;
        if (parts[i].ended > ended) ended = parts[i].ended;
    }
    pthread_barrier_destroy(&start);
    return ended - began;
}

static double multiply_rate(struct part *parts, uint32_t threads, enum work kind)
{
    double flops = 0, seconds = run(parts, threads, kind);
    for (uint32_t i = 0; i < threads; i++) flops += parts[i].flops;
    return flops / seconds;
}

struct machine machine_measure(uint32_t threads)
{
    struct machine m = {0};
    struct part parts[THREADS] = {0};
    if (threads > THREADS) threads = THREADS;
    float *buffer = aligned_alloc((size_t)2 << 20, BUFFER);
    if (!buffer) abort();
    (void)madvise(buffer, BUFFER, MADV_HUGEPAGE);
    memset(buffer, 0, BUFFER);

    size_t each = BUFFER / sizeof *buffer / threads / 32 * 32;
    for (int n = 0; n < TRIES; n++) {
        m.flops = fmax(m.flops, multiply_rate(parts, threads, MULTIPLY));
        if (has_pairs())
            m.pairs = fmax(m.pairs, multiply_rate(parts, threads, MULTIPLY_PAIRS));
        for (uint32_t i = 0; i < threads; i++) {
            parts[i].from = buffer + i * each;
            parts[i].floats = each;
        }
        double bytes = (double)(each * threads) * sizeof *buffer;
        m.bytes = fmax(m.bytes, bytes / run(parts, threads, READ));
    }
    free(buffer);
    return m;
}
