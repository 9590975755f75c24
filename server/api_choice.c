/* api_choice.c - the events of one choice become the pieces of its answer.
 *
 * The engine has decided before what a stop string swallows, text and tokens alike; what
 * comes here is shown.
 */
#include "server/api_internal.h"

#include "tokenizer/unicode.h"

#include <string.h>

/* Give text, and with it the token that it came from, where logprobs are wanted. */
static void give(struct api_call *c, uint32_t index, const char *text, size_t n,
                 const struct event *token, struct bytes *out)
{
    struct api_choice *ch = &c->choice[index];
    struct api_logprobs *to = c->stream ? &c->fresh : &ch->logprobs;
    if (token) {
        bool scored = token->has_logprob;
        api_logprobs_add(to, c->kind, c->a->o.tokenizer, &token->sample, scored,
                         ch->characters);
    }
    if (n == 0 && !token) return;
    if (c->stream) {
        struct api_piece p = {.choice = index, .text = text, .n = n, .logprobs = to};
        api_write_piece(c, &p, out);
        api_logprobs_clear(to);
    } else {
        bytes_add(&ch->text, text, n);
    }
    ch->characters += unicode_count(text, n);
}

/* The role of a streamed chat, or the prompt that is to be repeated. */
static void begin(struct api_call *c, uint32_t index, struct bytes *out)
{
    struct api_choice *ch = &c->choice[index];
    const struct api_part *part = &c->part[index / c->n];
    if (ch->begun) return;
    ch->begun = true;
    if (c->stream && c->kind == API_CHAT) {
        struct api_piece p = {.choice = index, .first = true, .text = ""};
        api_write_piece(c, &p, out);
    }
    if (part->echo) give(c, index, part->echo, part->echo_n, NULL, out);
}

static void take_prompt_token(struct api_call *c, uint32_t part, const struct event *ev,
                              struct bytes *out)
{
    struct detok *d = &c->part[part].detok;
    size_t n = detok_push(d, c->a->o.tokenizer, ev->sample.id, c->scratch);
    for (uint32_t i = part * c->n; i < (part + 1) * c->n; i++) {
        begin(c, i, out);
        give(c, i, c->scratch, n, ev, out);
    }
}

/* The prompt is over: half a character at its end is shown as what it is. */
static void end_prompt(struct api_call *c, uint32_t part, struct bytes *out)
{
    char text[4];
    size_t n = detok_flush(&c->part[part].detok, text);
    for (uint32_t i = part * c->n; n > 0 && i < (part + 1) * c->n; i++) {
        give(c, i, text, n, NULL, out);
    }
}

static void take_finish(struct api_call *c, uint32_t index, const struct event *ev,
                        struct bytes *out)
{
    struct api_choice *ch = &c->choice[index];
    struct api_part *part = &c->part[index / c->n];
    /* A chat tells no end token; who reads a completion's arrays counts on each. */
    bool tell_end = ev->has_logprob && c->kind == API_COMPLETION;
    give(c, index, ev->text, ev->text_n, tell_end ? ev : NULL, out);
    ch->finished = true;
    ch->reason = ev->reason;
    ch->completion_tokens = ev->completion_tokens;
    if (ev->cached_tokens > part->cached_tokens)
        part->cached_tokens = ev->cached_tokens;
    part->unfinished--;
    c->unfinished--;
    if (c->stream) {
        struct api_piece p = {
            .choice = index, .text = "", .finish = api_finish_name(ch->reason)};
        api_write_piece(c, &p, out);
    }
}

/* The end of a call that is none of an answer. */
static bool take_failure(struct api_call *c, const struct event *ev)
{
    if (ev->kind != EVENT_FINISH) return false;
    if (ev->reason == FINISH_ERROR) {
        api_fail(&c->error, ev->status >= 400 ? ev->status : 500, NULL, NULL, "%.*s",
                 (int)ev->text_n, ev->text);
    } else if (ev->reason == FINISH_CANCELLED && ev->status == 408) {
        c->stalled = true;
        api_fail(&c->error, 408, NULL, NULL, "the answer was not read in time");
    } else if (ev->reason == FINISH_CANCELLED) {
        c->cancelled = true;
        api_fail(&c->error, 500, NULL, NULL, "the request was cancelled");
    }
    return c->error.status != 0;
}

void api_take_event(struct api_call *c, uint32_t part, const struct event *ev,
                    struct bytes *out)
{
    uint32_t index = part * c->n + ev->choice;
    struct api_choice *ch = &c->choice[index];
    if (ch->finished || take_failure(c, ev)) return;
    if (ev->kind == EVENT_PROMPT_TOKEN) {
        take_prompt_token(c, part, ev, out);
    } else {
        if (c->scratch) end_prompt(c, part, out);
        begin(c, index, out);
        if (ev->kind == EVENT_TOKEN) {
            ch->completion_tokens++;  // until the last event says it exactly
            give(c, index, ev->text, ev->text_n, ev->has_logprob ? ev : NULL, out);
        } else {
            take_finish(c, index, ev, out);
        }
    }
    if (ch->text.failed || api_logprobs_failed(&ch->logprobs) ||
        api_logprobs_failed(&c->fresh)) {
        api_fail(&c->error, 500, NULL, NULL, "no memory for the answer");
    }
}
