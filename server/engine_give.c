/* engine_give.c - from the engine to the outboxes: tokens, scores, and how it ended. */
#include "server/engine_state.h"

#include <assert.h>

/* ---- how things stand ---- */

void engine_publish(struct engine *e)
{
    const struct kv_pool *kv = e->o.kv;
    uint32_t used = kv->mem.n_blocks - kv_pool_available(kv);
    metrics_set(e->o.metrics, GAUGE_RUNNING, e->sched.n_running);
    metrics_set(e->o.metrics, GAUGE_WAITING, mailbox_waiting(&e->mailbox));
    metrics_set(e->o.metrics, GAUGE_KV_BLOCKS_USED, used);
    engine_publish_store(e);
}

/* ---- the end of a request ---- */

/* The scheduler forgets the job, and the gauges know it, before its last event is seen. */
static struct request *forget(struct engine *e, uint32_t job)
{
    struct request *r = e->orders[job].r;
    bool started = e->sched.jobs[job].n_started > 0;
    r->stats.finished = clock_ns();
    sched_remove(&e->sched, job);
    mailbox_left(&e->mailbox, r->n_choices, started);
    engine_publish(e);
    return r;
}

/* All choices have been answered: what usage will say is what is counted. */
static void count_answered(struct engine *e, const struct order *o)
{
    metrics_count(e->o.metrics, COUNTER_PROMPT_TOKENS, o->r->n_ids);
    metrics_count(e->o.metrics, COUNTER_CACHED_TOKENS, o->r->cached_tokens);
    engine_count_prompt(e, o->r);
    metrics_count(e->o.metrics, COUNTER_GENERATION_TOKENS, o->completion_tokens);
    metrics_observe(e->o.metrics, HISTOGRAM_E2E, clock_ns() - o->r->stats.submitted);

    double share = e->request_ns == 0 ? 1 : 0.125;
    e->request_ns += (e->busy_ns - e->request_ns) * share;
    e->busy_ns = 0;
    atomic_store(&e->ns_per_request, (uint64_t)e->request_ns);
}

void engine_end(struct engine *e, uint32_t job, enum finish_reason reason, int status,
                const char *text)
{
    uint64_t finished = e->orders[job].finished;
    uint32_t generated[REQUEST_MAX_CHOICES] = {0};
    for (uint32_t i = e->sched.jobs[job].first_seq; i != SCHED_NONE;
         i = e->sched.seqs[i].next)
        generated[e->sched.seqs[i].choice] = e->voices[i].n_generated;

    struct request *r = forget(e, job);
    for (uint32_t c = 0; c < r->n_choices; c++) {
        if (finished >> c & 1) continue;
        size_t n = 0;
        while (text && text[n]) n++;
        struct event event = {
            .kind = EVENT_FINISH,
            .choice = (uint16_t)c,
            .reason = reason,
            .status = status,
            .text = text,
            .text_n = n,
            .completion_tokens = generated[c],
            .cached_tokens = r->cached_tokens,
        };
        request_push(r, &event);
    }
    request_unref(r);
}

void engine_end_all(struct engine *e, int status, const char *text)
{
    while (e->sched.oldest != SCHED_NONE)
        engine_end(e, e->sched.oldest, FINISH_ERROR, status, text);
}

/* ---- tokens ---- */

/* The last event of a choice, which frees its place. */
static void finish(struct engine *e, uint32_t job, uint32_t seq)
{
    struct order *o = &e->orders[job];
    struct voice *v = &e->voices[seq];
    uint32_t choice = e->sched.seqs[seq].choice;
    struct event event = {
        .kind = EVENT_FINISH,
        .choice = (uint16_t)choice,
        .reason = v->reason,
        .completion_tokens = v->n_generated,
        .cached_tokens = o->r->cached_tokens,
        .has_logprob = v->ended_by_token && o->r->sampling.logprobs,
    };
    if (event.has_logprob) event.sample = v->end;
    event.text_n = gate_tail(&v->gate, &event.text);
    o->finished |= UINT64_C(1) << choice;
    o->completion_tokens += v->n_generated;
    sched_free(&e->sched, seq);

    bool last = e->sched.jobs[job].n_ended == o->r->n_choices &&
                e->sched.jobs[job].first_seq == SCHED_NONE;
    struct request *r = o->r;
    if (last) {
        count_answered(e, o);
        forget(e, job);
    }
    request_push(r, &event);
    if (last) request_unref(r);
}

bool engine_give_tokens(struct engine *e, uint32_t seq)
{
    const struct sched_seq *q = &e->sched.seqs[seq];
    struct request *r = e->orders[q->job].r;
    struct event event = {
        .kind = EVENT_TOKEN,
        .choice = (uint16_t)q->choice,
        .has_logprob = r->sampling.logprobs,
    };
    for (;;) {
        if (request_room(r) == 0) return false;
        if (!gate_next(&e->voices[seq].gate, &event)) return true;
        request_push(r, &event);
    }
}

bool engine_give(struct engine *e, uint32_t job)
{
    for (uint32_t i = e->sched.jobs[job].first_seq, next; i != SCHED_NONE; i = next) {
        next = e->sched.seqs[i].next;
        if (!engine_give_tokens(e, i)) return false;
        if (e->voices[i].over) finish(e, job, i);
    }
    return true;
}

void engine_give_score(struct engine *e, uint32_t job, const struct sample *s,
                       bool has_logprob)
{
    struct event event = {
        .kind = EVENT_PROMPT_TOKEN,
        .has_logprob = has_logprob,
        .sample = *s,
    };
    assert(request_room(e->orders[job].r) > 0);
    request_push(e->orders[job].r, &event);
}
