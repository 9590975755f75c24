/* api_completion.c - the prompts of a completion: text or token ids, one or several.
 *
 * A text gets what the tokenizer puts around one (BOS), unless add_special_tokens is
 * false; ids are taken as they are.  Control tokens spelled in a text stay text, unless
 * the server was told otherwise (completions_special).
 */
#include "server/api_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void api_prompts_free(struct api_prompts *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        free(p->list[i].ids);
        free(p->list[i].echo);
        chat_text_free(&p->list[i].text);
    }
    free(p->list);
    *p = (struct api_prompts){0};
}

int api_prompts_make(struct api_prompts *p, uint32_t n, struct api_error *e)
{
    p->list = calloc(n, sizeof *p->list);
    if (!p->list) return api_fail(e, 500, NULL, NULL, "no memory for %u prompts", n);
    p->n = n;
    return 0;
}

size_t api_most_ids(const struct api *a)
{
    return 2 * (size_t)a->capacity;
}

size_t api_least_bytes(const struct tokenizer *t, struct json_value v)
{
    static const char letters[] = "bfnrt", meant[] = "\b\f\n\r\t";
    size_t n, found = 0;
    const char *raw = json_is(v, JSON_STRING) ? json_raw(v, &n) : NULL;
    if (!raw) return 0;
    for (size_t i = 1; i + 1 < n; i++) {  // between the quotes
        char c = raw[i];
        if (c == '\\' && raw[++i] == 'u') {
            i += 4;
            continue;
        }
        const char *letter = c == '\\' ? strchr(letters, raw[i]) : NULL;
        c = letter ? meant[letter - letters] : raw[i];
        found += tokenizer_has_byte(t, (unsigned char)c);
    }
    return found;
}

size_t api_most_bytes(const struct api *a)
{
    size_t n, longest = tokenizer_most_bytes(a->o.tokenizer);
    return __builtin_mul_overflow(a->capacity, longest, &n) ? SIZE_MAX : n;
}

int api_too_long(const struct api *a, struct api_error *e, const char *param,
                 const char *more_than, size_t n)
{
    bool messages = strcmp(param, "messages") == 0, one_of = strchr(param, '[') != NULL;
    return api_fail(e, 400, "context_length_exceeded", param,
                    "at most %u tokens fit, one of them for the answer (this model's "
                    "maximum context length is %u tokens), but %s%s %s %s%zu tokens",
                    a->capacity, a->o.config->context, one_of ? "" : "the ", param,
                    messages ? "have" : "has", more_than, n);
}

int api_prompt_failed(const struct api *a, struct api_error *e, const char *param,
                      int rc, const struct err *why)
{
    if (rc == -EOVERFLOW)
        return api_too_long(a, e, param, "more than ", api_most_ids(a));
    bool theirs = rc == -EINVAL || rc == -E2BIG;
    return api_fail(e, theirs ? 400 : 500, theirs ? "invalid_value" : NULL, param, "%s",
                    why->msg);
}

static int wrong_prompt(struct json_value v, const char *param, struct api_error *e)
{
    return api_wrong(e, param, v,
                     "a string, an array of strings, an array of token ids or an array "
                     "of arrays of token ids, none of them empty");
}

static int encode_text(const struct api *a, const struct api_body *b, const char *text,
                       size_t n, struct token_list *ids, struct err *err)
{
    size_t n_before = 0, n_after = 0;
    const int32_t *before = tokenizer_prefix(a->o.tokenizer, &n_before);
    const int32_t *after = tokenizer_suffix(a->o.tokenizer, &n_after);
    struct text_span whole = {0, n};
    size_t n_plain = !a->o.completions_special && n > 0;
    if (!b->add_special_tokens) n_before = n_after = 0;

    int rc = tokenizer_encode(a->o.tokenizer, text, n, &whole, n_plain, api_most_ids(a),
                              ids, err);
    if (rc < 0 || n_before + n_after == 0) return rc;

    size_t total = n_before + ids->n + n_after;
    int32_t *all = malloc(total * sizeof *all);
    if (!all) return err_set(err, -ENOMEM, "no memory for %zu token ids", total);
    if (n_before) memcpy(all, before, n_before * sizeof *all);
    if (ids->n) memcpy(all + n_before, ids->ids, ids->n * sizeof *all);
    if (n_after) memcpy(all + n_before + ids->n, after, n_after * sizeof *all);
    free(ids->ids);
    *ids = (struct token_list){.ids = all, .n = total, .cap = total};
    return 0;
}

static int read_text(const struct api *a, const struct api_body *b, struct json_value v,
                     const char *param, struct api_prompt *out, struct api_error *e)
{
    char *text;
    size_t n;
    if (api_least_bytes(a->o.tokenizer, v) > api_most_bytes(a))
        return api_too_long(a, e, param, "more than ", a->capacity);
    int rc = api_read_text(v, param, &text, &n, e);
    if (rc < 0) return rc;

    struct token_list ids = {0};
    struct err err;
    rc = encode_text(a, b, text, n, &ids, &err);
    out->ids = ids.ids;
    out->n_ids = ids.n;
    if (b->echo) {
        out->echo = text;
        out->echo_n = n;
    } else {
        free(text);
    }
    return rc < 0 ? api_prompt_failed(a, e, param, rc, &err) : 0;
}

/* What the ids say, for an echo: as generated text would be shown. */
static int spell(const struct api *a, struct api_prompt *p, struct api_error *e)
{
    struct bytes text = {0};
    size_t cap = detok_max_bound(a->o.tokenizer) + 8;
    char *piece = malloc(cap);
    struct detok d;
    detok_init(&d, !a->o.completions_special);
    for (size_t i = 0; piece && i < p->n_ids; i++) {
        bytes_add(&text, piece, detok_push(&d, a->o.tokenizer, p->ids[i], piece));
    }
    if (piece) bytes_add(&text, piece, detok_flush(&d, piece));
    free(piece);
    if (!piece || text.failed) {
        bytes_free(&text);
        return api_fail(e, 500, NULL, "prompt", "no memory for the echo");
    }
    p->echo = text.data;
    p->echo_n = text.n;
    return 0;
}

static int read_ids(const struct api *a, const struct api_body *b, struct json_value v,
                    const char *param, struct api_prompt *out, struct api_error *e)
{
    char inner[64];
    out->ids = malloc((json_count(v) + (size_t)1) * sizeof *out->ids);
    if (!out->ids) return api_fail(e, 500, NULL, param, "no memory for the token ids");
    for (struct json_iter i = json_iter(v); json_next(&i);) {
        uint64_t id;
        if (!json_u64(i.value, &id) || !api_is_token(a, id)) {
            snprintf(inner, sizeof inner, "%.40s[%zu]", param, out->n_ids);
            return api_wrong(e, inner, i.value, "the id of a token that the model has");
        }
        out->ids[out->n_ids++] = (int32_t)id;
    }
    return b->echo ? spell(a, out, e) : 0;
}

static struct json_value first_of(struct json_value v)
{
    struct json_iter i = json_iter(v);
    return json_is(v, JSON_ARRAY) && json_next(&i) ? i.value : (struct json_value){0};
}

/* One prompt: a string or a non-empty array of numbers. */
static int read_prompt(const struct api *a, const struct api_body *b,
                       struct json_value v, const char *param, struct api_prompt *out,
                       struct api_error *e)
{
    if (json_is(v, JSON_STRING)) return read_text(a, b, v, param, out, e);
    if (!json_is(first_of(v), JSON_NUMBER)) return wrong_prompt(v, param, e);
    return read_ids(a, b, v, param, out, e);
}

int api_completion_prompts(const struct api *a, const struct api_body *b,
                           struct api_prompts *out, struct api_error *e)
{
    struct json_value v = b->prompt, first = first_of(v);
    bool list = json_is(first, JSON_STRING) || json_is(first, JSON_ARRAY);
    uint32_t n = list ? json_count(v) : 1;
    if (n > a->o.max_choices / b->n) {
        return api_fail(e, 400, "invalid_value", "prompt",
                        "%u prompts with n = %u are more choices than the %u that one "
                        "request may have",
                        n, b->n, a->o.max_choices);
    }
    int rc = api_prompts_make(out, n, e);
    if (rc < 0) return rc;
    if (!list) return read_prompt(a, b, v, "prompt", &out->list[0], e);

    char param[32];
    uint32_t at = 0;
    for (struct json_iter i = json_iter(v); json_next(&i); at++) {
        snprintf(param, sizeof param, "prompt[%u]", at);
        if (json_type(i.value) != json_type(first)) {
            return wrong_prompt(i.value, param, e);
        }
        rc = read_prompt(a, b, i.value, param, &out->list[at], e);
        if (rc < 0) return rc;
    }
    return 0;
}
