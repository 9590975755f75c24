/* sched_plan.c - one plan: replies first, then who may start, then prefill. */
#include "server/sched.h"

#include <assert.h>

/* ---- putting back (rules 5 and 6) ---- */

static void put_back(struct sched *s, uint32_t seq, uint64_t now)
{
    struct sched_seq *q = &s->seqs[seq];
    sched_give_up(s, seq);
    q->state = SEQ_PUT_BACK;
    q->since = now;
    s->step.n_decode -= q->chunk;  // nothing but replies has been planned yet
    q->chunk = 0;
    s->step.n_put_back++;
}

static bool has_blocks(const struct sched_seq *q)
{
    return q->state == SEQ_RUNNING || q->state == SEQ_WAKING;
}

/* The sequence of the highest choice that has blocks. */
static uint32_t last_of(const struct sched *s, uint32_t job)
{
    uint32_t last = SCHED_NONE;
    for (uint32_t i = s->jobs[job].first_seq; i != SCHED_NONE; i = s->seqs[i].next)
        if (has_blocks(&s->seqs[i])) last = i;
    return last;
}

/* The youngest sequence that has blocks; only of jobs younger than `than`, unless that is
 * SCHED_NONE, and only of paused ones where asked for. */
static uint32_t youngest_of(const struct sched *s, uint32_t than, bool paused)
{
    for (uint32_t i = s->youngest; i != than; i = s->jobs[i].older) {
        if (paused && !s->jobs[i].paused) continue;
        uint32_t seq = last_of(s, i);
        if (seq != SCHED_NONE) return seq;
    }
    return SCHED_NONE;
}

/* ---- replies ---- */

/* Blocks for the next token, somebody else's if need be.  False: it gave its own. */
static bool grow(struct sched *s, uint32_t seq, uint64_t now)
{
    struct sched_seq *q = &s->seqs[seq];
    while (kv_table_extend(s->o.kv, &q->table, q->n_computed, q->n_known) < 0) {
        uint32_t victim = youngest_of(s, SCHED_NONE, true);
        if (victim == SCHED_NONE) victim = youngest_of(s, SCHED_NONE, false);
        put_back(s, victim, now);
        if (victim == seq) return false;
    }
    return true;
}

/* Oldest first, so that who is put back has not been planned yet. */
static void plan_replies(struct sched *s, uint64_t now)
{
    for (uint32_t j = s->oldest; j != SCHED_NONE; j = s->jobs[j].younger) {
        if (s->jobs[j].paused) continue;
        for (uint32_t i = s->jobs[j].first_seq; i != SCHED_NONE; i = s->seqs[i].next) {
            struct sched_seq *q = &s->seqs[i];
            bool replies = q->n_known > s->jobs[j].n_prompt;
            if (q->state != SEQ_RUNNING || !replies || sched_left(q) != 1) continue;
            if (!grow(s, i, now)) continue;
            q->chunk = 1;
            s->step.n_decode++;
        }
    }
}

/* ---- who may start (rules 3 to 5) ---- */

/* How many tokens `q` need not compute where a sibling has the prompt; 0: none has it,
 * and *wait says whether one is at it. */
static uint32_t shareable(const struct sched *s, const struct sched_seq *q,
                          const struct sched_seq **from, bool *wait)
{
    const struct sched_job *j = &s->jobs[q->job];
    uint32_t tokens = q->n_known - 1 < j->n_prompt ? q->n_known - 1 : j->n_prompt;
    *wait = false;
    for (uint32_t i = j->first_seq; i != SCHED_NONE; i = s->seqs[i].next) {
        const struct sched_seq *sibling = &s->seqs[i];
        if (sibling == q || !has_blocks(sibling)) continue;
        *wait = true;
        if (sibling->n_computed < j->n_prompt) continue;
        *from = sibling;
        *wait = false;
        return tokens;
    }
    return 0;
}

/* How many of its first blocks may be the store's: all but that of the last token, where
 * none of its tokens are a sibling's. */
static uint32_t adoptable(const struct sched *s, const struct sched_seq *q,
                          uint32_t shared)
{
    const struct sched_job *j = &s->jobs[q->job];
    bool may = s->o.store.adopt && shared == 0 && j->n_scored >= j->to_score;
    return may ? (q->n_known - 1) / KV_BLOCK_TOKENS : 0;
}

/* Are there blocks for a sequence of which `shared` tokens are a sibling's?  Rule 4. */
static enum sched_room has_room(const struct sched *s, const struct sched_seq *q,
                                uint32_t shared)
{
    const struct sched_job *j = &s->jobs[q->job];
    uint32_t n = kv_blocks_for(q->n_known) - shared / KV_BLOCK_TOKENS;
    bool alone = s->n_running == 0 && s->n_waking == 0;
    if (!alone) n += j->n_started == 0 ? j->n_choices : 1;
    if (!s->o.store.has_room)
        return n <= kv_pool_available(s->o.kv) ? ROOM_NOW : ROOM_NONE;
    uint32_t seq = (uint32_t)(q - s->seqs);
    return s->o.store.has_room(s->o.store.arg, seq, n, adoptable(s, q, shared));
}

/* NOW: it started, and runs or wakes. */
static enum sched_room start(struct sched *s, struct sched_seq *q,
                             const struct sched_seq *from, uint32_t shared)
{
    enum sched_room room = has_room(s, q, shared);
    if (room != ROOM_NOW) return room;
    uint32_t seq = (uint32_t)(q - s->seqs), most = adoptable(s, q, shared);
    bool loading = false;
    q->inside = true;
    q->n_adopted = 0;
    if (shared > 0) kv_table_fork(s->o.kv, &q->table, &from->table, shared);
    if (s->o.store.adopt)
        q->n_adopted = s->o.store.adopt(s->o.store.arg, seq, most, &loading);
    assert(q->n_adopted <= most);
    q->table.n_blocks += q->n_adopted;
    uint32_t tokens = shared + q->n_adopted * KV_BLOCK_TOKENS;
    if (kv_table_extend(s->o.kv, &q->table, tokens, q->n_known) < 0) {
        sched_give_up(s, seq);
        return ROOM_NONE;
    }
    q->n_computed = loading ? 0 : tokens;
    q->state = loading ? SEQ_WAKING : SEQ_RUNNING;
    *(loading ? &s->n_waking : &s->n_running) += 1;
    return ROOM_NOW;
}

/* Could `need` blocks be had from jobs younger than this one? */
static bool younger_hold(const struct sched *s, uint32_t job, uint64_t need)
{
    uint64_t older = 0;
    for (uint32_t i = s->oldest; i != s->jobs[job].younger; i = s->jobs[i].younger) {
        uint32_t common = s->jobs[i].n_prompt / KV_BLOCK_TOKENS, others = 0;
        for (uint32_t k = s->jobs[i].first_seq; k != SCHED_NONE; k = s->seqs[k].next) {
            uint32_t n = s->seqs[k].table.n_blocks;
            older += n > common && others++ > 0 ? n - common : n;
        }
    }
    return older + need <= s->o.kv->mem.n_blocks;
}

enum verdict { STARTED, NOT_YET, NO_ROOM };

/* Rule 3, between jobs. */
static bool may_share_later(const struct sched *s, const struct sched_seq *q,
                            uint64_t since, uint64_t now)
{
    if (!s->o.store.computing || adoptable(s, q, 0) == 0) return false;
    if (now - since >= s->o.max_wait_ns / 2) return false;
    return s->o.store.computing(s->o.store.arg, (uint32_t)(q - s->seqs));
}

/* Start a sequence that has a place, or that shall get one. */
static enum verdict try_start(struct sched *s, struct sched_seq *q, uint64_t since,
                              uint64_t now)
{
    const struct sched_seq *from = NULL;
    bool wait;
    uint32_t shared = shareable(s, q, &from, &wait);
    if (wait && shared == 0) return NOT_YET;
    if (shared == 0 && may_share_later(s, q, since, now)) return NOT_YET;
    enum sched_room room = start(s, q, from, shared);
    if (room == ROOM_NOW) return STARTED;
    if (room == ROOM_LATER || now - since < SCHED_BUMP_NS) return NO_ROOM;

    uint64_t need = (uint64_t)kv_blocks_for(q->n_known) + s->jobs[q->job].n_choices;
    if (need > s->o.kv->mem.n_blocks) need = s->o.kv->mem.n_blocks;
    if (!younger_hold(s, q->job, need)) return NO_ROOM;
    for (uint32_t victim; (victim = youngest_of(s, q->job, false)) != SCHED_NONE;) {
        put_back(s, victim, now);
        room = start(s, q, from, shared);
        if (room != ROOM_NONE) return room == ROOM_NOW ? STARTED : NO_ROOM;
    }
    return NO_ROOM;
}

static enum verdict restart(struct sched *s, uint32_t job, uint64_t now,
                            uint64_t *since)
{
    enum verdict all = STARTED;
    for (uint32_t i = s->jobs[job].first_seq; i != SCHED_NONE; i = s->seqs[i].next) {
        struct sched_seq *q = &s->seqs[i];
        if (q->state != SEQ_PUT_BACK) continue;
        enum verdict v = try_start(s, q, q->since, now);
        *since = q->since;
        if (v == NO_ROOM) return v;
        if (v == NOT_YET) all = v;
    }
    return all;
}

/* The next choice that never ran, at a place that is free; it takes it if it starts. */
static struct sched_seq *next_choice(struct sched *s, uint32_t job)
{
    const struct sched_job *j = &s->jobs[job];
    if (j->n_started == j->n_choices || s->n_places == 0) return NULL;
    struct sched_seq *q = s->seqs;
    while (q->state != SEQ_FREE) q++;
    *q = (struct sched_seq){
        .job = job,
        .choice = j->n_started,
        .n_known = j->n_prompt,
        .table = q->table,
        .next = SCHED_NONE,
    };
    return q;
}

static void take_place(struct sched *s, const struct sched_seq *q)
{
    struct sched_job *j = &s->jobs[q->job];
    uint32_t seq = (uint32_t)(q - s->seqs), *link = &j->first_seq;
    while (*link != SCHED_NONE) link = &s->seqs[*link].next;
    *link = seq;
    j->n_started++;
    s->n_places--;
    s->step.started[s->step.n_started++] = seq;
}

static enum verdict begin(struct sched *s, uint32_t job, uint64_t now)
{
    for (struct sched_seq *q; (q = next_choice(s, job)) != NULL;) {
        enum verdict v = try_start(s, q, s->jobs[job].since, now);
        if (v != STARTED) return v;
        take_place(s, q);
    }
    return STARTED;  // or it lacks a place: the next free one is its own, by age
}

static void plan_starts(struct sched *s, uint64_t now)
{
    for (uint32_t i = s->oldest; i != SCHED_NONE; i = s->jobs[i].younger) {
        if (s->jobs[i].paused) continue;
        uint64_t since = s->jobs[i].since;
        enum verdict v = restart(s, i, now, &since);
        if (v == STARTED) {
            since = s->jobs[i].since;
            v = begin(s, i, now);
        }
        if (v == NO_ROOM && now - since >= SCHED_PASS_NS) return;
    }
}

/* Rule 3: at once, as the first choice may be over with its first token. */
static void begin_others(struct sched *s, const struct sched_seq *first)
{
    for (struct sched_seq *q; (q = next_choice(s, first->job)) != NULL;) {
        if (start(s, q, first, q->n_known - 1) != ROOM_NOW) return;
        take_place(s, q);
    }
}

void sched_computed(struct sched *s, const struct sched_item *item)
{
    struct sched_seq *q = &s->seqs[item->seq];
    struct sched_job *j = &s->jobs[q->job];
    assert(q->state == SEQ_RUNNING && q->n_computed == item->from);
    q->n_computed = item->from + item->n;
    if (j->n_scored < j->to_score && q->n_computed > j->n_scored)
        j->n_scored = q->n_computed < j->to_score ? q->n_computed : j->to_score;
    if (q->n_computed >= j->n_prompt) begin_others(s, q);
}

/* ---- the plan ---- */

static void add_item(struct sched *s, uint32_t seq)
{
    struct sched_seq *q = &s->seqs[seq];
    const struct sched_job *j = &s->jobs[q->job];
    uint32_t end = q->n_computed + q->chunk, logits = end;
    if (j->n_scored < j->to_score)
        logits = j->n_scored > q->n_computed ? j->n_scored : q->n_computed;
    else if (end == q->n_known)
        logits = end - 1;
    s->step.items[s->step.n_items++] = (struct sched_item){
        .seq = seq,
        .from = q->n_computed,
        .n = q->chunk + q->n_draft,
        .n_draft = q->n_draft,
        .logits_from = logits < end ? logits : end,
    };
    s->step.n_rows += q->chunk + q->n_draft;
    q->chunk = q->n_draft = 0;
}

const struct sched_step *sched_plan(struct sched *s, uint64_t now)
{
    s->step.n_items = s->step.n_rows = s->step.n_decode = s->step.n_draft = 0;
    s->step.n_started = s->step.n_put_back = 0;
    plan_replies(s, now);
    plan_starts(s, now);
    sched_plan_drafts(s);
    sched_plan_prefill(s, now);
    for (uint32_t i = 0; i < s->o.max_running; i++) {
        s->seqs[i].full = false;
        if (s->seqs[i].chunk > 0) add_item(s, i);
    }
    return &s->step;
}
