/* model.h - a directory of weights that computes logits: the transformer over a backend.
 *
 * Owns     weights, activations and logits.  Knows KV blocks as numbers in a batch.
 * Caller   passes a batch whose block tables cover every position 0..pos of its rows,
 *          with the K and V of earlier positions already written by earlier steps.
 * Memory   all taken at open; model_forward() allocates nothing.
 * Threads  one; the engine's.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "model/kv_pool.h"
#include "model/weights.h"

struct model_options {
    uint32_t max_rows;    // tokens of one step
    uint32_t max_logits;  // rows of logits of one step
    struct weights_options weights;
};

struct model {
    struct model_config config;
    struct backend *backend;  // borrowed
    struct weights weights;
    float *inv_freq;  // (head_dim / 2)
    struct buffer x, h, delta, qkv, attn, gate_up, ffn,
        last;           // activations, see forward.c
    float *logits;      // (max_logits, vocab)
    struct best *best;  // (max_logits, BEST_MOST)
    struct model_options options;
};

/* Bytes of activations and logits that model_open() will take. */
size_t model_activation_bytes(const struct model_config *c,
                              const struct model_options *o);

/* Columns of the widest matrix: the backend's max_cols. */
uint32_t model_widest_input(const struct model_config *c);

/* config as loaded by model_config_load(); set is not needed afterwards. */
NODISCARD int model_open(struct model *out, struct backend *b,
                         const struct model_config *c, const struct tensor_set *set,
                         const struct model_options *o, struct err *err);
void model_close(struct model *m);  // zero-initialised or half open is fine

struct kv_shape model_kv_shape(const struct model_config *c, enum dtype kv);

/* Compute the batch: K and V of all its rows are in the pool afterwards, and row i of
 * *logits, of config.vocab floats, belongs to batch->logit_rows[i]; it is valid until the
 * next call.  Where batch->n_best[i] is not 0, only the m->best of the row is.  -EIO or the backend's error. -EINVAL, and nothing computed, where an id or
 * a position is out of range, a block to be written has another holder, or the batch
 * exceeds what was opened. */
NODISCARD int model_forward(struct model *m, struct kv_pool *kv,
                            const struct batch *batch, const float **logits,
                            struct err *err);

#endif
