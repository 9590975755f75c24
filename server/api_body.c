/* api_body.c - the fields of a body, each one once, and what must hold between them.
 *
 * null means the default of any field.  A field that is not in the table is ignored:
 * metadata, store, service_tier, safety_identifier, prompt_cache_retention,
 * prompt_cache_options, parallel_tool_calls, prediction and
 * whatever else leaves the answer as it is.  What would change the answer but is not
 * supported has a row, and is refused by name.
 */
#include "server/api_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define CHAT       (1u << API_CHAT)
#define COMPLETION (1u << API_COMPLETION)
#define BOTH       (CHAT | COMPLETION)
#define AT(member) offsetof(struct api_body, member)

/* clang-format off */
static const struct api_field fields[] = {
    /* name                    kinds       reader                          where, range */
    {"model",                  BOTH,       api_field_model, 0, 0, 0, NULL},
    {"messages",               CHAT,       api_field_keep, AT(messages), 0, 0, NULL},
    {"prompt",                 COMPLETION, api_field_keep, AT(prompt), 0, 0, NULL},
    {"stream",                 BOTH,       api_field_bool, AT(stream), 0, 0, NULL},
    {"stream_options",         BOTH,       api_field_stream_options, 0, 0, 0, NULL},
    {"max_tokens",             CHAT,       api_field_count, AT(max_tokens), 1, INT32_MAX, NULL},
    {"max_tokens",             COMPLETION, api_field_count, AT(max_tokens), 0, INT32_MAX, NULL},
    {"max_completion_tokens",  BOTH,       api_field_count, AT(max_completion_tokens), 1, INT32_MAX, NULL},
    {"n",                      BOTH,       api_field_n, 0, 0, 0, NULL},
    {"best_of",                COMPLETION, api_field_count, AT(best_of), 1, INT32_MAX, NULL},
    {"temperature",            BOTH,       api_field_real, AT(sampling.temperature), 0, 2, NULL},
    {"top_p",                  BOTH,       api_field_top_p, 0, 0, 0, NULL},
    {"top_k",                  BOTH,       api_field_top_k, 0, 0, 0, NULL},
    {"min_p",                  BOTH,       api_field_real, AT(sampling.min_p), 0, 1, NULL},
    {"presence_penalty",       BOTH,       api_field_real, AT(sampling.presence_penalty), -2, 2, NULL},
    {"frequency_penalty",      BOTH,       api_field_real, AT(sampling.frequency_penalty), -2, 2, NULL},
    {"logit_bias",             BOTH,       api_field_logit_bias, 0, 0, 0, NULL},
    {"seed",                   BOTH,       api_field_seed, 0, 0, 0, NULL},
    {"stop",                   BOTH,       api_field_stop, 0, 0, 0, NULL},
    {"ignore_eos",             BOTH,       api_field_bool, AT(ignore_eos), 0, 0, NULL},
    {"logprobs",               CHAT,       api_field_bool, AT(sampling.logprobs), 0, 0, NULL},
    {"logprobs",               COMPLETION, api_field_completion_logprobs, 0, 0, 0, NULL},
    {"top_logprobs",           CHAT,       api_field_count, AT(sampling.top_logprobs), 0, SAMPLER_MAX_TOP, NULL},
    {"echo",                   COMPLETION, api_field_bool, AT(echo), 0, 0, NULL},
    {"add_special_tokens",     COMPLETION, api_field_bool, AT(add_special_tokens), 0, 0, NULL},
    {"add_generation_prompt",  CHAT,       api_field_bool, AT(add_generation_prompt), 0, 0, NULL},
    {"chat_template_kwargs",   CHAT,       api_field_keep, AT(template_variables), 0, 0, NULL},
    {"user",                   BOTH,       api_field_text, 0, 0, 0, NULL},
    {"prompt_cache_key",       BOTH,       api_field_conversation, AT(conversation), 0, 0, NULL},
    {"response_format",        BOTH,       api_field_response_format, 0, 0, 0, NULL},
    {"modalities",             CHAT,       api_field_modalities, 0, 0, 0, NULL},

#define UNSUPPORTED(name, kinds, neutral) \
    {name, kinds, api_field_unsupported, 0, 0, 0, neutral}
    /* OpenAI's own; the last column is what changes nothing */
    UNSUPPORTED("tools",                 BOTH, "[]"),
    UNSUPPORTED("tool_choice",           BOTH, "none auto"),
    UNSUPPORTED("functions",             BOTH, "[]"),
    UNSUPPORTED("function_call",         BOTH, "none auto"),
    UNSUPPORTED("audio",                 CHAT, NULL),
    UNSUPPORTED("web_search_options",    CHAT, NULL),
    UNSUPPORTED("reasoning_effort",      CHAT, "none"),
    UNSUPPORTED("verbosity",             CHAT, "medium"),
    UNSUPPORTED("suffix",                COMPLETION, NULL),
    UNSUPPORTED("echo",                  CHAT, "false"),
    UNSUPPORTED("top_logprobs",          COMPLETION, "0"),
    /* what other servers have added */
    UNSUPPORTED("stop_token_ids",        BOTH, "[]"),
    UNSUPPORTED("allowed_token_ids",     BOTH, "[]"),
    UNSUPPORTED("bad_words",             BOTH, "[]"),
    UNSUPPORTED("min_tokens",            BOTH, "0"),
    UNSUPPORTED("repetition_penalty",    BOTH, "1"),
    UNSUPPORTED("repeat_penalty",        BOTH, "1"),
    UNSUPPORTED("length_penalty",        BOTH, "1"),
    UNSUPPORTED("use_beam_search",       BOTH, "false"),
    UNSUPPORTED("typical_p",             BOTH, "1"),
    UNSUPPORTED("mirostat",              BOTH, "0"),
    UNSUPPORTED("include_stop_str_in_output", BOTH, "false"),
    UNSUPPORTED("skip_special_tokens",   BOTH, "true"),
    UNSUPPORTED("truncate_prompt_tokens", BOTH, NULL),
    UNSUPPORTED("prompt_logprobs",       BOTH, NULL),
    UNSUPPORTED("guided_json",           BOTH, NULL),
    UNSUPPORTED("guided_regex",          BOTH, NULL),
    UNSUPPORTED("guided_choice",         BOTH, NULL),
    UNSUPPORTED("guided_grammar",        BOTH, NULL),
    UNSUPPORTED("structured_outputs",    BOTH, NULL),
    UNSUPPORTED("grammar",               BOTH, NULL),
    UNSUPPORTED("json_schema",           BOTH, NULL),
    UNSUPPORTED("chat_template",         CHAT, NULL),
    UNSUPPORTED("documents",             CHAT, "[]"),
    UNSUPPORTED("continue_final_message", CHAT, "false"),
    UNSUPPORTED("add_special_tokens",    CHAT, "false"),
#undef UNSUPPORTED
};
/* clang-format on */

/* Names longer than any row's are no row's: a body of 100,000 keys costs as little as
 * reading them. */
static const struct api_field *find(enum api_kind kind, struct json_value key)
{
    char name[48];
    size_t n;
    if (json_string(key, name, sizeof name, &n) < 0 || strlen(name) != n) return NULL;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        bool fits = fields[i].kinds & (1u << kind);
        if (fits && strcmp(fields[i].name, name) == 0) return &fields[i];
    }
    return NULL;
}

static int refuse(struct api_error *e, const char *param, const char *why)
{
    api_fail(e, 400, "invalid_value", param, "%s", why);
    snprintf(e->why, sizeof e->why, "%s", why);
    return -EINVAL;
}

/* What one field asks of another, and the defaults. */
static int check_together(const struct api *a, enum api_kind kind, struct api_body *b,
                          struct api_error *e)
{
    bool chat = kind == API_CHAT;
    if (chat ? !json_exists(b->messages) : !json_exists(b->prompt)) {
        return refuse(e, chat ? "messages" : "prompt",
                      chat ? "messages is missing" : "prompt is missing");
    }
    if (b->has_stream_options && !b->stream) {
        return refuse(e, "stream_options",
                      "stream_options is for \"stream\": true only");
    }
    if (b->sampling.top_logprobs && !b->sampling.logprobs) {
        return refuse(e, "top_logprobs", "top_logprobs needs \"logprobs\": true");
    }
    if (b->best_of != API_UNSET && b->best_of != b->n) {
        return refuse(e, "best_of", "best_of is supported only where it equals n");
    }
    if (b->max_tokens != API_UNSET && b->max_completion_tokens != API_UNSET &&
        b->max_tokens != b->max_completion_tokens) {
        return refuse(e, "max_tokens",
                      "max_tokens and max_completion_tokens differ; give one of them");
    }
    if (b->max_tokens == API_UNSET) b->max_tokens = b->max_completion_tokens;
    if (b->max_tokens == API_UNSET) {
        uint32_t standard = a->o.default_max_tokens;
        b->max_tokens = !chat ? 16 : standard ? standard : API_UNSET;
    }
    if (b->max_tokens == 0 && !b->echo) {
        return refuse(e, "max_tokens",
                      "max_tokens is 0, which only \"echo\": true gives a meaning");
    }
    return 0;
}

static int read_fields(const struct api *a, enum api_kind kind, struct api_body *b,
                       struct api_error *e)
{
    struct json_value root = json_root(b->doc);
    if (!json_is(root, JSON_OBJECT)) {
        return api_fail(e, 400, "invalid_json", NULL,
                        "the body is %s, but must be an object", json_type_name(root));
    }
    for (struct json_iter i = json_iter(root); json_next(&i);) {
        if (json_is(i.value, JSON_NULL)) continue;
        const struct api_field *f = find(kind, i.key);
        int rc = f ? f->read(a, f, i.value, b, e) : 0;
        if (rc < 0) return rc;
    }
    return check_together(a, kind, b, e);
}

/* Values and keys that a body may have, so that one of nothing else takes no more memory
 * than one of text: more than any has whose prompts fit.  Those are at most capacity ids for
 * each choice, or capacity messages, of which each takes five, or parts of messages, likewise;
 * twice that, and all other fields. */
static size_t most_values(const struct api *a)
{
    size_t each = a->o.max_choices > 10 ? a->o.max_choices : 10;
    return each * a->capacity + 65536;
}

int api_body_read(const struct api *a, enum api_kind kind, const char *text, size_t n,
                  struct api_body *out, struct api_error *e)
{
    *out = (struct api_body){
        .add_special_tokens = true,
        .add_generation_prompt = true,
        .n = 1,
        .best_of = API_UNSET,
        .max_tokens = API_UNSET,
        .max_completion_tokens = API_UNSET,
        .sampling = {.temperature = 1, .top_p = 1},
    };
    struct err err;
    size_t most = most_values(a);
    int rc = json_open_bounded(&out->doc, text, n, API_MAX_DEPTH, most, &err);
    if (rc == -E2BIG)
        return api_fail(
            e, 400, "context_length_exceeded", NULL,
            "the body has more than %zu JSON values and keys, more than any "
            "takes whose prompt has at most %u tokens, which fit here",
            most, a->capacity);
    if (rc == -EINVAL) {
        return api_fail(e, 400, "invalid_json", NULL, "the body: %s", err.msg);
    }
    if (rc < 0) return api_fail(e, 500, NULL, NULL, "the body: %s", err.msg);
    rc = read_fields(a, kind, out, e);
    if (rc < 0) return rc;

    uint64_t *seed = &out->sampling.seed;
    if (!out->has_seed && getrandom(seed, sizeof *seed, 0) != (ssize_t)sizeof *seed) {
        return api_fail(e, 500, NULL, NULL, "the system gives no random numbers");
    }
    return 0;
}

void api_body_free(struct api_body *b)
{
    json_close(b->doc);
    free((void *)b->sampling.bias);
    *b = (struct api_body){0};
}
