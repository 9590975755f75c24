/* bench_cuda.c [small] - the GPU's operations beside what the device can do, a line of JSON each.
 *
 * The limits are measured first: bytes that a copy within the device moves, products of cuBLAS,
 * copies of pinned memory up and down.  Operations that must read or write so much memory are
 * held against the first; products with many rows and prefill attention against the second;
 * blocks through the copy queue against the last two.  Shapes are those of an 8B Llama, and all
 * that is read lies apart far enough that no cache holds it.  Times are medians of many launches
 * that are waited for at once.  small: shapes that a CPU computes in moments.
 */
#include "tests/bench_args.h"

#define USAGE "bench_cuda [small]\nThe GPU's operations beside what the device can do."

#ifndef HAVE_CUDA
int main(int argc, char **argv)
{
    bench_args(argc, argv, 1, USAGE);
    puts("bench_cuda: skipped, this build has no CUDA (make CUDA=1)");
    return 0;
}
#else

#include "tests/cuda_on_cpu/standin.h"
#include "tests/gpu_bench.h"
#include "tests/machine.h"

#include <cublas_v2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct sizes large = {
    .copy = (size_t)1 << 30,
    .block = 2 << 20,
    .blocks = 512,
    .square = 8192,
    .outputs = 28672,
    .cols = 4096,
    .few = {1, 8, 32},
    .many = {512, 2048},
    .q_heads = 32,
    .kv_heads = 8,
    .head_dim = 128,
    .layers = 16,
    .seqs = 16,
    .context = 8192,
    .prompt = 2048,
    .long_context = 32768,
    .launches = 64,
};
static const struct sizes small = {
    .copy = 1 << 20,
    .block = 64 << 10,
    .blocks = 8,
    .square = 64,
    .outputs = 256,
    .cols = 64,
    .few = {1, 8, 32},
    .many = {48, 64},
    .q_heads = 4,
    .kv_heads = 2,
    .head_dim = 64,
    .layers = 2,
    .seqs = 2,
    .context = 300,
    .prompt = 40,
    .long_context = 80,
    .launches = 2,
};

static void need_cuda(cudaError_t e)
{
    if (e == cudaSuccess) return;
    printf("bench_cuda: %s\n", cudaGetErrorString(e));
    exit(1);
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
    return (double)bytes / machine_median(times, REPEATS);
}

/* Of cuBLAS, for y (rows, outputs) = x (rows, cols) w^T (outputs, cols) in bf16. */
static double product_seconds(int launches, int outputs, int rows, int cols,
                              const void *w, const void *x, void *y)
{
    cublasHandle_t blas;
    const float one = 1, zero = 0;
    double times[REPEATS];
    if (cublasCreate(&blas) != CUBLAS_STATUS_SUCCESS) need_cuda(cudaErrorUnknown);
    for (int t = -2; t < REPEATS; t++) {
        double began = machine_now();
        for (int i = 0; i < launches; i++)
            if (cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, outputs, rows, cols, &one,
                             w, CUDA_R_16BF, cols, x, CUDA_R_16BF, cols, &zero, y,
                             CUDA_R_32F, outputs, CUBLAS_COMPUTE_32F,
                             CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS)
                need_cuda(cudaErrorUnknown);
        need_cuda(cudaDeviceSynchronize());
        if (t >= 0) times[t] = machine_now() - began;
    }
    (void)cublasDestroy(blas);
    return machine_median(times, REPEATS) / launches;
}

/* Memory that the backend does not know of. */
static void *new_memory(const struct bench *x, size_t bytes)
{
    char *p;
    need_cuda(cudaMalloc((void **)&p, bytes));
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < PIECE ? bytes - done : PIECE;
        need_cuda(cudaMemcpy(p + done, x->piece, n, cudaMemcpyHostToDevice));
    }
    return p;
}

static void measure_limits(struct bench *x)
{
    size_t bytes = x->n.copy, square = (size_t)x->n.square * (size_t)x->n.square;
    size_t room = bytes > 4 * square ? bytes : 4 * square;
    void *a = new_memory(x, room), *b = new_memory(x, room), *c = new_memory(x, room);
    void *host;
    need_cuda(cudaHostAlloc(&host, bytes, cudaHostAllocDefault));
    memset(host, 0x11, bytes);
    x->up = copy_rate(c, host, bytes, cudaMemcpyHostToDevice);
    x->memory = 2 * copy_rate(c, a, bytes, cudaMemcpyDeviceToDevice);
    x->down = copy_rate(host, c, bytes, cudaMemcpyDeviceToHost);
    int n = x->n.square;
    x->flops = 2.0 * n * n * n / product_seconds(1, n, n, n, a, b, c);
    bench_tell("limit: a copy within the device", x->memory, "GB/s", 0);
    bench_tell("limit: a product of cuBLAS, bf16", x->flops, "GFLOP/s", 0);
    bench_tell("limit: pinned memory to the device", x->up, "GB/s", 0);
    bench_tell("limit: the device to pinned memory", x->down, "GB/s", 0);
    need_cuda(cudaFree(a));
    need_cuda(cudaFree(b));
    need_cuda(cudaFree(c));
    need_cuda(cudaFreeHost(host));
}

/* ---- products ---- */

struct op {
    struct matrix m;
    struct buffer in, out, more;
    float *w, *logits;
    struct best *best;
    struct kv_pool_mem kv;
    struct attention_shape shape;
};

static void launch_product(struct bench *x, void *arg, uint32_t i)
{
    struct op *o = arg;
    (void)i;
    backend_matmul(x->b, &o->out, &o->m, &o->in);
}

static void launch_head(struct bench *x, void *arg, uint32_t i)
{
    struct op *o = arg;
    (void)i;
    backend_logits(x->b, o->logits, &o->m, &o->in);
    backend_best(x->b, o->best, o->logits, o->m.rows);
}

static void product(struct bench *x, struct op *o, uint32_t rows, bool many,
                    const char *by)
{
    char what[96];
    o->in = bench_buffer(x, rows, o->m.cols);
    o->out = bench_buffer(x, rows, o->m.rows);
    if (many)
        bench_batch(x, 1, rows, rows);
    else
        bench_batch(x, rows, 1, 1);
    double s = bench_seconds(x, launch_product, o);
    snprintf(what, sizeof what, "product %ux%u, %u rows, %s", o->m.rows, o->m.cols,
             rows, by);
    if (many)
        bench_tell(what, 2.0 * o->m.rows * o->m.cols * rows / s, "GFLOP/s", x->flops);
    else
        bench_tell(what, (double)o->m.bytes / s, "GB/s", x->memory);
    backend_buffer_free(x->b, &o->in);
    backend_buffer_free(x->b, &o->out);
}

/* What the own kernels for few rows are there to beat. */
static void product_of_cublas(struct bench *x, const struct op *o, uint32_t rows)
{
    char what[96];
    uint32_t outputs = o->m.rows, cols = o->m.cols;
    void *in = new_memory(x, (size_t)rows * cols * sizeof(uint16_t));
    void *out = new_memory(x, (size_t)rows * outputs * sizeof(float));
    double s = product_seconds((int)x->n.launches, (int)outputs, (int)rows, (int)cols,
                               o->m.data, in, out);
    snprintf(what, sizeof what, "product %ux%u, %u rows, cuBLAS", outputs, cols, rows);
    bench_tell(what, (double)o->m.bytes / s, "GB/s", x->memory);
    need_cuda(cudaFree(in));
    need_cuda(cudaFree(out));
}

static void head(struct bench *x, struct op *o)
{
    char what[96];
    struct err err;
    uint32_t rows = x->n.seqs;
    o->in = bench_buffer(x, rows, o->m.cols);
    bench_need(backend_logits_alloc(x->b, &o->logits, rows, o->m.rows, &err), &err);
    bench_need(backend_best_alloc(x->b, &o->best, rows, &err), &err);
    bench_batch(x, rows, 1, 1);
    double s = bench_seconds(x, launch_head, o);
    snprintf(what, sizeof what, "head %ux%u and the best of it, %u rows", o->m.rows,
             o->m.cols, rows);
    bench_tell(what, (double)o->m.bytes / s, "GB/s", x->memory);
    backend_best_free(x->b, o->best);
    backend_logits_free(x->b, o->logits);
    backend_buffer_free(x->b, &o->in);
}

static void open_matrix(struct bench *x, struct op *o)
{
    struct err err;
    size_t bytes = (size_t)x->n.outputs * x->n.cols * sizeof(uint16_t);
    char *w = malloc(bytes);
    if (!w) bench_need(-ENOMEM, &(struct err){"no memory for weights"});
    bench_numbers(w, bytes);
    const struct matrix_part part = {w, DTYPE_BF16, x->n.outputs, NULL};
    bench_need(backend_matrix_load(x->b, &o->m, WEIGHT_OWN, x->n.cols, &part, 1, &err),
               &err);
    free(w);
}

static void products(struct bench *x, bool exact)
{
    struct op o = {0};
    open_matrix(x, &o);
    for (size_t i = 0; i < ARRAY_LEN(x->n.few) && !exact; i++) {
        product(x, &o, x->n.few[i], false, "own kernel");
        product_of_cublas(x, &o, x->n.few[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(x->n.many); i++)
        product(x, &o, x->n.many[i], true, exact ? "own kernel" : "cuBLAS");
    if (!exact) head(x, &o);
    backend_matrix_free(x->b, &o.m);
}

/* ---- attention ---- */

static void open_kv(struct bench *x, struct op *o, uint32_t blocks)
{
    struct err err;
    o->shape =
        (struct attention_shape){x->n.q_heads, x->n.kv_heads, x->n.head_dim, 0, 0.1f};
    const struct kv_shape shape = {x->n.layers, x->n.kv_heads, x->n.head_dim,
                                   DTYPE_BF16};
    bench_need(backend_kv_alloc(x->b, &o->kv, &shape, blocks, &err), &err);
    bench_fill(x, o->kv.base, blocks * kv_block_bytes(&shape));
}

static uint32_t qkv_cols(const struct bench *x)
{
    return (x->n.q_heads + 2 * x->n.kv_heads) * x->n.head_dim;
}

static void launch_attention(struct bench *x, void *arg, uint32_t i)
{
    struct op *o = arg;
    backend_attention(x->b, &o->out, &o->in, &o->kv, i % x->n.layers, &o->shape);
}

static void attention(struct bench *x, uint32_t seqs, uint32_t rows, uint32_t context)
{
    struct op o = {0};
    char what[96];
    open_kv(x, &o, seqs * kv_blocks_for(context));
    o.in = bench_buffer(x, seqs * rows, qkv_cols(x));
    o.out = bench_buffer(x, seqs * rows, x->n.q_heads * x->n.head_dim);
    bench_batch(x, seqs, rows, context);
    double s = bench_seconds(x, launch_attention, &o);
    double keys = (double)rows * context - 0.5 * rows * (rows - 1.0);
    double layer = (double)kv_token_bytes(&o.kv.shape) / x->n.layers;
    snprintf(what, sizeof what, "attention, %u x %u rows over %u", seqs, rows, context);
    if (rows > 1)
        bench_tell(what, 4.0 * x->n.q_heads * x->n.head_dim * keys * seqs / s,
                   "GFLOP/s", x->flops);
    else
        bench_tell(what, layer * seqs * context / s, "GB/s", x->memory);
    backend_kv_free(x->b, &o.kv);
    backend_buffer_free(x->b, &o.in);
    backend_buffer_free(x->b, &o.out);
}

/* ---- what goes over rows ---- */

static void launch_norm(struct bench *x, void *arg, uint32_t i)
{
    struct op *o = arg;
    (void)i;
    backend_add_rmsnorm(x->b, &o->out, &o->in, &o->more, o->w, 1e-5f);
}

static void launch_rope(struct bench *x, void *arg, uint32_t i)
{
    struct op *o = arg;
    backend_rope_store(x->b, &o->in, &o->kv, i % x->n.layers, &o->shape, NULL);
}

static void launch_normed_rope(struct bench *x, void *arg, uint32_t i)
{
    struct op *o = arg;
    const struct qk_norm norm = {o->w, o->w, 1e-6f};
    backend_rope_store(x->b, &o->in, &o->kv, i % x->n.layers, &o->shape, &norm);
}

static void launch_gate(struct bench *x, void *arg, uint32_t i)
{
    struct op *o = arg;
    (void)i;
    backend_silu_mul(x->b, &o->out, &o->in);
}

static void launch_embedding(struct bench *x, void *arg, uint32_t i)
{
    struct op *o = arg;
    (void)i;
    backend_embed(x->b, &o->out, &o->m);
}

/* Times `launch`, which reads and writes so many bytes of each row. */
static void tell_rows(struct bench *x, struct op *o, const char *name, double bytes,
                      void (*launch)(struct bench *, void *, uint32_t))
{
    char what[96];
    uint32_t rows = x->n.prompt;
    double s = bench_seconds(x, launch, o);
    snprintf(what, sizeof what, "%s, %u rows", name, rows);
    bench_tell(what, bytes * rows / s, "GB/s", x->memory);
}

static void rows(struct bench *x)
{
    const double f32 = sizeof(float), bf16 = 2;
    uint32_t n = x->n.prompt, cols = x->n.cols, wide = x->n.outputs / 2;
    uint32_t kv_cols = 2 * x->n.kv_heads * x->n.head_dim;
    struct op o = {0};
    struct err err;
    bench_need(backend_vector_load(x->b, &o.w, x->piece, DTYPE_F32, cols, &err), &err);
    bench_batch(x, 1, n, n);

    o.in = bench_buffer(x, n, cols);
    o.more = bench_buffer(x, n, cols);
    o.out = bench_buffer(x, n, cols);
    tell_rows(x, &o, "norm with residual", 4 * cols * f32, launch_norm);
    open_matrix(x, &o);
    tell_rows(x, &o, "embedding", cols * (bf16 + f32), launch_embedding);
    backend_matrix_free(x->b, &o.m);
    backend_buffer_free(x->b, &o.in);
    backend_buffer_free(x->b, &o.more);
    backend_buffer_free(x->b, &o.out);

    open_kv(x, &o, kv_blocks_for(n));
    o.in = bench_buffer(x, n, qkv_cols(x));
    const double bytes = (2 * qkv_cols(x) - kv_cols) * f32 + kv_cols * bf16;
    tell_rows(x, &o, "rope with K and V stored", bytes, launch_rope);
    tell_rows(x, &o, "rope with QK norm, K and V stored", bytes, launch_normed_rope);
    backend_buffer_free(x->b, &o.in);
    backend_kv_free(x->b, &o.kv);

    o.in = bench_buffer(x, n, 2 * wide);
    o.out = bench_buffer(x, n, wide);
    tell_rows(x, &o, "gated activation", 3 * wide * f32, launch_gate);
    backend_buffer_free(x->b, &o.in);
    backend_buffer_free(x->b, &o.out);
    backend_vector_free(x->b, o.w);
}

/* ---- blocks between the tiers ---- */

/* All blocks in the order given, as fast as the queue takes them. */
static double move(struct bench *x, char *to, char *from, bool scattered)
{
    double times[REPEATS];
    size_t n = x->n.blocks;
    for (int t = 0; t < REPEATS; t++) {
        uint64_t ticket = 0;
        double began = machine_now();
        for (size_t i = 0; i < n; i++) {
            size_t at = (scattered ? i % 2 * (n / 2) + i / 2 : i) * x->n.block;
            int rc;
            while ((rc = copyq_push(x->q, to + at, from + at, x->n.block, &ticket)) ==
                       -EAGAIN &&
                   copyq_poll(x->q, ticket) >= -EAGAIN) {
            }
            bench_need(rc, &(struct err){"a block was not taken"});
        }
        while (copyq_poll(x->q, ticket) == -EAGAIN) {
        }
        times[t] = machine_now() - began;
    }
    return (double)(n * x->n.block) / machine_median(times, REPEATS);
}

static void copies(struct bench *x)
{
    struct buffer on_device;
    struct err err;
    size_t bytes = x->n.blocks * x->n.block;
    bench_need(backend_buffer_alloc(x->b, &on_device, 1,
                                    (uint32_t)(bytes / sizeof(float)), &err),
               &err);
    char *host = copyq_host_alloc(x->q, bytes), *device = (char *)on_device.data;
    if (!host) bench_need(-ENOMEM, &(struct err){"no pinned memory"});
    memset(host, 0x11, bytes);
    bench_tell("promotion of neighbours", move(x, device, host, false), "GB/s", x->up);
    bench_tell("promotion in disorder", move(x, device, host, true), "GB/s", x->up);
    bench_tell("demotion of neighbours", move(x, host, device, false), "GB/s", x->down);
    bench_tell("demotion in disorder", move(x, host, device, true), "GB/s", x->down);
    copyq_host_free(x->q, host);
    backend_buffer_free(x->b, &on_device);
}

int main(int argc, char **argv)
{
    static struct bench x;
    bench_args(argc, argv, argc > 1 && strcmp(argv[1], "small") == 0, USAGE);
    x.n = argc > 1 ? small : large;
    setvbuf(stdout, NULL, _IOLBF, 0);
    bench_open(&x, false);
    printf("{\"device\": \"%s\", \"standin\": %s}\n", backend_describe(x.b),
           standin_reset ? "true" : "false");
    measure_limits(&x);
    copies(&x);
    products(&x, false);
    attention(&x, 1, 1, x.n.context);
    attention(&x, x.n.seqs, 1, x.n.context);
    attention(&x, 1, x.n.prompt, x.n.prompt);
    attention(&x, 1, x.n.prompt, x.n.long_context);
    rows(&x);
    bench_close(&x);
    bench_open(&x, true);
    products(&x, true);
    bench_close(&x);
    return 0;
}
#endif
