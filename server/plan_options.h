/* plan_options.h - what `dormouse plan` may be told; a table as that of options.h.
 *
 * Owns     nothing: struct plan_options is a plain value.
 * Threads  one.
 */
#ifndef SERVER_PLAN_OPTIONS_H
#define SERVER_PLAN_OPTIONS_H

#include "server/options_table.h"
#include "server/plan_replay.h"

struct plan_options {
    /* trace */
    char trace[OPTION_TEXT];  // "": a synthetic one
    uint32_t synthetic, duration_ms, first_tokens, turn_tokens, reply_tokens;
    uint32_t sample, spread_ms, seed;
    /* model */
    uint32_t layers, kv_heads, head_dim;
    enum dtype kv_type;
    uint64_t weights;
    uint32_t context;
    /* machine */
    uint32_t prefill_rate, prefill_rate_32k, step_tokens, max_running, step_overhead_us;
    uint64_t memory_bandwidth;
    /* tiers */
    uint64_t kv_memory, ram, ssd;
    uint64_t ram_read, ram_write, ssd_read, ssd_write;
    uint32_t ram_latency_us, ssd_latency_us;
    /* policy */
    struct policy_settings policy;
    uint32_t max_wakes, max_conversations;
    /* report */
    bool json;
};

extern const struct option_list plan_options_list;

void plan_options_defaults(struct plan_options *o);
/* argv without the program and the command's name.  0; 1: --help was printed; -EINVAL. */
NODISCARD int plan_options_read(struct plan_options *o, int argc, char **argv,
                                struct err *err);
/* -EINVAL where the values do not fit each other. */
NODISCARD int plan_options_machine(const struct plan_options *o,
                                   struct plan_machine *out, struct err *err);

#endif
