/* cost.h - how long prefill and loads take, learned from what they took; and so whether to
 * load a prefix or to compute it again.
 *
 * Pure     no I/O and no clock: observations come in, predictions go out.
 * Threads  one; the owner's.
 *
 * Prefill of a token at position p takes  a + b p  (products, plus attention over all
 * before it).  A load takes  latency + bytes / bandwidth  behind the bytes that are queued
 * already.  Both are fitted to observations with exponential forgetting.
 */
#ifndef OFFLOAD_COST_H
#define OFFLOAD_COST_H

#include "kernels/base.h"

enum cost_tier { COST_RAM, COST_SSD, COST_TIERS };

struct cost;
NODISCARD int cost_open(struct cost **out, struct err *err);
void cost_close(struct cost *c);

/* Rates before anything was observed, of a calibration or by flags; in ns a token, ns a
 * token and position, ns, bytes a second. */
void cost_set_prefill(struct cost *c, double a, double b);
void cost_set_tier(struct cost *c, enum cost_tier t, double latency, double bandwidth);

/* Tokens [from, to) of one sequence were prefilled in so many ns of compute. */
void cost_observe_prefill(struct cost *c, uint32_t from, uint32_t to, uint64_t ns);
/* `bytes` were loaded, ns after they were asked for, `ahead` bytes being queued before. */
void cost_observe_load(struct cost *c, enum cost_tier t, uint64_t bytes, uint64_t ahead,
                       uint64_t ns);

double cost_prefill_ns(const struct cost *c, uint32_t from, uint32_t to);
double cost_load_ns(const struct cost *c, enum cost_tier t, uint64_t bytes,
                    uint64_t ahead);

/* A prefix found below G1, block by block from the first that is not in G1. */
struct cost_question {
    uint32_t block_tokens;
    uint64_t block_bytes;
    uint32_t first;       // blocks before it are in G1
    uint32_t n;           // blocks found from there on
    const uint8_t *tier;  // (n) enum cost_tier of each; COST_TIERS: nothing to load
    uint32_t prompt;      // tokens of the whole prompt
    uint64_t queued[COST_TIERS];  // bytes waiting in each tier
    /* Others waiting for compute: a second of prefill costs this many seconds in all (at
     * least 1); a load costs only its own wait. */
    double compute_price;
};

struct cost_answer {
    uint32_t load;      // of the n blocks: load so many, compute the rest
    double load_ns;     // predicted, for these
    double compute_ns;  // predicted, for all tokens that are not loaded
    double without_ns;  // predicted, if nothing were loaded
};
/* The number of blocks to load that makes price * compute + wait least; ties load more.
 * The wait is that for the slower of the tiers, which work beside each other. */
void cost_decide(const struct cost *c, const struct cost_question *q,
                 struct cost_answer *out);

#endif
