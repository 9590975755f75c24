/* api_write.c - the shapes of OpenAI's answers.
 *
 * Chat and text completions differ in the names of their objects and in where a choice
 * keeps its text; the rest is written once.
 */
#include "server/api_internal.h"

#include <string.h>

const char *api_finish_name(enum finish_reason r)
{
    return r == FINISH_LENGTH ? "length" : "stop";
}

/* What every object of a call begins with. */
static cJSON *envelope(const struct api_call *c, struct bytes *out)
{
    const char *model = c->a->o.model_name;
    const char *object = c->kind == API_COMPLETION ? "text_completion"
                         : c->stream               ? "chat.completion.chunk"
                                                   : "chat.completion";
    cJSON *root = cJSON_CreateObject();
    api_put(out, root, "id", cJSON_CreateString(c->id));
    api_put(out, root, "object", cJSON_CreateString(object));
    api_put(out, root, "created", cJSON_CreateNumber((double)c->created));
    api_put_text(out, root, "model", model, strlen(model));
    return root;
}

static void put_finish(struct bytes *out, cJSON *choice, const char *finish)
{
    api_put(out, choice, "finish_reason",
            finish ? cJSON_CreateString(finish) : cJSON_CreateNull());
}

static void put_logprobs(struct bytes *out, cJSON *choice, const struct api_logprobs *l,
                         enum api_kind kind)
{
    struct bytes raw = {0};
    if (l) api_logprobs_json(l, kind, &raw);
    api_put(out, choice, "logprobs",
            !l           ? cJSON_CreateNull()
            : raw.failed ? NULL
                         : cJSON_CreateRaw(raw.data));
    bytes_free(&raw);
}

static void print_frame(struct bytes *out, cJSON *root)
{
    bytes_add_text(out, "data: ");
    api_json_print(out, root);
    bytes_add_text(out, "\n\n");
}

/* ---- a stream ---- */

static void put_delta(struct bytes *out, cJSON *choice, const struct api_piece *p)
{
    cJSON *delta = api_put(out, choice, "delta", cJSON_CreateObject());
    if (p->first) api_put(out, delta, "role", cJSON_CreateString("assistant"));
    if (!p->finish) api_put_text(out, delta, "content", p->text, p->n);
    if (p->first) api_put(out, delta, "refusal", cJSON_CreateNull());
}

void api_write_piece(const struct api_call *c, const struct api_piece *p,
                     struct bytes *out)
{
    cJSON *root = envelope(c, out);
    cJSON *choices = api_put(out, root, "choices", cJSON_CreateArray());
    cJSON *choice = api_put(out, choices, NULL, cJSON_CreateObject());
    api_put(out, choice, "index", cJSON_CreateNumber(p->choice));
    if (c->kind == API_CHAT) {
        put_delta(out, choice, p);
    } else {
        api_put_text(out, choice, "text", p->text, p->n);
    }
    put_logprobs(out, choice, p->logprobs && p->logprobs->n ? p->logprobs : NULL,
                 c->kind);
    put_finish(out, choice, p->finish);
    if (c->include_usage) api_put(out, root, "usage", cJSON_CreateNull());
    print_frame(out, root);
}

const char *api_source_name(enum kv_source s)
{
    static const char *const names[] = {
        [KV_DEVICE] = "device", [KV_RAM] = "ram", [KV_SSD] = "ssd"};
    return names[s];
}

const char *api_why_name(enum kv_why y)
{
    static const char *const names[] = {
        [KV_WHY_NEW] = "new",       [KV_WHY_CHEAPER] = "cheaper",
        [KV_WHY_FAILED] = "failed", [KV_WHY_LATE] = "late",
        [KV_WHY_BUSY] = "busy",
    };
    return names[y];
}

/* Milliseconds to three digits. */
static void put_ms(struct bytes *out, cJSON *to, const char *name, double ns)
{
    double us = ns > 0 && ns < 1e18 ? (double)(uint64_t)(ns / 1e3) : 0;
    api_put(out, to, name, cJSON_CreateNumber(us / 1e3));
}

static void put_times(const struct request *r, struct bytes *out, cJSON *to)
{
    const struct kv_wake_report *w = &r->wake;
    uint64_t began = w->began ? w->began : r->stats.started;
    put_ms(out, to, "queue_ms", (double)began - (double)r->stats.submitted);
    put_ms(out, to, "wake_ms", (double)w->ready - (double)w->began);
    put_ms(out, to, "predicted_ms", w->predicted_ns);
    put_ms(out, to, "without_ms", w->without_ns);
}

static void put_sleep(const struct api_call *c, const struct api_usage *u,
                      struct bytes *out, cJSON *usage)
{
    const struct request *r = c->part[0].request;
    const char *name = r->wake.conversation;
    cJSON *o = api_put(out, usage, "dormouse", cJSON_CreateObject());
    api_put(out, o, "conversation",
            name[0] ? cJSON_CreateString(name) : cJSON_CreateNull());
    bool woken = u->woken_from != KV_SOURCES;
    api_put(out, o, "woken_from",
            woken ? cJSON_CreateString(api_source_name(u->woken_from))
                  : cJSON_CreateNull());
    cJSON *tokens = api_put(out, o, "tokens", cJSON_CreateObject());
    for (int i = 0; i < KV_SOURCES; i++)
        api_put(out, tokens, api_source_name((enum kv_source)i),
                cJSON_CreateNumber((double)u->sources.cached[i]));
    cJSON *computed = api_put(out, o, "computed", cJSON_CreateObject());
    for (int i = 0; i < KV_WHYS; i++)
        api_put(out, computed, api_why_name((enum kv_why)i),
                cJSON_CreateNumber((double)u->sources.computed[i]));
    api_put(out, o, "promoted_bytes", cJSON_CreateNumber((double)u->promoted));
    put_times(r, out, o);
}

static void put_usage(const struct api_call *c, struct bytes *out, cJSON *root)
{
    struct api_usage u = api_call_usage(c);
    cJSON *usage = api_put(out, root, "usage", cJSON_CreateObject());
    api_put(out, usage, "prompt_tokens", cJSON_CreateNumber((double)u.prompt));
    api_put(out, usage, "completion_tokens", cJSON_CreateNumber((double)u.completion));
    api_put(out, usage, "total_tokens",
            cJSON_CreateNumber((double)(u.prompt + u.completion)));
    cJSON *details = api_put(out, usage, "prompt_tokens_details", cJSON_CreateObject());
    api_put(out, details, "cached_tokens", cJSON_CreateNumber((double)u.cached));
    put_sleep(c, &u, out, usage);
}

void api_write_usage_frame(const struct api_call *c, struct bytes *out)
{
    cJSON *root = envelope(c, out);
    api_put(out, root, "choices", cJSON_CreateArray());
    put_usage(c, out, root);
    print_frame(out, root);
}

void api_write_error_frame(const struct api_error *e, struct bytes *out)
{
    bytes_add_text(out, "data: ");
    api_error_json(e, out);
    bytes_add_text(out, "\n\n");
}

void api_write_done(struct bytes *out)
{
    bytes_add_text(out, "data: [DONE]\n\n");
}

/* ---- a whole answer ---- */

static void put_choice(struct api_call *c, uint32_t index, struct bytes *out,
                       cJSON *choices)
{
    struct api_choice *ch = &c->choice[index];
    cJSON *choice = api_put(out, choices, NULL, cJSON_CreateObject());
    api_put(out, choice, "index", cJSON_CreateNumber(index));
    if (c->kind == API_CHAT) {
        cJSON *message = api_put(out, choice, "message", cJSON_CreateObject());
        api_put(out, message, "role", cJSON_CreateString("assistant"));
        api_put_text(out, message, "content", ch->text.data, ch->text.n);
        api_put(out, message, "refusal", cJSON_CreateNull());
    } else {
        api_put_text(out, choice, "text", ch->text.data, ch->text.n);
    }
    put_logprobs(out, choice, c->logprobs ? &ch->logprobs : NULL, c->kind);
    put_finish(out, choice, api_finish_name(ch->reason));
    bytes_free(&ch->text);
    api_logprobs_free(&ch->logprobs);
}

void api_write_answer(struct api_call *c, struct bytes *out)
{
    cJSON *root = envelope(c, out);
    cJSON *choices = api_put(out, root, "choices", cJSON_CreateArray());
    for (uint32_t i = 0; i < c->n_choices; i++) put_choice(c, i, out, choices);
    put_usage(c, out, root);
    api_json_print(out, root);
}
