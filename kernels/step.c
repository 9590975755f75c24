/* step.c - the checked operations of one step.
 *
 * Every function first asks whether the step is still good and its arguments fit; the
 * first one that does not fit is remembered, and everything after it until
 * backend_finish() does nothing.
 */
#include "kernels/backend.h"

#include <stdarg.h>
#include <stdio.h>

static bool PRINTF_LIKE(3, 4)
    require(struct backend *b, bool holds, const char *fmt, ...)
{
    if (b->rc) return false;
    if (holds) return true;
    va_list args;
    va_start(args, fmt);
    vsnprintf(b->why.msg, sizeof b->why.msg, fmt, args);
    va_end(args);
    b->rc = -EINVAL;
    return false;
}

static bool in_step(struct backend *b, const char *op)
{
    return require(b, b->batch, "%s was called outside of a step", op);
}

static bool fits(struct backend *b, const char *what, const struct buffer *x,
                 uint32_t rows, uint64_t cols)
{
    return require(b, x->rows >= rows && x->cols == cols,
                   "%s has %u rows by %u columns; %u by %llu are needed", what, x->rows,
                   x->cols, rows, (unsigned long long)cols);
}

static bool check_sequence(struct backend *b, const struct batch *t, uint32_t s)
{
    uint32_t first = t->row_start[s], end = t->row_start[s + 1];
    uint32_t block = t->block_start[s], block_end = t->block_start[s + 1];
    if (!require(b,
                 first < end && end <= t->n_rows && block <= block_end &&
                     block_end <= b->limits.max_blocks,
                 "sequence %u has rows %u to %u and blocks %u to %u; they must ascend "
                 "within %u rows and %u blocks",
                 s, first, end, block, block_end, t->n_rows, b->limits.max_blocks)) {
        return false;
    }
    uint64_t room = (uint64_t)(block_end - block) * KV_BLOCK_TOKENS;
    for (uint32_t r = first; r < end; r++) {
        if (!require(b, t->pos[r] == (uint64_t)t->pos[first] + (r - first),
                     "row %u has position %u, which does not follow its neighbour's", r,
                     t->pos[r]) ||
            !require(b, t->pos[r] < room,
                     "row %u has position %u; its block table holds %llu positions", r,
                     t->pos[r], (unsigned long long)room)) {
            return false;
        }
    }
    return true;
}

static bool check_batch(struct backend *b, const struct batch *t)
{
    const struct backend_limits *l = &b->limits;
    if (!require(b,
                 t->n_rows && t->n_rows <= l->max_rows && t->n_seqs &&
                     t->n_seqs <= l->max_seqs && t->n_logits <= t->n_rows,
                 "a batch has %u rows, %u sequences and %u logit rows; the limits are "
                 "1 to %u, 1 to %u and 0 to the rows",
                 t->n_rows, t->n_seqs, t->n_logits, l->max_rows, l->max_seqs) ||
        !require(b,
                 t->row_start[0] == 0 && t->row_start[t->n_seqs] == t->n_rows &&
                     t->block_start[0] == 0,
                 "the sequences of a batch must cover its %u rows from 0", t->n_rows)) {
        return false;
    }
    for (uint32_t s = 0; s < t->n_seqs; s++) {
        if (!check_sequence(b, t, s)) return false;
    }
    for (uint32_t i = 0; i < t->n_logits; i++) {
        uint32_t row = t->logit_rows[i];
        if (!require(b, row < t->n_rows && (i == 0 || row > t->logit_rows[i - 1]),
                     "logit row %u is %u; they must ascend below %u", i, row,
                     t->n_rows)) {
            return false;
        }
    }
    return true;
}

void backend_begin(struct backend *b, const struct batch *batch, const float *inv_freq,
                   uint32_t head_dim)
{
    if (!require(b, !b->batch, "a step was begun before the last one was finished") ||
        !require(b, head_dim % 2 == 0 && head_dim && head_dim <= b->limits.max_head_dim,
                 "head dimension %u must be even, from 2 to %u", head_dim,
                 b->limits.max_head_dim) ||
        !check_batch(b, batch)) {
        return;
    }
    b->batch = batch;
    b->rope_dim = head_dim;
    b->top_block = 0;
    for (uint32_t i = 0; i < batch->block_start[batch->n_seqs]; i++) {
        if (batch->blocks[i] > b->top_block) b->top_block = batch->blocks[i];
    }
    b->ops->begin(b, inv_freq, head_dim);
}

void backend_embed(struct backend *b, struct buffer *x, const struct matrix *table)
{
    if (!in_step(b, "embed") ||
        !fits(b, "embed's x", x, b->batch->n_rows, table->cols)) {
        return;
    }
    for (uint32_t r = 0; r < b->batch->n_rows; r++) {
        int32_t id = b->batch->ids[r];
        if (!require(b, id >= 0 && (uint32_t)id < table->rows,
                     "row %u has token id %d; the vocabulary holds 0 to %u", r, id,
                     table->rows - 1)) {
            return;
        }
    }
    b->ops->embed(b, x, table);
}

void backend_rmsnorm(struct backend *b, struct buffer *y, const struct buffer *x,
                     const float *w, float eps)
{
    if (in_step(b, "rmsnorm") && fits(b, "rmsnorm's x", x, b->batch->n_rows, x->cols) &&
        fits(b, "rmsnorm's y", y, b->batch->n_rows, x->cols)) {
        b->ops->rmsnorm(b, y, x, w, eps);
    }
}

void backend_add_rmsnorm(struct backend *b, struct buffer *y, struct buffer *x,
                         const struct buffer *d, const float *w, float eps)
{
    if (in_step(b, "add_rmsnorm") &&
        fits(b, "add_rmsnorm's x", x, b->batch->n_rows, x->cols) &&
        fits(b, "add_rmsnorm's d", d, b->batch->n_rows, x->cols) &&
        fits(b, "add_rmsnorm's y", y, b->batch->n_rows, x->cols)) {
        b->ops->add_rmsnorm(b, y, x, d, w, eps);
    }
}

void backend_matmul(struct backend *b, struct buffer *y, const struct matrix *m,
                    const struct buffer *x)
{
    if (in_step(b, "matmul") && fits(b, "matmul's x", x, b->batch->n_rows, m->cols) &&
        fits(b, "matmul's y", y, b->batch->n_rows, m->rows)) {
        b->ops->matmul(b, y, m, x);
    }
}

static bool check_heads(struct backend *b, const struct kv_pool_mem *kv, uint32_t layer,
                        const struct attention_shape *s, const struct buffer *qkv)
{
    return require(
               b,
               s->kv_heads && s->q_heads && s->q_heads % s->kv_heads == 0 &&
                   s->q_heads <= b->limits.max_q_heads,
               "%u query heads over %u KV heads: they must divide, and be at most %u",
               s->q_heads, s->kv_heads, b->limits.max_q_heads) &&
           require(b, s->head_dim == b->rope_dim,
                   "head dimension %u differs from the %u that the step began with",
                   s->head_dim, b->rope_dim) &&
           require(b,
                   kv->shape.kv_heads == s->kv_heads &&
                       kv->shape.head_dim == s->head_dim && layer < kv->shape.layers,
                   "layer %u with %u KV heads of %u does not fit a pool of %u layers "
                   "with %u heads of %u",
                   layer, s->kv_heads, s->head_dim, kv->shape.layers,
                   kv->shape.kv_heads, kv->shape.head_dim) &&
           require(b, b->top_block < kv->n_blocks,
                   "a block table names block %u; the pool has %u", b->top_block,
                   kv->n_blocks) &&
           fits(b, "attention's qkv", qkv, b->batch->n_rows,
                ((uint64_t)s->q_heads + 2 * (uint64_t)s->kv_heads) * s->head_dim);
}

void backend_rope_store(struct backend *b, struct buffer *qkv, struct kv_pool_mem *kv,
                        uint32_t layer, const struct attention_shape *s,
                        const struct qk_norm *norm)
{
    if (in_step(b, "rope_store") && check_heads(b, kv, layer, s, qkv)) {
        b->ops->rope_store(b, qkv, kv, layer, s, norm);
    }
}

void backend_attention(struct backend *b, struct buffer *out, const struct buffer *qkv,
                       const struct kv_pool_mem *kv, uint32_t layer,
                       const struct attention_shape *s)
{
    if (in_step(b, "attention") && check_heads(b, kv, layer, s, qkv) &&
        fits(b, "attention's out", out, b->batch->n_rows,
             (uint64_t)s->q_heads * s->head_dim)) {
        b->ops->attention(b, out, qkv, kv, layer, s);
    }
}

void backend_silu_mul(struct backend *b, struct buffer *y, const struct buffer *gu)
{
    if (in_step(b, "silu_mul") &&
        fits(b, "silu_mul's y", y, b->batch->n_rows, y->cols) &&
        fits(b, "silu_mul's input", gu, b->batch->n_rows, 2 * (uint64_t)y->cols)) {
        b->ops->silu_mul(b, y, gu);
    }
}

void backend_gather_logit_rows(struct backend *b, struct buffer *y,
                               const struct buffer *x)
{
    if (in_step(b, "gather_logit_rows") &&
        fits(b, "gather_logit_rows' x", x, b->batch->n_rows, x->cols) &&
        fits(b, "gather_logit_rows' y", y, b->batch->n_logits, x->cols)) {
        b->ops->gather_logit_rows(b, y, x);
    }
}

void backend_logits(struct backend *b, float *logits, const struct matrix *m,
                    const struct buffer *x)
{
    if (in_step(b, "logits") && fits(b, "logits' x", x, b->batch->n_logits, m->cols)) {
        b->ops->logits(b, logits, m, x);
    }
}

void backend_best(struct backend *b, struct best *best, const float *logits,
                  uint32_t cols)
{
    if (!in_step(b, "best")) return;
    const struct batch *t = b->batch;
    if (!require(b, t->n_best && t->n_usable && t->n_usable <= cols,
                 "a batch asks for the best of %u logits; a row has %u", t->n_usable,
                 cols)) {
        return;
    }
    for (uint32_t i = 0; i < t->n_logits; i++) {
        if (!require(b, t->n_best[i] <= BEST_MOST && t->n_best[i] <= t->n_usable,
                     "row %u of logits is asked for its best %u; the most is %u of %u",
                     i, t->n_best[i], BEST_MOST, t->n_usable)) {
            return;
        }
    }
    b->ops->best(b, best, logits, cols);
}

void backend_copy_block(struct backend *b, struct kv_pool_mem *kv, uint32_t dst,
                        uint32_t src)
{
    if (require(b, dst < kv->n_blocks && src < kv->n_blocks,
                "block %u cannot be copied to %u in a pool of %u", src, dst,
                kv->n_blocks)) {
        b->ops->copy_block(b, kv, dst, src);
    }
}

int backend_finish(struct backend *b, struct err *err)
{
    int rc = b->rc;
    if (rc) {
        err_set(err, rc, "%s", b->why.msg);
        (void)b->ops->finish(b, NULL);  // the step is lost; this only waits
    } else {
        rc = b->ops->finish(b, err);
    }
    b->batch = NULL;
    b->rc = 0;
    return rc;
}
