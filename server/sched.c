#include "server/sched.h"

#include <assert.h>
#include <stdlib.h>

int sched_open(struct sched *s, const struct sched_options *o, struct err *err)
{
    *s = (struct sched){0};
    if (o->max_running == 0 || o->capacity == 0 || o->max_jobs == SCHED_NONE ||
        o->capacity > (uint64_t)o->kv->mem.n_blocks * KV_BLOCK_TOKENS)
        return err_set(err, -EINVAL,
                       "%u sequences of %u tokens cannot be scheduled in %u KV blocks",
                       o->max_running, o->capacity, o->kv->mem.n_blocks);
    if (o->step_tokens < (uint64_t)o->max_running + SCHED_MIN_CHUNK)
        return err_set(
            err, -EINVAL,
            "step_tokens %u is too small: max_running %u needs at least %llu",
            o->step_tokens, o->max_running,
            (unsigned long long)o->max_running + SCHED_MIN_CHUNK);
    if (o->max_logits < o->max_running)
        return err_set(err, -EINVAL, "logits of %u rows are too few: max_running is %u",
                       o->max_logits, o->max_running);

    uint32_t cap = kv_blocks_for(o->capacity);
    *s = (struct sched){
        .o = *o,
        .seqs = calloc(o->max_running, sizeof *s->seqs),
        .jobs = calloc(o->max_jobs, sizeof *s->jobs),
        .block_numbers = calloc((size_t)o->max_running * cap, sizeof(uint32_t)),
        .oldest = SCHED_NONE,
        .youngest = SCHED_NONE,
        .n_places = o->max_running,
        .step.items = calloc(o->max_running, sizeof *s->step.items),
        .step.started = calloc(o->max_running, sizeof *s->step.started),
    };
    if (!s->seqs || !s->jobs || !s->block_numbers || !s->step.items ||
        !s->step.started) {
        sched_close(s);
        return err_set(err, -ENOMEM, "no memory for the scheduler");
    }
    for (uint32_t i = 0; i < o->max_running; i++)
        s->seqs[i].table =
            (struct kv_table){.blocks = s->block_numbers + (size_t)i * cap, .cap = cap};
    return 0;
}

void sched_close(struct sched *s)
{
    for (uint32_t i = 0; s->seqs && i < s->o.max_running; i++)
        kv_table_release(s->o.kv, &s->seqs[i].table);
    free(s->seqs);
    free(s->jobs);
    free(s->block_numbers);
    free(s->step.items);
    free(s->step.started);
    *s = (struct sched){0};
}

size_t sched_bytes(const struct sched_options *o)
{
    size_t one = sizeof(struct sched_seq) + sizeof(struct sched_item) +
                 sizeof(uint32_t) + kv_blocks_for(o->capacity) * sizeof(uint32_t);
    return o->max_running * one + o->max_jobs * sizeof(struct sched_job);
}

/* ---- jobs ---- */

uint32_t sched_add(struct sched *s, uint32_t n_prompt, uint32_t n_choices, bool score,
                   uint64_t now)
{
    uint32_t i = 0;
    while (i < s->o.max_jobs && s->jobs[i].used) i++;
    if (i == s->o.max_jobs) return SCHED_NONE;

    s->jobs[i] = (struct sched_job){
        .used = true,
        .n_prompt = n_prompt,
        .n_choices = n_choices,
        .to_score = score ? n_prompt - 1 : 0,
        .since = now,
        .first_seq = SCHED_NONE,
        .older = s->youngest,
        .younger = SCHED_NONE,
    };
    *(s->youngest == SCHED_NONE ? &s->oldest : &s->jobs[s->youngest].younger) = i;
    s->youngest = i;
    return i;
}

uint32_t sched_expired(const struct sched *s, uint64_t now)
{
    uint32_t i = s->oldest;
    while (i != SCHED_NONE &&
           (s->jobs[i].n_started > 0 || now - s->jobs[i].since < s->o.max_wait_ns))
        i = s->jobs[i].younger;
    return i;
}

void sched_pause(struct sched *s, uint32_t job, bool paused, uint32_t score_room)
{
    s->jobs[job].paused = paused;
    s->jobs[job].score_room = score_room;
}

void sched_remove(struct sched *s, uint32_t job)
{
    struct sched_job *j = &s->jobs[job];
    assert(j->used);
    while (j->first_seq != SCHED_NONE) {
        uint32_t seq = j->first_seq;
        if (s->seqs[seq].state != SEQ_ENDED) sched_end(s, seq);
        sched_free(s, seq);
    }
    *(j->older == SCHED_NONE ? &s->oldest : &s->jobs[j->older].younger) = j->younger;
    *(j->younger == SCHED_NONE ? &s->youngest : &s->jobs[j->younger].older) = j->older;
    j->used = false;
}

/* ---- what came of a step ---- */

void sched_give_up(struct sched *s, uint32_t seq)
{
    struct sched_seq *q = &s->seqs[seq];
    s->n_running -= q->state == SEQ_RUNNING;
    s->n_waking -= q->state == SEQ_WAKING;
    if (q->inside && s->o.store.leave) s->o.store.leave(s->o.store.arg, seq);
    q->inside = false;
    kv_table_release(s->o.kv, &q->table);
    q->n_computed = q->n_adopted = 0;
}

/* Those that did not arrive leave the table, and others take their place. */
void sched_woken(struct sched *s, uint32_t seq, uint32_t n_blocks, uint64_t now)
{
    struct sched_seq *q = &s->seqs[seq];
    struct kv_table *t = &q->table;
    assert(q->state == SEQ_WAKING && n_blocks <= q->n_adopted);
    for (uint32_t i = q->n_adopted; i < t->n_blocks; i++)
        t->blocks[i - (q->n_adopted - n_blocks)] = t->blocks[i];
    t->n_blocks -= q->n_adopted - n_blocks;
    q->n_adopted = n_blocks;
    uint32_t tokens = n_blocks * KV_BLOCK_TOKENS;
    if (kv_table_extend(s->o.kv, t, tokens, q->n_known) < 0) {
        sched_give_up(s, seq);
        q->state = SEQ_PUT_BACK;
        q->since = now;
        return;
    }
    q->n_computed = tokens;
    q->state = SEQ_RUNNING;
    s->n_waking--;
    s->n_running++;
}

void sched_append(struct sched *s, uint32_t seq)
{
    struct sched_seq *q = &s->seqs[seq];
    assert(q->state == SEQ_RUNNING && q->n_computed == q->n_known);
    q->n_known++;
}

void sched_drafted(struct sched *s, uint32_t seq)
{
    struct sched_seq *q = &s->seqs[seq];
    if (q->state == SEQ_RUNNING) kv_table_trim(s->o.kv, &q->table, q->n_known);
}

void sched_end(struct sched *s, uint32_t seq)
{
    struct sched_seq *q = &s->seqs[seq];
    assert(q->state != SEQ_FREE && q->state != SEQ_ENDED);
    sched_give_up(s, seq);
    q->state = SEQ_ENDED;
    s->jobs[q->job].n_ended++;
}

void sched_free(struct sched *s, uint32_t seq)
{
    struct sched_seq *q = &s->seqs[seq];
    assert(q->state == SEQ_ENDED);
    uint32_t *link = &s->jobs[q->job].first_seq;
    while (*link != seq) link = &s->seqs[*link].next;
    *link = q->next;
    q->state = SEQ_FREE;
    s->n_places++;
}

/* Means that follow the last dozen steps or so. */
static void follow(double *mean, double value)
{
    *mean = *mean == 0 ? value : *mean + (value - *mean) / 8;
}

double sched_replies_ns(const struct sched *s)
{
    return s->step.n_decode > 0 ? s->decode_ns * sched_draft_factor(s) : 0;
}

void sched_measured(struct sched *s, uint64_t ns)
{
    const struct sched_step *p = &s->step;
    uint32_t prefill = p->n_rows - p->n_decode - p->n_draft;
    if (prefill == 0) {
        if (p->n_decode > 0) follow(&s->decode_ns, (double)ns / sched_draft_factor(s));
        return;
    }
    if (prefill < SCHED_MIN_CHUNK / 2) return;  // mostly the cost of any step

    /* What the replies of the step cost is not the prompt's: otherwise a slow decode would
     * make prefill look slow, shrink it, and so look slower still. */
    double replies = sched_replies_ns(s), most = (double)ns * 15 / 16;
    follow(&s->prefill_ns, ((double)ns - (replies < most ? replies : most)) / prefill);
}

/* ---- invariants ---- */

static bool check_seq(const struct sched *s, uint32_t i, uint32_t job)
{
    const struct sched_seq *q = &s->seqs[i];
    if (q->job != job || q->n_computed > q->n_known) return false;
    switch (q->state) {
    case SEQ_FREE: return false;  // it belongs to no job
    case SEQ_RUNNING:
        return q->n_computed < q->n_known && q->n_known <= s->o.capacity &&
               q->table.n_blocks >= kv_blocks_for(q->n_computed);
    case SEQ_WAKING:
        return q->n_computed == 0 && q->n_known <= s->o.capacity &&
               q->n_adopted <= (q->n_known - 1) / KV_BLOCK_TOKENS &&
               q->table.n_blocks >= kv_blocks_for(q->n_known);
    case SEQ_PUT_BACK: return q->n_computed == 0 && q->table.n_blocks == 0;
    case SEQ_ENDED: return q->table.n_blocks == 0;
    }
    return false;
}

static bool check_blocks(const struct sched *s)
{
    uint64_t held = 0, counted = 0;
    for (uint32_t i = 0; i < s->o.max_running; i++) held += s->seqs[i].table.n_blocks;
    for (uint32_t b = 0; b < s->o.kv->mem.n_blocks; b++) counted += s->o.kv->refs[b];
    bool fits = s->o.store.adopt ? held <= counted : held == counted;
    return fits && kv_pool_check(s->o.kv);
}

bool sched_check(const struct sched *s)
{
    uint32_t listed = 0, used = 0, places = 0, running = 0, waking = 0;
    uint32_t last = SCHED_NONE;
    uint32_t left = s->o.max_running;
    for (uint32_t i = s->oldest; i != SCHED_NONE; last = i, i = s->jobs[i].younger) {
        const struct sched_job *j = &s->jobs[i];
        if (!j->used || ++listed > s->o.max_jobs || j->older != last) return false;
        if (last != SCHED_NONE && s->jobs[last].since > j->since) return false;
        if (j->n_started > j->n_choices || j->n_ended > j->n_started) return false;
        for (uint32_t q = j->first_seq; q != SCHED_NONE; q = s->seqs[q].next, left--)
            if (left == 0 || !check_seq(s, q, i)) return false;
    }
    for (uint32_t i = 0; i < s->o.max_jobs; i++) used += s->jobs[i].used;
    for (uint32_t i = 0; i < s->o.max_running; i++) {
        places += s->seqs[i].state == SEQ_FREE;
        running += s->seqs[i].state == SEQ_RUNNING;
        waking += s->seqs[i].state == SEQ_WAKING;
    }
    return last == s->youngest && used == listed && places == s->n_places &&
           places == left && running == s->n_running && waking == s->n_waking &&
           check_blocks(s);
}
