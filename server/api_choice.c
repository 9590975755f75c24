/* api_choice.c - the events of one choice become the pieces of its answer.
 *
 * A token's logprob is held until its text is certain, and given with it: so no piece is
 * empty, and what a stop string swallowed is not told by the logprobs either.  At the end
 * what is still held is given, unless a stop string ended the answer.
 */
#include "server/api_internal.h"

#include <string.h>

/* Held logprobs of tokens that never show text (control tokens) are given at last. */
#define HELD_MAX ((size_t)64 << 10)

static uint64_t count_characters(const char *text, size_t n)
{
    uint64_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* Give text and all that is held with it. */
static void give(struct api_call *c, uint32_t index, const char *text, size_t n,
                 struct bytes *out)
{
    struct api_choice *ch = &c->choice[index];
    if (n == 0 && ch->held.n == 0) return;
    if (c->stream) {
        struct api_piece p = {
            .choice = index, .text = text, .n = n, .logprobs = &ch->held};
        api_write_piece(c, &p, out);
        api_logprobs_clear(&ch->held);
    } else {
        bytes_add(&ch->text, text, n);
        api_logprobs_move(&ch->given, &ch->held);
    }
    ch->characters += count_characters(text, n);
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
    if (part->echo) give(c, index, part->echo, part->echo_n, out);
}

static void take_prompt_token(struct api_call *c, uint32_t part, const struct event *ev,
                              struct bytes *out)
{
    const struct tokenizer *t = c->a->o.tokenizer;
    size_t n = detok_push(&c->part[part].detok, t, ev->sample.id, c->scratch);
    for (uint32_t i = part * c->n; i < (part + 1) * c->n; i++) {
        struct api_choice *ch = &c->choice[i];
        begin(c, i, out);
        api_logprobs_add(&ch->held, c->kind, t, &ev->sample, ev->has_logprob,
                         ch->characters);
        give(c, i, c->scratch, n, out);
    }
}

/* The prompt is over: half a character at its end is shown as what it is. */
static void end_prompt(struct api_call *c, uint32_t part, struct bytes *out)
{
    char text[4];
    size_t n = detok_flush(&c->part[part].detok, text);
    for (uint32_t i = part * c->n; n > 0 && i < (part + 1) * c->n; i++) {
        give(c, i, text, n, out);
    }
}

static bool ends_an_answer(const struct api *a, int32_t id)
{
    for (uint32_t i = 0; i < a->o.config->n_eos; i++) {
        if (a->o.config->eos[i] == id) return true;
    }
    return tokenizer_is_special(a->o.tokenizer, id);
}

static void take_token(struct api_call *c, uint32_t index, const struct event *ev,
                       struct bytes *out)
{
    struct api_choice *ch = &c->choice[index];
    if (c->none_wanted) return;
    ch->ended_by_token = ends_an_answer(c->a, ev->sample.id);
    /* A chat tells no control tokens; who reads a completion's arrays counts on each. */
    if (ev->has_logprob && !(ch->ended_by_token && c->kind == API_CHAT)) {
        api_logprobs_add(&ch->held, c->kind, c->a->o.tokenizer, &ev->sample, true,
                         ch->characters);
    }
    size_t held = ch->held.entry.n + ch->held.top.n;
    if (ev->text_n > 0 || held > HELD_MAX) give(c, index, ev->text, ev->text_n, out);
}

static void take_finish(struct api_call *c, uint32_t index, const struct event *ev,
                        struct bytes *out)
{
    struct api_choice *ch = &c->choice[index];
    struct api_part *part = &c->part[index / c->n];
    bool swallowed = ev->reason == FINISH_STOP && !ch->ended_by_token;
    if (!c->none_wanted && (ev->text_n > 0 || !swallowed)) {
        give(c, index, ev->text, ev->text_n, out);
    }
    ch->finished = true;
    ch->reason = c->none_wanted ? FINISH_LENGTH : ev->reason;
    ch->completion_tokens = c->none_wanted ? 0 : ev->completion_tokens;
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

void api_take_event(struct api_call *c, uint32_t part, const struct event *ev,
                    struct bytes *out)
{
    uint32_t index = part * c->n + ev->choice;
    struct api_choice *ch = &c->choice[index];
    if (ch->finished) return;
    if (ev->kind == EVENT_FINISH && ev->reason == FINISH_CANCELLED) {
        c->cancelled = true;
        return;
    }
    if (ev->kind == EVENT_FINISH && ev->reason == FINISH_ERROR) {
        int status = ev->status >= 400 ? ev->status : 500;
        api_fail(&c->error, status, NULL, NULL, "%.*s", (int)ev->text_n, ev->text);
        return;
    }
    if (ev->kind == EVENT_PROMPT_TOKEN) {
        take_prompt_token(c, part, ev, out);
        return;
    }
    if (c->scratch) end_prompt(c, part, out);
    begin(c, index, out);
    if (ev->kind == EVENT_TOKEN) {
        take_token(c, index, ev, out);
    } else {
        take_finish(c, index, ev, out);
    }
    if (ch->text.failed || api_logprobs_failed(&ch->held) ||
        api_logprobs_failed(&ch->given)) {
        api_fail(&c->error, 500, NULL, NULL, "no memory for the answer");
    }
}
