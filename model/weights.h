/* weights.h - binds every tensor the architecture needs and loads it into a backend.
 *
 * Owns     the matrices and vectors; weights_close() returns them to the backend.
 * Rule     Tied embeddings use the table for the logits even where the file also has a
 *          stray lm_head.weight (said in notes); an untied model without one
 *          does not load.  Each tensor is read by its own dtype; matrices are kept in
 *          it or in the format asked for, but the embedding table and the head in q8
 *          where that is q4.  Norms and biases are f32.
 * Threads  one; the engine's.
 */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "kernels/kernels.h"
#include "model/config.h"
#include "model/safetensors.h"

struct layer_weights {
    float *attn_norm, *ffn_norm;  // (hidden)
    float *q_norm, *k_norm;       // (head_dim); NULL where the model has no QK norm
    struct matrix qkv;            // ((q_heads + 2 kv_heads) head_dim, hidden): q, k, v
    struct matrix o;              // (hidden, q_heads head_dim)
    struct matrix gate_up;        // (2 ffn, hidden): gate, then up
    struct matrix down;           // (hidden, ffn)
};

struct weights {
    struct backend *backend;      // borrowed
    struct matrix embed;          // (vocab, hidden)
    struct matrix head;           // (vocab, hidden); data NULL where tied
    float *norm;                  // (hidden)
    struct layer_weights *layer;  // (layers)
    uint32_t layers;
    size_t bytes;      // taken from the backend
    char notes[512];   // what a person should know ("" or sentences), for the log
    char packed[512];  // what came of the packed form ("" where none was asked for)
};

/* Called now and then while loading; done and total in bytes.  May be NULL. */
typedef void (*weights_progress)(void *arg, size_t done, size_t total);

struct weights_options {
    enum weight_format format;
    /* The folder of the tensors' files, in which the packed form is kept too; NULL: it is
     * neither read nor written. */
    const char *packed_dir;
    weights_progress progress;
    void *arg;
};

NODISCARD int weights_load(struct weights *out, struct backend *b,
                           const struct model_config *c, const struct tensor_set *s,
                           const struct weights_options *o, struct err *err);
void weights_close(struct weights *w);  // zero-initialised or half loaded is fine

/* What weights_load will take from the backend, before anything is loaded. */
NODISCARD int weights_bytes(const struct backend *b, const struct model_config *c,
                            const struct tensor_set *s, enum weight_format format,
                            size_t *out, struct err *err);

#endif
