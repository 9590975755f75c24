/* sched_prefill.c - what of the prompts a step computes (rules 1 and 2). */
#include "server/sched.h"

uint32_t sched_left(const struct sched_seq *q)
{
    return q->n_known - q->n_computed - q->chunk;
}

/* Add up to `budget` tokens to the sequence's chunk, in whole units where they are not its
 * last; how many. */
static uint32_t give(struct sched *s, struct sched_seq *q, uint32_t budget,
                     uint32_t unit, uint32_t *spare_logits)
{
    const struct sched_job *j = &s->jobs[q->job];
    uint32_t n = sched_left(q);
    if (n > budget) n = budget / unit * unit;
    if (j->n_scored >= j->to_score) {
        q->chunk += n;
        return n;
    }

    /* Every row from n_scored on needs logits; those of one are set aside for each
     * sequence. */
    uint32_t quiet = j->n_scored > q->n_computed ? j->n_scored - q->n_computed : 0;
    uint32_t had = q->chunk > quiet ? q->chunk - quiet : 0;
    uint32_t scores = *spare_logits + (had == 0);
    if (scores > j->score_room - had) scores = j->score_room - had;
    if (n > quiet + had + scores - q->chunk) n = quiet + had + scores - q->chunk;
    q->chunk += n;
    uint32_t has = q->chunk > quiet ? q->chunk - quiet : 0;
    *spare_logits -= has - had - (had == 0 && has > 0);
    return n;
}

static bool wants_prefill(const struct sched *s, const struct sched_seq *q)
{
    return q->state == SEQ_RUNNING && !s->jobs[q->job].paused && sched_left(q) > 0;
}

static struct sched_seq *oldest_prefill(struct sched *s)
{
    for (uint32_t j = s->oldest; j != SCHED_NONE; j = s->jobs[j].younger)
        for (uint32_t i = s->jobs[j].first_seq; i != SCHED_NONE; i = s->seqs[i].next)
            if (wants_prefill(s, &s->seqs[i])) return &s->seqs[i];
    return NULL;
}

static struct sched_seq *shortest_prefill(struct sched *s)
{
    struct sched_seq *best = NULL;
    for (uint32_t i = 0; i < s->o.max_running; i++) {
        struct sched_seq *q = &s->seqs[i];
        if (!wants_prefill(s, q) || q->full) continue;
        if (!best || sched_left(q) < sched_left(best)) best = q;
    }
    return best;
}

/* Is nothing left to prefill but ends of prompts that came from the store, all of them
 * young? */
static bool only_ends(const struct sched *s, uint64_t now)
{
    for (uint32_t i = 0; i < s->o.max_running; i++) {
        const struct sched_seq *q = &s->seqs[i];
        if (!wants_prefill(s, q)) continue;
        uint32_t came = q->n_adopted * KV_BLOCK_TOKENS;
        uint64_t since = q->since ? q->since : s->jobs[q->job].since;
        if (came == 0 || q->n_known - came > SCHED_END_TOKENS) return false;
        if (now - since >= SCHED_BUMP_NS) return false;
    }
    return true;
}

/* Tokens of it that make a step of replies about a quarter longer; where reading its history
 * alone costs more than that, as many as cost the same again. */
static uint32_t end_budget(const struct sched *s, const struct sched_seq *q)
{
    /* Not measured yet: a careful guess. */
    double each = s->prefill_ns > 0 ? s->prefill_ns : (double)s->o.step_ns / 64;
    double fit = s->decode_ns / 4 / each;
    uint32_t n = fit < SCHED_END_TOKENS ? (uint32_t)fit : SCHED_END_TOKENS;
    uint32_t worth = q->n_computed / SCHED_END_HISTORY;
    if (n < worth) n = worth;
    return n > 0 ? n : 1;
}

static uint32_t prefill_budget(const struct sched *s)
{
    uint32_t most = s->o.step_tokens - s->step.n_decode - s->step.n_draft;
    if (s->step.n_decode == 0) return most;

    /* Not measured yet: a careful guess.  Drafts make the step longer, too. */
    double fit = s->prefill_ns > 0 ? (double)s->o.step_ns / s->prefill_ns : 64;
    fit -= s->step.n_draft;
    if (fit < SCHED_MIN_CHUNK) fit = SCHED_MIN_CHUNK;
    return fit < most ? (uint32_t)fit / SCHED_MIN_CHUNK * SCHED_MIN_CHUNK : most;
}

void sched_plan_prefill(struct sched *s, uint64_t now)
{
    struct sched_seq *oldest = oldest_prefill(s);
    if (!oldest) return;

    uint32_t budget = prefill_budget(s);
    uint32_t spare_logits = s->o.max_logits - s->n_running - s->step.n_draft;
    if (s->step.n_decode > 0 && only_ends(s, now)) {
        uint32_t end = end_budget(s, oldest);
        give(s, oldest, end < budget ? end : budget, 1, &spare_logits);
        return;
    }
    uint32_t unit = SCHED_MIN_CHUNK, half = budget / 2 / unit * unit;
    if (half == 0) half = s->turn ? budget : 0;
    s->turn = !s->turn;
    budget -= give(s, oldest, half, unit, &spare_logits);

    for (struct sched_seq *q; budget > 0 && (q = shortest_prefill(s)) != NULL;) {
        budget -= give(s, q, budget, unit, &spare_logits);
        q->full = true;
    }
}
