/* gpu_bench.h - what bench_cuda.c times operations with: a backend, batches, buffers of
 * random numbers, and the line that tells a rate.
 *
 * Owns     backend, copy queue and arrays of struct bench; bench_open() takes them,
 *          bench_close() gives them back.
 * Errors   end the program with a sentence.
 * Threads  one.
 */
#ifndef TESTS_GPU_BENCH_H
#define TESTS_GPU_BENCH_H

#include "kernels/copyq.h"
#include "kernels/kernels.h"
#include "tests/bench_batch.h"

#define REPEATS 7
#define PIECE   ((size_t)4 << 20)

struct sizes {
    size_t copy, block, blocks;            // bytes; bytes of a KV block, and how many
    int square;                            // side of the product that measures the peak
    uint32_t outputs, cols;                // of a weight matrix
    uint32_t few[3], many[2];              // rows
    uint32_t q_heads, kv_heads, head_dim;  // of attention
    uint32_t layers;  // whose K and V take turns: more than a cache holds
    uint32_t seqs, context, prompt, long_context;
    uint32_t launches;  // in a step
};

struct bench {
    struct sizes n;
    struct backend *b;
    struct copyq *q;
    char *piece;  // (PIECE) pinned
    struct batch batch;
    struct batch_arrays arrays;
    int32_t *ids;
    uint32_t *logit_rows, *n_best;
    double memory, flops, up, down;  // the limits, in a second
};

/* Where rc is an error, the program ends with its sentence. */
void bench_need(int rc, const struct err *err);
/* A line of JSON.  rate and limit in a second; limit 0: it is one. */
void bench_tell(const char *what, double rate, const char *unit, double limit);
/* Numbers of random size between 2^-7 and 2^-5 and random sign, to whoever reads f32 and to
 * whoever reads bf16: zeros cost a GPU less power, and so less time. */
void bench_numbers(char *piece, size_t bytes);

void bench_open(struct bench *x, bool exact);
void bench_close(struct bench *x);

/* So many bytes of such numbers, to the device. */
void bench_fill(struct bench *x, void *to, size_t bytes);
struct buffer bench_buffer(struct bench *x, uint32_t rows, uint32_t cols);
/* As batch_fill().  Where each sequence has one row, as in decode, all logits are wanted. */
void bench_batch(struct bench *x, uint32_t seqs, uint32_t rows, uint32_t context);
/* Seconds of one launch: the median of some steps with many launches each, which are waited for
 * at once.  The first step, which loads kernels and records, does not count. */
double bench_seconds(struct bench *x, void (*launch)(struct bench *, void *, uint32_t),
                     void *arg);

#endif
