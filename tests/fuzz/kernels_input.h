/* kernels_input.h - what the fuzzers of the CPU backend draw from their bytes: numbers, a path and a
 * number of threads.
 *
 * Owns     the backends, which stay open for all inputs of a process.
 * Threads  the fuzzer's own.
 */
#ifndef TESTS_FUZZ_KERNELS_INPUT_H
#define TESTS_FUZZ_KERNELS_INPUT_H

#include "tests/kernels/fixture.h"

/* The bytes that choose, and a seed of them all, from which the numbers come and what is chosen
 * when the bytes are used up. */
struct input {
    const uint8_t *at, *end;
    uint64_t seed;
};

static inline uint32_t take(struct input *in, uint32_t least, uint32_t most)
{
    uint32_t v = 0;
    if (in->at == in->end) v = (uint32_t)(random_unit(&in->seed) * 0x1p30f + 0x1p30f);
    for (int i = 0; i < 2 && in->at < in->end; i++) v = v << 8 | *in->at++;
    return least + v % (most - least + 1);
}

/* n numbers below 2^most: of one size, with zeros, below the normal ones, or of all sizes. */
static inline float *numbers(struct input *in, size_t n, int most)
{
    const uint32_t kind = take(in, 0, 4);
    float *v = random_floats(in->seed += 77, n);
    for (size_t i = 0; i < n; i++) {
        const uint32_t by = (uint32_t)(i / 16 * 2654435761u >> 7) % 160;
        if (kind == 1 && i * 2654435761u >> 20 & 3) v[i] = 0;
        if (kind == 2) v[i] = ldexpf(v[i], -110 - (int)(by % 40));
        if (kind == 3) v[i] = ldexpf(v[i], most);
        if (kind == 4) v[i] = ldexpf(v[i], most - (int)by);
    }
    return v;
}

/* A backend of that path: opened once for each number of threads. */
static inline struct backend *backend_of(uint32_t path, uint32_t threads)
{
    static struct backend *open[ARRAY_LEN(paths)][4];
    const struct backend_options o = {
        .threads = threads,
        .cpu_path = paths[path],
        .limits = {256, 16, 256, 128, 16, 1024},
    };
    struct backend **b = &open[path][threads];
    if (!*b && backend_open(b, "cpu", &o, NULL)) return backend_of(0, threads);
    return *b;
}

static inline void same(const void *a, const void *b, size_t n)
{
    assert_memory_equal(a, b, n * sizeof(float));
}

/* Two backends of one path, each with a number of threads of its own. */
struct backends {
    struct backend *b, *other;
};

static inline struct backends backends_of(struct input *in)
{
    const uint32_t path = take(in, 0, ARRAY_LEN(paths) - 1), threads = take(in, 1, 3);
    return (struct backends){backend_of(path, threads),
                             backend_of(path, take(in, 1, 3))};
}

static inline struct input input_of(const uint8_t *data, size_t size)
{
    struct input in = {data, data + size, 1469598103934665603u};
    for (size_t i = 0; i < size; i++) in.seed = (in.seed ^ data[i]) * 1099511628211u;
    return in;
}

#endif
