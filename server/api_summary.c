/* api_summary.c - what a call came to: its usage, its outcome, its line in the log. */
#include "server/api_internal.h"

#include <inttypes.h>
#include <stdio.h>

/* The engine writes the report until the last event. */
static void add_sources(struct api_usage *u, const struct request *r)
{
    struct prompt_sources s;
    request_prompt_sources(r, &s);
    for (int i = 0; i < KV_SOURCES; i++) u->sources.cached[i] += s.cached[i];
    for (int i = 0; i < KV_WHYS; i++) u->sources.computed[i] += s.computed[i];
    enum kv_source from = request_wake_source(&r->wake);
    bool slower = u->woken_from == KV_SOURCES || from > u->woken_from;
    if (from != KV_SOURCES && slower) u->woken_from = from;
    u->promoted += r->wake.bytes;
}

struct api_usage api_call_usage(const struct api_call *c)
{
    struct api_usage u = {.woken_from = KV_SOURCES};
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct api_part *part = &c->part[i];
        /* As the engine took them, which is known when it has said its last word. */
        u.prompt += part->unfinished > 0 ? part->n_ids : part->request->n_ids;
        u.cached += part->cached_tokens;
        if (c->unfinished == 0) add_sources(&u, part->request);
    }
    for (uint32_t i = 0; i < c->n_choices; i++) {
        u.completion += c->choice[i].completion_tokens;
    }
    return u;
}

/* A client that left before the end: had it stopped reading long before?  Then its outbox
 * is full, or the engine's last word of that is in it. */
static void look_for_a_stall(struct api_call *c)
{
    for (uint32_t i = 0; i < c->n_parts && !c->ended; i++) {
        struct request *r = c->part[i].request;
        struct event ev;
        if (c->part[i].unfinished == 0) continue;
        if (!request_has_room(r)) c->stalled = true;
        while (request_pop(r, &ev)) {
            bool cancelled = ev.kind == EVENT_FINISH && ev.reason == FINISH_CANCELLED;
            if (cancelled && ev.status == 408) c->stalled = true;
        }
    }
}

enum outcome api_call_outcome(struct api_call *c)
{
    look_for_a_stall(c);
    if (c->stalled) return OUTCOME_STALLED;
    if (c->cancelled) return OUTCOME_CANCELLED;
    if (c->error.status == 503) return OUTCOME_REFUSED;
    if (c->error.status) return c->error.status < 500 ? OUTCOME_INVALID : OUTCOME_ERROR;
    if (c->unfinished > 0) return OUTCOME_CANCELLED;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        if (c->choice[i].reason == FINISH_LENGTH) return OUTCOME_LENGTH;
    }
    return OUTCOME_STOP;
}

static uint64_t ms_between(uint64_t from, uint64_t to)
{
    return to > from ? (to - from) / 1000000 : 0;
}

/* Where the prompt's tokens came from, as far as there are any, and how long it took. */
static void add_sleep(const struct api_call *c, const struct api_usage *u,
                      struct bytes *out)
{
    const struct request *r = c->part[0].request;
    const struct kv_wake_report *w = &r->wake;
    for (int i = 0; i < KV_SOURCES; i++)
        if (u->sources.cached[i] > 0)
            bytes_printf(out, " from_%s=%" PRIu64, api_source_name((enum kv_source)i),
                         u->sources.cached[i]);
    for (int i = 0; i < KV_WHYS; i++)
        if (u->sources.computed[i] > 0)
            bytes_printf(out, " computed_%s=%" PRIu64, api_why_name((enum kv_why)i),
                         u->sources.computed[i]);
    if (u->promoted > 0)
        bytes_printf(out, " promoted=%" PRIu64 " wake_ms=%" PRIu64 " predicted_ms=%.0f",
                     u->promoted, ms_between(w->began, w->ready),
                     w->predicted_ns / 1e6);
}

static void summarize(struct api_call *c, struct bytes *out)
{
    struct api_usage u = api_call_usage(c);
    bytes_printf(out,
                 "id=%s outcome=%s prompt=%" PRIu64 " cached=%" PRIu64
                 " completion=%" PRIu64 " choices=%u stream=%d",
                 c->id, metrics_outcome_name(api_call_outcome(c)), u.prompt, u.cached,
                 u.completion, c->n_choices, c->stream);
    /* The engine writes the times until the last event. */
    if (c->unfinished > 0) return;
    add_sleep(c, &u, out);
    const struct request_stats *s = &c->part[0].request->stats;
    bytes_printf(out, " queue_ms=%" PRIu64 " ttft_ms=%" PRIu64 " total_ms=%" PRIu64,
                 ms_between(s->submitted, s->started),
                 ms_between(s->submitted, s->first_token),
                 ms_between(s->submitted, s->finished));
}

void api_call_summary(struct api_call *c, char *buf, size_t cap)
{
    struct bytes out = {0};
    summarize(c, &out);
    snprintf(buf, cap, "%s", out.failed ? "" : out.data);
    bytes_free(&out);
}
