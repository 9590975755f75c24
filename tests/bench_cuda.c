/* bench_cuda.c [small] - the GPU's operations beside what the device can do, a line of JSON each.
 *
 * The limits are measured first: bytes that a copy within the device moves, products of cuBLAS,
 * copies of pinned memory up and down.  Products with few rows and decode attention must read
 * their weights or K and V once and are held against the first; products with many rows and
 * prefill attention against the second; blocks through the copy queue against the last two.
 * Shapes are those of an 8B Llama.  Times are medians, of many launches that are waited for at
 * once.  small: shapes that a CPU computes in moments.
 */
#include <stdio.h>

#ifndef HAVE_CUDA
int main(void)
{
    puts("bench_cuda: skipped, this build has no CUDA (make CUDA=1)");
    return 0;
}
#else

#include "kernels/copyq.h"
#include "kernels/kernels.h"
#include "tests/bench_batch.h"
#include "tests/cuda_on_cpu/standin.h"
#include "tests/machine.h"

#include <cublas_v2.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS 7

struct sizes {
    size_t copy, block, blocks;            // bytes; bytes of a KV block, and how many
    int square;                            // side of the product that measures the peak
    uint32_t outputs, cols;                // of a weight matrix
    uint32_t few[3], many[2];              // rows
    uint32_t q_heads, kv_heads, head_dim;  // of attention
    uint32_t seqs, context, prompt;
    uint32_t launches;  // in a step
};
static const struct sizes large = {
    (size_t)1 << 30,
    2 << 20,
    256,
    8192,
    28672,
    4096,
    {1, 8, 32},
    {512, 2048},
    32,
    8,
    128,
    16,
    8192,
    2048,
    10,
};
static const struct sizes small = {
    1 << 20, 64 << 10, 8, 64, 256, 64, {1, 8, 32}, {48, 64}, 4, 2, 64, 2, 300, 40, 2,
};

struct bench {
    struct sizes n;
    struct backend *b;
    struct batch batch;
    struct batch_arrays arrays;
    double memory, flops, up, down;  // the limits, in a second
};

static void need(int rc, const struct err *err)
{
    if (rc == 0) return;
    printf("bench_cuda: %s\n", err->msg);
    exit(1);
}

static void need_cuda(cudaError_t e)
{
    if (e == cudaSuccess) return;
    printf("bench_cuda: %s\n", cudaGetErrorString(e));
    exit(1);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x)
{
    qsort(x, REPEATS, sizeof *x, by_size);
    return x[REPEATS / 2];
}

/* rate and limit in units of 1e9 a second; limit 0: it is one. */
static void tell(const char *what, double rate, const char *unit, double limit)
{
    printf("{\"what\": \"%s\", \"rate\": %.3f, \"unit\": \"%s\"", what, rate * 1e-9,
           unit);
    if (limit > 0) printf(", \"share\": %.4f", rate / limit);
    puts("}");
}

/* ---- limits ---- */

static double copy_rate(void *to, const void *from, size_t bytes,
                        enum cudaMemcpyKind kind)
{
    double times[REPEATS];
    for (int t = 0; t < REPEATS; t++) {
        double began = machine_now();
        need_cuda(cudaMemcpyAsync(to, from, bytes, kind, NULL));
        need_cuda(cudaStreamSynchronize(NULL));
        times[t] = machine_now() - began;
    }
    return (double)bytes / median(times);
}

static double product_rate(int n, void *a, void *b, void *c)
{
    cublasHandle_t blas;
    const float one = 1, zero = 0;
    double times[REPEATS];
    if (cublasCreate(&blas) != CUBLAS_STATUS_SUCCESS) need_cuda(cudaErrorUnknown);
    for (int t = 0; t < REPEATS; t++) {
        double began = machine_now();
        if (cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, a, CUDA_R_16BF,
                         n, b, CUDA_R_16BF, n, &zero, c, CUDA_R_32F, n,
                         CUBLAS_COMPUTE_32F,
                         CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS)
            need_cuda(cudaErrorUnknown);
        need_cuda(cudaDeviceSynchronize());
        times[t] = machine_now() - began;
    }
    (void)cublasDestroy(blas);
    return 2.0 * n * n * n / median(times);
}

static void measure_limits(struct bench *x)
{
    size_t bytes = x->n.copy, square = (size_t)x->n.square * (size_t)x->n.square;
    size_t room = bytes > 4 * square ? bytes : 4 * square;
    void *a, *b, *c, *host;
    need_cuda(cudaMalloc(&a, room));
    need_cuda(cudaMalloc(&b, room));
    need_cuda(cudaMalloc(&c, room));
    need_cuda(cudaHostAlloc(&host, bytes, cudaHostAllocDefault));
    memset(host, 0x11, bytes);
    x->up = copy_rate(a, host, bytes, cudaMemcpyHostToDevice);
    x->memory = 2 * copy_rate(b, a, bytes, cudaMemcpyDeviceToDevice);
    x->down = copy_rate(host, b, bytes, cudaMemcpyDeviceToHost);
    need_cuda(cudaMemset(a, 0x11, room));
    need_cuda(cudaMemset(b, 0x11, room));
    x->flops = product_rate(x->n.square, a, b, c);
    tell("limit: a copy within the device", x->memory, "GB/s", 0);
    tell("limit: a product of cuBLAS, bf16", x->flops, "GFLOP/s", 0);
    tell("limit: pinned memory to the device", x->up, "GB/s", 0);
    tell("limit: the device to pinned memory", x->down, "GB/s", 0);
    (void)cudaFree(a);
    (void)cudaFree(b);
    (void)cudaFree(c);
    (void)cudaFreeHost(host);
}

/* ---- operations ---- */

static void begin(struct bench *x)
{
    static const float inv_freq[64];
    backend_begin(x->b, &x->batch, inv_freq, x->n.head_dim);
}

/* Seconds of one of the launches that were listed since `began`. */
static double finish(struct bench *x, double began)
{
    struct err err;
    need(backend_finish(x->b, &err), &err);
    return (machine_now() - began) / x->n.launches;
}

static struct buffer new_buffer(struct bench *x, uint32_t rows, uint32_t cols)
{
    struct buffer y;
    struct err err;
    need(backend_buffer_alloc(x->b, &y, rows, cols, &err), &err);
    need_cuda(cudaMemset(y.data, 0, (size_t)rows * cols * sizeof(float)));
    return y;
}

static void product(struct bench *x, const struct matrix *m, uint32_t rows, bool many,
                    const char *by)
{
    char what[96];
    double times[REPEATS];
    struct buffer in = new_buffer(x, rows, m->cols), out = new_buffer(x, rows, m->rows);
    x->batch = batch_fill(&x->arrays, 1, rows, rows);
    for (int t = -1; t < REPEATS; t++) {  // the first one loads kernels
        double began = machine_now();
        begin(x);
        for (uint32_t i = 0; i < x->n.launches; i++) backend_matmul(x->b, &out, m, &in);
        double took = finish(x, began);
        if (t >= 0) times[t] = took;
    }
    double s = median(times), flops = 2.0 * m->rows * m->cols * rows / s;
    snprintf(what, sizeof what, "product %ux%u, %u rows, %s", m->rows, m->cols, rows,
             by);
    if (many)
        tell(what, flops, "GFLOP/s", x->flops);
    else
        tell(what, (double)m->bytes / s, "GB/s", x->memory);
    backend_buffer_free(x->b, &in);
    backend_buffer_free(x->b, &out);
}

static void products(struct bench *x, bool exact)
{
    struct err err;
    struct matrix m;
    size_t n = (size_t)x->n.outputs * x->n.cols;
    uint16_t *w = malloc(n * sizeof *w);
    if (!w) need(-ENOMEM, &(struct err){"no memory for weights"});
    for (size_t i = 0; i < n; i++) w[i] = (uint16_t)(0x3c00 + i % 251);
    const struct matrix_part part = {w, DTYPE_BF16, x->n.outputs, NULL};
    need(backend_matrix_load(x->b, &m, WEIGHT_OWN, x->n.cols, &part, 1, &err), &err);
    free(w);
    for (size_t i = 0; i < ARRAY_LEN(x->n.few) && !exact; i++)
        product(x, &m, x->n.few[i], false, "own kernel");
    for (size_t i = 0; i < ARRAY_LEN(x->n.many); i++)
        product(x, &m, x->n.many[i], true, exact ? "own kernel" : "cuBLAS");
    backend_matrix_free(x->b, &m);
}

static void attention(struct bench *x, uint32_t seqs, uint32_t rows, uint32_t context)
{
    const struct attention_shape a = {x->n.q_heads, x->n.kv_heads, x->n.head_dim, 0,
                                      0.1f};
    const struct kv_shape shape = {1, a.kv_heads, a.head_dim, DTYPE_BF16};
    struct kv_pool_mem kv;
    struct err err;
    char what[96];
    double times[REPEATS];
    uint32_t n_blocks = seqs * kv_blocks_for(context);
    need(backend_kv_alloc(x->b, &kv, &shape, n_blocks, &err), &err);
    need_cuda(cudaMemset(kv.base, 0, n_blocks * kv_block_bytes(&shape)));
    struct buffer qkv =
        new_buffer(x, seqs * rows, (a.q_heads + 2 * a.kv_heads) * a.head_dim);
    struct buffer out = new_buffer(x, seqs * rows, a.q_heads * a.head_dim);
    x->batch = batch_fill(&x->arrays, seqs, rows, context);
    for (int t = -1; t < REPEATS; t++) {
        double began = machine_now();
        begin(x);
        for (uint32_t i = 0; i < x->n.launches; i++)
            backend_attention(x->b, &out, &qkv, &kv, 0, &a);
        double took = finish(x, began);
        if (t >= 0) times[t] = took;
    }
    double s = median(times), keys = (double)rows * context - 0.5 * rows * (rows - 1.0);
    snprintf(what, sizeof what, "attention, %u x %u rows over %u", seqs, rows, context);
    if (rows > 1)
        tell(what, 4.0 * a.q_heads * a.head_dim * keys * seqs / s, "GFLOP/s", x->flops);
    else
        tell(what, (double)kv_token_bytes(&shape) * seqs * context / s, "GB/s",
             x->memory);
    backend_kv_free(x->b, &kv);
    backend_buffer_free(x->b, &qkv);
    backend_buffer_free(x->b, &out);
}

/* ---- blocks between the tiers ---- */

/* All blocks in the order given, as fast as the queue takes them. */
static double move(struct bench *x, struct copyq *q, char *to, char *from,
                   bool scattered)
{
    double times[REPEATS];
    size_t n = x->n.blocks;
    for (int t = 0; t < REPEATS; t++) {
        uint64_t ticket = 0;
        double began = machine_now();
        for (size_t i = 0; i < n; i++) {
            size_t at = (scattered ? i % 2 * (n / 2) + i / 2 : i) * x->n.block;
            int rc;
            while ((rc = copyq_push(q, to + at, from + at, x->n.block, &ticket)) ==
                       -EAGAIN &&
                   copyq_poll(q, ticket) >= -EAGAIN) {
            }
            need(rc, &(struct err){"a block was not taken"});
        }
        while (copyq_poll(q, ticket) == -EAGAIN) {
        }
        times[t] = machine_now() - began;
    }
    return (double)(n * x->n.block) / median(times);
}

static void copies(struct bench *x)
{
    struct err err;
    struct copyq *q;
    struct buffer on_device;
    size_t bytes = x->n.blocks * x->n.block;
    need(backend_copyq_open(x->b, &q, &err), &err);
    need(backend_buffer_alloc(x->b, &on_device, 1, (uint32_t)(bytes / sizeof(float)),
                              &err),
         &err);
    char *host = copyq_host_alloc(q, bytes);
    if (!host) need(-ENOMEM, &(struct err){"no pinned memory"});
    memset(host, 0x11, bytes);
    tell("promotion of neighbours", move(x, q, on_device.data, host, false), "GB/s",
         x->up);
    tell("promotion in disorder", move(x, q, on_device.data, host, true), "GB/s",
         x->up);
    tell("demotion of neighbours", move(x, q, host, on_device.data, false), "GB/s",
         x->down);
    tell("demotion in disorder", move(x, q, host, on_device.data, true), "GB/s",
         x->down);
    copyq_host_free(q, host);
    copyq_close(q);
    backend_buffer_free(x->b, &on_device);
}

static void open_backend(struct bench *x, bool exact)
{
    const struct sizes *n = &x->n;
    uint32_t rows = n->many[1] > n->prompt ? n->many[1] : n->prompt;
    struct backend_options o = {
        .exact = exact,
        .limits = {rows, n->seqs, n->seqs * kv_blocks_for(n->context) + rows,
                   n->head_dim, n->q_heads, n->cols},
    };
    struct err err;
    need(backend_open(&x->b, "cuda", &o, &err), &err);
    struct batch_arrays *a = &x->arrays;
    a->pos = calloc(rows, sizeof *a->pos);
    a->row_start = calloc(n->seqs + 1, sizeof *a->row_start);
    a->block_start = calloc(n->seqs + 1, sizeof *a->block_start);
    a->blocks = calloc(o.limits.max_blocks, sizeof *a->blocks);
    if (!a->pos || !a->row_start || !a->block_start || !a->blocks)
        need(-ENOMEM, &(struct err){"no memory for a batch"});
}

static void close_backend(struct bench *x)
{
    backend_close(x->b);
    free(x->arrays.pos);
    free(x->arrays.row_start);
    free(x->arrays.block_start);
    free(x->arrays.blocks);
}

int main(int argc, char **argv)
{
    static struct bench x;
    x.n = argc > 1 && strcmp(argv[1], "small") == 0 ? small : large;
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_backend(&x, false);
    printf("{\"device\": \"%s\", \"standin\": %s}\n", backend_describe(x.b),
           standin_reset ? "true" : "false");
    measure_limits(&x);
    products(&x, false);
    attention(&x, 1, 1, x.n.context);
    attention(&x, x.n.seqs, 1, x.n.context);
    attention(&x, 1, x.n.prompt, x.n.prompt);
    copies(&x);
    close_backend(&x);
    open_backend(&x, true);
    products(&x, true);
    close_backend(&x);
    return 0;
}
#endif
