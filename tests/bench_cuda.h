/* bench_cuda.h - what bench_cuda.c times operations with: a backend, batches, buffers of random
 * numbers, and the line that tells a rate.
 *
 * Owns     backend, copy queue and arrays of struct bench; bench_open() takes them,
 *          bench_close() gives them back.
 * Errors   end the program with a sentence.
 * Threads  one.
 */
#ifndef TESTS_BENCH_CUDA_H
#define TESTS_BENCH_CUDA_H

#include "kernels/copyq.h"
#include "kernels/kernels.h"
#include "tests/bench_batch.h"
#include "tests/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static inline void need(int rc, const struct err *err)
{
    if (rc == 0) return;
    printf("bench_cuda: %s\n", err->msg);
    exit(1);
}

static inline int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median(double *x)
{
    qsort(x, REPEATS, sizeof *x, by_size);
    return x[REPEATS / 2];
}

/* rate and limit in a second; limit 0: it is one. */
static inline void tell(const char *what, double rate, const char *unit, double limit)
{
    printf("{\"what\": \"%s\", \"rate\": %.3f, \"unit\": \"%s\"", what, rate * 1e-9,
           unit);
    if (limit > 0) printf(", \"share\": %.4f", rate / limit);
    puts("}");
}

/* Numbers of random size between 2^-7 and 2^-5 and random sign, to whoever reads f32 and to
 * whoever reads bf16: zeros cost a GPU less power, and so less time. */
static inline void random_piece(char *piece, size_t bytes)
{
    uint32_t seed = 1;
    for (size_t i = 0; i < bytes; i += 2) {
        seed = seed * 1664525 + 1013904223;
        piece[i] = (char)(seed >> 16);
        piece[i + 1] = (char)(seed >> 31 ? 0xbc : 0x3c);
    }
}

static inline void fill(struct bench *x, void *to, size_t bytes)
{
    uint64_t ticket = 0;
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < PIECE ? bytes - done : PIECE;
        int rc;
        while ((rc = copyq_push(x->q, (char *)to + done, x->piece, n, &ticket)) ==
                   -EAGAIN &&
               copyq_poll(x->q, ticket) >= -EAGAIN) {
        }
        need(rc, &(struct err){"numbers were not copied to the device"});
    }
    while (copyq_poll(x->q, ticket) == -EAGAIN) {
    }
}

static inline struct buffer new_buffer(struct bench *x, uint32_t rows, uint32_t cols)
{
    struct buffer y;
    struct err err;
    need(backend_buffer_alloc(x->b, &y, rows, cols, &err), &err);
    fill(x, y.data, (size_t)rows * cols * sizeof(float));
    return y;
}

/* As batch_fill().  Where each sequence has one row, as in decode, all logits are wanted. */
static inline void set_batch(struct bench *x, uint32_t seqs, uint32_t rows,
                             uint32_t context)
{
    uint32_t n = seqs * rows;
    for (uint32_t r = 0; r < n; r++) {
        x->ids[r] = (int32_t)(r * 13 % x->n.outputs);
        x->logit_rows[r] = r;
        x->n_best[r] = 1;
    }
    x->batch = batch_fill(&x->arrays, seqs, rows, context);
    x->batch.ids = x->ids;
    x->batch.n_logits = rows == 1 ? n : 0;
    x->batch.logit_rows = x->logit_rows;
    x->batch.n_best = x->n_best;
    x->batch.n_usable = x->n.outputs;
}

/* Seconds of one launch: the median of some steps with many launches each, which are waited for
 * at once.  The first step, which loads kernels and records, does not count. */
static inline double
seconds_of(struct bench *x, void (*launch)(struct bench *, void *, uint32_t), void *arg)
{
    static const float inv_freq[128];
    double times[REPEATS];
    struct err err;
    for (int t = -2; t < REPEATS; t++) {
        double began = machine_now();
        backend_begin(x->b, &x->batch, inv_freq, x->n.head_dim);
        for (uint32_t i = 0; i < x->n.launches; i++) launch(x, arg, i);
        need(backend_finish(x->b, &err), &err);
        if (t >= 0) times[t] = (machine_now() - began) / x->n.launches;
    }
    return median(times);
}

static inline void bench_open(struct bench *x, bool exact)
{
    const struct sizes *n = &x->n;
    uint32_t rows = n->many[1] > n->prompt ? n->many[1] : n->prompt;
    uint32_t most =
        n->seqs * n->context > n->long_context ? n->seqs * n->context : n->long_context;
    struct backend_options o = {
        .exact = exact,
        .limits = {rows, n->few[2], kv_blocks_for(most) + rows, n->head_dim, n->q_heads,
                   n->cols},
    };
    struct err err;
    need(backend_open(&x->b, "cuda", &o, &err), &err);
    need(backend_copyq_open(x->b, &x->q, &err), &err);
    struct batch_arrays *a = &x->arrays;
    x->piece = copyq_host_alloc(x->q, PIECE);
    x->ids = calloc(rows, sizeof *x->ids);
    a->pos = calloc(rows, sizeof *a->pos);
    x->logit_rows = calloc(rows, sizeof *x->logit_rows);
    x->n_best = calloc(rows, sizeof *x->n_best);
    a->row_start = calloc(n->few[2] + 1, sizeof *a->row_start);
    a->block_start = calloc(n->few[2] + 1, sizeof *a->block_start);
    a->blocks = calloc(o.limits.max_blocks, sizeof *a->blocks);
    if (!x->piece || !x->ids || !a->pos || !x->logit_rows || !x->n_best ||
        !a->row_start || !a->block_start || !a->blocks)
        need(-ENOMEM, &(struct err){"no memory for a batch"});
    random_piece(x->piece, PIECE);
}

static inline void bench_close(struct bench *x)
{
    copyq_host_free(x->q, x->piece);
    copyq_close(x->q);
    backend_close(x->b);
    free(x->ids);
    free(x->arrays.pos);
    free(x->logit_rows);
    free(x->n_best);
    free(x->arrays.row_start);
    free(x->arrays.block_start);
    free(x->arrays.blocks);
}

#endif
