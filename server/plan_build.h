/* plan_build.h - what the readers of plan_trace.h build a trace with; private to them.
 *
 * Owns     nothing.
 * Threads  as plan_trace.h.
 */
#ifndef SERVER_PLAN_BUILD_H
#define SERVER_PLAN_BUILD_H

#include "server/plan_trace.h"

#define PLAN_MS UINT64_C(1000000)
#define PLAN_S  (1000 * PLAN_MS)

/* One line of a text, without its end. */
struct plan_line {
    const char *name, *text;
    size_t n;
    uint64_t number;
};
/* Step to the next line; false: there is none. */
bool plan_line_next(struct plan_line *l, const char **at, const char *end);

/* SplitMix64's finalizer (Steele, Lea and Flood, 2014). */
static inline uint64_t plan_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The id of a block whose content is `own` behind the prefix `before` (0: none). */
static inline uint64_t plan_chain(uint64_t before, uint64_t own)
{
    return plan_mix(plan_mix(before) ^ own);
}

/* Full blocks after the reply: its last token has been sampled, not computed. */
static inline uint32_t plan_full_blocks(uint32_t prompt, uint32_t reply)
{
    return (prompt + reply - (reply > 0)) / PLAN_BLOCK_TOKENS;
}

/* Add a turn of `session` behind `before` (PLAN_NONE: the session's first), with room for
 * its ids.  Its number is in *out. */
NODISCARD int plan_add_turn(struct plan_trace *t, const struct plan_turn *turn,
                            uint32_t before, uint32_t *out, struct err *err);
/* Name its blocks as a continuation: the first `kept` tokens are those of turn `before`, the
 * rest has never been. */
void plan_name_blocks(struct plan_trace *t, uint32_t turn, uint32_t before,
                      uint32_t kept);

NODISCARD int plan_read_mooncake(struct plan_trace *t, const char *name,
                                 const char *text, size_t n, struct err *err);
NODISCARD int plan_read_sessions(struct plan_trace *t, const char *name,
                                 const char *text, size_t n, struct err *err);

#endif
