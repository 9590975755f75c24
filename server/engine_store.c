/* engine_store.c - what is kept for those who come back: blocks get names as they are
 * computed, and sequences that start find theirs.
 *
 * The names of a prompt's blocks come with the request; those of a reply are added as its
 * blocks fill.  The scheduler asks through struct sched_store when it starts a sequence,
 * and says when one leaves; everything else happens once a turn.
 */
#include "server/engine_state.h"

#include <stdlib.h>
#include <string.h>

#define PRICE_MOST 64  // others that a second of prefill is charged for
#define TWIN_LEAST 4   // blocks that another is going to compute, to be worth the wait

/* ---- names ---- */

int engine_name_blocks(const struct engine *e, struct request *r, struct err *err)
{
    uint32_t n = r->n_ids / KV_BLOCK_TOKENS;
    if (!e->o.store || n == 0 || r->blocks) return 0;
    if (r->tenant >= e->o.n_tenants)
        return err_set(err, -EINVAL, "tenant %u is unknown; there are %u", r->tenant,
                       e->o.n_tenants);
    r->blocks = malloc(n * sizeof *r->blocks);
    if (!r->blocks)
        return err_set(err, -ENOMEM, "no memory for the names of %u KV blocks", n);
    const struct engine_tenant *t = &e->o.tenants[r->tenant];
    for (uint32_t i = 0; i < n; i++)
        block_meta_next(&r->blocks[i], i ? &r->blocks[i - 1] : NULL, &t->key,
                        r->ids + (size_t)i * KV_BLOCK_TOKENS, t->number);
    r->n_blocks = n;
    return 0;
}

static void name_prompt(struct voice *v, const struct request *r)
{
    if (r->n_blocks) memcpy(v->meta, r->blocks, r->n_blocks * sizeof *v->meta);
    v->n_meta = r->n_blocks;
}

/* Block v->n_meta is full: its tokens are the prompt's, the reply's, or some of both. */
static void name_next(struct engine *e, const struct request *r, struct voice *v)
{
    const struct engine_tenant *t = &e->o.tenants[r->tenant];
    int32_t tokens[KV_BLOCK_TOKENS];
    uint32_t at = v->n_meta * KV_BLOCK_TOKENS;
    for (uint32_t i = 0; i < KV_BLOCK_TOKENS; i++, at++)
        tokens[i] = at < r->n_ids ? r->ids[at] : v->generated[at - r->n_ids];
    block_meta_next(&v->meta[v->n_meta], v->n_meta ? &v->meta[v->n_meta - 1] : NULL,
                    &t->key, tokens, t->number);
    v->n_meta++;
}

void engine_begin_names(struct engine *e, uint32_t seq)
{
    if (e->o.store) name_prompt(&e->voices[seq], e->orders[e->sched.seqs[seq].job].r);
}

void engine_seal(struct engine *e, const struct sched_item *it)
{
    if (!e->o.store) return;
    const struct sched_seq *q = &e->sched.seqs[it->seq];
    struct voice *v = &e->voices[it->seq];
    uint32_t end = (it->from + it->n) / KV_BLOCK_TOKENS;
    for (uint32_t i = it->from / KV_BLOCK_TOKENS; i < end; i++) {
        if (i == v->n_meta) name_next(e, e->orders[q->job].r, v);
        (void)kvstore_seal(e->o.store, q->table.blocks[i], &v->meta[i], e->now);
    }
}

/* ---- what the scheduler asks ---- */

/* The sequence's first n blocks, as a prompt. */
static struct kv_prompt prompt_of(const struct engine *e, uint32_t seq, uint32_t n)
{
    const struct sched_seq *q = &e->sched.seqs[seq];
    const struct request *r = e->orders[q->job].r;
    const struct voice *v = &e->voices[seq];
    uint32_t others = 0;
    for (uint32_t i = e->sched.oldest; i != SCHED_NONE && others < PRICE_MOST;
         i = e->sched.jobs[i].younger)
        others += i != q->job;
    struct kv_prompt p = {
        .meta = v->meta,
        .n_meta = n < v->n_meta ? n : v->n_meta,
        .n_tokens = q->n_known,
        .tenant = e->o.tenants[r->tenant].number,
        .compute_price = 1 + others,
    };
    memcpy(p.conversation, e->orders[q->job].conversation, sizeof p.conversation);
    return p;
}

/* All that a wake may find: never the last token. */
static struct kv_prompt whole_prompt(struct engine *e, uint32_t seq)
{
    const struct sched_seq *q = &e->sched.seqs[seq];
    const struct request *r = e->orders[q->job].r;
    if (q->n_known == r->n_ids) name_prompt(&e->voices[seq], r);
    return prompt_of(e, seq, (q->n_known - 1) / KV_BLOCK_TOKENS);
}

/* Sequences that may end, or be put back, for the room of another. */
static uint32_t with_blocks(const struct engine *e)
{
    return e->sched.n_running + e->sched.n_waking;
}

static enum sched_room has_room(void *arg, uint32_t seq, uint32_t n, uint32_t most)
{
    struct engine *e = arg;
    struct kv_found mine = {0};
    if (kvstore_has_room(e->o.store, n, &mine, e->now)) return ROOM_NOW;
    /* What it finds is looked for only where that can matter. */
    if (most > 0 && n <= (uint64_t)kvstore_available(e->o.store) + most) {
        struct kv_prompt p = whole_prompt(e, seq);
        kvstore_match(e->o.store, &p, &mine);
    }
    static const enum sched_room room[] = {
        [KV_NEVER] = ROOM_NONE, [KV_LATER] = ROOM_LATER, [KV_NOW] = ROOM_NOW};
    enum kv_when when = kvstore_wait_room(e->o.store, n, &mine, e->now);
    if (when == KV_NEVER && with_blocks(e) == 0) {
        kvstore_end_holds(e->o.store, n, e->now);
        when = kvstore_wait_room(e->o.store, n, &(struct kv_found){0}, e->now);
    }
    return room[when];
}

/* Is q about to compute the blocks that r begins with, up to TWIN_LEAST of what is next? */
static bool computes_for(const struct engine *e, const struct sched_seq *q,
                         const struct request *r)
{
    const struct sched_job *j = &e->sched.jobs[q->job];
    const struct request *other = e->orders[q->job].r;
    bool prefill = q->state == SEQ_RUNNING && q->n_computed < j->n_prompt;
    if (!prefill || j->paused || j->n_scored < j->to_score) return false;
    uint32_t last = q->n_computed / KV_BLOCK_TOKENS + TWIN_LEAST - 1;
    return last < other->n_blocks && last < (r->n_ids - 1) / KV_BLOCK_TOKENS &&
           block_id_equal(&other->blocks[last].id, &r->blocks[last].id);
}

/* Names hold the tenant's key, so that one never waits for another tenant's. */
static bool computing(void *arg, uint32_t seq)
{
    const struct engine *e = arg;
    const struct request *r = e->orders[e->sched.seqs[seq].job].r;
    for (uint32_t i = 0; i < e->o.max_running; i++)
        if (i != seq && computes_for(e, &e->sched.seqs[i], r)) return true;
    return false;
}

/* The first wake of a request is what its answer tells of; one after being put back is
 * the server's own affair. */
static void note_wake(struct engine *e, struct order *o,
                      const struct kv_wake_report *report)
{
    if (o->woken) return;
    o->woken = true;
    engine_count_wake(e, report);
    o->r->wake = *report;
    o->r->cached_tokens = report->blocks * KV_BLOCK_TOKENS;
}

/* Also for one that gets nothing, so that its conversation counts as active.  What a sibling
 * has computed is not told as computed anew. */
static uint32_t adopt(void *arg, uint32_t seq, uint32_t cap, bool *loading)
{
    struct engine *e = arg;
    const struct sched_seq *q = &e->sched.seqs[seq];
    struct voice *v = &e->voices[seq];
    struct order *o = &e->orders[q->job];
    struct kv_prompt p = whole_prompt(e, seq);
    if (q->table.n_blocks > 0) p.n_meta = p.n_tokens = 0;
    p.may_begin_early = q->n_known == o->r->n_ids;  // a reply goes on with all of it
    uint32_t n = kvstore_wake(e->o.store, &p, e->now, q->table.blocks, cap, &v->wake,
                              &v->report);
    if (v->report.conversation[0])
        memcpy(o->conversation, v->report.conversation, sizeof o->conversation);
    *loading = v->wake != UINT32_MAX;
    if (!*loading) note_wake(e, o, &v->report);
    return n;
}

static void leave(void *arg, uint32_t seq)
{
    struct engine *e = arg;
    const struct sched_seq *q = &e->sched.seqs[seq];
    struct voice *v = &e->voices[seq];
    if (v->wake != UINT32_MAX) {
        kvstore_wake_cancel(e->o.store, v->wake);
        v->wake = UINT32_MAX;
        return;
    }
    if (q->n_known == e->orders[q->job].r->n_ids) name_prompt(v, e->orders[q->job].r);
    struct kv_prompt p = prompt_of(e, seq, v->n_meta);
    p.begun = v->report.conversation[0] != 0;
    kvstore_idle(e->o.store, &p, e->now);
}

struct sched_store engine_sched_store(struct engine *e)
{
    return (struct sched_store){e, has_room, computing, adopt, leave};
}

static uint32_t available(void *arg)
{
    const struct engine *e = arg;
    return kvstore_available(e->o.store);
}

static void make_room(void *arg, uint32_t n)
{
    struct engine *e = arg;
    if (kvstore_make_room(e->o.store, n, e->now) >= n) return;
    if (with_blocks(e) > 1) return;  // the scheduler puts another one back
    kvstore_end_holds(e->o.store, n, e->now);
    kvstore_make_room(e->o.store, n, e->now);
}

struct kv_room engine_room(struct engine *e)
{
    return (struct kv_room){e, available, make_room};
}

/* ---- once a turn ---- */

static void poll_wakes(struct engine *e)
{
    for (uint32_t i = 0; e->sched.n_waking > 0 && i < e->o.max_running; i++) {
        struct voice *v = &e->voices[i];
        uint32_t n;
        if (e->sched.seqs[i].state != SEQ_WAKING) continue;
        if (!kvstore_wake_poll(e->o.store, v->wake, e->now, &n, &v->report)) continue;
        v->wake = UINT32_MAX;
        note_wake(e, &e->orders[e->sched.seqs[i].job], &v->report);
        e->arriving |= v->report.early;
        sched_woken(&e->sched, i, n, e->now);
    }
}

void engine_store_turn(struct engine *e)
{
    if (!e->o.store) return;
    kvstore_step(e->o.store, e->now);
    poll_wakes(e);
    engine_tell_tiers(e);
}

int64_t engine_store_patience(const struct engine *e, int64_t ns)
{
    if (!e->o.store) return ns;
    bool lands = kvstore_in_flight(e->o.store);
    uint64_t now = clock_ns(), next = kvstore_next(e->o.store, now);
    uint64_t most = ns < 0 ? UINT64_MAX : (uint64_t)ns, left = UINT64_MAX;
    /* What is due and cannot be done yet must not make the loop spin. */
    if (next != UINT64_MAX)
        left = next > now + ENGINE_DUE_NS ? next - now : ENGINE_DUE_NS;
    if (lands && left > ENGINE_LOAD_NS) left = ENGINE_LOAD_NS;
    if (left < most) most = left;
    return most > INT64_MAX ? -1 : (int64_t)most;
}

/* The step's prefill, by its items; what replies take is not the prompts'. */
void engine_observe_prefill(struct engine *e, const struct sched_step *p, uint64_t ns)
{
    uint32_t rows = p->n_rows - p->n_decode - p->n_draft;
    if (!e->o.cost || rows < SCHED_MIN_CHUNK) return;
    double each = ((double)ns - sched_replies_ns(&e->sched)) / rows;
    for (uint32_t i = 0; each > 0 && i < p->n_items; i++) {
        const struct sched_item *it = &p->items[i];
        if (it->n >= SCHED_MIN_CHUNK && it->n_draft == 0)
            cost_observe_prefill(e->o.cost, it->from, it->from + it->n,
                                 (uint64_t)(each * it->n));
    }
}

/* ---- the end ---- */

void engine_store_drain(struct engine *e)
{
    if (!e->o.store) return;
    uint64_t began = clock_ns();
    uint64_t until = began + e->o.copy_ms * UINT64_C(1000000);
    struct kvstore_counters before;
    kvstore_count(e->o.store, &before);
    for (;;) {
        e->now = clock_ns();
        bool late = e->now >= until || atomic_load(&e->drain_now);
        if (late || kvstore_drain(e->o.store, e->now)) break;
        mailbox_wait(&e->mailbox, ENGINE_LOAD_NS);
    }
    while (!kvstore_settle(e->o.store, clock_ns()))
        mailbox_wait(&e->mailbox, ENGINE_LOAD_NS);
    engine_tell_end(e, &before, clock_ns() - began);
}
