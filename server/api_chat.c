/* api_chat.c - the messages of a chat, through the model's template, to token ids.
 *
 * Each message reaches the template with its role first and its content as one string:
 * text parts are joined with nothing between them.  "developer" is OpenAI's newer name
 * for "system" and becomes that, which templates know.  name and tool_call_id go through;
 * whatever the model would not see is refused, never dropped.
 *
 * chat_template_kwargs sets variables that a template may have of its own, such as
 * enable_thinking.  What is text in them counts as written by the user, like the messages.
 */
#include "server/api_internal.h"
#include "tokenizer/jinja.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

struct message {
    struct json_value role, content, name, tool_call_id;
};

/* Members that carry content which no template here would show. */
static int refuse_member(const char *param, struct json_iter i, struct api_error *e)
{
    static const char *const names[] = {"tool_calls", "function_call", "refusal",
                                        "audio"};
    if (json_is(i.value, JSON_NULL)) return 0;
    if (json_is(i.value, JSON_ARRAY) && json_count(i.value) == 0) return 0;
    for (size_t k = 0; k < ARRAY_LEN(names); k++) {
        if (!json_equals(i.key, names[k])) continue;
        return api_fail(e, 400, "unsupported_parameter", param,
                        "%s.%s would change the answer, but is not supported here; "
                        "leave it out",
                        param, names[k]);
    }
    return 0;
}

static int read_message(struct json_value v, const char *param, struct message *m,
                        struct api_error *e)
{
    *m = (struct message){0};
    if (!json_is(v, JSON_OBJECT)) return api_wrong(e, param, v, "an object");
    const struct {
        const char *name;
        struct json_value *to;
    } members[] = {
        {"role", &m->role},
        {"content", &m->content},
        {"name", &m->name},
        {"tool_call_id", &m->tool_call_id},
    };
    for (struct json_iter i = json_iter(v); json_next(&i);) {
        int rc = refuse_member(param, i, e);
        if (rc < 0) return rc;
        for (size_t k = 0; k < ARRAY_LEN(members); k++) {
            if (json_equals(i.key, members[k].name)) *members[k].to = i.value;
        }
    }
    return 0;
}

static int add_role(struct json_value v, const char *message, struct bytes *out,
                    struct api_error *e)
{
    static const char *const roles[][2] = {{"system", "system"},
                                           {"developer", "system"},
                                           {"user", "user"},
                                           {"assistant", "assistant"},
                                           {"tool", "tool"}};
    for (size_t k = 0; k < ARRAY_LEN(roles); k++) {
        if (!json_equals(v, roles[k][0])) continue;
        bytes_printf(out, "{\"role\":\"%s\"", roles[k][1]);
        return 0;
    }
    char param[64];
    snprintf(param, sizeof param, "%s.role", message);
    return api_wrong(e, param, v,
                     "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"");
}

static int add_text(struct json_value v, const char *param, struct bytes *out,
                    struct api_error *e)
{
    const char *raw;
    size_t n;
    int rc = api_read_raw_text(v, param, &raw, &n, e);
    if (rc == 0) bytes_add(out, raw, n);
    return rc;
}

static int add_part(struct json_value part, const char *param, struct bytes *out,
                    struct api_error *e)
{
    char inner[64];
    if (!json_is(part, JSON_OBJECT)) return api_wrong(e, param, part, "an object");
    struct json_value type = json_get(part, "type");
    if (json_equals(type, "text")) {
        snprintf(inner, sizeof inner, "%.50s.text", param);
        return add_text(json_get(part, "text"), inner, out, e);
    }
    snprintf(inner, sizeof inner, "%.50s.type", param);
    return api_wrong(e, inner, type, "\"text\": other parts are not supported here");
}

static int add_content(struct json_value v, const char *message, struct bytes *out,
                       struct api_error *e)
{
    char param[64], inner[64];
    int rc = 0;
    uint32_t at = 0;
    snprintf(param, sizeof param, "%s.content", message);
    bytes_add_text(out, ",\"content\":\"");
    if (json_is(v, JSON_STRING)) {
        rc = add_text(v, param, out, e);
    } else if (json_count(v) == 0 || !json_is(v, JSON_ARRAY)) {
        rc = api_wrong(e, param, v, "a string or an array of one or more text parts");
    }
    for (struct json_iter i = json_iter(v); rc == 0 && json_next(&i); at++) {
        snprintf(inner, sizeof inner, "%.40s[%u]", param, at);
        rc = add_part(i.value, inner, out, e);
    }
    bytes_add_text(out, "\"");
    return rc;
}

static int add_optional(struct json_value v, const char *message, const char *name,
                        struct bytes *out, struct api_error *e)
{
    char param[64];
    if (!json_exists(v) || json_is(v, JSON_NULL)) return 0;
    snprintf(param, sizeof param, "%s.%s", message, name);
    bytes_printf(out, ",\"%s\":\"", name);
    int rc = add_text(v, param, out, e);
    bytes_add_text(out, "\"");
    return rc;
}

static int add_message(struct json_value v, uint32_t at, struct bytes *out,
                       struct api_error *e)
{
    char param[32];
    snprintf(param, sizeof param, "messages[%u]", at);
    if (at > 0) bytes_add_text(out, ",");

    struct message m;
    int rc = read_message(v, param, &m, e);
    if (rc == 0) rc = add_role(m.role, param, out, e);
    if (rc == 0) rc = add_content(m.content, param, out, e);
    if (rc == 0) rc = add_optional(m.name, param, "name", out, e);
    if (rc == 0) rc = add_optional(m.tool_call_id, param, "tool_call_id", out, e);
    bytes_add_text(out, "}");
    return rc;
}

/* What the server itself gives to a template has fields of its own, or is not supported;
 * the functions are the template's own. */
static int check_name(struct json_value key, const char **name, int *shown,
                      struct api_error *e)
{
    static const char *const taken[] = {"messages",  "add_generation_prompt",
                                        "tools",     "documents",
                                        "bos_token", "eos_token"};
    size_t n;
    int rc = api_read_raw_text(key, "chat_template_kwargs", name, &n, e);
    if (rc < 0) return rc;
    *shown = n > API_SHOWN ? API_SHOWN : (int)n;
    for (size_t k = 0; k < ARRAY_LEN(taken); k++) {
        if (json_equals(key, taken[k]))
            return api_fail(e, 400, "invalid_value", "chat_template_kwargs",
                            "chat_template_kwargs may not set %s", taken[k]);
    }
    if (!jinja_has_function(key)) return 0;
    return api_fail(e, 400, "invalid_value", "chat_template_kwargs",
                    "chat_template_kwargs may not set %.*s: the name is the "
                    "template's own, that of a function",
                    *shown, *name);
}

static int check_variable(struct json_iter i, struct api_error *e)
{
    const char *name, *raw;
    int shown;
    size_t n;
    int rc = check_name(i.key, &name, &shown, e);
    if (rc < 0) return rc;
    char param[128];
    snprintf(param, sizeof param, "chat_template_kwargs.%.*s", shown, name);
    if (json_is(i.value, JSON_STRING))
        return api_read_raw_text(i.value, param, &raw, &n, e);
    if (json_is(i.value, JSON_NUMBER) && !jinja_holds_number(i.value))
        return api_wrong(e, param, i.value,
                         "an integer of at most 38 digits or what a double holds");
    if (!json_is(i.value, JSON_OBJECT) && !json_is(i.value, JSON_ARRAY)) return 0;
    return api_wrong(e, param, i.value, "true, false, a number, a string or null");
}

static int add_variables(struct json_value v, struct bytes *out, struct api_error *e)
{
    if (!json_exists(v)) return 0;
    if (!json_is(v, JSON_OBJECT))
        return api_wrong(e, "chat_template_kwargs", v, "an object");
    for (struct json_iter i = json_iter(v); json_next(&i);) {
        size_t key_n, n;
        const char *key = json_raw(i.key, &key_n), *value = json_raw(i.value, &n);
        int rc = check_variable(i, e);
        if (rc < 0) return rc;
        bytes_add_text(out, ",");
        bytes_add(out, key, key_n);
        bytes_add_text(out, ":");
        bytes_add(out, value, n);
    }
    return 0;
}

int api_chat_context(const struct api_body *b, struct bytes *out, struct api_error *e)
{
    struct json_value messages = b->messages;
    if (json_count(messages) == 0 || !json_is(messages, JSON_ARRAY)) {
        return api_wrong(e, "messages", messages, "an array of at least one message");
    }
    uint32_t at = 0;
    bytes_add_text(out, "{\"messages\":[");
    for (struct json_iter i = json_iter(messages); json_next(&i); at++) {
        int rc = add_message(i.value, at, out, e);
        if (rc < 0) return rc;
    }
    bytes_printf(out, "],\"add_generation_prompt\":%s",
                 b->add_generation_prompt ? "true" : "false");
    int rc = add_variables(b->template_variables, out, e);
    if (rc < 0) return rc;
    bytes_add_text(out, "}");
    if (!out->failed) return 0;
    return api_fail(e, 500, NULL, NULL, "no memory for the messages");
}

static size_t least_content(const struct tokenizer *t, struct json_value message)
{
    struct json_value content = json_get(message, "content");
    size_t n = api_least_bytes(t, content);
    if (!json_is(content, JSON_ARRAY)) return n;
    for (struct json_iter i = json_iter(content); json_next(&i);)
        n += api_least_bytes(t, json_get(i.value, "text"));
    return n;
}

/* A template takes many times the memory of its messages, so it is not asked about those
 * that can never fit: each of them costs a token, and no token is longer than the longest.
 * (White space that a template would cut off counts here.) */
static int check_fits(const struct api *a, struct json_value messages,
                      struct api_error *e)
{
    size_t n = 0;
    if (!json_is(messages, JSON_ARRAY)) return 0;
    for (struct json_iter i = json_iter(messages); json_next(&i);)
        n += least_content(a->o.tokenizer, i.value);
    uint32_t count = json_count(messages);
    if (count < a->capacity && n <= api_most_bytes(a)) return 0;
    return api_fail(e, 400, "context_length_exceeded", "messages",
                    "at most %u tokens fit, one of them for the answer (this model's "
                    "maximum context length is %u tokens), but the messages (%u, "
                    "together %zu bytes) come to more",
                    a->capacity, a->o.config->context, count, n);
}

static int render(const struct api *a, const struct bytes *context,
                  struct api_prompt *out, struct api_error *e)
{
    struct chat_text text = {0};
    struct token_list ids = {0};
    struct err err;
    int rc = chat_render(a->o.chat, context->data, context->n, (int64_t)time(NULL),
                         &text, &err);
    if (rc == 0) {
        rc = tokenizer_encode(a->o.tokenizer, text.text, text.n, text.plain,
                              text.n_plain, api_most_ids(a), &ids, &err);
    }
    if (rc < 0) {
        chat_text_free(&text);
        token_list_free(&ids);
        return api_prompt_failed(a, e, "messages", rc, &err);
    }
    out->ids = ids.ids;
    out->n_ids = ids.n;
    out->text = text;
    return 0;
}

int api_chat_prompts(const struct api *a, const struct api_body *b,
                     struct api_prompts *out, struct api_error *e)
{
    if (!a->o.chat) {
        return api_fail(e, 400, "unsupported_parameter", "messages",
                        "this model has no chat template, so it cannot chat; use "
                        "/v1/completions");
    }
    struct bytes context = {0};
    int rc = check_fits(a, b->messages, e);
    if (rc == 0) rc = api_prompts_make(out, 1, e);
    if (rc == 0) {
        rc = api_chat_context(b, &context, e);
    }
    if (rc == 0) rc = render(a, &context, &out->list[0], e);
    bytes_free(&context);
    return rc;
}
