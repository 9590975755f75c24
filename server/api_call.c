/* api_call.c - a call in progress: its requests, whose events are read in turn. */
#include "server/api_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* Who waits for whom.  A wake that comes while nobody is parked is kept, and found by
 * the next attempt to park; one that comes after is passed on, once. */
enum parking { AWAKE, PARKED, WOKEN };

/* ---- making one ---- */

static int name_call(struct api_call *c, struct api_error *e)
{
    uint64_t r[2];
    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r) {
        return api_fail(e, 500, NULL, NULL, "the system gives no random numbers");
    }
    snprintf(c->id, sizeof c->id, "%s-%016" PRIx64 "%016" PRIx64,
             c->kind == API_CHAT ? "chatcmpl" : "cmpl", r[0], r[1]);
    c->created = (int64_t)time(NULL);
    return 0;
}

static int copy_bias(struct request *r, struct api_error *e)
{
    if (r->sampling.n_bias == 0) return 0;
    size_t bytes = r->sampling.n_bias * sizeof *r->sampling.bias;
    struct logit_bias *bias = malloc(bytes);
    if (bias) memcpy(bias, r->sampling.bias, bytes);
    r->sampling.bias = bias;
    return bias ? 0 : api_fail(e, 500, NULL, NULL, "no memory for the logit_bias");
}

static int make_request(struct api_call *c, const struct api_body *b,
                        struct api_prompt *p, uint32_t tenant, struct api_part *part,
                        struct api_error *e)
{
    const struct api *a = c->a;
    struct err err;
    if (request_new(&part->request, a->event_text, &err) < 0) {
        return api_fail(e, 500, NULL, NULL, "%s", err.msg);
    }
    struct request *r = part->request;
    uint32_t left = a->capacity - (uint32_t)p->n_ids;
    r->ids = p->ids;
    r->n_ids = part->n_ids = (uint32_t)p->n_ids;
    p->ids = NULL;
    r->text = p->text.text;
    r->n_text = p->text.n;
    r->plain = p->text.plain;
    r->n_plain = p->text.n_plain;
    p->text = (struct chat_text){0};
    r->max_tokens = b->max_tokens < left ? b->max_tokens : left;
    r->n_choices = b->n;
    r->sampling = b->sampling;
    memcpy(r->stop, b->stop, sizeof r->stop);
    memcpy(r->stop_n, b->stop_n, sizeof r->stop_n);
    r->n_stops = b->n_stops;
    r->ignore_eos = b->ignore_eos;
    r->show_special = c->kind == API_COMPLETION && a->o.completions_special;
    r->prompt_logprobs = b->echo && c->logprobs;
    r->tenant = tenant;

    part->unfinished = b->n;
    detok_init(&part->detok, !r->show_special);
    if (!r->prompt_logprobs) {
        part->echo = p->echo;
        part->echo_n = p->echo_n;
        p->echo = NULL;
    }
    return copy_bias(r, e);
}

static void free_call(struct api_call *c)
{
    for (uint32_t i = 0; i < c->n_parts; i++) {
        request_unref(c->part[i].request);
        free(c->part[i].echo);
    }
    for (uint32_t i = 0; i < c->n_choices; i++) {
        bytes_free(&c->choice[i].text);
        api_logprobs_free(&c->choice[i].logprobs);
    }
    api_logprobs_free(&c->fresh);
    free(c->scratch);
    free(c->part);
    free(c->choice);
    free(c);
}

int api_call_make(const struct api *a, enum api_kind kind, const struct api_body *b,
                  struct api_prompts *p, uint32_t tenant, struct api_call **out,
                  struct api_error *e)
{
    struct api_call *c = calloc(1, sizeof *c);
    if (!c) return api_fail(e, 500, NULL, NULL, "no memory for a call");
    *c = (struct api_call){
        .a = a,
        .kind = kind,
        .stream = b->stream,
        .include_usage = b->include_usage,
        .logprobs = b->sampling.logprobs,
        .n = b->n,
        .n_parts = p->n,
        .n_choices = p->n * b->n,
        .unfinished = p->n * b->n,
        .part = calloc(p->n, sizeof *c->part),
        .choice = calloc((size_t)p->n * b->n, sizeof *c->choice),
    };
    bool scratch = b->echo && c->logprobs;
    if (scratch) c->scratch = malloc(detok_max_bound(a->o.tokenizer) + 1);

    int rc = name_call(c, e);
    if (!c->part || !c->choice || (scratch && !c->scratch)) {
        c->n_parts = c->part ? p->n : 0;
        c->n_choices = c->choice ? c->n_choices : 0;
        rc = api_fail(e, 500, NULL, NULL, "no memory for a call");
    }
    for (uint32_t i = 0; rc == 0 && i < p->n; i++) {
        rc = make_request(c, b, &p->list[i], tenant, &c->part[i], e);
    }
    if (rc == 0) {
        api_call_name(c, b->conversation);
        *out = c;
    } else {
        free_call(c);
    }
    return rc;
}

/* ---- the engine ---- */

static void on_wake(void *arg)
{
    struct api_call *c = arg;
    if (atomic_exchange(&c->parking, WOKEN) == PARKED) c->wake(c->wake_arg);
}

void api_call_listen(struct api_call *c, void (*wake)(void *arg), void *arg)
{
    c->wake = wake;
    c->wake_arg = arg;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        request_set_wake(c->part[i].request, on_wake, c);
    }
}

static int refuse(struct api_call *c, int rc, const char *why)
{
    switch (rc) {
    case -E2BIG:
        return api_fail(&c->error, 400, "context_length_exceeded",
                        c->kind == API_CHAT ? "messages" : "prompt", "%s", why);
    case -EBUSY:
    case -ESHUTDOWN: api_fail(&c->error, 503, "overloaded", NULL, "%s", why); break;
    default: return api_fail(&c->error, 500, NULL, NULL, "%s", why);
    }
    c->error.retry_after = engine_retry_after(c->a->o.engine);
    return -EINVAL;
}

int api_submit(struct api_call *c, void (*wake)(void *arg), void *arg,
               struct api_error *e)
{
    api_call_listen(c, wake, arg);
    for (uint32_t i = 0; i < c->n_parts; i++) {
        struct err err;
        int rc = engine_submit(c->a->o.engine, c->part[i].request, &err);
        if (rc < 0) {
            rc = refuse(c, rc, err.msg);
            c->ended = true;
            api_call_cancel(c);
            *e = c->error;
            return rc;
        }
        c->submitted++;
    }
    return 0;
}

void api_call_cancel(struct api_call *c)
{
    for (uint32_t i = 0; i < c->n_parts; i++) {
        request_cancel(c->part[i].request);
    }
    if (c->a->o.engine) engine_wake(c->a->o.engine);
}

bool api_call_streams(const struct api_call *c)
{
    return c->stream;
}

/* ---- reading ---- */

/* One event, of the prompts in turn; false: there is none. */
static bool take_next(struct api_call *c, struct bytes *out)
{
    for (uint32_t k = 0; k < c->n_parts; k++) {
        uint32_t i = (c->turn + k) % c->n_parts;
        struct event ev;
        if (c->part[i].unfinished == 0 || !request_pop(c->part[i].request, &ev))
            continue;
        api_take_event(c, i, &ev, out);
        c->turn = i + 1;
        return true;
    }
    return false;
}

/* May the caller go to sleep?  Then it will be woken. */
static bool park(struct api_call *c)
{
    atomic_store(&c->parking, AWAKE);
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct api_part *part = &c->part[i];
        if (part->unfinished && request_wait(part->request, !c->stream)) return false;
    }
    int awake = AWAKE;
    return atomic_compare_exchange_strong(&c->parking, &awake, PARKED);
}

static enum api_state finish(struct api_call *c, struct bytes *out)
{
    c->ended = true;
    if (!c->stream) {
        api_write_answer(c, out);
        return API_DONE;
    }
    if (c->include_usage) api_write_usage_frame(c, out);
    api_write_done(out);
    return API_DONE;
}

/* What this very read has added was not given out yet. */
static enum api_state fail(struct api_call *c, struct bytes *out, size_t start,
                           struct api_error *e)
{
    c->ended = true;
    api_call_cancel(c);
    if (c->error.status == 503 && c->a->o.engine) {
        c->error.retry_after = engine_retry_after(c->a->o.engine);
    }
    if (!c->given) {
        out->n = start;
        *e = c->error;
        return API_FAILED;
    }
    api_write_error_frame(&c->error, out);
    return API_DONE;
}

enum api_state api_call_read(struct api_call *c, struct bytes *out, size_t limit,
                             struct api_error *e)
{
    size_t start = out->n;
    if (c->ended) return API_DONE;
    if (limit == 0) limit = 1;
    for (;;) {
        bool more = true;
        while (more && c->unfinished > 0 && !c->error.status &&
               out->n - start < limit) {
            more = take_next(c, out);
        }
        if (c->error.status) return fail(c, out, start, e);
        if (c->unfinished == 0) return finish(c, out);
        if (out->n > start) {
            c->given = true;
            return API_MORE;
        }
        if (park(c)) return API_WAIT;
    }
}

/* ---- the end ---- */

void api_call_free(struct api_call *c)
{
    if (!c) return;
    enum outcome outcome = api_call_outcome(c);
    bool running = false;
    for (uint32_t i = 0; i < c->n_parts; i++) {
        request_set_wake(c->part[i].request, NULL, NULL);
        running = running || (i < c->submitted && c->part[i].unfinished > 0);
    }
    if (running) api_call_cancel(c);
    if (c->a->o.metrics) metrics_outcome(c->a->o.metrics, outcome);
    free_call(c);
}
