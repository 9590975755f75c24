/* stack.h - a model directory becomes an API: everything between the options and HTTP.
 *
 * Owns     configuration, tokenizer, template, backend, model, KV pool, tiers, engine and API,
 *          opened in this order and closed in reverse.
 * Caller   keeps options and metrics until stack_close().
 * Log      says what was found, chosen and taken, and how the loading goes.
 * Threads  one.
 */
#ifndef SERVER_STACK_H
#define SERVER_STACK_H

#include "server/api.h"
#include "server/budget.h"
#include "server/keys.h"
#include "server/options.h"
#include "server/tiers.h"

struct stack {
    struct model_config config;
    uint32_t context;
    struct tokenizer *tokenizer;
    struct chat_template *chat;  // NULL: the model has none
    struct tensor_set *tensors;  // until the weights are loaded
    struct backend *backend;
    struct budget budget;  // of where the model computes
    struct budget host;    // of the rest, where that is memory of its own
    bool device;           // it is
    struct model model;
    struct kv_pool kv;
    struct engine_tenant *tenants;  // (n_tenants)
    uint32_t n_tenants;
    struct crypto_hash fingerprint;
    struct tiers tiers;
    struct engine *engine;
    struct api *api;
};

struct stack_options {
    const struct options *options;
    const char *name;         // of the model, for the API
    const struct keys *keys;  // NULL: one tenant
    struct metrics *metrics;
    void (*tick)(void *arg);  // engine_options.tick
    void *tick_arg;
};

/* Read and check everything but the weights' values, and settle the memory budget.
 * `out` is zero-initialised; stack_close() also after an error. */
NODISCARD int stack_check(struct stack *out, const struct stack_options *o,
                          struct err *err);
/* After stack_check(): load the weights and start the engine. */
NODISCARD int stack_start(struct stack *s, const struct stack_options *o,
                          struct err *err);
void stack_close(struct stack *s);

#endif
