/* engine_step.c - one step: from the plan to a batch, from logits to tokens. */
#include "server/engine_state.h"

#include "server/log.h"

#include <string.h>

/* ---- before the model ---- */

/* Those that took a place in this step, from the `done`-th on. */
static void begin_voices(struct engine *e, const struct sched_step *p, uint32_t done,
                         uint64_t now)
{
    size_t text = gate_bytes(e->o.tokenizer);
    for (uint32_t i = done; i < p->n_started; i++) {
        uint32_t seq = p->started[i];
        struct request *r = e->orders[e->sched.seqs[seq].job].r;
        struct voice *v = &e->voices[seq];
        v->n_generated = 0;
        v->over = v->ended_by_token = false;
        v->last_token = 0;
        lookup_begin(&v->lookup);
        engine_begin_names(e, seq);
        gate_init(&v->gate, e->o.tokenizer, r, e->texts + seq * text);
        if (r->stats.started) continue;
        r->stats.started = now;
        mailbox_started(&e->mailbox);
        metrics_observe(e->o.metrics, HISTOGRAM_QUEUE, now - r->stats.submitted);
    }
}

/* The plan as the model wants it: rows, tables and wanted logits, one behind the other. */
static struct batch make_batch(struct engine *e, const struct sched_step *p)
{
    uint32_t rows = 0, blocks = 0, logits = 0;
    for (uint32_t i = 0; i < p->n_items; i++) {
        const struct sched_item *it = &p->items[i];
        const struct sched_seq *q = &e->sched.seqs[it->seq];
        const struct request *r = e->orders[q->job].r;
        const int32_t *generated = e->voices[it->seq].generated;
        e->row_start[i] = rows;
        e->block_start[i] = blocks;
        for (uint32_t at = it->from; at < it->from + it->n; at++, rows++) {
            e->ids[rows] = at < r->n_ids ? r->ids[at] : generated[at - r->n_ids];
            e->pos[rows] = at;
            if (at < it->logits_from) continue;
            bool scored = at + 1 < r->n_ids;
            e->n_best[logits] = scored ? 0 : sampler_best(e->sampler, &r->sampling);
            e->logit_rows[logits++] = rows;
        }
        uint32_t n = kv_blocks_for(it->from + it->n);
        memcpy(e->blocks + blocks, q->table.blocks, n * sizeof *e->blocks);
        blocks += n;
    }
    e->row_start[p->n_items] = rows;
    e->block_start[p->n_items] = blocks;
    return (struct batch){
        .n_rows = rows,
        .n_seqs = p->n_items,
        .n_logits = logits,
        .ids = e->ids,
        .pos = e->pos,
        .row_start = e->row_start,
        .block_start = e->block_start,
        .blocks = e->blocks,
        .logit_rows = e->logit_rows,
        .n_best = e->n_best,
        .n_usable = sampler_usable(e->sampler),
    };
}

/* ---- after it ---- */

/* What the step says of an item's rows from logits_from on: of each the logits or, where
 * sampler_best() says how many, the best of them. */
struct results {
    const float *logits;
    const struct best *best;
};

static void skip_rows(const struct engine *e, struct results *from, uint32_t rows)
{
    from->logits += (size_t)rows * e->o.model->config.vocab;
    from->best += (size_t)rows * BEST_MOST;
}

static bool ends_sequence(const struct engine *e, int32_t id)
{
    const struct model_config *c = &e->o.model->config;
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return true;
    return false;
}

static void measure_token(struct engine *e, struct request *r, struct voice *v,
                          uint64_t now)
{
    if (r->stats.first_token == 0) {
        r->stats.first_token = now;
        metrics_observe(e->o.metrics, HISTOGRAM_TTFT, now - r->stats.submitted);
    }
    if (v->last_token)
        metrics_observe(e->o.metrics, HISTOGRAM_ITL, now - v->last_token);
    v->last_token = now;
}

static void end_voice(struct engine *e, uint32_t seq, enum finish_reason reason)
{
    struct voice *v = &e->voices[seq];
    gate_end(&v->gate);
    v->over = true;
    v->reason = gate_stopped(&v->gate) ? FINISH_STOP : reason;
    sched_end(&e->sched, seq);
}

static int pick(struct engine *e, uint32_t seq, const struct request *r,
                const struct results *row, struct sample *out)
{
    const struct voice *v = &e->voices[seq];
    uint32_t choice = e->sched.seqs[seq].choice, step = v->n_generated;
    if (sampler_best(e->sampler, &r->sampling) > 0)
        return sampler_pick_best(e->sampler, row->best, &r->sampling, choice, step,
                                 out);
    return sampler_pick(e->sampler, row->logits, &r->sampling, choice, step,
                        v->generated, step, out);
}

/* The sequence has computed all it knows: choose the next token.  -EDOM. */
static int choose(struct engine *e, uint32_t seq, const struct results *row,
                  uint64_t now)
{
    struct voice *v = &e->voices[seq];
    struct request *r = e->orders[e->sched.seqs[seq].job].r;
    if (r->max_tokens == 0) {
        end_voice(e, seq, FINISH_LENGTH);
        return 0;
    }
    struct sample s;
    int rc = pick(e, seq, r, row, &s);
    if (rc < 0) return rc;

    v->generated[v->n_generated++] = s.id;
    engine_learn(e, seq);
    measure_token(e, r, v, now);
    if (!r->ignore_eos && ends_sequence(e, s.id)) {
        v->ended_by_token = true;
        v->end = s;
        end_voice(e, seq, FINISH_STOP);
        return 0;
    }
    gate_push(&v->gate, &s);
    if (gate_stopped(&v->gate) || v->n_generated == r->max_tokens)
        end_voice(e, seq, FINISH_LENGTH);
    else
        sched_append(&e->sched, seq);
    return 0;
}

/* Row `at` of the prompt says how likely the token after it was. */
static int score(struct engine *e, uint32_t job, uint32_t at, const float *logits)
{
    const struct request *r = e->orders[job].r;
    struct sample s;
    int rc = sampler_score(e->sampler, logits, &r->sampling, r->ids[at + 1], &s);
    if (rc == 0) engine_give_score(e, job, &s, true);
    return rc;
}

/* The rows have been computed.  last: of the last one, where that is all it knows. */
static int settle_rows(struct engine *e, const struct sched_item *it,
                       const struct results *last, uint64_t now)
{
    const struct sched_seq *q = &e->sched.seqs[it->seq];
    uint32_t begun = e->sched.step.n_started;
    sched_computed(&e->sched, it);
    begin_voices(e, &e->sched.step, begun, now);
    engine_seal(e, it);
    return q->n_computed < q->n_known ? 0 : choose(e, it->seq, last, now);
}

/* Each row as if it were a step of its own: the next one counts where what was chosen is what
 * it was computed for, and where its token can be given out, too. */
static int settle_drafts(struct engine *e, const struct sched_item *it,
                         struct results row, uint64_t now)
{
    const struct voice *v = &e->voices[it->seq];
    uint32_t accepted = 0;
    for (;; accepted++, skip_rows(e, &row, 1)) {
        const struct sched_item one = {
            .seq = it->seq, .from = it->from + accepted, .n = 1};
        int32_t drafted = v->generated[v->n_generated];
        int rc = settle_rows(e, &one, &row, now);
        if (rc < 0) return rc;
        if (v->over || accepted == it->n_draft) break;
        if (v->generated[v->n_generated - 1] != drafted) break;
        if (!engine_give_tokens(e, it->seq)) break;
    }
    sched_drafted(&e->sched, it->seq);
    metrics_count(e->o.metrics, COUNTER_ACCEPTED_TOKENS, accepted);
    return 0;
}

static int settle(struct engine *e, const struct sched_item *it, struct results row,
                  uint64_t now)
{
    const struct sched_seq *q = &e->sched.seqs[it->seq];
    uint32_t job = q->job, end = it->from + it->n;
    struct order *o = &e->orders[job];
    if (o->r->prompt_logprobs && !o->prompt_begun) {
        engine_give_score(e, job, &(struct sample){.id = o->r->ids[0]}, false);
        o->prompt_begun = true;
    }
    struct results last = row;
    for (uint32_t at = it->logits_from; at < end; at++, skip_rows(e, &row, 1)) {
        int rc = 0;
        if (at + 1 < o->r->n_ids) rc = score(e, job, at, row.logits);
        if (rc < 0) return rc;
        last = row;
    }
    return settle_rows(e, it, &last, now);
}

/* A job that failed is ended when all are settled, as places must not change hands. */
static void settle_all(struct engine *e, const struct sched_step *p, struct results row,
                       uint64_t now)
{
    bool any_failed = false;
    for (uint32_t i = 0; i < p->n_items; i++) {
        const struct sched_item *it = &p->items[i];
        struct order *o = &e->orders[e->sched.seqs[it->seq].job];
        if (!o->failed) {
            int rc = it->n_draft > 0 ? settle_drafts(e, it, row, now)
                                     : settle(e, it, row, now);
            if (rc < 0) o->failed = any_failed = true;
        }
        skip_rows(e, &row, it->from + it->n - it->logits_from);
    }
    for (uint32_t job = e->sched.oldest, next; any_failed && job != SCHED_NONE;
         job = next) {
        next = e->sched.jobs[job].younger;
        if (e->orders[job].failed)
            engine_end(e, job, FINISH_ERROR, 500,
                       "the model computed something that is not a number");
    }
}

static void give_all(struct engine *e)
{
    for (uint32_t job = e->sched.oldest, next; job != SCHED_NONE; job = next) {
        next = e->sched.jobs[job].younger;
        engine_give(e, job);
    }
}

bool engine_step(struct engine *e, uint64_t now)
{
    if (atomic_load(&e->failed)) {
        engine_end_all(e, 500, "the backend has failed");
        return false;
    }
    const struct sched_step *p = sched_plan(&e->sched, now);
    begin_voices(e, p, 0, now);
    metrics_count(e->o.metrics, COUNTER_PREEMPTIONS, p->n_put_back);
    if (p->n_rows == 0) return false;

    struct batch batch = make_batch(e, p);
    struct results rows = {.best = e->o.model->best};
    uint64_t began = clock_ns();
    if (model_forward(e->o.model, e->o.kv, &batch, &rows.logits, &e->failure) < 0) {
        atomic_store(&e->failed, true);
        log_line(LOG_ERROR,
                 "the backend has failed, and nothing is computed any more: %s",
                 e->failure.msg);
        engine_end_all(e, 500, "the backend has failed");
        return true;
    }
    settle_all(e, p, rows, clock_ns());
    uint64_t took = clock_ns() - began;
    if (!e->arriving) {
        engine_observe_prefill(e, p, took);
        sched_measured(&e->sched, took);
    }
    e->arriving = false;
    e->busy_ns += (double)took;
    metrics_observe(e->o.metrics, HISTOGRAM_STEP, took);
    metrics_count(e->o.metrics, COUNTER_STEPS, 1);
    metrics_count(e->o.metrics, COUNTER_COMPUTED_TOKENS, p->n_rows);
    metrics_count(e->o.metrics, COUNTER_DRAFT_TOKENS, p->n_draft);
    engine_publish(e);
    give_all(e);
    return true;
}
