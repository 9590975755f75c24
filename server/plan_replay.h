/* plan_replay.h - a trace against one machine, in virtual time, through offload's own code.
 *
 *     arrives -> waits -> admitted -> (loading) -> prefill -> decode -> idle
 *
 * Admission is in order and reserves pages for prompt and reply; a step computes a chunk of
 * prefill, first come first served, and one token of every reply.  A transfer lands at its own
 * time, also in the midst of a step; a sequence joins or leaves between steps.
 *
 * Owns     nothing after a call but the times in the result.
 * Caller   frees these: plan_result_free().
 * Pure     no clock but the virtual one; the same input gives the same result.
 * Threads  any, one call for each set of arguments.
 */
#ifndef SERVER_PLAN_REPLAY_H
#define SERVER_PLAN_REPLAY_H

#include "offload/kvstore.h"
#include "server/plan_trace.h"

/* A step of compute takes, in ns,
 *     max(weights, tokens * prefill_a) + prefill_b * (sum of positions prefilled)
 *         + context * (tokens of all contexts decoded) + overhead */
struct plan_compute {
    double prefill_a, prefill_b;  // of a token; of a token and position
    double weights, context, overhead;
    uint32_t step_tokens, max_running;
};

struct plan_channel {
    uint64_t bytes;      // capacity; 0: there is no such tier
    double read, write;  // bytes a second
    uint64_t latency;    // ns
};

struct plan_machine {
    uint64_t kv_bytes;     // of G1
    uint64_t token_bytes;  // of KV
    uint32_t context;      // longest prompt and reply
    struct plan_compute compute;
    struct plan_channel ram, ssd;
    struct policy policy;
    uint32_t max_conversations, max_wakes;
};

struct plan_result {
    uint32_t turns, returning,
        refused;  // refused: never fit, and their sessions end there
    uint64_t prompt_tokens, reply_tokens;
    uint64_t span, busy,
        waited_for_load;  // ns: first arrival to last reply; computing;
                          // idle, with a load under way
    struct kvstore_counters counters;
    uint64_t *ttft, *ttft_returning;  // ns, ascending; (turns), (returning)
};

NODISCARD int plan_replay(struct plan_result *out, const struct plan_trace *t,
                          const struct plan_machine *m, struct err *err);
void plan_result_free(struct plan_result *r);

/* The smallest value that `percent` of the n ascending ones do not exceed; 0 of none. */
uint64_t plan_percentile(const uint64_t *ascending, uint32_t n, uint32_t percent);

#endif
