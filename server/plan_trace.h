/* plan_trace.h - who asks what, when: a recorded or made-up day of conversations.
 *
 * A trace is a list of turns.  Each names the full blocks of its prompt and its reply, so
 * that two turns share a prefix exactly where their ids agree from the first on: an id
 * stands for its block and for all before it.
 *
 * Formats (lines end in \n or \r\n; a message names file and line):
 *   Mooncake's jsonl  {"timestamp": ms, "input_length": tokens, "output_length": tokens,
 *                     "hash_ids": [one for each 512 tokens of the prompt, the last one
 *                     partial]}, by time.  Whose turn follows whose is derived: see
 *                     plan_trace_mooncake.c.
 *   session CSV       session_id,arrival_ms,round_idx,prefix_len,input_len,output_len,
 *                     wait_after_ms; a session's rounds in a row, its first one's arrival
 *                     in all of them, wait_after_ms -1 on the last.
 *
 * Owns     its arrays; zero-initialise, plan_trace_free() when done.
 * Threads  one at a time while it is built; any once it is.
 */
#ifndef SERVER_PLAN_TRACE_H
#define SERVER_PLAN_TRACE_H

#include "kernels/base.h"

#define PLAN_BLOCK_TOKENS 512
#define PLAN_MAX_TOKENS   (1u << 24)  // of one turn
#define PLAN_NONE         UINT32_MAX

/* A turn arrives at `at`, but not before `wait` after the reply of the one before it. */
struct plan_turn {
    uint64_t at, wait;       // ns
    uint64_t first_block;    // in plan_trace.ids
    uint32_t n_blocks;       // full ones once the reply is there
    uint32_t prompt, reply;  // tokens
    uint32_t session;
    uint32_t next;  // turn of the same session; PLAN_NONE: the last
    bool first;     // of its session
};

struct plan_trace {
    struct plan_turn *turns;
    uint64_t *ids;
    uint32_t *firsts;  // the first turn of each session
    uint32_t n_turns, n_sessions;
    uint64_t n_ids;
    /* capacities, and the number that makes new ids new */
    size_t turns_cap, ids_cap, firsts_cap;
    uint64_t fresh;
};

void plan_trace_free(struct plan_trace *t);

/* Add the turns of a text in either format, told apart by its first character.  -EINVAL
 * with file, line and field; -ENOMEM. */
NODISCARD int plan_trace_read(struct plan_trace *t, const char *name, const char *text,
                              size_t n, struct err *err);
/* The same of a file; "-" is standard input. */
NODISCARD int plan_trace_load(struct plan_trace *t, const char *path, struct err *err);

/* Conversations that begin evenly over a day, with turns and pauses as Mooncake's trace has
 * them: the chance of a next turn rises .27 .40 .53 .60 .67, pauses are log-normal with
 * median 123 s; so are the lengths, with these medians. */
struct plan_synthetic {
    uint32_t conversations;
    uint64_t duration, seed;  // ns
    uint32_t first_tokens, turn_tokens, reply_tokens;
};
NODISCARD int plan_trace_make(struct plan_trace *t, const struct plan_synthetic *o,
                              struct err *err);

/* Keep so many percent of the sessions, whole ones, chosen by the seed. */
void plan_trace_thin(struct plan_trace *t, uint32_t percent, uint64_t seed);
/* Move each arrival to a place within the `step` ns that follow it, chosen by the seed: a
 * recorder that rounds times makes crowds that never were. */
void plan_trace_spread(struct plan_trace *t, uint64_t step, uint64_t seed);

uint32_t plan_trace_most_blocks(const struct plan_trace *t);  // of one turn

#endif
