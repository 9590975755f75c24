/* cost.h - how long prefill and loads take, learned from what they took; and so whether to
 * load a prefix or to compute it again.
 *
 * Pure     no I/O and no clock: observations come in, predictions go out.
 * Threads  one; the owner's.
 *
 * Prefill of a token at position p takes  a + b p  (products, plus attention over all
 * before it).  A load takes  latency + bytes / bandwidth  behind the bytes that are queued
 * already.  Both are fitted by least squares to observations with exponential forgetting.
 *
 * A tier that looks slow is not loaded from, and so would never look otherwise.  Therefore:
 *
 *   1. What was asked for before a rate last moved cannot move it further: loads that were in
 *      flight together are bounded by the same prediction, each to 1/4 to 4 times of it,
 *      so that one hiccup counts once, however many blocks it held up.
 *   2. A load is known to have taken between `least` and `most`, as nobody looked meanwhile;
 *      where the prediction lies between, the load agrees with it.
 *   3. While nothing is observed, belief widens from the remembered prediction P to that of
 *      the calibrated rates C: by the time t since the last observation to
 *
 *          A = C (P / C) ^ (1/2 ^ (t / COST_HALF))
 *
 *      Where A would load more than P does, one block more than P says is loaded: a probe.
 *      The next observation y says where between A and P the truth lies: the line is scaled by
 *      clamp(y, A, P) / P before y is fitted.  So a tier that was slow once is used again
 *      after a few COST_HALF, and one that stays slow costs a block's load each time.
 */
#ifndef OFFLOAD_COST_H
#define OFFLOAD_COST_H

#include "kernels/base.h"

#define COST_HALF UINT64_C(5000000000)  // ns

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

struct cost_load {
    enum cost_tier tier;
    uint64_t bytes, ahead;  // of it; queued before it
    uint64_t least, most;   // ns that it took: it was not there yet, it was there
};
void cost_observe_load(struct cost *c, const struct cost_load *l, uint64_t now);

double cost_prefill_ns(const struct cost *c, uint32_t from, uint32_t to);
double cost_load_ns(const struct cost *c, enum cost_tier t, uint64_t bytes,
                    uint64_t ahead);  // P

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
    uint64_t now;
};

struct cost_answer {
    uint32_t load;      // of the n blocks: load so many, compute the rest
    double load_ns;     // predicted, for these
    double compute_ns;  // predicted, for all tokens that are not loaded
    double without_ns;  // predicted, if nothing were loaded
};
/* The number of blocks to load that makes price * compute + wait least, or one more as a
 * probe; ties load more.  The wait is that for the slower of the tiers, which work beside
 * each other. */
void cost_decide(const struct cost *c, const struct cost_question *q,
                 struct cost_answer *out);

/* A wake that may begin before all of it has arrived: its last bytes come from RAM in
 * pieces, and piece by piece the prefill of [from, to) goes over what is there.  With c to
 * compute, l to load and n pieces that takes
 *
 *     max(c + l / n, l + c / n)    instead of    l + c
 *
 * of which the device spends  max(0, (l - c) (1 - 1 / n))  waiting, while others could
 * have gone on.  From the SSD nothing begins early: l is much greater than the c of a turn
 * there, so that c, little of l + c, is all there is to gain; reads of a layer's slice would
 * be some thirtieth of a block each; and no part of a block is known to be right before its
 * checksum, which is that of the whole block, has been compared. */
struct cost_overlap {
    uint64_t bytes;
    uint32_t pieces;    // at least 1
    uint32_t from, to;  // tokens
    double compute_price;
};
/* What beginning early is predicted to gain, in ns, less what it costs others. */
double cost_overlap_gain(const struct cost *c, const struct cost_overlap *o);

#endif
