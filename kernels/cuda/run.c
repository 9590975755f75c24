/* run.c - launching an operation: which kernel serves it, and with what. */
#include "kernels/cuda/cuda.h"

#define BLOCKS_EACH 6  // thread blocks of attention on a processor, at most

static void gemm(struct cuda *c, const struct cuda_op *op, uint32_t rows)
{
    const struct cuda_matrix *m = &op->matrix;
    const float one = 1, zero = 0;
    bool wide = m->type == DTYPE_F32;
    cudaDataType type = wide                   ? CUDA_R_32F
                        : m->type == DTYPE_F16 ? CUDA_R_16F
                                               : CUDA_R_16BF;
    const void *x = wide ? (const void *)op->x : c->image;
    // Column-major, as cuBLAS has it: y^T = W x^T.
    cublasStatus_t s = cublasGemmEx(
        c->blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)m->rows, (int)rows, (int)m->cols, &one,
        m->data, type, (int)m->ld, x, type, (int)m->ld, &zero, op->y, CUDA_R_32F,
        (int)m->rows, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (cuda_blas_ok(c, s, "multiplying by a matrix") && m->bias)
        cuda_ok(c, cuda_add_bias(op->y, m->bias, rows, m->rows, c->compute),
                "adding a bias");
}

static void matmul(struct cuda *c, const struct cuda_op *op, uint32_t rows)
{
    const struct cuda_matrix *m = &op->matrix;
    if (rows > CUDA_FEW_ROWS && !c->exact) {
        gemm(c, op, rows);
        return;
    }
    const void *x = m->type == DTYPE_F32 ? (const void *)op->x : c->image;
    cuda_ok(c,
            rows > CUDA_FEW_ROWS ? cuda_matmul_many(op->y, *m, x, rows, c->compute)
                                 : cuda_matmul_few(op->y, *m, x, rows, c->compute),
            "multiplying by a matrix");
}

/* As many thread blocks as have something to do; in a recorded step, whose items differ each
 * time, as many as the device can run at once. */
static uint32_t blocks_for(const struct cuda *c, uint32_t items, uint32_t kv_heads,
                           bool recorded)
{
    uint64_t most = (uint64_t)c->processors * BLOCKS_EACH;
    uint64_t n = (uint64_t)items * kv_heads;
    return (uint32_t)(recorded || n > most ? most : n);
}

static void attention(struct cuda *c, const struct cuda_op *op, uint32_t rows,
                      bool recorded)
{
    const struct cuda_counts *n = c->host.counts;
    const struct cuda_counts *dev = c->dev.counts;
    const struct attention_shape *s = &op->shape;
    struct cuda_attention a = {
        .out = op->y,
        .image = op->image,
        .qkv = op->x,
        .kv = op->kv,
        .tables = c->dev.tables,
        .items = c->dev.items,
        .n_items = &dev->wide,
        .partials = c->partials,
        .q_heads = s->q_heads,
        .group = s->q_heads / s->kv_heads,
        .window = s->window,
        .scale = s->scale,
    };
    if (!cuda_attention_tensor(op->kv.type, s->head_dim, a.group)) {
        uint32_t most = c->processors * BLOCKS_EACH;
        cuda_ok(c,
                cuda_attention_plain(a, recorded ? most : cuda_min(n->wide, most),
                                     c->compute),
                "attention");
        return;
    }
    if (n->wide > 0)
        cuda_ok(c,
                cuda_attention_mma(a, true, blocks_for(c, n->wide, s->kv_heads, false),
                                   c->compute),
                "attention");
    a.items += n->wide;
    a.n_items = &dev->narrow;
    if (n->narrow > 0)
        cuda_ok(c,
                cuda_attention_mma(a, false,
                                   blocks_for(c, n->narrow, s->kv_heads, recorded),
                                   c->compute),
                "attention");
    uint32_t joins = recorded ? rows : n->joins;
    if (joins > 0)
        cuda_ok(c, cuda_attention_join(a, c->dev.joins, &dev->joins, joins, c->compute),
                "joining attention");
}

static void run(struct cuda *c, const struct cuda_op *op, uint32_t rows, bool recorded)
{
    cudaStream_t s = c->compute;
    const struct cuda_matrix *m = &op->matrix;
    cudaError_t e = cudaSuccess;
    switch (op->kind) {
    case OP_EMBED:
        e = cuda_embed(op->y, m->data, m->type, m->ld, c->dev.ids, rows, op->cols, s);
        break;
    case OP_RMSNORM:
        e = cuda_rmsnorm(op->y, op->image, op->x, op->d, op->w, op->eps, rows, op->cols,
                         s);
        break;
    case OP_MATMUL: matmul(c, op, rows); break;
    case OP_ROPE_STORE:
        e = cuda_rope_store(op->x, op->kv, c->dev.slots, c->cos, c->sin, rows,
                            op->shape.q_heads, op->norm, s);
        break;
    case OP_ATTENTION:
        cuda_await_layer(c, op->layer, op->layers);
        attention(c, op, rows, recorded);
        break;
    case OP_SILU_MUL:
        e = cuda_silu_mul(op->y, op->image, op->x, rows, op->cols, s);
        break;
    case OP_GATHER:
        e = cuda_gather(op->y, op->image, op->x, c->dev.logit_rows, rows, op->cols, s);
        break;
    case OP_BEST:
        e = cuda_best((struct best *)(void *)op->y, op->x, op->cols, c->dev.n_best,
                      &c->dev.counts->usable, rows, s);
        break;
    case OP_IMAGE:
        e = cuda_gather(NULL, op->image, op->x, NULL, rows, op->cols, s);
        break;
    case OP_COPY_BLOCK:
        e = cudaMemcpyAsync(op->to, op->from, op->bytes, cudaMemcpyDeviceToDevice, s);
        break;
    }
    cuda_ok(c, e, "launching a kernel");
}

void cuda_run(struct cuda *c, uint32_t rows, uint32_t logits, bool recorded)
{
    uint32_t half = c->base.rope_dim / 2;
    cudaError_t e = cuda_rope_angles(c->cos, c->sin, c->dev.pos, c->dev.inv_freq, rows,
                                     half, c->compute);
    cuda_ok(c, e, "launching a kernel");
    for (uint32_t i = 0; i < c->n_ops && !c->dead; i++) {
        const struct cuda_op *op = &c->ops[i];
        run(c, op, op->of_logits ? logits : rows, recorded);
    }
}
