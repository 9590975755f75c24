#include "tests/gpu_bench.h"

#include "tests/machine.h"

#include <stdio.h>
#include <stdlib.h>

void bench_need(int rc, const struct err *err)
{
    if (rc == 0) return;
    printf("bench_cuda: %s\n", err->msg);
    exit(1);
}

void bench_tell(const char *what, double rate, const char *unit, double limit)
{
    printf("{\"what\": \"%s\", \"rate\": %.3f, \"unit\": \"%s\"", what, rate * 1e-9,
           unit);
    if (limit > 0) printf(", \"share\": %.4f", rate / limit);
    puts("}");
}

void bench_numbers(char *piece, size_t bytes)
{
    uint32_t seed = 1;
    for (size_t i = 0; i < bytes; i += 2) {
        seed = seed * 1664525 + 1013904223;
        piece[i] = (char)(seed >> 16);
        piece[i + 1] = (char)(seed >> 31 ? 0xbc : 0x3c);
    }
}

void bench_fill(struct bench *x, void *to, size_t bytes)
{
    uint64_t ticket = 0;
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < PIECE ? bytes - done : PIECE;
        int rc;
        while ((rc = copyq_push(x->q, (char *)to + done, x->piece, n, &ticket)) ==
                   -EAGAIN &&
               copyq_poll(x->q, ticket) >= -EAGAIN) {
        }
        bench_need(rc, &(struct err){"numbers were not copied to the device"});
    }
    while (copyq_poll(x->q, ticket) == -EAGAIN) {
    }
}

struct buffer bench_buffer(struct bench *x, uint32_t rows, uint32_t cols)
{
    struct buffer y;
    struct err err;
    bench_need(backend_buffer_alloc(x->b, &y, rows, cols, &err), &err);
    bench_fill(x, y.data, (size_t)rows * cols * sizeof(float));
    return y;
}

void bench_batch(struct bench *x, uint32_t seqs, uint32_t rows, uint32_t context)
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

double bench_seconds(struct bench *x, void (*launch)(struct bench *, void *, uint32_t),
                     void *arg)
{
    static const float inv_freq[128];
    double times[REPEATS];
    struct err err;
    for (int t = -2; t < REPEATS; t++) {
        double began = machine_now();
        backend_begin(x->b, &x->batch, inv_freq, x->n.head_dim);
        for (uint32_t i = 0; i < x->n.launches; i++) launch(x, arg, i);
        bench_need(backend_finish(x->b, &err), &err);
        if (t >= 0) times[t] = (machine_now() - began) / x->n.launches;
    }
    return machine_median(times, REPEATS);
}

void bench_open(struct bench *x, bool exact)
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
    bench_need(backend_open(&x->b, "cuda", &o, &err), &err);
    bench_need(backend_copyq_open(x->b, &x->q, &err), &err);
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
        bench_need(-ENOMEM, &(struct err){"no memory for a batch"});
    bench_numbers(x->piece, PIECE);
}

void bench_close(struct bench *x)
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
