#include "server/metrics_table.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STATUS 600

struct cells {
    atomic_uint_fast64_t
        bucket[METRICS_BUCKETS + 1];  // each observation in one; last: +Inf
    atomic_uint_fast64_t sum;         // nanoseconds
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
    return metrics_outcomes[o];
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
    const double *bounds = metrics_histograms[h].bounds;
    double seconds = (double)nanoseconds / 1e9;
    uint32_t i = 0;
    while (i < METRICS_BUCKETS && bounds[i] > 0 && seconds > bounds[i]) i++;
    if (i < METRICS_BUCKETS && bounds[i] == 0) i = METRICS_BUCKETS;
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
    const struct series *s = &metrics_histograms[h].s;
    const double *bounds = metrics_histograms[h].bounds;
    char bound[32];
    head_of(s, "histogram", out);

    /* The count is the sum of the buckets read, so that the two never disagree. */
    uint64_t n = 0;
    for (uint32_t i = 0; i < METRICS_BUCKETS && bounds[i] > 0; i++) {
        n += get(&m->histogram[h].bucket[i]);
        snprintf(bound, sizeof bound, "%g", bounds[i]);
        render_bucket(m, s, bound, n, out);
    }
    n += get(&m->histogram[h].bucket[METRICS_BUCKETS]);
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
    const struct series *s = &metrics_counters[c];
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
        head_of(&metrics_gauges[i], "gauge", out);
        bytes_printf(out, "dormouse_%s", metrics_gauges[i].name);
        labels(m, &metrics_gauges[i], out);
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
                     metrics_outcomes[i], (unsigned long long)get(&m->outcome[i]));

    head(out, "http_responses_total", "Answered HTTP requests, by status.", "counter");
    for (uint32_t i = 0; i < MAX_STATUS; i++)
        if (get(&m->http[i]) > 0)
            bytes_printf(out, "dormouse_http_responses_total{%s,code=\"%u\"} %llu\n",
                         m->label, i, (unsigned long long)get(&m->http[i]));

    render_gauges(m, out);
    render_tenants(m, out);
    for (uint32_t h = 0; h < HISTOGRAMS; h++) render_histogram(m, h, out);
}
