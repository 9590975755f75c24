#include "server/metrics.h"

#include <stdatomic.h>
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

struct series {
    const char *name, *help;
};

static const struct series counters[COUNTERS] = {
    [COUNTER_PROMPT_TOKENS] = {"prompt_tokens_total",
                               "Prompt tokens of answered requests."},
    [COUNTER_GENERATION_TOKENS] = {"generation_tokens_total",
                                   "Generated tokens of answered requests."},
    [COUNTER_COMPUTED_TOKENS] = {"computed_tokens_total",
                                 "Tokens the model computed, recomputation included."},
    [COUNTER_CACHED_TOKENS] = {"cached_tokens_total",
                               "Prompt tokens that did not have to be computed."},
    [COUNTER_PREEMPTIONS] = {"num_preemptions_total",
                             "Sequences put back to make room for others."},
    [COUNTER_STEPS] = {"steps_total", "Steps of the model."},
};

static const struct series gauges[GAUGES] = {
    [GAUGE_RUNNING] = {"num_requests_running", "Sequences that are being computed."},
    [GAUGE_WAITING] = {"num_requests_waiting", "Requests that wait for their start."},
    [GAUGE_KV_BLOCKS_USED] = {"kv_blocks_used", "KV blocks in use."},
    [GAUGE_KV_BLOCKS_TOTAL] = {"kv_blocks_total", "KV blocks there are."},
    [GAUGE_CONNECTIONS] = {"connections", "Open connections of clients."},
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
    [HISTOGRAM_TTFT] = {{"time_to_first_token_seconds",
                         "From the arrival of a request to its first token."},
                        first_bounds},
    [HISTOGRAM_ITL] = {{"inter_token_latency_seconds",
                        "Between two tokens of one reply."},
                       step_bounds},
    [HISTOGRAM_E2E] = {{"e2e_request_latency_seconds",
                        "From the arrival of a request to its end."},
                       whole_bounds},
    [HISTOGRAM_QUEUE] = {{"request_queue_time_seconds",
                          "From the arrival of a request to its start."},
                         whole_bounds},
    [HISTOGRAM_STEP] = {{"step_seconds", "One step of the model."}, step_bounds},
};

struct cells {
    atomic_uint_fast64_t
        bucket[MAX_BUCKETS + 1];  // each observation in one; last: +Inf
    atomic_uint_fast64_t sum;     // nanoseconds
};

struct metrics {
    char *label;  // model_name="...", escaped
    atomic_uint_fast64_t counter[COUNTERS], outcome[OUTCOMES], http[MAX_STATUS];
    atomic_int_fast64_t gauge[GAUGES];
    struct cells histogram[HISTOGRAMS];
};

/* As the text format wants it: backslash, quote and newline are escaped. */
static char *label_of(const char *name)
{
    static const char key[] = "model_name=\"";
    char *label = malloc(sizeof key + 2 * strlen(name) + 1);
    if (!label) return NULL;
    char *p = stpcpy(label, key);
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
    if (m) m->label = label_of(model_name);
    if (!m || !m->label) {
        metrics_close(m);
        return err_set(err, -ENOMEM, "no memory for metrics");
    }
    *out = m;
    return 0;
}

void metrics_close(struct metrics *m)
{
    if (!m) return;
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

static void render_histogram(const struct metrics *m, enum histogram h,
                             struct bytes *out)
{
    const char *name = histograms[h].s.name;
    const double *bounds = histograms[h].bounds;
    head(out, name, histograms[h].s.help, "histogram");

    /* The count is the sum of the buckets read, so that the two never disagree. */
    uint64_t n = 0;
    for (uint32_t i = 0; i < MAX_BUCKETS && bounds[i] > 0; i++) {
        n += get(&m->histogram[h].bucket[i]);
        bytes_printf(out, "dormouse_%s_bucket{%s,le=\"%g\"} %llu\n", name, m->label,
                     bounds[i], (unsigned long long)n);
    }
    n += get(&m->histogram[h].bucket[MAX_BUCKETS]);
    bytes_printf(out, "dormouse_%s_bucket{%s,le=\"+Inf\"} %llu\n", name, m->label,
                 (unsigned long long)n);
    bytes_printf(out, "dormouse_%s_sum{%s} %.9f\n", name, m->label,
                 (double)get(&m->histogram[h].sum) / 1e9);
    bytes_printf(out, "dormouse_%s_count{%s} %llu\n", name, m->label,
                 (unsigned long long)n);
}

static long long gauge(const struct metrics *m, enum gauge g)
{
    int64_t value = atomic_load_explicit(&m->gauge[g], memory_order_relaxed);
    return value > 0 ? value : 0;
}

static void render_gauges(const struct metrics *m, struct bytes *out)
{
    for (uint32_t i = 0; i < GAUGES; i++) {
        head(out, gauges[i].name, gauges[i].help, "gauge");
        bytes_printf(out, "dormouse_%s{%s} %lld\n", gauges[i].name, m->label,
                     gauge(m, i));
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

void metrics_render(const struct metrics *m, struct bytes *out)
{
    for (uint32_t i = 0; i < COUNTERS; i++) {
        head(out, counters[i].name, counters[i].help, "counter");
        bytes_printf(out, "dormouse_%s{%s} %llu\n", counters[i].name, m->label,
                     (unsigned long long)get(&m->counter[i]));
    }
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
    for (uint32_t h = 0; h < HISTOGRAMS; h++) render_histogram(m, h, out);
}
