/* forward.c - the transformer, written once over kernels.h. */
#include "model/model.h"

#include <math.h>

static int check_pool(const struct model *m, const struct kv_pool *kv, struct err *err)
{
    struct kv_shape want = model_kv_shape(&m->config, kv->mem.shape.dtype);
    const struct kv_shape *got = &kv->mem.shape;
    if (got->layers != want.layers || got->kv_heads != want.kv_heads ||
        got->head_dim != want.head_dim)
        return err_set(
            err, -EINVAL,
            "the KV pool holds %u layers of %u heads of %u; the model has %u of "
            "%u of %u",
            got->layers, got->kv_heads, got->head_dim, want.layers, want.kv_heads,
            want.head_dim);
    return 0;
}

/* A block with several holders is read-only: computing into one would change what another
 * conversation has read. */
static int check_writable(const struct kv_pool *kv, const struct batch *t, uint32_t row,
                          uint32_t seq, struct err *err)
{
    uint64_t entry = (uint64_t)t->block_start[seq] + t->pos[row] / KV_BLOCK_TOKENS;
    if (entry >= t->block_start[seq + 1] || t->blocks[entry] >= kv->mem.n_blocks)
        return err_set(
            err, -EINVAL,
            "row %u has position %u, for which sequence %u has no block of the "
            "pool's %u",
            row, t->pos[row], seq, kv->mem.n_blocks);
    uint32_t block = t->blocks[entry];
    if (kv->refs[block] != 1)
        return err_set(
            err, -EINVAL,
            "row %u would write KV block %u, which has %u holders; it must have 1", row,
            block, kv->refs[block]);
    return 0;
}

/* What the backend cannot know; it checks the shape of the batch and the ids itself,
 * before it computes anything. */
static int check_batch(const struct model *m, const struct kv_pool *kv,
                       const struct batch *t, struct err *err)
{
    if (t->n_rows > m->options.max_rows || t->n_logits > m->options.max_logits)
        return err_set(
            err, -EINVAL,
            "a batch of %u rows and %u logit rows exceeds the %u and %u that the "
            "model was opened with",
            t->n_rows, t->n_logits, m->options.max_rows, m->options.max_logits);

    for (uint32_t s = 0; s < t->n_seqs; s++) {
        for (uint32_t r = t->row_start[s]; r < t->row_start[s + 1] && r < t->n_rows;
             r++) {
            if (t->pos[r] >= m->config.context)
                return err_set(err, -EINVAL,
                               "row %u has position %u; the context ends at %u tokens",
                               r, t->pos[r], m->config.context);
            int rc = check_writable(kv, t, r, s, err);
            if (rc < 0) return rc;
        }
    }
    return check_pool(m, kv, err);
}

static void attention_block(struct model *m, struct kv_pool *kv, uint32_t layer,
                            const struct attention_shape *s)
{
    const struct layer_weights *w = &m->weights.layer[layer];
    const struct qk_norm norm = {w->q_norm, w->k_norm, m->config.norm_eps};
    struct backend *b = m->backend;

    backend_matmul(b, &m->qkv, &w->qkv, &m->h);
    backend_rope_store(b, &m->qkv, &kv->mem, layer, s, w->q_norm ? &norm : NULL);
    backend_attention(b, &m->attn, &m->qkv, &kv->mem, layer, s);
    backend_matmul(b, &m->delta, &w->o, &m->attn);
}

static void ffn_block(struct model *m, uint32_t layer)
{
    const struct layer_weights *w = &m->weights.layer[layer];
    struct backend *b = m->backend;

    backend_matmul(b, &m->gate_up, &w->gate_up, &m->h);
    backend_silu_mul(b, &m->ffn, &m->gate_up);
    backend_matmul(b, &m->delta, &w->down, &m->ffn);
}

/* x is the residual stream, h its norm, delta what the next norm adds to x first.  The
 * final norm is taken of every row, since it is the pass that adds the last delta; only
 * the rows wanted go through the head. */
int model_forward(struct model *m, struct kv_pool *kv, const struct batch *batch,
                  const float **logits, struct err *err)
{
    int rc = check_batch(m, kv, batch, err);
    if (rc < 0) return rc;

    const struct model_config *c = &m->config;
    const struct weights *w = &m->weights;
    const struct attention_shape shape = {
        .q_heads = c->q_heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .window = c->window,
        .scale = 1.0f / sqrtf((float)c->head_dim),
    };
    struct backend *b = m->backend;

    backend_begin(b, batch, m->inv_freq, c->head_dim);
    backend_embed(b, &m->x, &w->embed);
    backend_rmsnorm(b, &m->h, &m->x, w->layer[0].attn_norm, c->norm_eps);
    for (uint32_t l = 0; l < c->layers; l++) {
        const float *next = l + 1 < c->layers ? w->layer[l + 1].attn_norm : w->norm;
        attention_block(m, kv, l, &shape);
        backend_add_rmsnorm(b, &m->h, &m->x, &m->delta, w->layer[l].ffn_norm,
                            c->norm_eps);
        ffn_block(m, l);
        backend_add_rmsnorm(b, &m->h, &m->x, &m->delta, next, c->norm_eps);
    }
    if (batch->n_logits > 0) {
        backend_gather_logit_rows(b, &m->last, &m->h);
        backend_logits(b, m->logits, w->head.data ? &w->head : &w->embed, &m->last);
        if (batch->n_best) backend_best(b, m->best, m->logits, c->vocab);
    }
    *logits = m->logits;
    return backend_finish(b, err);
}
