/* metrics_table.c - every metric once: its name, its help, its labels, its buckets. */
#include "server/metrics_table.h"

/* Upper bounds in seconds, ascending, ended by 0: those of vLLM, with finer ones below,
 * for models that are small. */
static const double step_bounds[METRICS_BUCKETS] = {
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.4,    0.5,   0.75,   1,     2.5,  5,     7.5,  10,    20,  40,   80};
static const double first_bounds[METRICS_BUCKETS] = {
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double whole_bounds[METRICS_BUCKETS] = {
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5,
    5,     10,   15,    20,   30,  40,  50,  60,  120, 240, 480, 960, 1920};

static const double wake_bounds[METRICS_BUCKETS] = {
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1,    0.25,    0.5,    1,     2.5,    5,     10,   20,    40};

#define DEVICE "tier=\"device\""

/* clang-format off */
#define ONE(name, help)         {name, help, NULL, false}
#define PART(name, help, label) {name, help, label, false}
#define BY_TIER(of, name, help) \
    [of##_RAM] = PART(name, help, RAM), [of##_SSD] = PART(name, NULL, SSD)
#define BY_LEVEL(of, name, help) \
    [of##_DEVICE] = PART(name, help, DEVICE), BY_TIER(of, name, NULL)
/* clang-format on */

const struct series metrics_counters[COUNTERS] = {
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
    [COUNTER_DRAFT_TOKENS] =
        ONE("spec_decode_num_draft_tokens_total",
            "Tokens computed ahead as the text's own repetition suggested them."),
    [COUNTER_ACCEPTED_TOKENS] =
        ONE("spec_decode_num_accepted_tokens_total",
            "Of these, tokens that were what the reply went on with."),
    BY_LEVEL(COUNTER_FROM, "cached_prompt_tokens_total",
             "Prompt tokens not computed, by where they were."),
    [COUNTER_NEW] =
        PART("computed_prompt_tokens_total",
             "Prompt tokens computed, by why they were not loaded.", "reason=\"new\""),
    [COUNTER_CHEAPER] =
        PART("computed_prompt_tokens_total", NULL, "reason=\"cheaper\""),
    [COUNTER_FAILED] = PART("computed_prompt_tokens_total", NULL, "reason=\"failed\""),
    [COUNTER_LATE] = PART("computed_prompt_tokens_total", NULL, "reason=\"late\""),
    [COUNTER_BUSY] = PART("computed_prompt_tokens_total", NULL, "reason=\"busy\""),
    BY_TIER(COUNTER_PROMOTED, "promoted_bytes_total",
            "Bytes of KV brought up, by where they came from."),
    BY_TIER(COUNTER_DEMOTED, "demoted_bytes_total",
            "Bytes of KV copied down, by where to."),
    BY_LEVEL(COUNTER_EVICTED, "evicted_blocks_total", "KV blocks freed to make room."),
    [COUNTER_LOST] =
        ONE("lost_blocks_total", "KV blocks whose last copy was freed to make room."),
    [COUNTER_UNWAITED] =
        ONE("unwaited_blocks_total",
            "Of these, KV blocks still to be copied down: whoever needed "
            "the room had waited for that as long as it pays."),
    BY_TIER(COUNTER_QUOTA, "quota_blocks_total",
            "KV blocks refused or freed for a tenant's quota."),
    BY_TIER(COUNTER_KEPT, "kept_refused_blocks_total",
            "KV blocks not stored in a full tier as all it has was used just now."),
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
    BY_TIER(COUNTER_DROPPED, "dropped_blocks_total",
            "KV blocks dropped as they could not be read, or were not "
            "what they should be."),
    [COUNTER_FOUND] =
        PART("start_blocks_total",
             "KV blocks that the SSD had at the start: usable, of another "
             "model or configuration, damaged, or without their beginning.",
             "state=\"usable\""),
    [COUNTER_FOUND_FOREIGN] = PART("start_blocks_total", NULL, "state=\"foreign\""),
    [COUNTER_FOUND_DAMAGED] = PART("start_blocks_total", NULL, "state=\"damaged\""),
    [COUNTER_FOUND_ORPHANS] = PART("start_blocks_total", NULL, "state=\"orphan\""),
    [COUNTER_BEGAN_EARLY] =
        ONE("wakes_begun_early_total",
            "Wakes whose prefill began while the last of their KV was arriving."),
    [COUNTER_IDLE_NS] = {"load_wait_idle_seconds_total",
                         "Time without computing while KV blocks were on their way.",
                         NULL, true},
};

const struct series metrics_gauges[GAUGES] = {
    [GAUGE_RUNNING] = ONE("num_requests_running", "Sequences that are being computed."),
    [GAUGE_WAITING] =
        ONE("num_requests_waiting", "Requests that wait for their start."),
    [GAUGE_KV_BLOCKS_USED] = ONE("kv_blocks_used", "KV blocks in use."),
    [GAUGE_KV_BLOCKS_TOTAL] = ONE("kv_blocks_total", "KV blocks there are."),
    [GAUGE_CONNECTIONS] = ONE("connections", "Open connections of clients."),
    [GAUGE_WAKING] = ONE("num_sequences_waking", "Sequences that wait for KV blocks."),
    [GAUGE_CONVERSATIONS] = ONE("conversations", "Conversations that are known."),
    BY_LEVEL(GAUGE_USED, "tier_used_bytes",
             "KV bytes in a tier, of those too that only wait to be wanted "
             "again."),
    BY_LEVEL(GAUGE_FREE, "tier_free_bytes", "KV bytes that a tier takes as it is."),
    BY_TIER(GAUGE_CONFIGURED, "tier_configured", "1: the tier is wanted."),
    BY_TIER(GAUGE_WRITABLE, "tier_writable",
            "1: the tier takes blocks; 0: there is none, or its writes "
            "have failed and are tried again later."),
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

const char *const metrics_outcomes[OUTCOMES] = {
    [OUTCOME_STOP] = "stop",           [OUTCOME_LENGTH] = "length",
    [OUTCOME_CANCELLED] = "cancelled", [OUTCOME_STALLED] = "stalled",
    [OUTCOME_INVALID] = "invalid",     [OUTCOME_REFUSED] = "refused",
    [OUTCOME_ERROR] = "error",
};

const struct histogram_series metrics_histograms[HISTOGRAMS] = {
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
