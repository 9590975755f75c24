#include "server/stack_tiers.h"

#include "model/content_hash.h"
#include "offload/fingerprint.h"
#include "server/log.h"
#include "server/stack_warm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the kernels: raised where a change of theirs changes bits. */
#define ARITHMETIC 4

/* ---- tenants ---- */

static const char *tenant_name(const struct stack_options *o, uint32_t i)
{
    return o->keys ? keys_tenant_name(o->keys, i) : "";
}

/* A name in `share`: "a, b; c, d" makes two groups of two. */
struct share_name {
    const char *group;  // which it is in
    const char *at;     // not terminated
    size_t n;
};

/* The next name, if *rest has one more; *rest moves on behind it. */
static bool next_name(const char **rest, struct share_name *x)
{
    const char *p = *rest;
    for (; *p && strchr(" ,;", *p); p++)
        if (*p == ';') x->group = p + 1;
    x->at = p;
    x->n = strcspn(p, ",;");
    *rest = p + x->n;
    while (x->n > 0 && p[x->n - 1] == ' ') x->n--;
    return x->n > 0;
}

static bool is_called(const struct share_name *x, const char *name)
{
    return strlen(name) == x->n && memcmp(name, x->at, x->n) == 0;
}

/* What a tenant's blocks are kept under: its own name, or its group as it is written. */
static void salt_of(const char *share, const char *name, char *out, size_t cap)
{
    struct share_name x = {.group = share};
    snprintf(out, cap, "tenant %s", name);
    while (next_name(&share, &x)) {
        if (!is_called(&x, name)) continue;
        snprintf(out, cap, "group %.*s", (int)strcspn(x.group, ";"), x.group);
        return;
    }
}

/* A misspelt name would share nothing, and nobody would notice. */
static void warn_of_strangers(const struct stack_options *o)
{
    const char *rest = o->options->share;
    struct share_name x = {.group = rest};
    while (next_name(&rest, &x)) {
        bool known = false;
        for (uint32_t i = 0; o->keys && !known && i < keys_tenants(o->keys); i++)
            known = is_called(&x, tenant_name(o, i));
        if (!known)
            log_line(LOG_WARN, "share names the tenant %.*s, who has no key", (int)x.n,
                     x.at);
    }
}

int stack_take_tenants(struct stack *s, const struct stack_options *o, struct err *err)
{
    s->n_tenants = o->keys ? keys_tenants(o->keys) : 1;
    s->tenants = calloc(s->n_tenants, sizeof *s->tenants);
    warn_of_strangers(o);
    return s->tenants ? 0
                      : err_set(err, -ENOMEM, "no memory for %u tenants", s->n_tenants);
}

/* Without keys there is nobody to tell apart.  Of a group the first has the series. */
static int name_tenants(const struct stack *s, const struct stack_options *o,
                        struct err *err)
{
    if (!o->keys) return 0;
    const char **names = calloc(s->n_tenants, sizeof *names);
    if (!names) return err_set(err, -ENOMEM, "no memory for %u tenants", s->n_tenants);
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        uint32_t first = 0;
        while (s->tenants[first].number != s->tenants[i].number) first++;
        names[i] = first == i ? tenant_name(o, i) : NULL;
    }
    int rc = metrics_tenants(o->metrics, names, s->n_tenants, err);
    free(names);
    return rc;
}

static void key_tenants(struct stack *s, const struct stack_options *o)
{
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        char salt[OPTION_TEXT + 16];
        salt_of(o->options->share, tenant_name(o, i), salt, sizeof salt);
        block_key_derive(&s->tenants[i].key, &s->fingerprint, salt, strlen(salt));
        s->tenants[i].number = block_tenant(salt);
    }
}

/* Those of one group are one. */
static bool has_several_tenants(const struct stack *s)
{
    for (uint32_t i = 1; i < s->n_tenants; i++)
        if (s->tenants[i].number != s->tenants[0].number) return true;
    return false;
}

/* ---- what a block's bytes mean ---- */

/* "cpu (AVX2+FMA, 2 threads)": all but the number of threads decides the bits, and so does
 * how the weights are kept. */
void stack_arithmetic(const char *describe, enum weight_format format, char *out,
                      size_t cap)
{
    snprintf(out, cap, "%.*s, %s weights, %d", (int)strcspn(describe, ","), describe,
             weight_format_name(format), ARITHMETIC);
}

/* Blocks that do not outlive the process need no hash of the weights. */
int stack_take_fingerprint(struct stack *s, const struct options *o, struct err *err)
{
    const struct model_config *c = &s->config;
    struct fingerprint_parts p = {
        .tokenizer = *tokenizer_content_hash(s->tokenizer),
        .kv = model_kv_shape(c, o->kv_type),
        .block_tokens = KV_BLOCK_TOKENS,
        .q_heads = c->q_heads,
        .window = c->window,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .norm_eps = c->norm_eps,
        .attention_bias = c->attention_bias,
        .mlp_bias = c->mlp_bias,
        .qk_norm = c->qk_norm,
        .inv_freq = s->model.inv_freq,
        .parallel_ranks = 1,
    };
    int rc = crypto_open(err);
    if (rc == 0 && o->ssd[0])
        rc = content_hash_tensors(&p.weights, s->tensors, backend_threads(s->backend),
                                  err);
    if (rc < 0) return rc;
    if (s->chat) chat_content_hash(s->chat, &p.chat);
    stack_arithmetic(backend_describe(s->backend), o->weights, p.arithmetic,
                     sizeof p.arithmetic);
    fingerprint_make(&s->fingerprint, &p);
    return 0;
}

/* ---- sizes and rules ---- */

static struct policy whole_policy(const struct options *o)
{
    struct policy p = policy_of(&o->policy);
    p.ram_quota = o->ram_quota;
    p.ssd_quota = o->ssd_quota;
    p.max_load_bytes = o->max_load_bytes;
    p.max_loads_tenant = o->max_loads_per_tenant;
    return p;
}

struct tiers_options stack_tiers_options(struct stack *s, const struct options *o)
{
    return (struct tiers_options){
        .kv = &s->kv,
        .device = s->device,
        .policy = whole_policy(o),
        .layers = s->config.layers,
        .ram_bytes = o->ram,
        .ssd_dir = o->ssd,
        .ssd_bytes = o->ssd_size,
        .ssd_threads = strcmp(o->ssd_io, "threads") == 0,
        .fingerprint = s->fingerprint,
        .max_wakes = 2 * o->max_running,
        .max_conversations = o->max_conversations,
        .several_tenants = has_several_tenants(s),
    };
}

/* ---- what the machine can do ---- */

/* One rate, behind those before it. */
static void add_rate(char *out, size_t cap, double tokens, const char *of,
                     bool measured)
{
    size_t n = strlen(out);
    snprintf(out + n, cap - n, "%s%.0f tokens/s %s%s", n > 0 ? ", " : "", tokens, of,
             measured ? "" : " (assumed, not measured)");
}

void stack_rates(const struct tiers *t, uint64_t block_bytes, char *out, size_t cap)
{
    static const char *const from[] = {
        [COST_RAM] = "from RAM", [COST_SSD] = "from SSD"};
    out[0] = '\0';
    add_rate(out, cap, 512 * 1e9 / cost_prefill_ns(t->cost, 0, 512), "of prefill",
             t->measured.prefill);
    for (int i = 0; i < COST_TIERS; i++) {
        if (!(i == COST_RAM ? t->ram : t->ssd)) continue;
        double ns = cost_load_ns(t->cost, (enum cost_tier)i, 512 * block_bytes, 0);
        add_rate(out, cap, 512.0 * KV_BLOCK_TOKENS * 1e9 / ns, from[i],
                 t->measured.tier[i]);
    }
}

static void log_rates(const struct stack *s)
{
    char text[192];
    stack_rates(&s->tiers, kv_block_bytes(&s->kv.mem.shape), text, sizeof text);
    log_line(LOG_INFO, "measured: %s", text);
}

/* ---- open ---- */

static void log_ram(const struct tiers *t, uint64_t bytes)
{
    char size[24], had[24];
    uint32_t blocks = slots_capacity(t->ram->slots);
    uint64_t taken = (uint64_t)blocks * t->ram->block_bytes;
    if (taken + t->ram->block_bytes <= bytes) {
        log_line(LOG_WARN,
                 "RAM tier: only %s of %s could be had (locked memory may be limited: "
                 "ulimit -l); it is smaller",
                 budget_size(taken, had), budget_size(bytes, size));
        bytes = taken;
    }
    log_line(LOG_INFO, "RAM tier: %s, %u blocks, %llu tokens", budget_size(bytes, size),
             blocks, (unsigned long long)blocks * KV_BLOCK_TOKENS);
}

static void log_ssd(const struct tiers *t, const struct options *o)
{
    char size[24];
    const struct tier_ssd_found *f = &t->found;
    uint32_t blocks = slots_capacity(t->ssd->slots);
    log_line(LOG_INFO, "SSD tier: %s in %s, %u blocks, %llu tokens, by %s%s%s",
             budget_size(o->ssd_size, size), o->ssd, blocks,
             (unsigned long long)blocks * KV_BLOCK_TOKENS,
             f->uring ? "io_uring" : "threads", f->direct ? " and O_DIRECT" : "",
             t->registered == 0 ? ", with registered buffers" : "");
    if (t->registered < 0 && t->registered != -EOPNOTSUPP)
        log_line(LOG_INFO,
                 "SSD tier: its buffers are not registered with io_uring (%s; locked "
                 "memory may be limited: ulimit -l), so that each store pins them",
                 strerror(-t->registered));
    log_line(
        LOG_INFO,
        "SSD tier: %u blocks are there again, %u of another model or configuration, "
        "%u damaged, %u without their beginning",
        f->blocks, f->foreign, f->damaged, f->orphans);
}

void stack_log_found(const struct tier_ssd_found *f)
{
    if (f->tier_only)
        log_line(LOG_WARN, "there is no SSD tier: %s; mend it and restart", f->note);
    else if (f->note[0])
        log_line(LOG_WARN, "SSD tier: %s", f->note);
}

static void count_found(struct metrics *m, const struct tier_ssd_found *f)
{
    metrics_total(m, COUNTER_FOUND, f->blocks);
    metrics_total(m, COUNTER_FOUND_FOREIGN, f->foreign);
    metrics_total(m, COUNTER_FOUND_DAMAGED, f->damaged);
    metrics_total(m, COUNTER_FOUND_ORPHANS, f->orphans);
}

int stack_open_tiers(struct stack *s, const struct stack_options *o, struct err *err)
{
    const struct options *set = o->options;
    key_tenants(s, o);
    struct tiers_options t = stack_tiers_options(s, set);
    int rc = name_tenants(s, o, err);
    if (rc == 0) rc = tiers_open(&s->tiers, &t, err);
    if (rc < 0) return rc;
    count_found(o->metrics, &s->tiers.found);
    metrics_set(o->metrics, GAUGE_CONFIGURED_RAM, set->ram > 0);
    metrics_set(o->metrics, GAUGE_CONFIGURED_SSD, set->ssd[0] != 0);
    if (s->tiers.ram) log_ram(&s->tiers, set->ram);
    if (s->tiers.ssd) log_ssd(&s->tiers, set);
    stack_log_found(&s->tiers.found);
    rc = stack_calibrate(s, err);
    if (rc < 0) return rc;
    tiers_calibrate(&s->tiers, &s->kv);
    log_rates(s);
    return 0;
}

void stack_close_tiers(struct stack *s)
{
    uint32_t left = tiers_close(&s->tiers);
    if (left > 0)
        log_line(
            LOG_WARN,
            "SSD tier: %u blocks or pages of names that were deleted or displaced "
            "could "
            "neither be overwritten nor cut out of their file, so that a restart may "
            "find them; delete the folder to be rid of them",
            left);
}
