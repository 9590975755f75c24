#include "server/engine_state.h"

#include "kernels/thread.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MS              UINT64_C(1000000)
#define POLL_MS         10  // while outboxes are full: how soon room is seen
#define MAX_RETRY_AFTER 600

/* ---- memory ---- */

static uint32_t capacity_of(const struct engine_options *o)
{
    uint64_t pool =
        o->kv ? (uint64_t)o->kv->mem.n_blocks * KV_BLOCK_TOKENS : UINT64_MAX;
    return o->context < pool ? o->context : (uint32_t)pool;
}

struct piece {
    void *at;  // of a pointer
    size_t n, size;
};
#define PIECES 12

static void list_pieces(struct engine *e, const struct engine_options *o,
                        struct piece out[PIECES])
{
    size_t running = o->max_running, rows = o->step_tokens, capacity = capacity_of(o);
    size_t jobs = running + o->max_waiting, blocks = kv_blocks_for(capacity);
    size_t named = o->n_tenants > 0 ? running * blocks : 1;
    const struct piece pieces[PIECES] = {
        {&e->voices, running, sizeof *e->voices},
        {&e->orders, jobs, sizeof *e->orders},
        {&e->generated, running * capacity, sizeof *e->generated},
        {&e->texts, running, gate_bytes(o->tokenizer)},
        {&e->ids, rows, sizeof *e->ids},
        {&e->pos, rows, sizeof *e->pos},
        {&e->logit_rows, rows, sizeof *e->logit_rows},
        {&e->n_best, rows, sizeof *e->n_best},
        {&e->row_start, running + 1, sizeof *e->row_start},
        {&e->block_start, running + 1, sizeof *e->block_start},
        {&e->blocks, running * blocks, sizeof *e->blocks},
        {&e->metas, named, sizeof *e->metas},
    };
    for (int i = 0; i < PIECES; i++) out[i] = pieces[i];
}

static struct sched_options sched_options_of(const struct engine_options *o)
{
    return (struct sched_options){
        .kv = o->kv,
        .capacity = capacity_of(o),
        .max_running = o->max_running,
        .max_jobs = o->max_running + o->max_waiting,
        .step_tokens = o->step_tokens,
        .max_logits = o->model ? o->model->options.max_logits : 0,
        .step_ns = o->step_ms * MS,
        .max_wait_ns = o->max_wait_ms * MS,
    };
}

size_t engine_bytes(const struct engine_options *o)
{
    struct engine none;
    struct piece pieces[PIECES];
    struct sched_options s = sched_options_of(o);
    size_t sum = sizeof none + sched_bytes(&s) + s.max_jobs * sizeof(struct request *);
    list_pieces(&none, o, pieces);
    for (int i = 0; i < PIECES; i++) sum += pieces[i].n * pieces[i].size;
    return sum;
}

static int take_memory(struct engine *e, struct err *err)
{
    struct piece pieces[PIECES];
    const struct engine_options *o = &e->o;
    size_t blocks = kv_blocks_for(e->capacity);
    list_pieces(e, o, pieces);
    for (int i = 0; i < PIECES; i++) {
        void *p = calloc(pieces[i].n, pieces[i].size);
        if (!p)
            return err_set(err, -ENOMEM, "no memory for the engine: %zu bytes",
                           engine_bytes(o));
        memcpy(pieces[i].at, &p, sizeof p);
    }
    for (uint32_t i = 0; i < e->o.max_running; i++)
        e->voices[i] = (struct voice){
            .generated = e->generated + (size_t)i * e->capacity,
            .meta = e->metas + (o->n_tenants > 0 ? i * blocks : 0),
            .wake = UINT32_MAX,
        };
    return 0;
}

static int check(const struct engine_options *o, struct err *err)
{
    if (o->context == 0 || o->max_running == 0 || o->max_running > 65536 ||
        o->max_waiting > 1048576)
        return err_set(
            err, -EINVAL,
            "context %u, max_running %u and max_waiting %u cannot be served; "
            "right are at least 1, 1 to 65536, and at most 1048576",
            o->context, o->max_running, o->max_waiting);
    if (o->context > o->model->config.context)
        return err_set(err, -EINVAL,
                       "context %u exceeds the %u tokens that the model was made for",
                       o->context, o->model->config.context);
    if (o->store && (o->n_tenants == 0 || !o->cost))
        return err_set(err, -EINVAL, "a store needs tenants and a cost model");
    if (o->step_tokens > o->model->options.max_rows)
        return err_set(
            err, -EINVAL,
            "step_tokens %u exceeds the %u rows that the model was opened for",
            o->step_tokens, o->model->options.max_rows);
    return 0;
}

int engine_open(struct engine **out, const struct engine_options *o, struct err *err)
{
    int rc = check(o, err);
    if (rc < 0) return rc;
    struct engine *e = calloc(1, sizeof *e);
    if (!e) return err_set(err, -ENOMEM, "no memory for the engine");

    e->o = *o;
    e->capacity = capacity_of(o);
    commands_open(&e->commands);
    struct sched_options s = sched_options_of(o);
    if (o->prompt_lookup > 0) s.draft = engine_sched_draft(e);
    if (o->store) s.store = engine_sched_store(e);
    rc = take_memory(e, err);
    if (rc == 0) rc = sched_open(&e->sched, &s, err);
    if (rc == 0) rc = mailbox_open(&e->mailbox, o->max_waiting, o->max_running, err);
    if (rc == 0) rc = sampler_open(&e->sampler, o->model->config.vocab, err);
    if (rc < 0) {
        engine_close(e);
        return rc;
    }
    if (o->store) o->kv->room = engine_room(e);
    sampler_set_usable(e->sampler, tokenizer_size(o->tokenizer));
    metrics_set(o->metrics, GAUGE_KV_BLOCKS_TOTAL, o->kv->mem.n_blocks);
    *out = e;
    return 0;
}

void engine_close(struct engine *e)
{
    if (!e) return;
    if (e->mailbox.slots) engine_drain(e, 0);
    e->o.kv->room = (struct kv_room){0};
    commands_close(&e->commands);
    sampler_close(e->sampler);
    mailbox_close(&e->mailbox);
    sched_close(&e->sched);
    struct piece pieces[PIECES];
    list_pieces(e, &e->o, pieces);
    for (int i = 0; i < PIECES; i++) {
        void *p;
        memcpy(&p, pieces[i].at, sizeof p);
        free(p);
    }
    free(e);
}

/* ---- the loop ---- */

static void take_requests(struct engine *e)
{
    for (struct request *r; (r = mailbox_take(&e->mailbox)) != NULL;) {
        engine_recall(e, r);
        uint32_t job = sched_add(&e->sched, r->n_ids, r->n_choices, r->prompt_logprobs,
                                 clock_ns());
        assert(job != SCHED_NONE);  // the mailbox lets no more in
        e->orders[job] = (struct order){.r = r};
        memcpy(e->orders[job].conversation, r->conversation, sizeof r->conversation);
    }
}

/* One that has started: give out what waits, see whether its client reads. */
static void look_after_reader(struct engine *e, uint32_t job, uint64_t now)
{
    struct order *o = &e->orders[job];
    bool given = engine_give(e, job);
    if (!e->sched.jobs[job].used) return;

    uint32_t room = request_room(o->r), set_aside = o->r->n_choices + 1;
    const struct sched_job *j = &e->sched.jobs[job];
    bool scores = j->n_scored < j->to_score;
    bool full = !given || !request_has_room(o->r) || (scores && room <= set_aside);
    if (!full)
        o->full_since = 0;
    else if (o->full_since == 0)
        o->full_since = now;
    if (full && now - o->full_since >= e->o.stall_ms * MS) {
        engine_end(e, job, FINISH_CANCELLED, 408, NULL);
        return;
    }
    sched_pause(&e->sched, job, full, room > set_aside ? room - set_aside : 0);
}

static void look_after(struct engine *e, uint64_t now)
{
    uint64_t drain_at = atomic_load(&e->drain_at);
    if (atomic_load(&e->drain_now) || (drain_at && now >= drain_at))
        engine_end_all(e, 503, "the server is shutting down");

    for (uint32_t job = e->sched.oldest, next; job != SCHED_NONE; job = next) {
        next = e->sched.jobs[job].younger;
        if (atomic_load_explicit(&e->orders[job].r->cancelled, memory_order_acquire))
            engine_end(e, job, FINISH_CANCELLED, 0, NULL);
        else
            look_after_reader(e, job, now);
    }
    for (uint32_t job; (job = sched_expired(&e->sched, now)) != SCHED_NONE;)
        engine_end(e, job, FINISH_ERROR, 503,
                   "the server is busy: the request waited "
                   "too long for its start");
}

static void wait(struct engine *e, int64_t ns)
{
    uint64_t began = clock_ns();
    mailbox_wait(&e->mailbox, ns);
    if (e->sched.n_waking == 0) return;
    uint64_t took = clock_ns() - began;
    metrics_count(e->o.metrics, COUNTER_IDLE_NS, took);
    e->busy_ns += (double)took;  // whoever waits for a place waits for this too
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;
    for (bool computed = true; !mailbox_over(&e->mailbox);) {
        bool idle = e->sched.oldest == SCHED_NONE;
        int64_t patience = idle ? -1 : (int64_t)(POLL_MS * MS);
        if (!computed) wait(e, engine_store_patience(e, patience));
        take_requests(e);
        uint64_t now = e->now = clock_ns();
        engine_store_turn(e);
        engine_answer_commands(e);
        look_after(e, now);
        computed = engine_step(e, now);
        engine_publish(e);
        if (e->sched.oldest != SCHED_NONE && e->o.tick) e->o.tick(e->o.tick_arg);
    }
    engine_shut_commands(e);
    engine_store_drain(e);
    return NULL;
}

int engine_start(struct engine *e, struct err *err)
{
    int rc = thread_start(&e->thread, engine_main, e);
    if (rc < 0) return err_set(err, rc, "the engine's thread could not be started");
    e->started = true;
    return 0;
}

/* ---- from other threads ---- */

int engine_submit(struct engine *e, struct request *r, struct err *err)
{
    if (atomic_load(&e->failed))
        return err_set(err, -EIO,
                       "the backend has failed; the server must be restarted");
    if (r->n_ids == 0 || r->n_choices == 0 || r->n_choices > REQUEST_MAX_CHOICES)
        return err_set(err, -EINVAL,
                       "a prompt of %u tokens with %u choices cannot be served",
                       r->n_ids, r->n_choices);
    uint64_t least = (uint64_t)r->n_ids + (r->max_tokens > 0);
    if (least > e->capacity)
        return err_set(
            err, -E2BIG,
            "the prompt has %u tokens, but prompt and reply together may have "
            "at most %u",
            r->n_ids, e->capacity);
    if ((uint64_t)r->n_ids + r->max_tokens > e->capacity)
        return err_set(
            err, -E2BIG,
            "the prompt has %u tokens and the reply may have %u, but together "
            "they may have at most %u",
            r->n_ids, r->max_tokens, e->capacity);
    for (uint32_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] < 0 || (uint32_t)r->ids[i] >= e->o.model->config.vocab)
            return err_set(err, -EINVAL,
                           "token %d is not in the model's vocabulary of %u", r->ids[i],
                           e->o.model->config.vocab);

    int rc = engine_name_blocks(e, r, err);
    if (rc < 0) return rc;
    r->stats = (struct request_stats){.submitted = clock_ns()};
    request_ref(r);
    rc = mailbox_post(&e->mailbox, r);
    if (rc == 0) return 0;
    request_unref(r);
    if (rc == -ESHUTDOWN) return err_set(err, rc, "the server is shutting down");
    return err_set(err, rc, "the server is busy: %u requests are waiting already",
                   mailbox_waiting(&e->mailbox));
}

void engine_wake(struct engine *e)
{
    mailbox_poke(&e->mailbox);
}

uint32_t engine_capacity(const struct engine *e)
{
    return e->capacity;
}

size_t engine_event_text_max(const struct engine *e)
{
    return gate_bytes(e->o.tokenizer);
}

size_t engine_block_bytes(const struct engine *e)
{
    return kv_block_bytes(&e->o.kv->mem.shape);
}

/* The mailbox has its own lock; that nothing else of the engine is touched is what const
 * promises. */
static uint32_t waiting(const struct engine *e)
{
    return mailbox_waiting((struct mailbox *)&e->mailbox);
}

uint32_t engine_retry_after(const struct engine *e)
{
    double ns = (double)atomic_load(&e->ns_per_request);
    double seconds = ns * (waiting(e) + 1.0) / 1e9 + 1;
    return seconds < MAX_RETRY_AFTER ? (uint32_t)seconds : MAX_RETRY_AFTER;
}

bool engine_failure(const struct engine *e, struct err *out)
{
    if (!atomic_load(&e->failed)) return false;
    if (out) *out = e->failure;
    return true;
}

/* ---- the end ---- */

void engine_drain(struct engine *e, uint32_t drain_ms)
{
    atomic_store(&e->drain_at, clock_ns() + drain_ms * MS);
    mailbox_shut(&e->mailbox);
    if (e->started && !e->joined) {
        pthread_join(e->thread, NULL);
        e->joined = true;
    }
    if (!e->started) {
        e->now = clock_ns();
        take_requests(e);
        engine_end_all(e, 503, "the server is shutting down");
        engine_shut_commands(e);
        engine_store_drain(e);
    }
}

void engine_drain_now(struct engine *e)
{
    atomic_store(&e->drain_now, true);
}
