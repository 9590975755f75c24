/* sched_draft.c - how many drafts a step computes (rule 7). */
#include "server/lookup.h"
#include "server/sched.h"

/* What one more row adds to the step's time, over the time it takes for each reply. */
static uint32_t row_cost(const struct sched *s)
{
    double n = s->step.n_decode;
    return (uint32_t)(n / (n + s->o.draft.step_rows) * LOOKUP_ONE);
}

double sched_draft_factor(const struct sched *s)
{
    if (s->step.n_draft == 0) return 1;
    double rows = s->step.n_decode + s->o.draft.step_rows;
    return (rows + s->step.n_draft) / rows;
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
    for (uint32_t j = s->oldest; j != SCHED_NONE; j = s->jobs[j].younger)
        for (uint32_t i = s->jobs[j].first_seq; i != SCHED_NONE; i = s->seqs[i].next)
            if (s->seqs[i].chunk > 0)
                plan_drafts_of(s, i, cost,
                               lesser(s->o.draft.most, budget - s->step.n_draft));
}
