#include "model/model.h"

#include <math.h>
#include <stdlib.h>

/* The activations of a model, their columns, and whether their rows are the batch's or
 * the logits' (forward.c says what lies in each when). */
struct activation {
    struct buffer *buffer;
    uint64_t cols;
    bool of_logits;
};

#define N_ACTIVATIONS 8

static void activations(struct model *m, const struct model_config *c,
                        struct activation out[N_ACTIVATIONS])
{
    uint64_t q = (uint64_t)c->q_heads * c->head_dim;
    uint64_t kv = (uint64_t)c->kv_heads * c->head_dim;
    const struct activation all[N_ACTIVATIONS] = {
        {&m->x, c->hidden, false},     {&m->h, c->hidden, false},
        {&m->delta, c->hidden, false}, {&m->qkv, q + 2 * kv, false},
        {&m->attn, q, false},          {&m->gate_up, 2 * (uint64_t)c->ffn, false},
        {&m->ffn, c->ffn, false},      {&m->last, c->hidden, true},
    };
    for (int i = 0; i < N_ACTIVATIONS; i++) out[i] = all[i];
}

size_t model_activation_bytes(const struct model_config *c,
                              const struct model_options *o)
{
    struct model none;
    struct activation a[N_ACTIVATIONS];
    activations(&none, c, a);

    const uint32_t best = BEST_MOST * sizeof(struct best) / sizeof(float);
    unsigned __int128 elements =
        (unsigned __int128)o->max_logits * ((uint64_t)c->vocab + best);
    for (int i = 0; i < N_ACTIVATIONS; i++)
        elements += (unsigned __int128)a[i].cols *
                    (a[i].of_logits ? o->max_logits : o->max_rows);
    return elements > SIZE_MAX / sizeof(float) ? SIZE_MAX
                                               : (size_t)elements * sizeof(float);
}

uint32_t model_widest_input(const struct model_config *c)
{
    uint32_t q = c->q_heads * c->head_dim, most = c->hidden > q ? c->hidden : q;
    return most > c->ffn ? most : c->ffn;
}

static int allocate(struct model *m, struct err *err)
{
    const struct model_config *c = &m->config;
    struct activation a[N_ACTIVATIONS];
    activations(m, c, a);
    for (int i = 0; i < N_ACTIVATIONS; i++) {
        uint32_t rows = a[i].of_logits ? m->options.max_logits : m->options.max_rows;
        if (a[i].cols > UINT32_MAX)
            return err_set(err, -EINVAL, "activations of %llu columns are too wide",
                           (unsigned long long)a[i].cols);
        int rc = backend_buffer_alloc(m->backend, a[i].buffer, rows,
                                      (uint32_t)a[i].cols, err);
        if (rc < 0) return rc;
    }
    m->inv_freq = malloc(c->head_dim / 2 * sizeof *m->inv_freq);
    if (!m->inv_freq) return err_set(err, -ENOMEM, "no memory for RoPE frequencies");
    model_rope_frequencies(c, m->inv_freq);
    int rc = backend_logits_alloc(m->backend, &m->logits, m->options.max_logits,
                                  c->vocab, err);
    if (rc < 0) return rc;
    return backend_best_alloc(m->backend, &m->best, m->options.max_logits, err);
}

int model_open(struct model *out, struct backend *b, const struct model_config *c,
               const struct tensor_set *set, const struct model_options *o,
               struct err *err)
{
    if (o->max_rows == 0 || o->max_logits == 0)
        return err_set(
            err, -EINVAL,
            "a model for steps of %u rows and %u logit rows cannot be opened; at "
            "least 1 of each is needed",
            o->max_rows, o->max_logits);

    struct model m = {.config = *c, .backend = b, .options = *o};
    int rc = allocate(&m, err);
    if (rc == 0) rc = weights_load(&m.weights, b, c, set, &o->weights, err);
    if (rc < 0) {
        model_close(&m);
        return rc;
    }
    *out = m;
    return 0;
}

void model_close(struct model *m)
{
    if (m->backend) {
        struct activation a[N_ACTIVATIONS];
        activations(m, &m->config, a);
        for (int i = 0; i < N_ACTIVATIONS; i++)
            backend_buffer_free(m->backend, a[i].buffer);
        backend_logits_free(m->backend, m->logits);
        backend_best_free(m->backend, m->best);
        weights_close(&m->weights);
    }
    free(m->inv_freq);
    *m = (struct model){0};
}

struct kv_shape model_kv_shape(const struct model_config *c, enum dtype kv)
{
    return (struct kv_shape){
        .layers = c->layers,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .dtype = kv,
    };
}
