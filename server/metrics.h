/* metrics.h - what is counted, and the Prometheus text of it.
 *
 * Owns     counters, gauges and histograms: plain atomics.  Counters never go down and
 *          do not depend on who scrapes.
 * Names    those users already chart (vLLM's), under the prefix dormouse_:
 *          time_to_first_token_seconds, inter_token_latency_seconds,
 *          e2e_request_latency_seconds, request_queue_time_seconds,
 *          num_requests_running, num_requests_waiting, kv_cache_usage_perc,
 *          prompt_tokens_total, generation_tokens_total, requests_total by outcome ...
 * Threads  any thread may add, set and render.
 */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include "server/bytes.h"

enum outcome {  // of one call on a /v1 path that computes
    OUTCOME_STOP,
    OUTCOME_LENGTH,
    OUTCOME_CANCELLED,  // the client left
    OUTCOME_STALLED,    // the client did not read
    OUTCOME_INVALID,    // 4xx
    OUTCOME_REFUSED,    // 503: full, or draining
    OUTCOME_ERROR,      // 5xx
    OUTCOMES
};

enum counter {
    COUNTER_PROMPT_TOKENS,      // of answered requests: what usage says
    COUNTER_GENERATION_TOKENS,  // what usage says
    COUNTER_COMPUTED_TOKENS,    // rows the model computed, recomputation included
    COUNTER_CACHED_TOKENS,      // prompt tokens that were not computed
    COUNTER_PREEMPTIONS,        // sequences put back to make room
    COUNTER_STEPS,
    COUNTERS
};

enum gauge {
    GAUGE_RUNNING,  // sequences
    GAUGE_WAITING,  // requests
    GAUGE_KV_BLOCKS_USED,
    GAUGE_KV_BLOCKS_TOTAL,
    GAUGE_CONNECTIONS,
    GAUGES
};

enum histogram {
    HISTOGRAM_TTFT,
    HISTOGRAM_ITL,
    HISTOGRAM_E2E,
    HISTOGRAM_QUEUE,
    HISTOGRAM_STEP,
    HISTOGRAMS
};

struct metrics;
NODISCARD int metrics_open(struct metrics **out, const char *model_name,
                           struct err *err);
void metrics_close(struct metrics *m);

void metrics_count(struct metrics *m, enum counter c, uint64_t n);
void metrics_outcome(struct metrics *m, enum outcome o);
const char *metrics_outcome_name(enum outcome o);  // its label: "stop", "refused" ...
void metrics_http(struct metrics *m,
                  int status);  // one answered HTTP request, by status
void metrics_set(struct metrics *m, enum gauge g, int64_t value);
void metrics_add(struct metrics *m, enum gauge g, int64_t delta);
void metrics_observe(struct metrics *m, enum histogram h, uint64_t nanoseconds);
uint64_t metrics_counter(const struct metrics *m, enum counter c);

/* Text format 0.0.4, appended to out. */
void metrics_render(const struct metrics *m, struct bytes *out);

#endif
