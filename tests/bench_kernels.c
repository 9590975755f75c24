/* bench_kernels.c [PATH] - the CPU's operations beside what the machine can do.
 *
 * Products with few rows and decode attention must read their weights or KV once: their
 * share is those bytes over time against the read bandwidth, with more weights than any
 * cache holds.  Products with many rows and prefill attention are held against the peak
 * of f32 multiply-adds; where inputs of products with bf16 weights are rounded, these against
 * that of bf16 pairs.  Shapes are those of SmolLM2-135M.  Times are medians.
 */
#include "tests/bench_args.h"
#include "tests/bench_batch.h"
#include "tests/machine.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROWS 512
#define REPEATS  9

static void need(int rc, const struct err *err)
{
    if (rc == 0) return;
    fprintf(stderr, "bench_kernels: %s\n", err->msg);
    exit(1);
}

struct bench {
    struct backend *b;
    struct machine machine;
    struct batch batch;
    int32_t ids[MAX_ROWS];
    uint32_t pos[MAX_ROWS], row_start[MAX_ROWS + 1], block_start[MAX_ROWS + 1];
    uint32_t *blocks;
};

static void set_batch(struct bench *x, uint32_t seqs, uint32_t rows, uint32_t context)
{
    const struct batch_arrays a = {x->pos, x->row_start, x->block_start, x->blocks};
    x->batch = batch_fill(&a, seqs, rows, context);
    x->batch.ids = x->ids;
}

static struct buffer new_buffer(struct bench *x, uint32_t rows, uint32_t cols)
{
    struct err err;
    struct buffer y;
    need(backend_buffer_alloc(x->b, &y, rows, cols, &err), &err);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        ((float *)y.data)[i] = (float)(i % 17) * 0.01f;
    }
    return y;
}

/* ---- products ---- */

static void product(struct bench *x, const char *name, uint32_t rows, uint32_t cols,
                    enum weight_format format, enum dtype type, uint32_t n)
{
    struct err err;
    size_t bytes = backend_matrix_bytes(x->b, format, rows, cols, type);
    uint32_t copies = (uint32_t)(((size_t)160 << 20) / bytes) + 1;
    struct matrix *m = calloc(copies, sizeof *m);
    void *data = calloc((size_t)rows * cols, dtype_bytes(type));
    struct matrix_part part = {data, type, rows, NULL};
    for (uint32_t i = 0; i < copies; i++) {
        need(backend_matrix_load(x->b, &m[i], format, cols, &part, 1, &err), &err);
    }
    struct buffer in = new_buffer(x, n, cols), out = new_buffer(x, n, rows);
    set_batch(x, 1, n, n);
    float inv_freq[32] = {0};

    // Many rows take long enough with a few of the copies.
    uint32_t used = n > 8 && copies > 8 ? 8 : copies;
    double times[REPEATS];
    for (int t = 0; t < REPEATS; t++) {
        backend_begin(x->b, &x->batch, inv_freq, 64);
        double from = machine_now();
        for (uint32_t i = 0; i < used; i++) backend_matmul(x->b, &out, &m[i], &in);
        times[t] = (machine_now() - from) / used;
        need(backend_finish(x->b, &err), &err);
    }
    double s = machine_median(times, REPEATS), flops = 2.0 * rows * cols * n / s;
    bool pairs = x->machine.pairs > 0 && format == WEIGHT_OWN && type == DTYPE_BF16 &&
                 backend_rounds(x->b, type);
    printf(
        "  %-8s %5u x %-4u %-4s rows %3u %9.1f us %6.1f GB/s %3.0f %%  %6.1f Gflop/s "
        "%3.0f %%\n",
        name, rows, cols,
        format == WEIGHT_OWN ? dtype_name(type) : weight_format_name(format), n,
        s * 1e6, (double)bytes / s * 1e-9, 100 * (double)bytes / s / x->machine.bytes,
        flops * 1e-9, 100 * flops / (pairs ? x->machine.pairs : x->machine.flops));

    for (uint32_t i = 0; i < copies; i++) backend_matrix_free(x->b, &m[i]);
    backend_buffer_free(x->b, &in);
    backend_buffer_free(x->b, &out);
    free(data);
    free(m);
}

/* ---- attention ---- */

#define LAYERS 30

static void attention(struct bench *x, uint32_t seqs, uint32_t rows, uint32_t context,
                      enum dtype type)
{
    struct err err;
    struct attention_shape a = {9, 3, 64, 0, 0.125f};
    struct kv_shape shape = {LAYERS, a.kv_heads, a.head_dim, type};
    struct kv_pool_mem kv;
    uint32_t n_blocks = seqs * kv_blocks_for(context);
    need(backend_kv_alloc(x->b, &kv, &shape, n_blocks, &err), &err);
    memset(kv.base, 0x11, n_blocks * kv_block_bytes(&shape));
    struct buffer qkv = new_buffer(x, seqs * rows, 960),
                  out = new_buffer(x, seqs * rows, 576);
    set_batch(x, seqs, rows, context);
    float inv_freq[32] = {1};

    double times[REPEATS];
    for (int t = 0; t < REPEATS; t++) {
        backend_begin(x->b, &x->batch, inv_freq, 64);
        double from = machine_now();
        for (uint32_t l = 0; l < LAYERS; l++) {
            backend_attention(x->b, &out, &qkv, &kv, l, &a);
        }
        times[t] = (machine_now() - from) / LAYERS;
        need(backend_finish(x->b, &err), &err);
    }
    double s = machine_median(times, REPEATS);
    double bytes = (double)kv_token_bytes(&shape) / LAYERS * seqs * context;
    double keys =
        (double)rows * context - 0.5 * rows * (rows - 1.0);  // seen by the rows
    double flops = 4.0 * a.q_heads * a.head_dim * keys * seqs / s;
    printf(
        "  attention %u x %-3u rows over %-5u %-4s %9.1f us %6.1f GB/s %3.0f %%  %6.1f "
        "Gflop/s %3.0f %%\n",
        seqs, rows, context, dtype_name(type), s * 1e6, bytes / s * 1e-9,
        100 * bytes / s / x->machine.bytes, flops * 1e-9,
        100 * flops / x->machine.flops);
    backend_kv_free(x->b, &kv);
    backend_buffer_free(x->b, &qkv);
    backend_buffer_free(x->b, &out);
}

static void run(uint32_t threads, const char *path)
{
    static struct bench x;
    struct err err;
    struct backend_options o = {
        .threads = threads,
        .cpu_path = path,
        .limits = {MAX_ROWS, 64, 8192, 64, 9, 16384},
    };
    need(backend_open(&x.b, "cpu", &o, &err), &err);
    x.blocks = calloc(o.limits.max_blocks, sizeof *x.blocks);
    x.machine = machine_measure(threads);
    printf("%s: read %.1f GB/s, peak %.1f Gflop/s, of bf16 pairs %.1f\n",
           backend_describe(x.b), x.machine.bytes * 1e-9, x.machine.flops * 1e-9,
           x.machine.pairs * 1e-9);

    static const struct {
        const char *name;
        uint32_t rows, cols;
    } shapes[] = {{"qkv", 960, 576},
                  {"o", 576, 576},
                  {"gate_up", 3072, 576},
                  {"down", 576, 1536},
                  {"logits", 49152, 576}};
    static const enum weight_format formats[] = {WEIGHT_OWN, WEIGHT_Q8, WEIGHT_Q4};
    static const uint32_t rows[] = {1, 4, 8, 32, 256, 512};
    for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
        for (size_t i = 0; i < ARRAY_LEN(shapes) - (rows[r] > 32); i++) {
            for (int f = 0; f < (i == 2 ? 3 : 1); f++)
                product(&x, shapes[i].name, shapes[i].rows, shapes[i].cols, formats[f],
                        DTYPE_BF16, rows[r]);
        }
    }
    product(&x, "gate_up", 3072, 576, WEIGHT_OWN, DTYPE_F16, 1);
    product(&x, "gate_up", 3072, 576, WEIGHT_OWN, DTYPE_F32, 1);
    product(&x, "gate_up", 3072, 576, WEIGHT_OWN, DTYPE_F16, 512);
    product(&x, "gate_up", 3072, 576, WEIGHT_OWN, DTYPE_F32, 512);

    static const uint32_t contexts[] = {1024, 4096, 8192};
    for (size_t i = 0; i < ARRAY_LEN(contexts); i++) {
        attention(&x, 1, 1, contexts[i], DTYPE_F16);
        attention(&x, 1, 1, contexts[i], DTYPE_BF16);
    }
    attention(&x, 8, 1, 1024, DTYPE_F16);
    attention(&x, 1, 512, 512, DTYPE_F16);
    attention(&x, 1, 512, 4096, DTYPE_F16);
    attention(&x, 1, 512, 4096, DTYPE_BF16);
    free(x.blocks);
    backend_close(x.b);
}

int main(int argc, char **argv)
{
    bench_args(
        argc, argv, 1,
        "bench_kernels [PATH]\nThe CPU's operations beside what the machine can do; "
        "PATH is a --cpu-path.");
    const char *path = argc > 1 ? argv[1] : NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("bench_kernels\n");
    run(1, path);
    run(2, path);
    return 0;
}
