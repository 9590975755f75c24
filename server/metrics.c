#include "server/metrics.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BUCKETS 28
#define MAX_STATUS  600

/* Upper bounds in seconds, ascending, ended by 0: those of vLLM, with finer ones below,
 * for models that are small. */
static const double step_bounds[MAX_BUCKETS] = {
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.4,    0.5,   0.75,   1,     2.5,  5,     7.5,  10,    20,  40,   80};
static const double first_bounds[MAX_BUCKETS] = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double whole_bounds[MAX_BUCKETS] = {
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5,
    5,     10,   15,    20,   30,  40,  50,  60,  120, 240, 480, 960, 1920};

static const double wake_bounds[MAX_BUCKETS] = {
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1,    0.25,    0.5,    1,     2.5,    5,     10,   20,    40};

/* Those of one name stand side by side and differ in their label; the first has the help,
 * the others NULL. */
struct series {
    const char *name, *help;
    const char *label;  // "tier=\"ram\""; NULL: none but the model's
    bool seconds;       // counted in nanoseconds
};

#define DEVICE "tier=\"device\""
#define RAM    "tier=\"ram\""
#define SSD    "tier=\"ssd\""

/* clang-format off */
#define ONE(name, help)         {name, help, NULL, false}
#define PART(name, help, label) {name, help, label, false}
/* clang-format on */

static const struct series counters[COUNTERS] = {
    [COUNTER_PROMPT_TOKENS] =
        ONE("prompt_tokens_total", "Prompt tokens of answered requests."),
    [COUNTER_GENERATION_TOKENS] =
        ONE("generation_tokens_total", "Generated tokens of answered requests."),
    [COUNTER_COMPUTED_TOKENS] = ONE(
        "computed_tokens_total", "Tokens the model computed, recomputation included."),
    [COUNTER_CACHED_TOKENS] =
        ONE("cached_tokens_total", "Prompt tokens that did not have to be computed."),
    [COUNTER_PREEMPTIONS] =
        ONE("num_preemptions_total", "Sequences put back to make room for others."),
    [COUNTER_STEPS] = ONE("steps_total", "Steps of the model."),
    [COUNTER_FROM_DEVICE] =
        PART("cached_prompt_tokens_total",
             "Prompt tokens not computed, by where they were.", DEVICE),
    [COUNTER_FROM_RAM] = PART("cached_prompt_tokens_total", NULL, RAM),
    [COUNTER_FROM_SSD] = PART("cached_prompt_tokens_total", NULL, SSD),
    [COUNTER_NEW] =
        PART("computed_prompt_tokens_total",
             "Prompt tokens computed, by why they were not loaded.", "reason=\"new\""),
    [COUNTER_CHEAPER] =
        PART("computed_prompt_tokens_total", NULL, "reason=\"cheaper\""),
    [COUNTER_FAILED] = PART("computed_prompt_tokens_total", NULL, "reason=\"failed\""),
    [COUNTER_LATE] = PART("computed_prompt_tokens_total", NULL, "reason=\"late\""),
    [COUNTER_BUSY] = PART("computed_prompt_tokens_total", NULL, "reason=\"busy\""),
    [COUNTER_PROMOTED_RAM] =
        PART("promoted_bytes_total", "Bytes of KV brought up, by where they came from.",
             RAM),
    [COUNTER_PROMOTED_SSD] = PART("promoted_bytes_total", NULL, SSD),
    [COUNTER_DEMOTED_RAM] =
        PART("demoted_bytes_total", "Bytes of KV copied down, by where to.", RAM),
    [COUNTER_DEMOTED_SSD] = PART("demoted_bytes_total", NULL, SSD),
    [COUNTER_EVICTED_DEVICE] =
        PART("evicted_blocks_total", "KV blocks freed to make room.", DEVICE),
    [COUNTER_EVICTED_RAM] = PART("evicted_blocks_total", NULL, RAM),
    [COUNTER_EVICTED_SSD] = PART("evicted_blocks_total", NULL, SSD),
    [COUNTER_LOST] =
        ONE("lost_blocks_total", "KV blocks whose last copy was freed to make room."),
    [COUNTER_QUOTA_RAM] = PART("quota_blocks_total",
                               "KV blocks refused or freed for a tenant's quota.", RAM),
    [COUNTER_QUOTA_SSD] = PART("quota_blocks_total", NULL, SSD),
    [COUNTER_KEPT_RAM] = PART(
        "kept_refused_blocks_total",
        "KV blocks not stored in a full tier as all it has was used just now.", RAM),
    [COUNTER_KEPT_SSD] = PART("kept_refused_blocks_total", NULL, SSD),
    [COUNTER_LOAD_FAILED] =
        ONE("load_failures_total", "KV blocks that did not come up."),
    [COUNTER_STORE_FAILED] =
        ONE("store_failures_total", "KV blocks that could not be copied down."),
    [COUNTER_DEADLINE] = ONE("wake_deadlines_passed_total",
                             "Wakes that computed what had not come in time."),
    [COUNTER_BUDGET] = ONE("write_budget_refused_blocks_total",
                           "KV blocks not written to the SSD for its daily budget."),
    [COUNTER_SECOND_TOUCH] = ONE("second_touch_refused_blocks_total",
                                 "KV blocks not written to the SSD as used only once."),
    [COUNTER_DROPPED_RAM] =
        PART("dropped_blocks_total",
             "KV blocks dropped as they could not be read, or were not "
             "what they should be.",
             RAM),
    [COUNTER_DROPPED_SSD] = PART("dropped_blocks_total", NULL, SSD),
    [COUNTER_FOUND] =
        PART("start_blocks_total",
             "KV blocks that the SSD had at the start: usable, of another "
             "model or configuration, damaged, or without their beginning.",
             "state=\"usable\""),
    [COUNTER_FOUND_FOREIGN] = PART("start_blocks_total", NULL, "state=\"foreign\""),
    [COUNTER_FOUND_DAMAGED] = PART("start_blocks_total", NULL, "state=\"damaged\""),
    [COUNTER_FOUND_ORPHANS] = PART("start_blocks_total", NULL, "state=\"orphan\""),
    [COUNTER_IDLE_NS] = {"load_wait_idle_seconds_total",
                         "Time without computing while KV blocks were on their way.",
                         NULL, true},
};

static const struct series gauges[GAUGES] = {
    [GAUGE_RUNNING] = ONE("num_requests_running", "Sequences that are being computed."),
    [GAUGE_WAITING] =
        ONE("num_requests_waiting", "Requests that wait for their start."),
    [GAUGE_KV_BLOCKS_USED] = ONE("kv_blocks_used", "KV blocks in use."),
    [GAUGE_KV_BLOCKS_TOTAL] = ONE("kv_blocks_total", "KV blocks there are."),
    [GAUGE_CONNECTIONS] = ONE("connections", "Open connections of clients."),
    [GAUGE_WAKING] = ONE("num_sequences_waking", "Sequences that wait for KV blocks."),
    [GAUGE_CONVERSATIONS] = ONE("conversations", "Conversations that are known."),
    [GAUGE_USED_DEVICE] =
        PART("tier_used_bytes",
             "KV bytes in a tier, of those too that only wait to be wanted "
             "again.",
             DEVICE),
    [GAUGE_USED_RAM] = PART("tier_used_bytes", NULL, RAM),
    [GAUGE_USED_SSD] = PART("tier_used_bytes", NULL, SSD),
    [GAUGE_FREE_DEVICE] =
        PART("tier_free_bytes", "KV bytes that a tier takes as it is.", DEVICE),
    [GAUGE_FREE_RAM] = PART("tier_free_bytes", NULL, RAM),
    [GAUGE_FREE_SSD] = PART("tier_free_bytes", NULL, SSD),
    [GAUGE_CONFIGURED_RAM] = PART("tier_configured", "1: the tier is wanted.", RAM),
    [GAUGE_CONFIGURED_SSD] = PART("tier_configured", NULL, SSD),
    [GAUGE_WRITABLE_RAM] =
        PART("tier_writable",
             "1: the tier takes blocks; 0: there is none, or its writes "
             "have failed and are tried again later.",
             RAM),
    [GAUGE_WRITABLE_SSD] = PART("tier_writable", NULL, SSD),
    [GAUGE_LOADING_RAM] =
        PART("tier_transfers_in_flight",
             "KV blocks on their way out of a tier (load) or into it.",
             RAM ",direction=\"load\""),
    [GAUGE_LOADING_SSD] =
        PART("tier_transfers_in_flight", NULL, SSD ",direction=\"load\""),
    [GAUGE_STORING_RAM] =
        PART("tier_transfers_in_flight", NULL, RAM ",direction=\"store\""),
    [GAUGE_STORING_SSD] =
        PART("tier_transfers_in_flight", NULL, SSD ",direction=\"store\""),
};

static const char *const outcomes[OUTCOMES] = {
    [OUTCOME_STOP] = "stop",           [OUTCOME_LENGTH] = "length",
    [OUTCOME_CANCELLED] = "cancelled", [OUTCOME_STALLED] = "stalled",
    [OUTCOME_INVALID] = "invalid",     [OUTCOME_REFUSED] = "refused",
    [OUTCOME_ERROR] = "error",
};

static const struct {
    struct series s;
    const double *bounds;
} histograms[HISTOGRAMS] = {
    [HISTOGRAM_TTFT] = {ONE("time_to_first_token_seconds",
                            "From the arrival of a request to its first token."),
                        first_bounds},
    [HISTOGRAM_ITL] = {ONE("inter_token_latency_seconds",
                           "Between two tokens of one reply."),
                       step_bounds},
    [HISTOGRAM_E2E] = {ONE("e2e_request_latency_seconds",
                           "From the arrival of a request to its end."),
                       whole_bounds},
    [HISTOGRAM_QUEUE] = {ONE("request_queue_time_seconds",
                             "From the arrival of a request to its start."),
                         whole_bounds},
    [HISTOGRAM_STEP] = {ONE("step_seconds", "One step of the model."), step_bounds},
    [HISTOGRAM_WAKE_DEVICE] =
        {PART("wake_seconds",
              "From the start of a request to its blocks being there, by "
              "the slowest tier that one came from.",
              DEVICE),
         wake_bounds},
    [HISTOGRAM_WAKE_RAM] = {PART("wake_seconds", NULL, RAM), wake_bounds},
    [HISTOGRAM_WAKE_SSD] = {PART("wake_seconds", NULL, SSD), wake_bounds},
};

struct cells {
    atomic_uint_fast64_t
        bucket[MAX_BUCKETS + 1];  // each observation in one; last: +Inf
    atomic_uint_fast64_t sum;     // nanoseconds
};

struct tenant_cells {
    char *label;  // tenant="...", escaped; NULL: no series
    atomic_uint_fast64_t bytes[METRICS_TENANT_TIERS];
};

struct metrics {
    struct tenant_cells *tenants;  // (n_tenants)
    atomic_uint n_tenants;         // set when tenants is filled
    char *label;                   // model_name="...", escaped
    atomic_uint_fast64_t counter[COUNTERS], outcome[OUTCOMES], http[MAX_STATUS];
    atomic_int_fast64_t gauge[GAUGES];
    struct cells histogram[HISTOGRAMS];
};

/* key="name" as the text format wants it: backslash, quote and newline are escaped. */
static char *label_of(const char *key, const char *name)
{
    char *label = malloc(strlen(key) + 2 * strlen(name) + 4);
    if (!label) return NULL;
    char *p = stpcpy(stpcpy(label, key), "=\"");
    for (; *name; name++) {
        if (strchr("\\\"\n", *name)) *p++ = '\\';
        *p++ = *name == '\n' ? 'n' : *name;
    }
    *p++ = '"';
    *p = 0;
    return label;
}

int metrics_open(struct metrics **out, const char *model_name, struct err *err)
{
    struct metrics *m = calloc(1, sizeof *m);
    if (m) m->label = label_of("model_name", model_name);
    if (!m || !m->label) {
        metrics_close(m);
        return err_set(err, -ENOMEM, "no memory for metrics");
    }
    *out = m;
    return 0;
}

static void free_tenants(struct tenant_cells *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) free(t[i].label);
    free(t);
}

int metrics_tenants(struct metrics *m, const char *const *names, uint32_t n,
                    struct err *err)
{
    struct tenant_cells *t = calloc(n ? n : 1, sizeof *t);
    bool good = t != NULL;
    for (uint32_t i = 0; good && i < n; i++)
        if (names[i]) good = (t[i].label = label_of("tenant", names[i])) != NULL;
    if (!good) {
        free_tenants(t, t ? n : 0);
        return err_set(err, -ENOMEM, "no memory for the metrics of tenants");
    }
    m->tenants = t;
    atomic_store_explicit(&m->n_tenants, n, memory_order_release);
    return 0;
}

void metrics_close(struct metrics *m)
{
    if (!m) return;
    free_tenants(m->tenants, m->n_tenants);
    free(m->label);
    free(m);
}

static void add(atomic_uint_fast64_t *cell, uint64_t n)
{
    atomic_fetch_add_explicit(cell, n, memory_order_relaxed);
}

static uint64_t get(const atomic_uint_fast64_t *cell)
{
    return atomic_load_explicit(cell, memory_order_relaxed);
}

void metrics_count(struct metrics *m, enum counter c, uint64_t n)
{
    add(&m->counter[c], n);
}

void metrics_total(struct metrics *m, enum counter c, uint64_t total)
{
    atomic_store_explicit(&m->counter[c], total, memory_order_relaxed);
}

void metrics_outcome(struct metrics *m, enum outcome o)
{
    add(&m->outcome[o], 1);
}

const char *metrics_outcome_name(enum outcome o)
{
    return outcomes[o];
}

void metrics_http(struct metrics *m, int status)
{
    if (status >= 100 && status < MAX_STATUS) add(&m->http[status], 1);
}

void metrics_set(struct metrics *m, enum gauge g, int64_t value)
{
    atomic_store_explicit(&m->gauge[g], value, memory_order_relaxed);
}

void metrics_add(struct metrics *m, enum gauge g, int64_t delta)
{
    atomic_fetch_add_explicit(&m->gauge[g], delta, memory_order_relaxed);
}

void metrics_observe(struct metrics *m, enum histogram h, uint64_t nanoseconds)
{
    const double *bounds = histograms[h].bounds;
    double seconds = (double)nanoseconds / 1e9;
    uint32_t i = 0;
    while (i < MAX_BUCKETS && bounds[i] > 0 && seconds > bounds[i]) i++;
    if (i < MAX_BUCKETS && bounds[i] == 0) i = MAX_BUCKETS;
    add(&m->histogram[h].bucket[i], 1);
    add(&m->histogram[h].sum, nanoseconds);
}

void metrics_set_tenant(struct metrics *m, uint32_t tenant, int tier, uint64_t bytes)
{
    if (tenant < atomic_load_explicit(&m->n_tenants, memory_order_acquire))
        atomic_store_explicit(&m->tenants[tenant].bytes[tier], bytes,
                              memory_order_relaxed);
}

uint64_t metrics_counter(const struct metrics *m, enum counter c)
{
    return get(&m->counter[c]);
}

/* ---- the text ---- */

static void head(struct bytes *out, const char *name, const char *help,
                 const char *type)
{
    bytes_printf(out, "# HELP dormouse_%s %s\n# TYPE dormouse_%s %s\n", name, help,
                 name, type);
}

static void head_of(const struct series *s, const char *type, struct bytes *out)
{
    if (s->help) head(out, s->name, s->help, type);
}

/* "{model_name="...",tier="ram"} " behind a name. */
static void labels(const struct metrics *m, const struct series *s, struct bytes *out)
{
    bool any = s->label != NULL;
    bytes_printf(out, "{%s%s%s} ", m->label, any ? "," : "", any ? s->label : "");
}

static void render_bucket(const struct metrics *m, const struct series *s,
                          const char *bound, uint64_t n, struct bytes *out)
{
    bool any = s->label != NULL;
    bytes_printf(out, "dormouse_%s_bucket{%s%s%s,le=\"%s\"} %llu\n", s->name, m->label,
                 any ? "," : "", any ? s->label : "", bound, (unsigned long long)n);
}

static void render_histogram(const struct metrics *m, enum histogram h,
                             struct bytes *out)
{
    const struct series *s = &histograms[h].s;
    const double *bounds = histograms[h].bounds;
    char bound[32];
    head_of(s, "histogram", out);

    /* The count is the sum of the buckets read, so that the two never disagree. */
    uint64_t n = 0;
    for (uint32_t i = 0; i < MAX_BUCKETS && bounds[i] > 0; i++) {
        n += get(&m->histogram[h].bucket[i]);
        snprintf(bound, sizeof bound, "%g", bounds[i]);
        render_bucket(m, s, bound, n, out);
    }
    n += get(&m->histogram[h].bucket[MAX_BUCKETS]);
    render_bucket(m, s, "+Inf", n, out);
    bytes_printf(out, "dormouse_%s_sum", s->name);
    labels(m, s, out);
    bytes_printf(out, "%.9f\n", (double)get(&m->histogram[h].sum) / 1e9);
    bytes_printf(out, "dormouse_%s_count", s->name);
    labels(m, s, out);
    bytes_printf(out, "%llu\n", (unsigned long long)n);
}

static void render_counter(const struct metrics *m, enum counter c, struct bytes *out)
{
    const struct series *s = &counters[c];
    uint64_t n = get(&m->counter[c]);
    head_of(s, "counter", out);
    bytes_printf(out, "dormouse_%s", s->name);
    labels(m, s, out);
    if (s->seconds)
        bytes_printf(out, "%.9f\n", (double)n / 1e9);
    else
        bytes_printf(out, "%llu\n", (unsigned long long)n);
}

static long long gauge(const struct metrics *m, enum gauge g)
{
    int64_t value = atomic_load_explicit(&m->gauge[g], memory_order_relaxed);
    return value > 0 ? value : 0;
}

static void render_gauges(const struct metrics *m, struct bytes *out)
{
    for (uint32_t i = 0; i < GAUGES; i++) {
        head_of(&gauges[i], "gauge", out);
        bytes_printf(out, "dormouse_%s", gauges[i].name);
        labels(m, &gauges[i], out);
        bytes_printf(out, "%lld\n", gauge(m, i));
    }
    long long total = gauge(m, GAUGE_KV_BLOCKS_TOTAL);
    long long used = gauge(m, GAUGE_KV_BLOCKS_USED);
    if (used > total) used = total;
    head(out, "kv_blocks_free", "KV blocks not in use.", "gauge");
    bytes_printf(out, "dormouse_kv_blocks_free{%s} %lld\n", m->label, total - used);
    head(out, "kv_cache_usage_perc", "KV blocks in use; 1 means all of them.", "gauge");
    bytes_printf(out, "dormouse_kv_cache_usage_perc{%s} %g\n", m->label,
                 total > 0 ? (double)used / (double)total : 0.0);
}

static void render_tenants(const struct metrics *m, struct bytes *out)
{
    static const char *const tiers[METRICS_TENANT_TIERS] = {RAM, SSD};
    uint32_t n = atomic_load_explicit(&m->n_tenants, memory_order_acquire);
    if (n == 0) return;
    head(out, "tenant_used_bytes", "KV bytes of a tenant, or of its group, in a tier.",
         "gauge");
    for (uint32_t i = 0; i < n; i++)
        for (int t = 0; m->tenants[i].label && t < METRICS_TENANT_TIERS; t++)
            bytes_printf(out, "dormouse_tenant_used_bytes{%s,%s,%s} %llu\n", m->label,
                         m->tenants[i].label, tiers[t],
                         (unsigned long long)get(&m->tenants[i].bytes[t]));
}

void metrics_render(const struct metrics *m, struct bytes *out)
{
    for (uint32_t i = 0; i < COUNTERS; i++) render_counter(m, i, out);
    head(out, "requests_total", "Calls that compute, by how they ended.", "counter");
    for (uint32_t i = 0; i < OUTCOMES; i++)
        bytes_printf(out, "dormouse_requests_total{%s,outcome=\"%s\"} %llu\n", m->label,
                     outcomes[i], (unsigned long long)get(&m->outcome[i]));

    head(out, "http_responses_total", "Answered HTTP requests, by status.", "counter");
    for (uint32_t i = 0; i < MAX_STATUS; i++)
        if (get(&m->http[i]) > 0)
            bytes_printf(out, "dormouse_http_responses_total{%s,code=\"%u\"} %llu\n",
                         m->label, i, (unsigned long long)get(&m->http[i]));

    render_gauges(m, out);
    render_tenants(m, out);
    for (uint32_t h = 0; h < HISTOGRAMS; h++) render_histogram(m, h, out);
}
