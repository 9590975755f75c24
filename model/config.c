/* config.c - config.json and generation_config.json as one checked value.
 *
 * What a file leaves out is as the architecture's configuration class in transformers
 * has it, and a field that the class does not have is ignored: Llama's has no sliding
 * window, and Qwen3's has one only where use_sliding_window says so.  The upper bounds are
 * far above any model, and low enough that no product of them that sizes memory can
 * overflow 64 bits.
 */
#include "model/config.h"

#include "model/config_fields.h"
#include "model/file_map.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LAYERS   4096u
#define MAX_HIDDEN   (1u << 20)
#define MAX_FFN      (1u << 22)
#define MAX_HEADS    1024u
#define MAX_HEAD_DIM 1024u
#define MAX_VOCAB    (1u << 24)

static const struct architecture {
    const char *name, *model_type;
    uint32_t context;   // default of max_position_embeddings
    uint32_t kv_heads;  // default of num_key_value_heads; 0: one for each query head
    uint32_t head_dim;  // default; 0: hidden_size over the heads
    int32_t bos, eos;   // default, where the vocabulary has them; -1: none
    bool attention_bias, mlp_bias, sliding_window, use_sliding_window;  // fields it has
    bool qk_norm;
} architectures[] = {
    {
        .name = "LlamaForCausalLM",
        .model_type = "llama",
        .context = 2048,
        .bos = 1,
        .eos = 2,
        .attention_bias = true,
        .mlp_bias = true,
    },
    {
        .name = "MistralForCausalLM",
        .model_type = "mistral",
        .context = 131072,
        .kv_heads = 8,
        .bos = 1,
        .eos = 2,
        .sliding_window = true,
    },
    {
        .name = "Qwen3ForCausalLM",
        .model_type = "qwen3",
        .context = 32768,
        .kv_heads = 32,
        .head_dim = 128,
        .bos = -1,
        .eos = -1,
        .attention_bias = true,
        .use_sliding_window = true,
        .qk_norm = true,
    },
};

/* "A, B and C" */
static void list_architectures(char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(architectures) && n < cap; i++) {
        const char *between = i == 0                              ? ""
                              : i + 1 == ARRAY_LEN(architectures) ? " and "
                                                                  : ", ";
        n += (size_t)snprintf(out + n, cap - n, "%s%s", between, architectures[i].name);
    }
}

static const struct architecture *
read_architecture(struct fields *f, struct json_value root, struct model_config *c)
{
    char type[64];
    fields_string(f, root, "model_type", type, sizeof type);

    struct json_value names = json_get(root, "architectures");
    struct json_iter i = json_iter(names);
    if (!json_is(names, JSON_ARRAY) || !json_next(&i) ||
        !json_is(i.value, JSON_STRING)) {
        fields_refuse(f, "architectures",
                      "is %s; expected an array with the name of the model's class",
                      json_exists(names) ? "without a name" : "missing");
        return NULL;
    }
    for (size_t k = 0; k < ARRAY_LEN(architectures); k++) {
        const struct architecture *a = &architectures[k];
        if (!json_equals(i.value, a->name)) continue;
        if (type[0] && strcmp(type, a->model_type) != 0)
            fields_refuse(f, "model_type",
                          "is \"%s\"; expected \"%s\" with architecture %s", type,
                          a->model_type, a->name);
        strcpy(c->architecture, a->name);
        c->qk_norm = a->qk_norm;
        return a;
    }
    size_t n;
    const char *raw = json_raw(i.value, &n);
    n -= 2;  // without its quotes
    char all[128];
    list_architectures(all, sizeof all);
    if (f->rc == 0)
        f->rc = err_set(f->err, -EINVAL,
                        "%s: architecture %.*s is not supported; supported are %s",
                        f->path, (int)(n < 64 ? n : 64), raw + 1, all);
    return NULL;
}

static void read_sizes(struct fields *f, struct json_value root,
                       const struct architecture *a, struct model_config *c)
{
    c->layers =
        fields_size(f, root, "num_hidden_layers", FIELD_REQUIRED, 1, MAX_LAYERS);
    c->hidden = fields_size(f, root, "hidden_size", FIELD_REQUIRED, 1, MAX_HIDDEN);
    c->ffn = fields_size(f, root, "intermediate_size", FIELD_REQUIRED, 1, MAX_FFN);
    c->vocab = fields_size(f, root, "vocab_size", FIELD_REQUIRED, 1, MAX_VOCAB);
    c->q_heads =
        fields_size(f, root, "num_attention_heads", FIELD_REQUIRED, 1, MAX_HEADS);
    c->context = fields_size(f, root, "max_position_embeddings", a->context, 1,
                             CONFIG_MAX_CONTEXT);

    // Null means one KV head for each query head even where absence means 8.
    bool written = json_exists(json_get(root, "num_key_value_heads"));
    uint32_t kv_heads = a->kv_heads > 0 && !written ? a->kv_heads : c->q_heads;
    c->kv_heads = fields_size(f, root, "num_key_value_heads", kv_heads, 1, MAX_HEADS);
    if (c->q_heads % c->kv_heads != 0)
        fields_refuse(f, "num_attention_heads",
                      "is %u; expected a multiple of num_key_value_heads, which is %u",
                      c->q_heads, c->kv_heads);

    bool divided = !fields_present(root, "head_dim") && a->head_dim == 0;
    if (divided && c->hidden % c->q_heads != 0)
        fields_refuse(
            f, "hidden_size",
            "is %u; without head_dim, a multiple of the %u attention heads is "
            "expected",
            c->hidden, c->q_heads);
    uint32_t head_dim = a->head_dim > 0 ? a->head_dim : c->hidden / c->q_heads;
    c->head_dim = fields_size(f, root, "head_dim", head_dim, 1, MAX_HEAD_DIM);
    if (c->head_dim % 2 != 0 || c->head_dim == 0 || c->head_dim > MAX_HEAD_DIM)
        fields_refuse(f, "head_dim", "is %u; expected an even number from 2 to %u",
                      c->head_dim, MAX_HEAD_DIM);
    double eps = fields_positive(f, root, "rms_norm_eps", 1e-6);
    if (eps < FLT_MIN || eps > 1)
        fields_refuse(f, "rms_norm_eps", "is %g; expected a number from %g to 1", eps,
                      FLT_MIN);
    c->norm_eps = (float)eps;
}

/* layer_types, where present, must say one thing about all layers, and the same as
 * sliding_window does. */
static void read_layer_types(struct fields *f, struct json_value root,
                             struct model_config *c)
{
    struct json_value types = json_get(root, "layer_types");
    if (!fields_present(root, "layer_types")) return;
    if (!json_is(types, JSON_ARRAY) || json_count(types) != c->layers) {
        fields_refuse(f, "layer_types",
                      "is no array of one type for each of the %u layers", c->layers);
        return;
    }
    uint32_t full = 0, sliding = 0;
    for (struct json_iter i = json_iter(types); json_next(&i);) {
        full += json_equals(i.value, "full_attention");
        sliding += json_equals(i.value, "sliding_attention");
    }
    if (full != c->layers && sliding != c->layers) {
        fields_refuse(
            f, "layer_types",
            "mixes %u full_attention, %u sliding_attention and %u other layers; "
            "supported is one of the first two for all",
            full, sliding, c->layers - full - sliding);
        return;
    }
    if (full > 0 && c->window > 0)
        fields_refuse(f, "layer_types",
                      "is full_attention for all layers, where sliding_window is %u",
                      c->window);
    if (sliding > 0 && c->window == 0)
        fields_refuse(
            f, "layer_types",
            "is sliding_attention for all layers, and there is no sliding_window");
}

static void read_features(struct fields *f, struct json_value root,
                          const struct architecture *a, struct model_config *c)
{
    char act[32];
    fields_string(f, root, "hidden_act", act, sizeof act);
    if (act[0] && strcmp(act, "silu") != 0)
        fields_refuse(f, "hidden_act", "is \"%s\"; supported is \"silu\"", act);
    if (fields_present(root, "quantization_config")) {
        char method[32];
        fields_string(f, json_get(root, "quantization_config"), "quant_method", method,
                      sizeof method);
        fields_refuse(
            f, "quantization_config",
            "asks for weights quantized by \"%s\"; supported are F32, F16 and BF16 "
            "weights",
            method);
    }
    c->tied = fields_bool(f, root, "tie_word_embeddings", false);
    if (a->attention_bias)
        c->attention_bias = fields_bool(f, root, "attention_bias", false);
    if (a->mlp_bias) c->mlp_bias = fields_bool(f, root, "mlp_bias", false);
    if (a->sliding_window)
        c->window = fields_size(f, root, "sliding_window", 0, 0, INT32_MAX);
    if (a->use_sliding_window && fields_bool(f, root, "use_sliding_window", false))
        fields_refuse(f, "use_sliding_window",
                      "is true; supported with architecture %s is false, full "
                      "attention in all layers",
                      a->name);
    read_layer_types(f, root, c);
}

static void read_dtype(struct fields *f, struct json_value root, struct model_config *c)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {
        {"float32", DTYPE_F32}, {"float16", DTYPE_F16}, {"bfloat16", DTYPE_BF16}};
    const char *field = fields_present(root, "dtype") ? "dtype" : "torch_dtype";
    char text[32];
    fields_string(f, root, field, text, sizeof text);
    if (text[0] == '\0') return;

    const char *name = strncmp(text, "torch.", 6) == 0 ? text + 6 : text;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i].name) != 0) continue;
        c->dtype = names[i].dtype;
        c->has_dtype = true;
        return;
    }
    fields_refuse(f, field, "is \"%s\"; expected float32, float16 or bfloat16", text);
}

/* ---- token ids ---- */

static int32_t read_id(struct fields *f, struct json_value v, const char *field,
                       const struct model_config *c)
{
    uint64_t id;
    if (json_u64(v, &id) && id < c->vocab) return (int32_t)id;
    size_t n;
    const char *raw = json_raw(v, &n);
    fields_refuse(f, field,
                  "has the id %.*s; expected an integer below the vocabulary's %u",
                  (int)(n < 40 ? n : 40), raw, c->vocab);
    return 0;
}

static void add_eos(struct fields *f, struct model_config *c, int32_t id)
{
    for (uint32_t i = 0; i < c->n_eos; i++) {
        if (c->eos[i] == id) return;
    }
    if (c->n_eos == MODEL_MAX_EOS) {
        fields_refuse(f, "eos_token_id",
                      "names more than %d ids, with those of config.json",
                      MODEL_MAX_EOS);
        return;
    }
    c->eos[c->n_eos++] = id;
}

static void read_ids(struct fields *f, struct json_value root, struct model_config *c)
{
    struct json_value eos = json_get(root, "eos_token_id");
    if (json_is(eos, JSON_ARRAY)) {
        for (struct json_iter i = json_iter(eos); json_next(&i);)
            add_eos(f, c, read_id(f, i.value, "eos_token_id", c));
    } else if (fields_present(root, "eos_token_id")) {
        add_eos(f, c, read_id(f, eos, "eos_token_id", c));
    }
    if (c->bos < 0 && fields_present(root, "bos_token_id"))
        c->bos = read_id(f, json_get(root, "bos_token_id"), "bos_token_id", c);
}

/* The class has its own where neither file has the field. */
static void default_ids(struct json_value root, struct json_value generation,
                        const struct architecture *a, struct model_config *c)
{
    if (!json_exists(json_get(root, "bos_token_id")) &&
        !json_exists(json_get(generation, "bos_token_id")) &&
        a->bos < (int32_t)c->vocab)
        c->bos = a->bos;
    if (!json_exists(json_get(root, "eos_token_id")) &&
        !json_exists(json_get(generation, "eos_token_id")) && a->eos >= 0 &&
        a->eos < (int32_t)c->vocab)
        c->eos[c->n_eos++] = a->eos;
}

/* ---- files ---- */

/* NULL: f has the error. */
static const struct architecture *read_config(struct fields *f, struct json_value root,
                                              struct model_config *c)
{
    const struct architecture *a = read_architecture(f, root, c);
    if (!a) return NULL;
    read_sizes(f, root, a, c);
    read_features(f, root, a, c);
    config_read_rope(f, root, c);
    read_dtype(f, root, c);
    c->bos = -1;
    read_ids(f, root, c);
    return f->rc == 0 ? a : NULL;
}

static int open_object(struct json **out, const char *text, size_t n, const char *path,
                       struct err *err)
{
    struct err why = {0};
    int rc = json_open(out, text, n, JSON_MAX_DEPTH, &why);
    if (rc < 0) return err_set(err, rc, "%s: %s", path, why.msg);
    struct json_value root = json_root(*out);
    if (json_is(root, JSON_OBJECT)) return 0;
    return err_set(err, -EINVAL, "%s: holds %s; expected an object", path,
                   json_type_name(root));
}

int model_config_parse(struct model_config *out, const char *text, size_t n,
                       const char *generation, size_t generation_n, const char *dir,
                       struct err *err)
{
    struct model_config c = {0};
    const struct architecture *a = NULL;
    struct json *doc = NULL, *extra = NULL;
    char *path = file_path(dir, "config.json");
    char *extra_path = file_path(dir, "generation_config.json");
    struct fields f = {path, err, 0};
    if (!path || !extra_path)
        f.rc = err_set(err, -ENOMEM, "%s: no memory to read it", dir);

    if (f.rc == 0) f.rc = open_object(&doc, text, n, path, err);
    if (f.rc == 0) a = read_config(&f, json_root(doc), &c);
    if (a && generation) {
        f.path = extra_path;
        f.rc = open_object(&extra, generation, generation_n, extra_path, err);
        if (f.rc == 0) read_ids(&f, json_root(extra), &c);
    }
    if (a && f.rc == 0) {
        default_ids(json_root(doc), json_root(extra), a, &c);
        *out = c;
    }
    json_close(extra);
    json_close(doc);
    free(extra_path);
    free(path);
    return f.rc;
}

/* Map dir/name. -ENOENT where there is none. */
static int map_file(struct file_map *out, const char *dir, const char *name,
                    struct err *err)
{
    char *path = file_path(dir, name);
    if (!path) return err_set(err, -ENOMEM, "%s: no memory to read it", dir);
    int rc = file_map_open(out, path, err);
    free(path);
    return rc;
}

int model_config_load(struct model_config *out, const char *dir, struct err *err)
{
    struct file_map config = {0}, generation = {0};
    struct err why = {0};
    int rc = map_file(&config, dir, "config.json", err);
    if (rc < 0) return rc;

    rc = map_file(&generation, dir, "generation_config.json", &why);
    if (rc == 0 || rc == -ENOENT)
        rc = model_config_parse(out, config.data, config.size, generation.data,
                                generation.size, dir, err);
    else
        err_set(err, rc, "%s", why.msg);
    file_map_close(&generation);
    file_map_close(&config);
    return rc;
}
