#include "server/stack.h"

#include "server/clock.h"
#include "server/log.h"
#include "server/sched.h"
#include "server/stack_budget.h"
#include "server/stack_tiers.h"
#include "server/stack_warm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* ---- check ---- */

static int check_sizes(struct stack *s, const struct options *o, struct err *err)
{
    if (o->step_tokens < o->max_running + SCHED_MIN_CHUNK)
        return err_set(
            err, -EINVAL,
            "step_tokens is %u, but with max_running %u it must be at least %u",
            o->step_tokens, o->max_running, o->max_running + SCHED_MIN_CHUNK);
    s->context = o->context ? o->context : s->config.context;
    if (s->config.context < 2)
        return err_set(
            err, -EINVAL,
            "the model was made for %u tokens (its max_position_embeddings); "
            "a prompt and a reply take at least 2",
            s->config.context);
    if (s->context <= s->config.context) return 0;
    return err_set(err, -EINVAL,
                   "context is %u tokens, but the model was made for %u (its "
                   "max_position_embeddings)",
                   s->context, s->config.context);
}

/* The tokenizer may name an end of turn that config.json does not. */
static void add_eos(struct stack *s)
{
    struct model_config *c = &s->config;
    const char *text = chat_eos_token(s->chat);
    int32_t id = text[0] ? tokenizer_find(s->tokenizer, text, strlen(text)) : -1;
    if (id < 0 || (uint32_t)id >= c->vocab || c->n_eos == MODEL_MAX_EOS) return;
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return;
    c->eos[c->n_eos++] = id;
}

static int read_text_side(struct stack *s, const char *dir, struct err *err)
{
    int rc = tokenizer_open_dir(&s->tokenizer, dir, err);
    if (rc) return rc;
    if (tokenizer_size(s->tokenizer) > s->config.vocab)
        return err_set(err, -EINVAL,
                       "%s/tokenizer.json has ids up to %u, but config.json has a "
                       "vocab_size of %u",
                       dir, tokenizer_size(s->tokenizer) - 1, s->config.vocab);
    rc = chat_open_dir(&s->chat, dir, err);
    if (rc == -ENOENT) {
        log_line(LOG_WARN, "the model has no chat template: /v1/chat/completions is "
                           "refused, /v1/completions works");
        return 0;
    }
    if (rc) return rc;
    log_line(LOG_INFO, "chat template from %s", chat_source_name(s->chat));
    add_eos(s);
    return 0;
}

static int open_backend(struct stack *s, const struct options *o, struct err *err)
{
    uint64_t blocks = (uint64_t)o->max_running * kv_blocks_for(s->context);
    if (blocks > UINT32_MAX)
        return err_set(err, -EINVAL,
                       "max_running %u conversations of context %u have too many KV "
                       "blocks; lower one of them",
                       o->max_running, s->context);
    const struct backend_options b = {
        .threads = o->threads,
        .cpu_path = o->cpu_path[0] ? o->cpu_path : NULL,
        .exact = o->exact,
        .layers = s->config.layers,
        .limits = {.max_rows = o->step_tokens,
                   .max_seqs = o->max_running,
                   .max_blocks = (uint32_t)blocks,
                   .max_head_dim = s->config.head_dim,
                   .max_q_heads = s->config.q_heads,
                   .max_cols = model_widest_input(&s->config)},
    };
    int rc = backend_open(&s->backend, o->device, &b, err);
    if (rc < 0) return rc;
    uint64_t free_bytes;
    s->device = backend_device_memory(s->backend, &free_bytes);
    log_line(LOG_INFO, "backend %s", backend_describe(s->backend));
    return 0;
}

/* Said before the first file is looked for: a GGUF file or the name of a model on a hub is
 * no directory. */
static int check_directory(const char *dir, struct err *err)
{
    struct stat st;
    if (stat(dir, &st)) {
        int rc = -errno;
        return err_set(err, rc, "model directory %s: %s; nothing is downloaded", dir,
                       strerror(-rc));
    }
    if (S_ISDIR(st.st_mode)) return 0;
    return err_set(err, -ENOTDIR,
                   "%s is no directory; a model is a directory with config.json, "
                   "tokenizer.json and safetensors (GGUF files are not read)",
                   dir);
}

int stack_check(struct stack *s, const struct stack_options *o, struct err *err)
{
    const struct options *set = o->options;
    const char *dir = set->model;
    const struct model_config *c = &s->config;
    if (!dir[0])
        return err_set(err, -EINVAL,
                       "no model is named; `dormouse serve PATH` serves the "
                       "model directory PATH");
    int rc = check_directory(dir, err);
    if (rc == 0) rc = model_config_load(&s->config, dir, err);
    if (rc) return rc;
    log_line(
        LOG_INFO,
        "model %s: %s, %u layers of %u, %u heads over %u KV heads of %u, vocabulary "
        "%u, context %u",
        o->name, c->architecture, c->layers, c->hidden, c->q_heads, c->kv_heads,
        c->head_dim, c->vocab, c->context);
    rc = check_sizes(s, set, err);
    if (rc == 0) rc = read_text_side(s, dir, err);
    if (rc == 0) rc = safetensors_open_dir(&s->tensors, dir, err);
    /* Before the backend takes its scratch, which the budget counts. */
    if (rc == 0) rc = budget_available(&s->budget, "", err);
    if (rc == 0) rc = open_backend(s, set, err);
    if (rc == 0) rc = stack_take_tenants(s, o, err);
    if (rc == 0) rc = stack_settle_budget(s, o, err);
    return rc;
}

/* ---- start ---- */

/* A line every two seconds at most, and none for what is quicker. */
static void say_progress(void *arg, size_t done, size_t total)
{
    uint64_t *said = arg, now = clock_ns();
    if (total == 0 || now < *said + 2 * CLOCK_S) return;
    *said = now;
    char of[24];
    log_line(LOG_INFO, "loading weights: %u %% of %s",
             (unsigned)(100.0 * (double)done / (double)total), budget_size(total, of));
}

static int load_model(struct stack *s, const struct options *o, struct err *err)
{
    uint64_t said = clock_ns();
    struct model_options rows = stack_model_limits(o);
    rows.weights.packed_dir = o->packed_cache ? o->model : NULL;
    rows.weights.progress = say_progress;
    rows.weights.arg = &said;
    int rc = model_open(&s->model, s->backend, &s->config, s->tensors, &rows, err);
    if (rc) return rc;
    rc = stack_take_fingerprint(s, o, err);
    if (rc) return rc;
    safetensors_release_pages(s->tensors);
    safetensors_close(s->tensors);
    s->tensors = NULL;
    const struct weights *w = &s->model.weights;
    char bytes[24];
    log_line(LOG_INFO, "weights loaded: %s, kept as %s", budget_size(w->bytes, bytes),
             o->weights == WEIGHT_OWN ? dtype_name(w->embed.type)
                                      : weight_format_name(o->weights));
    if (w->packed[0]) log_line(LOG_INFO, "%s", w->packed);
    if (w->notes[0]) log_line(LOG_WARN, "weights: %s", w->notes);
    struct kv_shape shape = model_kv_shape(&s->config, o->kv_type);
    rc = stack_settle_pool(s, o, err);
    if (rc == 0) rc = kv_pool_open(&s->kv, s->backend, &shape, s->budget.blocks, err);
    return rc ? rc : stack_warm(s, err);
}

static int start_api(struct stack *s, const struct stack_options *o, struct err *err)
{
    const struct options *set = o->options;
    const struct api_options a = {
        .model_name = o->name,
        .created = (int64_t)time(NULL),
        .tokenizer = s->tokenizer,
        .chat = s->chat,
        .config = &s->config,
        .engine = s->engine,
        .metrics = o->metrics,
        .max_choices = set->max_choices,
        .default_max_tokens = set->default_max_tokens,
        .completions_special = set->completions_special,
    };
    return api_open(&s->api, &a, err);
}

/* Pinning takes as long as loading, and goes on beside it. */
static int begin_tiers(struct stack *s, const struct options *o, struct err *err)
{
    struct tiers_options t = stack_tiers_options(s, o);
    if (!s->device) return 0;
    return tiers_begin(&s->tiers, s->backend, &t, s->budget.block_bytes, err);
}

static int measure_step(struct stack *s, struct engine_options *engine, struct err *err)
{
    if (engine->prompt_lookup == 0) return 0;
    int rc = stack_measure_step(s, &engine->step_rows, err);
    if (rc == 0)
        log_line(LOG_INFO,
                 "prompt lookup: at most %u drafts; a step costs as much as %.1f rows "
                 "beside its own",
                 engine->prompt_lookup, engine->step_rows);
    return rc;
}

int stack_start(struct stack *s, const struct stack_options *o, struct err *err)
{
    int rc = begin_tiers(s, o->options, err);
    if (rc == 0) rc = load_model(s, o->options, err);
    if (rc == 0) rc = stack_open_tiers(s, o, err);
    struct engine_options engine = stack_engine_limits(s, o);
    if (rc == 0) rc = measure_step(s, &engine, err);
    if (rc == 0) rc = engine_open(&s->engine, &engine, err);
    if (rc == 0) rc = start_api(s, o, err);
    if (rc == 0) rc = engine_start(s->engine, err);
    return rc;
}

void stack_close(struct stack *s)
{
    api_close(s->api);
    engine_close(s->engine);
    stack_close_tiers(s);
    free(s->tenants);
    kv_pool_close(&s->kv);
    model_close(&s->model);
    backend_close(s->backend);
    safetensors_close(s->tensors);
    chat_close(s->chat);
    tokenizer_close(s->tokenizer);
    *s = (struct stack){0};
}
