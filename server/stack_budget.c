#include "server/stack_budget.h"

#include "server/log.h"
#include "server/sched.h"
#include "server/stack_tiers.h"

/* Rows of logits beside those of running replies: drafts, and prompts that are scored. */
#define SPARE_ROWS 32

struct model_options stack_model_limits(const struct options *o)
{
    return (struct model_options){.max_rows = o->step_tokens,
                                  .max_logits = o->max_running + SPARE_ROWS,
                                  .weights = {.format = o->weights}};
}

struct engine_options stack_engine_limits(struct stack *s,
                                          const struct stack_options *o)
{
    const struct options *set = o->options;
    return (struct engine_options){
        .model = &s->model,
        .kv = &s->kv,
        .tokenizer = s->tokenizer,
        .metrics = o->metrics,
        .context = s->context,
        .max_running = set->max_running,
        .max_waiting = set->max_waiting,
        .step_tokens = set->step_tokens,
        .step_ms = set->step_ms,
        .prompt_lookup = set->prompt_lookup,
        .max_wait_ms = set->max_wait_ms,
        .stall_ms = set->stall_ms,
        .store = s->tiers.store,
        .cost = s->tiers.cost,
        .ram = s->tiers.ram,
        .ssd = s->tiers.ssd,
        .tenants = s->tenants,
        .n_tenants = s->n_tenants,
        .copy_ms = set->copy_down_ms,
        .tick = o->tick,
        .tick_arg = o->tick_arg,
    };
}

static void log_part(const char *what, const struct budget *b)
{
    char parts[256], total[24], available[24];
    budget_describe(b, parts, sizeof parts);
    log_line(LOG_INFO, "%s: %s; together %s of %s (%s)", what, parts,
             budget_size(b->total, total), budget_size(b->available, available),
             b->limit);
}

static void log_budget(const struct stack *s, const struct kv_shape *shape)
{
    const struct budget *b = &s->budget;
    char token[24];
    log_part(s->device ? "device memory" : "memory", b);
    if (s->device) log_part("host memory", &s->host);
    log_line(
        LOG_INFO, "KV: %s a token as %s, %u blocks of %d tokens, %llu tokens in all",
        budget_size(kv_token_bytes(shape), token), dtype_name(shape->dtype), b->blocks,
        KV_BLOCK_TOKENS, (unsigned long long)b->blocks * KV_BLOCK_TOKENS);
    if (b->blocks < kv_blocks_for(s->context))
        log_line(
            LOG_WARN,
            "the KV pool holds %llu tokens, less than one conversation of the context "
            "of %u; longer requests are refused",
            (unsigned long long)b->blocks * KV_BLOCK_TOKENS, s->context);
}

/* What is kept of each block of the pool counts among the tiers. */
static int settle_tiers(struct stack *s, const struct options *set, struct err *err)
{
    struct tiers_options t = stack_tiers_options(s, set);
    struct tier_ssd_found found;
    int rc = policy_check(&t.policy, err);
    if (rc == 0) rc = tiers_check(&t, s->budget.block_bytes, &found, err);
    if (rc < 0) return rc;
    if (set->check_config) stack_log_found(&found);
    uint64_t bytes = tiers_bytes(&t, s->budget.blocks, s->budget.block_bytes);
    (s->device ? &s->host : &s->budget)->tiers = bytes;
    return s->device ? budget_fits(&s->host, err) : budget_plan(&s->budget, err);
}

/* Activations, logits and what the backend takes to compute with them. */
static uint64_t compute_bytes(const struct stack *s, const struct options *set)
{
    struct model_options rows = stack_model_limits(set);
    uint64_t n = model_activation_bytes(&s->config, &rows);
    bool over = __builtin_add_overflow(n, backend_scratch_bytes(s->backend), &n);
    return over ? UINT64_MAX : n;
}

int stack_settle_budget(struct stack *s, const struct stack_options *o, struct err *err)
{
    const struct options *set = o->options;
    struct kv_shape shape = model_kv_shape(&s->config, set->kv_type);
    struct model_options rows = stack_model_limits(set);
    struct engine_options engine = stack_engine_limits(s, o);
    engine.kv = NULL;  // is not there yet: as if it held every context
    size_t weights;
    int rc =
        weights_bytes(s->backend, &s->config, s->tensors, set->weights, &weights, err);
    if (rc) return rc;

    struct budget *b = &s->budget;
    *b = (struct budget){
        .available = b->available,
        .limit = b->limit,
        .weights = weights,
        .activations = compute_bytes(s, set),
        .graphs = backend_recorded(s->backend).reserve,
        .engine = engine_bytes(&engine),
        .margin = set->margin,
        .block_bytes = kv_block_bytes(&shape),
        .kv_bytes = set->kv_bytes,
        .kv_blocks = set->kv_blocks,
        .context = s->context,
        .max_sequences = set->max_running,
    };
    if (s->device) {
        s->host = (struct budget){
            .activations =
                (uint64_t)rows.max_logits *
                (s->config.vocab * sizeof(float) + BEST_MOST * sizeof(struct best)),
            .engine = b->engine,
            .margin = b->margin,
            .available = b->available,
            .limit = b->limit,
        };
        b->engine = 0;
        b->whole = true;
        b->limit = "free memory of the device";
        backend_device_memory(s->backend, &b->available);
        b->available += backend_scratch_bytes(s->backend);
    }
    rc = budget_plan(b, err);
    if (rc == 0) rc = settle_tiers(s, set, err);
    if (rc == 0 && (!s->device || set->check_config)) log_budget(s, &shape);
    return rc;
}

int stack_settle_pool(struct stack *s, const struct options *set, struct err *err)
{
    uint64_t left;
    if (!backend_device_memory(s->backend, &left)) return 0;
    struct budget *b = &s->budget;
    uint64_t taken = b->available > left ? b->available - left : 0;
    b->activations = taken > b->weights ? taken - b->weights : 0;
    int rc = budget_plan(b, err);
    if (rc == 0) rc = settle_tiers(s, set, err);
    struct kv_shape shape = model_kv_shape(&s->config, set->kv_type);
    if (rc == 0) log_budget(s, &shape);
    return rc;
}
