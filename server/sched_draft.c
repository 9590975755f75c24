/* sched_draft.c - how many drafts a step computes (rule 7). */
#include "server/lookup.h"
#include "server/sched.h"

/* Until it is measured: a step's fixed cost is that of so many rows. */
#define STEP_ROWS 8

/* What one more row adds to the step's time, over the time it takes for each reply: a row of
 * a prompt costs the same. */
static uint32_t row_cost(const struct sched *s)
{
    bool measured = s->prefill_ns > 0 && s->decode_ns > 0;
    double n = s->step.n_decode,
           cost = measured ? n * s->prefill_ns / s->decode_ns : n / (n + STEP_ROWS);
    return cost < 1 ? (uint32_t)(cost * LOOKUP_ONE) : LOOKUP_ONE;
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Drafts of all sequences: every one may need a row and its logits, prefill a chunk. */
static uint32_t draft_budget(const struct sched *s)
{
    const struct sched_options *o = &s->o;
    return lesser(o->step_tokens - o->max_running - SCHED_MIN_CHUNK,
                  o->max_logits - o->max_running);
}

/* No more than the sequence may have, its blocks and free ones hold. */
static uint32_t draft_room(const struct sched *s, const struct sched_seq *q)
{
    uint64_t blocks = (uint64_t)q->table.n_blocks + s->o.kv->n_free;
    uint32_t most = s->o.capacity - q->n_known;
    uint64_t fit = blocks * KV_BLOCK_TOKENS - q->n_known;
    return fit < most ? (uint32_t)fit : most;
}

static void plan_drafts_of(struct sched *s, uint32_t seq, uint32_t cost, uint32_t most)
{
    struct sched_seq *q = &s->seqs[seq];
    most = lesser(most, draft_room(s, q));
    uint32_t n = most > 0 ? s->o.draft.find(s->o.draft.arg, seq, cost, most) : 0;
    if (n == 0) return;
    if (kv_table_extend(s->o.kv, &q->table, q->n_known, q->n_known + n) < 0) return;
    q->n_draft = n;
    s->step.n_draft += n;
}

/* Nothing but replies has been planned yet; the oldest first. */
void sched_plan_drafts(struct sched *s)
{
    if (!s->o.draft.find || s->step.n_decode == 0) return;
    uint32_t cost = row_cost(s), budget = draft_budget(s);
    if (cost == LOOKUP_ONE) return;
    for (uint32_t j = s->oldest; j != SCHED_NONE; j = s->jobs[j].younger)
        for (uint32_t i = s->jobs[j].first_seq; i != SCHED_NONE; i = s->seqs[i].next)
            if (s->seqs[i].chunk > 0)
                plan_drafts_of(s, i, cost,
                               lesser(s->o.draft.most, budget - s->step.n_draft));
}
