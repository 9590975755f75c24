/* engine_fixture.h - an engine over a tiny model, and clients that read its answers.
 *
 * Owns     all it opens.  Errors fail the test.
 * Threads  one for each client; world_* only the test's own.
 */
#ifndef TESTS_SERVER_ENGINE_FIXTURE_H
#define TESTS_SERVER_ENGINE_FIXTURE_H

#include "server/engine.h"
#include "server/tiers.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct world_options {
    const char *model;   // of tests/golden/models, or a path
    const char *device;  // NULL: "cpu"
    bool f16;            // KV in f16, not f32
    uint32_t blocks, context, max_running, max_waiting, step_tokens, max_logits;
    uint32_t max_wait_ms, stall_ms;
    uint32_t prompt_lookup;  // with more than max_running of max_logits
    bool stopped;            // do not start the engine's thread
    /* a store below the pool */
    bool keeps;
    uint32_t ram_blocks, ssd_blocks;  // 0: no such tier
    const char *ssd_dir;
    struct policy policy;             // all zero: copied at once, freed at once
    void (*meddle)(struct tiers *t);  // before the engine opens
};

struct world {
    struct backend *backend;
    struct tensor_set *set;
    struct model model;
    struct kv_pool kv;
    struct tokenizer *tokenizer;
    struct metrics *metrics;
    struct tiers tiers;
    struct engine_tenant tenants[2];
    struct engine *engine;
};

static inline uint32_t either(uint32_t given, uint32_t otherwise)
{
    return given ? given : otherwise;
}

/* Two tenants; names as they will be after a restart. */
static inline int world_open_store(struct world *w, const struct world_options *o,
                                   uint32_t running, struct err *err)
{
    uint64_t free_bytes;
    struct tiers_options t = {
        .kv = &w->kv,
        .device = backend_device_memory(w->backend, &free_bytes),
        .policy = o->policy,
        .layers = w->kv.mem.shape.layers,
        .ram_bytes = o->ram_blocks * kv_block_bytes(&w->kv.mem.shape),
        .ssd_dir = o->ssd_blocks ? o->ssd_dir : NULL,
        .ssd_bytes = o->ssd_blocks * (kv_block_bytes(&w->kv.mem.shape) + 4096) + 65536,
        .max_wakes = running,
        .max_conversations = 64,
    };
    if (t.policy.high == 0) {
        policy_defaults(&t.policy);
        t.policy.copy_after = t.policy.idle_after = t.policy.ssd_after = 1;
        t.policy.residency = t.policy.keep_for = 0;
        t.policy.overlap_gain = 0;  // wherever it can be
    }
    assert_int_equal(crypto_open(err), 0);
    for (uint32_t i = 0; i < 2; i++) {
        const char *name = i ? "bea" : "ada";
        block_key_derive(&w->tenants[i].key, &t.fingerprint, name, 3);
        w->tenants[i].number = block_tenant(name);
    }
    int rc = tiers_open(&w->tiers, &t, err);
    if (rc < 0) return rc;
    /* Loading is always cheaper, so that what is there is loaded. */
    cost_set_prefill(w->tiers.cost, 1e9, 0);
    if (o->meddle) o->meddle(&w->tiers);
    return 0;
}

/* For who expects a refusal: then, too, the world is to be closed. */
static inline int world_try_open(struct world *w, const struct world_options *o,
                                 struct err *err)
{
    char dir[256];
    snprintf(dir, sizeof dir, "%s%s", *o->model == '/' ? "" : "tests/golden/models/",
             o->model);
    uint32_t running = either(o->max_running, 16), rows = either(o->step_tokens, 256);
    uint32_t blocks = either(o->blocks, 2048), context = either(o->context, 8192);
    struct model_options mo = {rows, either(o->max_logits, running), {0}};
    struct model_config c;
    *w = (struct world){0};
    assert_int_equal(model_config_load(&c, dir, err), 0);
    struct backend_options bo = {
        .threads = 1,
        .limits = {rows, running, running * kv_blocks_for(context), c.head_dim,
                   c.q_heads, model_widest_input(&c)},
        .layers = c.layers,
    };
    struct kv_shape shape = model_kv_shape(&c, o->f16 ? DTYPE_F16 : DTYPE_F32);
    int rc = backend_open(&w->backend, o->device ? o->device : "cpu", &bo, err);
    if (rc == 0) rc = safetensors_open_dir(&w->set, dir, err);
    if (rc == 0) rc = model_open(&w->model, w->backend, &c, w->set, &mo, err);
    if (rc == 0) rc = kv_pool_open(&w->kv, w->backend, &shape, blocks, err);
    if (rc == 0) rc = tokenizer_open_dir(&w->tokenizer, dir, err);
    if (rc == 0) rc = metrics_open(&w->metrics, "tiny", err);
    if (rc == 0 && o->keeps) rc = world_open_store(w, o, running, err);
    if (rc < 0) return rc;
    struct engine_options eo = {
        .store = w->tiers.store,
        .cost = w->tiers.cost,
        .tenants = w->tenants,
        .n_tenants = o->keeps ? 2 : 0,
        .copy_ms = 60000,
        .model = &w->model,
        .kv = &w->kv,
        .tokenizer = w->tokenizer,
        .metrics = w->metrics,
        .context = context,
        .max_running = running,
        .max_waiting = either(o->max_waiting, 256),
        .step_tokens = rows,
        .step_ms = 20,
        .prompt_lookup = o->prompt_lookup,
        .step_rows = 8,
        .max_wait_ms = either(o->max_wait_ms, 600000),
        .stall_ms = either(o->stall_ms, 600000),
    };
    rc = engine_open(&w->engine, &eo, err);
    return rc < 0 || o->stopped ? rc : engine_start(w->engine, err);
}

static inline void world_open(struct world *w, const struct world_options *o)
{
    struct err err = {""};
    if (world_try_open(w, o, &err) < 0) fail_msg("%s", err.msg);
}

static inline void world_close(struct world *w)
{
    engine_close(w->engine);
    tiers_close(&w->tiers);
    assert_int_equal(w->kv.n_free, w->kv.mem.n_blocks);
    metrics_close(w->metrics);
    tokenizer_close(w->tokenizer);
    kv_pool_close(&w->kv);
    model_close(&w->model);
    safetensors_close(w->set);
    backend_close(w->backend);
}

/* ---- requests ---- */

static inline struct request *world_request(const struct world *w, const char *text,
                                            uint32_t max_tokens)
{
    struct err err;
    struct request *r;
    struct token_list ids = {0};
    assert_int_equal(request_new(&r, engine_event_text_max(w->engine), &err), 0);
    assert_int_equal(
        tokenizer_encode(w->tokenizer, text, strlen(text), NULL, 0, 0, &ids, &err), 0);
    r->ids = ids.ids;
    r->n_ids = (uint32_t)ids.n;
    r->max_tokens = max_tokens;
    r->n_choices = 1;
    r->sampling.top_p = 1;
    return r;
}

/* The user's words in the template that the tiny models share. */
static inline struct request *world_chat(const struct world *w, const char *words,
                                         uint32_t max_tokens)
{
    char text[4096];
    snprintf(text, sizeof text,
             "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n%s<|eot_id|>"
             "<|start_header_id|>assistant<|end_header_id|>\n\n",
             words);
    return world_request(w, text, max_tokens);
}

static inline void request_stop_at(struct request *r, const char *stop)
{
    strcpy(r->stop[r->n_stops], stop);
    r->stop_n[r->n_stops++] = (uint16_t)strlen(stop);
}

/* ---- a client ---- */

#define CLIENT_TEXT    8192
#define CLIENT_CHOICES 4

struct client {
    struct request *r;
    sem_t awake;
    struct choice {
        char text[CLIENT_TEXT];
        size_t n;
        uint32_t events;
        bool over;
        struct event end;
    } choices[CLIENT_CHOICES];
    struct sample samples[CLIENT_TEXT / 8];  // of all events with a token, as they came
    bool scored[CLIENT_TEXT / 8];
    size_t text_n[CLIENT_TEXT / 8];  // bytes that came with each
    uint32_t n_samples, n_prompt;
    uint32_t n_over;
};

static inline void client_wake(void *arg)
{
    struct client *c = arg;
    sem_post(&c->awake);
}

static inline int client_submit(struct client *c, struct world *w, struct request *r,
                                struct err *err)
{
    memset(c, 0, sizeof *c);
    c->r = r;
    sem_init(&c->awake, 0, 0);
    request_set_wake(r, client_wake, c);
    return engine_submit(w->engine, r, err);
}

static inline void client_begin(struct client *c, struct world *w, struct request *r)
{
    struct err err = {""};
    if (client_submit(c, w, r, &err) < 0) fail_msg("%s", err.msg);
}

static inline void client_take(struct client *c, const struct event *e)
{
    struct choice *choice = &c->choices[e->choice];
    if (e->kind != EVENT_FINISH) {
        if (c->n_samples < ARRAY_LEN(c->samples)) {
            c->scored[c->n_samples] = e->has_logprob;
            c->text_n[c->n_samples] = e->text_n;
            c->samples[c->n_samples++] = e->sample;
        }
        if (e->kind == EVENT_PROMPT_TOKEN)
            c->n_prompt++;
        else
            choice->events++;
    } else {
        choice->over = true;
        choice->end = *e;
        c->n_over++;
        if (e->reason == FINISH_ERROR) return;
    }
    size_t n = e->text_n;
    if (choice->n + n >= CLIENT_TEXT) n = CLIENT_TEXT - 1 - choice->n;
    if (n > 0) memcpy(choice->text + choice->n, e->text, n);
    choice->n += n;
}

/* Read to the end. */
static inline void client_read(struct client *c)
{
    struct event e;
    while (c->n_over < c->r->n_choices) {
        if (request_pop(c->r, &e))
            client_take(c, &e);
        else if (!request_wait(c->r, false))
            sem_wait(&c->awake);
    }
}

static inline void client_end(struct client *c)
{
    request_set_wake(c->r, NULL, NULL);
    request_unref(c->r);
    sem_destroy(&c->awake);
}

/* Submit, read to the end: the text of choice 0 stays in c. */
static inline const char *client_ask(struct client *c, struct world *w,
                                     struct request *r)
{
    client_begin(c, w, r);
    client_read(c);
    client_end(c);
    return c->choices[0].text;
}

/* Until the condition holds, for as long as the test program may run. */
#define wait_until(condition)                                                          \
    while (!(condition)) usleep(1000)

/* The value of the metric of that name, which has one series. */
static inline double scrape(const struct world *w, const char *name)
{
    struct bytes b = {0};
    char line[128];
    metrics_render(w->metrics, &b);
    snprintf(line, sizeof line, "\ndormouse_%s{model_name=\"tiny\"} ", name);
    const char *at = strstr(b.data, line);
    assert_non_null(at);
    double value = strtod(at + strlen(line), NULL);
    bytes_free(&b);
    return value;
}

#endif
