/* metrics.h - what is counted, and the Prometheus text of it.
 *
 * Owns     counters, gauges and histograms: plain atomics.  Counters never go down and
 *          do not depend on who scrapes.
 * Names    those users already chart (vLLM's), under the prefix dormouse_:
 *          time_to_first_token_seconds, inter_token_latency_seconds,
 *          e2e_request_latency_seconds, request_queue_time_seconds,
 *          num_requests_running, num_requests_waiting, kv_cache_usage_perc,
 *          prompt_tokens_total, generation_tokens_total, requests_total by outcome,
 *          spec_decode_num_draft_tokens_total ...
 * Tokens   cached_prompt_tokens_total by tier and computed_prompt_tokens_total by reason
 *          are together prompt_tokens_total: each request counts when it is answered.
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
    COUNTER_DRAFT_TOKENS,     // computed as what a reply may go on with
    COUNTER_ACCEPTED_TOKENS,  // of these, that it did
    /* Of answered requests; together what COUNTER_PROMPT_TOKENS says. */
    COUNTER_FROM_DEVICE,
    COUNTER_FROM_RAM,
    COUNTER_FROM_SSD,
    COUNTER_NEW,
    COUNTER_CHEAPER,
    COUNTER_FAILED,
    COUNTER_LATE,
    COUNTER_BUSY,
    /* Of the tiers and the store over them. */
    COUNTER_PROMOTED_RAM,  // bytes, from
    COUNTER_PROMOTED_SSD,
    COUNTER_DEMOTED_RAM,  // bytes, into
    COUNTER_DEMOTED_SSD,
    COUNTER_EVICTED_DEVICE,  // blocks
    COUNTER_EVICTED_RAM,
    COUNTER_EVICTED_SSD,
    COUNTER_LOST,
    COUNTER_UNWAITED,
    COUNTER_QUOTA_RAM,
    COUNTER_QUOTA_SSD,
    COUNTER_KEPT_RAM,
    COUNTER_KEPT_SSD,
    COUNTER_LOAD_FAILED,
    COUNTER_STORE_FAILED,
    COUNTER_DEADLINE,
    COUNTER_BUDGET,
    COUNTER_SECOND_TOUCH,
    COUNTER_DROPPED_RAM,  // blocks whose bytes were not what they should be
    COUNTER_DROPPED_SSD,
    COUNTER_FOUND,  // at the start on the SSD
    COUNTER_FOUND_FOREIGN,
    COUNTER_FOUND_DAMAGED,
    COUNTER_FOUND_ORPHANS,
    COUNTER_BEGAN_EARLY,
    COUNTER_IDLE_NS,  // nothing was computed because blocks were on their way
    COUNTERS
};

enum gauge {
    GAUGE_RUNNING,  // sequences
    GAUGE_WAITING,  // requests
    GAUGE_KV_BLOCKS_USED,
    GAUGE_KV_BLOCKS_TOTAL,
    GAUGE_CONNECTIONS,
    GAUGE_WAKING,  // sequences
    GAUGE_CONVERSATIONS,
    GAUGE_USED_DEVICE,  // bytes
    GAUGE_USED_RAM,
    GAUGE_USED_SSD,
    GAUGE_FREE_DEVICE,
    GAUGE_FREE_RAM,
    GAUGE_FREE_SSD,
    GAUGE_CONFIGURED_RAM,  // 1: wanted; whether it is there or not
    GAUGE_CONFIGURED_SSD,
    GAUGE_WRITABLE_RAM,
    GAUGE_WRITABLE_SSD,
    GAUGE_LOADING_RAM,  // transfers
    GAUGE_LOADING_SSD,
    GAUGE_STORING_RAM,
    GAUGE_STORING_SSD,
    GAUGES
};

enum histogram {
    HISTOGRAM_TTFT,
    HISTOGRAM_ITL,
    HISTOGRAM_E2E,
    HISTOGRAM_QUEUE,
    HISTOGRAM_STEP,
    HISTOGRAM_WAKE_DEVICE,  // by the slowest tier that something came from
    HISTOGRAM_WAKE_RAM,
    HISTOGRAM_WAKE_SSD,
    HISTOGRAMS
};

struct metrics;
NODISCARD int metrics_open(struct metrics **out, const char *model_name,
                           struct err *err);
void metrics_close(struct metrics *m);

void metrics_count(struct metrics *m, enum counter c, uint64_t n);
/* For what its owner alone counts, elsewhere: the count so far, which never goes down. */
void metrics_total(struct metrics *m, enum counter c, uint64_t total);
void metrics_outcome(struct metrics *m, enum outcome o);
const char *metrics_outcome_name(enum outcome o);  // its label: "stop", "refused" ...
void metrics_http(struct metrics *m,
                  int status);  // one answered HTTP request, by status
void metrics_set(struct metrics *m, enum gauge g, int64_t value);
void metrics_add(struct metrics *m, enum gauge g, int64_t delta);
/* Name the tenants: n names, one of them NULL where it has no series of its own.  Once. */
#define METRICS_TENANT_TIERS 2  // RAM, SSD
NODISCARD int metrics_tenants(struct metrics *m, const char *const *names, uint32_t n,
                              struct err *err);
void metrics_set_tenant(struct metrics *m, uint32_t tenant, int tier, uint64_t bytes);
void metrics_observe(struct metrics *m, enum histogram h, uint64_t nanoseconds);
uint64_t metrics_counter(const struct metrics *m, enum counter c);

/* Text format 0.0.4, appended to out. */
void metrics_render(const struct metrics *m, struct bytes *out);

#endif
