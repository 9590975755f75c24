/* step.c - one step of the CUDA backend: operations are listed as they are called, and run
 * when the step is finished.
 *
 * So the shape of attention is known when the batch's items are laid out, a product's operand
 * is rounded by whoever computes it, and a step of decode that lists what an earlier one
 * listed is replayed instead of launched.
 */
#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

void cuda_fail(struct cuda *c, int rc, const char *why)
{
    if (c->base.rc) return;
    c->base.rc = rc;
    snprintf(c->base.why.msg, sizeof c->base.why.msg, "%s", why);
}

/* The rows of a buffer that the step computes with: padding must stay within them, too. */
static float *rows_of(struct backend *b, const struct buffer *x)
{
    struct cuda *c = cuda_of(b);
    c->room = cuda_min(c->room, x->rows);
    return x->data;
}

/* The next slot of the list, zeroed; NULL where the step is lost. */
static struct cuda_op *add_op(struct backend *b, enum cuda_op_kind kind)
{
    struct cuda *c = cuda_of(b);
    if (b->rc) return NULL;
    if (c->n_ops == CUDA_MAX_OPS) {
        cuda_fail(c, -E2BIG,
                  "a step has more operations than the CUDA backend can list");
        return NULL;
    }
    struct cuda_op *op = &c->ops[c->n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    return op;
}

static void begin(struct backend *b, const float *inv_freq, uint32_t head_dim)
{
    struct cuda *c = cuda_of(b);
    (void)head_dim;  // is rope_dim
    c->n_ops = 0;
    c->room = UINT32_MAX;
    c->shape = (struct attention_shape){0};
    if (!cuda_enter(c)) {
        cuda_fail(c, -EIO, c->why_dead.msg);
        return;
    }
    cuda_input_rows(c, inv_freq);
}

static struct cuda_matrix matrix_of(const struct matrix *m)
{
    return (struct cuda_matrix){
        .data = m->data,
        .bias = m->bias,
        .rows = m->rows,
        .cols = m->cols,
        .ld = cuda_ld(m->cols, m->type),
        .type = m->type,
    };
}

static void embed(struct backend *b, struct buffer *x, const struct matrix *table)
{
    struct cuda_op *op = add_op(b, OP_EMBED);
    if (!op) return;
    op->y = rows_of(b, x);
    op->cols = x->cols;
    op->matrix = matrix_of(table);
}

static void add_rmsnorm(struct backend *b, struct buffer *y, struct buffer *x,
                        const struct buffer *d, const float *w, float eps)
{
    struct cuda_op *op = add_op(b, OP_RMSNORM);
    if (!op) return;
    op->y = rows_of(b, y);
    op->x = rows_of(b, x);
    op->d = d ? rows_of(b, d) : NULL;
    op->w = w;
    op->cols = x->cols;
    op->eps = eps;
}

static void rmsnorm(struct backend *b, struct buffer *y, const struct buffer *x,
                    const float *w, float eps)
{
    struct buffer same = *x;
    add_rmsnorm(b, y, &same, NULL, w, eps);
}

/* x is to be multiplied by a matrix of 16 bits: whoever computed it last rounds it at once,
 * else a pass of its own does. */
static void want_image(struct cuda *c, const struct buffer *x,
                       const struct cuda_matrix *m, bool of_logits)
{
    struct cuda_image image = {c->image, m->ld, m->type};
    struct cuda_op *last = c->n_ops > 0 ? &c->ops[c->n_ops - 1] : NULL;
    bool writes = last && last->y == x->data && last->of_logits == of_logits &&
                  (last->kind == OP_RMSNORM || last->kind == OP_SILU_MUL ||
                   last->kind == OP_GATHER ||
                   (last->kind == OP_ATTENTION && x->cols == m->ld &&
                    cuda_attention_tensor(last->kv.type, last->shape.head_dim,
                                          last->shape.q_heads / last->shape.kv_heads)));
    if (!writes) {
        last = add_op(&c->base, OP_IMAGE);
        if (!last) return;
        last->of_logits = of_logits;
        last->x = x->data;
        last->cols = x->cols;
    }
    last->image = image;
}

static void product(struct backend *b, float *y, const struct matrix *m,
                    const struct buffer *x, bool of_logits)
{
    struct cuda_matrix matrix = matrix_of(m);
    if (m->type != DTYPE_F32) want_image(cuda_of(b), x, &matrix, of_logits);
    struct cuda_op *op = add_op(b, OP_MATMUL);
    if (!op) return;
    op->of_logits = of_logits;
    op->y = y;
    op->x = rows_of(b, x);
    op->matrix = matrix;
}

static void matmul(struct backend *b, struct buffer *y, const struct matrix *m,
                   const struct buffer *x)
{
    product(b, rows_of(b, y), m, x, false);
}

/* All layers of a step are alike, since their items are laid out once. */
static struct cuda_op *add_attention(struct backend *b, enum cuda_op_kind kind,
                                     const struct kv_pool_mem *kv, uint32_t layer,
                                     const struct attention_shape *s)
{
    struct cuda *c = cuda_of(b);
    const struct attention_shape *was = &c->shape;
    if (was->q_heads == 0) {
        c->shape = *s;
        c->kv_type = kv->shape.dtype;
    } else if (was->q_heads != s->q_heads || was->kv_heads != s->kv_heads ||
               was->head_dim != s->head_dim || was->window != s->window ||
               c->kv_type != kv->shape.dtype) {
        cuda_fail(c, -EINVAL,
                  "a step on the CUDA backend has one shape of attention for "
                  "all layers");
        return NULL;
    }
    struct cuda_op *op = add_op(b, kind);
    if (!op) return NULL;
    op->kv = (struct cuda_kv){
        .base = (char *)kv->base + kv_plane_offset(&kv->shape, layer, 0, 0),
        .block_stride = kv_block_bytes(&kv->shape) / dtype_bytes(kv->shape.dtype),
        .type = kv->shape.dtype,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .plane = KV_BLOCK_TOKENS * s->head_dim,
    };
    op->shape = *s;
    return op;
}

static void rope_store(struct backend *b, struct buffer *qkv, struct kv_pool_mem *kv,
                       uint32_t layer, const struct attention_shape *s,
                       const struct qk_norm *norm)
{
    struct cuda_op *op = add_attention(b, OP_ROPE_STORE, kv, layer, s);
    if (!op) return;
    op->x = rows_of(b, qkv);
    if (norm) op->norm = (struct cuda_qk_norm){norm->q, norm->k, norm->eps, 0};
}

static void attention(struct backend *b, struct buffer *out, const struct buffer *qkv,
                      const struct kv_pool_mem *kv, uint32_t layer,
                      const struct attention_shape *s)
{
    struct cuda_op *op = add_attention(b, OP_ATTENTION, kv, layer, s);
    if (!op) return;
    op->y = rows_of(b, out);
    op->x = rows_of(b, qkv);
    op->layer = layer;
    op->layers = kv->shape.layers;
}

static void silu_mul(struct backend *b, struct buffer *y, const struct buffer *gu)
{
    struct cuda_op *op = add_op(b, OP_SILU_MUL);
    if (!op) return;
    op->y = rows_of(b, y);
    op->x = rows_of(b, gu);
    op->cols = y->cols;
}

static void gather_logit_rows(struct backend *b, struct buffer *y,
                              const struct buffer *x)
{
    struct cuda_op *op = b->batch->n_logits > 0 ? add_op(b, OP_GATHER) : NULL;
    if (!op) return;
    op->of_logits = true;
    op->y = rows_of(b, y);
    op->x = rows_of(b, x);
    op->cols = x->cols;
}

static void logits(struct backend *b, float *logits, const struct matrix *m,
                   const struct buffer *x)
{
    if (b->batch->n_logits == 0) return;
    struct cuda_result *r = cuda_result_at(b, logits, m->rows * sizeof *logits);
    if (r) product(b, (float *)(void *)r->device, m, x, true);
}

static void best(struct backend *b, struct best *best, const float *logits,
                 uint32_t cols)
{
    if (b->batch->n_logits == 0) return;
    struct cuda_result *from = cuda_result_at(b, logits, cols * sizeof *logits);
    struct cuda_result *to = cuda_result_at(b, best, BEST_MOST * sizeof *best);
    struct cuda_op *op = from && to ? add_op(b, OP_BEST) : NULL;
    if (!op) return;
    from->reduced = true;
    op->of_logits = true;
    op->y = (float *)(void *)to->device;
    op->x = (float *)(void *)from->device;
    op->cols = cols;
}

static void copy_block(struct backend *b, struct kv_pool_mem *kv, uint32_t dst,
                       uint32_t src)
{
    struct cuda *c = cuda_of(b);
    size_t bytes = kv_block_bytes(&kv->shape);
    char *to = (char *)kv->base + dst * bytes, *from = (char *)kv->base + src * bytes;
    if (dst == src) return;
    if (b->batch) {
        struct cuda_op *op = add_op(b, OP_COPY_BLOCK);
        if (!op) return;
        op->to = to;
        op->from = from;
        op->bytes = bytes;
        return;
    }
    if (!cuda_enter(c)) {
        cuda_fail(c, -EIO, c->why_dead.msg);
        return;
    }
    cuda_ok(c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c->compute),
            "copying a block");
    c->copying = true;
}

/* ---- the end of a step ---- */

static void run_step(struct cuda *c)
{
    const struct batch *t = c->base.batch;
    uint32_t padded = cuda_graph_rows(c);
    cuda_input_send(c, padded ? padded : t->n_rows);
    if (c->dead) return;
    if (padded)
        cuda_graph_run(c, padded);
    else
        cuda_run(c, t->n_rows, t->n_logits, false);
    cuda_results_send(c);
}

static int finish(struct backend *b, struct err *err)
{
    struct cuda *c = cuda_of(b);
    bool lost = b->rc != 0;
    if (cuda_enter(c)) {
        if (!lost && b->batch && c->n_ops > 0) run_step(c);
        // Also where it is lost: what was enqueued before must not run on.
        cuda_ok(c, cudaStreamSynchronize(c->compute), "computing a step");
    }
    c->n_ops = 0;
    c->copying = false;
    cuda_results_forget(c);
    return c->dead ? err_set(err, -EIO, "%s", c->why_dead.msg) : 0;
}

/* ---- memory ---- */

static void *alloc(struct backend *b, size_t bytes)
{
    return cuda_enter(cuda_of(b)) ? cuda_device_alloc(cuda_of(b), bytes) : NULL;
}

static void release(struct backend *b, void *p)
{
    cuda_device_free(cuda_of(b), p);
}

static bool device_memory(const struct backend *b, uint64_t *free_bytes)
{
    struct cuda *c = CONTAINER_OF((struct backend *)(uintptr_t)b, struct cuda, base);
    size_t left = 0, total = 0;
    *free_bytes = 0;  // of a dead device nothing can be had
    if (cuda_enter(c) && cuda_ok(c, cudaMemGetInfo(&left, &total), "asking for memory"))
        *free_bytes = left;
    return true;
}

const struct backend_ops cuda_ops = {
    .close = cuda_close,
    .matrix_load = cuda_matrix_load,
    .matrix_free = cuda_matrix_free,
    .matrix_bytes = cuda_matrix_bytes,
    .vector_load = cuda_vector_load,
    .alloc = alloc,
    .free = release,
    .host_alloc = cuda_result_alloc,
    .host_free = cuda_result_free,
    .begin = begin,
    .embed = embed,
    .rmsnorm = rmsnorm,
    .add_rmsnorm = add_rmsnorm,
    .matmul = matmul,
    .rope_store = rope_store,
    .attention = attention,
    .silu_mul = silu_mul,
    .gather_logit_rows = gather_logit_rows,
    .logits = logits,
    .best = best,
    .copy_block = copy_block,
    .finish = finish,
    .copyq_open = cuda_copyq_open,
    .device_memory = device_memory,
    .decode_rows = cuda_decode_rows,
    .recorded = cuda_recorded,
};
