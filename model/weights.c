/* weights.c - one walk over the tensors of the architecture, taken twice: first to find,
 * check and count everything, then to load it.  So a model that does not fit its
 * configuration is refused before any memory is taken, and what is counted is what is
 * loaded.
 */
#include "model/weights.h"

#include "model/packed.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARTS 3
#define MAX_NAME  96

struct walk {
    const struct backend *b;
    const struct model_config *c;
    const struct tensor_set *set;
    struct err *err;
    struct weights *w;  // NULL while counting
    weights_progress progress;
    void *arg;
    enum weight_format format;
    struct packed *packed;         // or NULL; with it, filled as they are loaded:
    const struct matrix **matrix;  // (of all of the walk)
    uint32_t n_matrices;           // taken so far
    size_t bytes, total;
    bool *used;           // by index in the set; NULL while counting
    uint32_t by_type[3];  // tensors of each enum dtype
};

/* One tensor among those that are stacked to a matrix. */
struct piece {
    const char *name;  // within its layer, without ".weight"
    uint32_t rows;
};

static int add_bytes(struct walk *k, size_t bytes)
{
    if (!__builtin_add_overflow(k->bytes, bytes, &k->bytes)) return 0;
    return err_set(k->err, -EOVERFLOW, "the weights take more than 2^64 bytes");
}

/* dims[1] of 0: a vector. */
static const struct tensor *find(struct walk *k, const char *name, uint32_t rows,
                                 uint32_t cols)
{
    uint64_t dims[2] = {rows, cols};
    const struct tensor *t =
        safetensors_expect(k->set, name, cols > 0 ? 2 : 1, dims, k->err);
    if (!t) return NULL;
    if (k->used) k->used[t - safetensors_at(k->set, 0)] = true;
    k->by_type[t->dtype]++;
    return t;
}

static void report(struct walk *k)
{
    if (k->w && k->progress) k->progress(k->arg, k->bytes, k->total);
}

static int take_vector(struct walk *k, float **out, const char *name, uint32_t n)
{
    const struct tensor *t = find(k, name, n, 0);
    if (!t) return -EINVAL;
    int rc = k->w
                 ? backend_vector_load(k->w->backend, out, t->data, t->dtype, n, k->err)
                 : 0;
    if (rc == 0) rc = add_bytes(k, (size_t)n * sizeof(float));
    return rc;
}

/* Bind one part.  With `bias` its bias must exist, and is loaded as f32 from malloc. */
static int bind_part(struct walk *k, struct matrix_part *part, float **bias,
                     const char *stem, uint32_t rows, uint32_t cols)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s.weight", stem);
    const struct tensor *t = find(k, name, rows, cols);
    if (!t) return -EINVAL;
    *part = (struct matrix_part){t->data, t->dtype, rows, NULL};
    if (!bias) return 0;

    snprintf(name, sizeof name, "%s.bias", stem);
    const struct tensor *v = find(k, name, rows, 0);
    if (!v) return -EINVAL;
    if (!k->w) return 0;
    *bias = malloc(rows * sizeof **bias);
    if (!*bias) return err_set(k->err, -ENOMEM, "no memory for %s", name);
    dtype_to_f32(*bias, v->data, v->dtype, rows);
    part->bias = *bias;
    return 0;
}

/* Out of the packed file where it has the matrix; else from the tensors. */
static int load_parts(struct walk *k, struct matrix *out, enum weight_format format,
                      uint32_t cols, const struct matrix_part *parts, uint32_t n)
{
    struct backend *b = k->w->backend;
    if (k->packed) k->matrix[k->n_matrices] = out;
    if (k->packed && packed_readable(k->packed)) {
        int rc = backend_matrix_reserve(b, out, format, cols, parts, n, k->err);
        if (rc || packed_read(k->packed, k->n_matrices, out)) return rc;
        backend_matrix_free(b, out);
    }
    return backend_matrix_load(b, out, format, cols, parts, n, k->err);
}

static int take_parts(struct walk *k, struct matrix *out, enum weight_format format,
                      uint32_t cols, bool biased, const struct matrix_part *parts,
                      uint32_t n)
{
    enum dtype type = parts[0].type;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        rows += parts[i].rows;
        if (parts[i].type != type) type = DTYPE_F32;  // as the backend keeps a mixture
    }
    size_t bytes = backend_matrix_bytes(k->b, format, rows, cols, type);
    if (bytes == 0)
        return err_set(k->err, -EOVERFLOW,
                       "a matrix of %u rows and %u columns is too large", rows, cols);
    int rc = k->w ? load_parts(k, out, format, cols, parts, n) : 0;
    k->n_matrices++;
    if (rc == 0) rc = add_bytes(k, bytes);
    if (rc == 0 && biased) rc = add_bytes(k, (size_t)rows * sizeof(float));
    report(k);
    return rc;
}

/* prefix names the layer, and is "" for the tensors outside of layers. */
static int take_matrix(struct walk *k, struct matrix *out, enum weight_format format,
                       const char *prefix, uint32_t cols, bool biased,
                       const struct piece *pieces, uint32_t n)
{
    struct matrix_part parts[MAX_PARTS] = {0};
    float *bias[MAX_PARTS] = {0};
    char stem[MAX_NAME - 8];
    int rc = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        snprintf(stem, sizeof stem, "%s%s", prefix, pieces[i].name);
        rc = bind_part(k, &parts[i], biased ? &bias[i] : NULL, stem, pieces[i].rows,
                       cols);
    }
    if (rc == 0) rc = take_parts(k, out, format, cols, biased, parts, n);
    for (uint32_t i = 0; i < n; i++) free(bias[i]);
    return rc;
}

static int take_qk_norm(struct walk *k, struct layer_weights *l, const char *prefix)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%sself_attn.q_norm.weight", prefix);
    int rc = take_vector(k, &l->q_norm, name, k->c->head_dim);
    snprintf(name, sizeof name, "%sself_attn.k_norm.weight", prefix);
    return rc ? rc : take_vector(k, &l->k_norm, name, k->c->head_dim);
}

static int take_layer(struct walk *k, uint32_t i)
{
    const struct model_config *c = k->c;
    uint32_t q = c->q_heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct piece qkv[] = {
        {"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}};
    const struct piece o[] = {{"self_attn.o_proj", c->hidden}};
    const struct piece gate_up[] = {{"mlp.gate_proj", c->ffn}, {"mlp.up_proj", c->ffn}};
    const struct piece down[] = {{"mlp.down_proj", c->hidden}};

    struct layer_weights none, *l = k->w ? &k->w->layer[i] : &none;
    char prefix[32], norm[MAX_NAME];
    snprintf(prefix, sizeof prefix, "model.layers.%u.", i);
    bool attention_bias = c->attention_bias, mlp_bias = c->mlp_bias;

    snprintf(norm, sizeof norm, "%sinput_layernorm.weight", prefix);
    int rc = take_vector(k, &l->attn_norm, norm, c->hidden);
    if (rc == 0)
        rc = take_matrix(k, &l->qkv, k->format, prefix, c->hidden, attention_bias, qkv,
                         3);
    if (rc == 0) rc = take_matrix(k, &l->o, k->format, prefix, q, attention_bias, o, 1);
    if (rc == 0 && c->qk_norm) rc = take_qk_norm(k, l, prefix);
    snprintf(norm, sizeof norm, "%spost_attention_layernorm.weight", prefix);
    if (rc == 0) rc = take_vector(k, &l->ffn_norm, norm, c->hidden);
    if (rc == 0)
        rc = take_matrix(k, &l->gate_up, k->format, prefix, c->hidden, mlp_bias,
                         gate_up, 2);
    if (rc == 0)
        rc = take_matrix(k, &l->down, k->format, prefix, c->ffn, mlp_bias, down, 1);
    // What the backend has packed need not stay in memory a second time.
    if (k->w) safetensors_release_pages(k->set);
    return rc;
}

/* The embedding table and the head hold no more than 8 bits: what they lose shows in every
 * logit, and no later layer can make up for it. */
static enum weight_format table_format(const struct walk *k)
{
    return k->format == WEIGHT_Q4 ? WEIGHT_Q8 : k->format;
}

static int take_head(struct walk *k, struct matrix *out)
{
    if (k->c->tied) return 0;
    struct err why = {0};
    uint64_t dims[2] = {k->c->vocab, k->c->hidden};
    if (!safetensors_expect(k->set, "lm_head.weight", 2, dims, &why))
        return err_set(k->err, -EINVAL,
                       "%s, because the configuration does not say "
                       "\"tie_word_embeddings\": true",
                       why.msg);
    const struct piece head[] = {{"lm_head", k->c->vocab}};
    return take_matrix(k, out, table_format(k), "", k->c->hidden, false, head, 1);
}

/* A model without some of its layers would run, and wrongly. */
static int check_layers(const struct walk *k)
{
    for (uint32_t i = 0; i < safetensors_count(k->set); i++) {
        const char *name = safetensors_at(k->set, i)->name;
        uint32_t layer;
        if (sscanf(name, "model.layers.%9u.", &layer) == 1 && layer >= k->c->layers)
            return err_set(k->err, -EINVAL,
                           "tensor %.64s is of layer %u, but by num_hidden_layers of "
                           "config.json there are %u, counted from 0",
                           name, layer, k->c->layers);
    }
    return 0;
}

static int walk_all(struct walk *k)
{
    struct weights none, *w = k->w ? k->w : &none;
    const struct piece embed[] = {{"model.embed_tokens", k->c->vocab}};
    int rc = check_layers(k);
    if (rc < 0) return rc;
    rc = take_matrix(k, &w->embed, table_format(k), "", k->c->hidden, false, embed, 1);
    for (uint32_t i = 0; i < k->c->layers && rc == 0; i++) rc = take_layer(k, i);
    if (rc == 0) rc = take_vector(k, &w->norm, "model.norm.weight", k->c->hidden);
    if (rc == 0) rc = take_head(k, &w->head);
    return rc;
}

/* ---- notes ---- */

static void note(struct weights *w, const char *fmt, ...) PRINTF_LIKE(2, 3);

static void note(struct weights *w, const char *fmt, ...)
{
    size_t n = strlen(w->notes);
    if (n > 0 && n + 1 < sizeof w->notes) w->notes[n++] = ' ';
    va_list args;
    va_start(args, fmt);
    vsnprintf(w->notes + n, sizeof w->notes - n, fmt, args);
    va_end(args);
}

static void note_types(struct weights *w, const struct walk *k)
{
    uint32_t all = k->by_type[0] + k->by_type[1] + k->by_type[2];
    if (k->format != WEIGHT_OWN || !k->c->has_dtype || k->by_type[k->c->dtype] == all)
        return;
    note(w,
         "The configuration says %s, but of %u tensors %u are f32, %u f16 and %u bf16; "
         "each is kept in its own type.",
         dtype_name(k->c->dtype), all, k->by_type[DTYPE_F32], k->by_type[DTYPE_F16],
         k->by_type[DTYPE_BF16]);
}

static void note_unused(struct weights *w, const struct walk *k)
{
    const char *first = NULL;
    uint32_t unused = 0;
    for (uint32_t i = 0; i < safetensors_count(k->set); i++) {
        const char *name = safetensors_at(k->set, i)->name;
        if (k->used[i]) continue;
        if (strcmp(name, "lm_head.weight") == 0) {
            note(w, "lm_head.weight is ignored: the configuration ties the head to the "
                    "embedding table.");
            continue;
        }
        if (unused++ == 0) first = name;
    }
    if (unused > 0)
        note(
            w,
            "The architecture has no use for %u tensors of the file, the first of them "
            "%.64s.",
            unused, first);
}

/* ---- public ---- */

int weights_bytes(const struct backend *b, const struct model_config *c,
                  const struct tensor_set *s, enum weight_format format, size_t *out,
                  struct err *err)
{
    struct walk k = {.b = b, .c = c, .set = s, .err = err, .format = format};
    int rc = walk_all(&k);
    if (rc == 0) *out = k.bytes;
    return rc;
}

/* Without memory for its list there is no packed form, and nothing else is missing. */
static void open_packed(struct walk *k, const char *dir, uint32_t n_matrices)
{
    packed_open(&k->packed, k->b, dir, k->format, k->set, n_matrices);
    if (k->packed) k->matrix = calloc(n_matrices, sizeof *k->matrix);
    if (k->matrix) return;
    packed_close(k->packed);
    k->packed = NULL;
}

static int load(struct walk *k, struct weights *w)
{
    k->used = calloc((size_t)safetensors_count(k->set) + 1, sizeof *k->used);
    w->layer = calloc(k->c->layers, sizeof *w->layer);
    if (!k->used || !w->layer)
        return err_set(k->err, -ENOMEM, "no memory for the weights of %u layers",
                       k->c->layers);
    w->layers = k->c->layers;
    int rc = walk_all(k);
    if (rc < 0) return rc;
    w->bytes = k->bytes;
    note_types(w, k);
    note_unused(w, k);
    return 0;
}

int weights_load(struct weights *out, struct backend *b, const struct model_config *c,
                 const struct tensor_set *s, const struct weights_options *o,
                 struct err *err)
{
    struct walk k = {.b = b,
                     .c = c,
                     .set = s,
                     .err = err,
                     .format = o->format,
                     .progress = o->progress,
                     .arg = o->arg,
                     .w = out};
    *out = (struct weights){.backend = b};
    struct walk counted = {.b = b, .c = c, .set = s, .err = err, .format = o->format};
    int rc = walk_all(&counted);
    k.total = counted.bytes;
    if (rc == 0 && o->packed_dir) open_packed(&k, o->packed_dir, counted.n_matrices);
    if (rc == 0) rc = load(&k, out);
    if (rc == 0 && k.packed) {
        packed_write(k.packed, k.matrix, k.n_matrices);
        snprintf(out->packed, sizeof out->packed, "%s", packed_result(k.packed));
    }
    packed_close(k.packed);
    free(k.matrix);
    free(k.used);
    if (rc < 0) weights_close(out);
    return rc;
}

void weights_close(struct weights *w)
{
    struct backend *b = w->backend;
    for (uint32_t i = 0; i < w->layers; i++) {
        struct layer_weights *l = &w->layer[i];
        backend_vector_free(b, l->attn_norm);
        backend_vector_free(b, l->ffn_norm);
        backend_vector_free(b, l->q_norm);
        backend_vector_free(b, l->k_norm);
        backend_matrix_free(b, &l->qkv);
        backend_matrix_free(b, &l->o);
        backend_matrix_free(b, &l->gate_up);
        backend_matrix_free(b, &l->down);
    }
    if (b) {
        backend_vector_free(b, w->norm);
        backend_matrix_free(b, &w->embed);
        backend_matrix_free(b, &w->head);
    }
    free(w->layer);
    *w = (struct weights){0};
}
