/* api_fields.c - the readers that the rows of api_body.c name. */
#include "server/api_internal.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *place(struct api_body *b, const struct api_field *f)
{
    return (char *)b + f->offset;
}

int api_field_bool(const struct api *a, const struct api_field *f, struct json_value v,
                   struct api_body *b, struct api_error *e)
{
    (void)a;
    return api_read_bool(v, f->name, place(b, f), e);
}

int api_field_count(const struct api *a, const struct api_field *f, struct json_value v,
                    struct api_body *b, struct api_error *e)
{
    (void)a;
    return api_read_count(v, f->name, (uint32_t)f->lo, (uint32_t)f->hi, place(b, f), e);
}

int api_field_real(const struct api *a, const struct api_field *f, struct json_value v,
                   struct api_body *b, struct api_error *e)
{
    (void)a;
    return api_read_real(v, f->name, f->lo, f->hi, place(b, f), e);
}

/* A string that nothing here depends on. */
int api_field_text(const struct api *a, const struct api_field *f, struct json_value v,
                   struct api_body *b, struct api_error *e)
{
    (void)a;
    (void)b;
    return json_is(v, JSON_STRING) ? 0 : api_wrong(e, f->name, v, "a string");
}

/* OpenAI's clients may put any text into the key; what is no name by itself stands for
 * one: "key-" and half of its hash.  Of no text at all there is no name. */
static int name_by_hash(struct api_body *b, struct json_value v, struct api_error *e)
{
    size_t n;
    char *key = json_string_dup(v, &n);
    if (!key) return api_fail(e, 500, NULL, NULL, "no memory for the body");
    struct crypto_hash h;
    crypto_hash(&h, NULL, key, n);
    free(key);
    b->conversation[0] = 0;
    if (n == 0) return 0;
    char *to = b->conversation + sprintf(b->conversation, "key-");
    for (int i = 0; i < CRYPTO_HASH_BYTES / 2; i++)
        to += sprintf(to, "%02x", h.bytes[i]);
    return 0;
}

int api_field_conversation(const struct api *a, const struct api_field *f,
                           struct json_value v, struct api_body *b, struct api_error *e)
{
    (void)a;
    if (!json_is(v, JSON_STRING)) return api_wrong(e, f->name, v, "a string");
    size_t n;
    struct api_error unfit;
    int rc = json_string(v, b->conversation, sizeof b->conversation, &n);
    if (rc == 0 && api_check_conversation(b->conversation, n, f->name, &unfit) == 0)
        return 0;
    return name_by_hash(b, v, e);
}

/* messages and prompt are read when all else is known to be right. */
int api_field_keep(const struct api *a, const struct api_field *f, struct json_value v,
                   struct api_body *b, struct api_error *e)
{
    (void)a;
    (void)e;
    *(struct json_value *)place(b, f) = v;
    return 0;
}

/* Is v the value that one of the words writes? */
static bool is_one_of(struct json_value v, const char *words)
{
    char word[24];
    size_t n;
    for (const char *p = words; *p; p += n + (p[n] == ' ')) {
        n = strcspn(p, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        double x;
        bool truth;
        if (json_is(v, JSON_ARRAY) && !json_count(v) && !strcmp(word, "[]"))
            return true;
        if (json_is(v, JSON_OBJECT) && !json_count(v) && !strcmp(word, "{}"))
            return true;
        if (json_equals(v, word)) return true;
        if (json_bool(v, &truth) && !strcmp(word, truth ? "true" : "false"))
            return true;
        if (json_double(v, &x) && (word[0] == '0' || word[0] == '1') &&
            x == word[0] - '0') {
            return true;
        }
    }
    return false;
}

/* " or give none or auto" of "none auto". */
static void or_words(const char *words, char *buf, size_t cap)
{
    const char *before = " or give ";
    for (size_t at = 0, n; *words; words += n + (words[n] == ' '), before = " or ") {
        n = strcspn(words, " ");
        at += (size_t)snprintf(buf + at, cap - at, "%s%.*s", before, (int)n, words);
    }
}

int api_field_unsupported(const struct api *a, const struct api_field *f,
                          struct json_value v, struct api_body *b, struct api_error *e)
{
    (void)a;
    (void)b;
    if (f->neutral && is_one_of(v, f->neutral)) return 0;
    char rest[64] = "";
    or_words(f->neutral ? f->neutral : "", rest, sizeof rest);
    return api_fail(e, 400, "unsupported_parameter", f->name,
                    "%s would change the answer, but is not supported here; leave it "
                    "out%s",
                    f->name, rest);
}

int api_field_model(const struct api *a, const struct api_field *f, struct json_value v,
                    struct api_body *b, struct api_error *e)
{
    (void)b;
    const char *raw;
    size_t n;
    int rc = api_read_raw_text(v, f->name, &raw, &n, e);
    if (rc < 0) return rc;
    if (json_equals(v, a->o.model_name)) return 0;
    return api_fail(e, 404, "model_not_found", f->name,
                    "the model \"%.*s\" does not exist here; this server has \"%s\"",
                    n > API_SHOWN ? API_SHOWN : (int)n, raw, a->o.model_name);
}

int api_field_n(const struct api *a, const struct api_field *f, struct json_value v,
                struct api_body *b, struct api_error *e)
{
    return api_read_count(v, f->name, 1, a->o.max_choices, &b->n, e);
}

int api_field_top_p(const struct api *a, const struct api_field *f, struct json_value v,
                    struct api_body *b, struct api_error *e)
{
    (void)a;
    double x;
    if (!json_double(v, &x) || x <= 0 || x > 1) {
        return api_wrong(e, f->name, v, "a number above 0 and up to 1");
    }
    b->sampling.top_p = x < FLT_MIN ? FLT_MIN : (float)x;
    return 0;
}

int api_field_top_k(const struct api *a, const struct api_field *f, struct json_value v,
                    struct api_body *b, struct api_error *e)
{
    (void)a;
    int64_t x;
    if (!json_i64(v, &x) || x < -1 || x > INT32_MAX) {
        return api_wrong(e, f->name, v, "an integer from 1 up, or 0 or -1 for all");
    }
    b->sampling.top_k = x < 0 ? 0 : (uint32_t)x;
    return 0;
}

int api_field_seed(const struct api *a, const struct api_field *f, struct json_value v,
                   struct api_body *b, struct api_error *e)
{
    (void)a;
    int64_t x;
    if (json_i64(v, &x)) {
        b->sampling.seed = (uint64_t)x;
    } else if (!json_u64(v, &b->sampling.seed)) {
        return api_wrong(e, f->name, v, "an integer of 64 bits");
    }
    b->has_seed = true;
    return 0;
}

static int add_stop(struct json_value v, const char *param, struct api_body *b,
                    struct api_error *e)
{
    const char *raw;
    size_t n;
    if (b->n_stops == REQUEST_MAX_STOPS) {
        return api_fail(e, 400, "invalid_value", "stop",
                        "stop has more than %d strings, which is the most",
                        REQUEST_MAX_STOPS);
    }
    int rc = api_read_raw_text(v, param, &raw, &n, e);
    if (rc < 0) return rc;
    size_t size = json_string_size(v);
    if (size == 0 || size > REQUEST_MAX_STOP) {
        return api_fail(e, 400, "invalid_value", "stop",
                        "%s has %zu bytes, but a stop string has from 1 to %d", param,
                        size, REQUEST_MAX_STOP);
    }
    rc = json_string(v, b->stop[b->n_stops], sizeof b->stop[0], &n);
    if (rc < 0) return api_wrong(e, param, v, "a string");
    b->stop_n[b->n_stops++] = (uint16_t)n;
    return 0;
}

int api_field_stop(const struct api *a, const struct api_field *f, struct json_value v,
                   struct api_body *b, struct api_error *e)
{
    (void)a;
    if (json_is(v, JSON_STRING)) return add_stop(v, f->name, b, e);
    if (!json_is(v, JSON_ARRAY)) {
        return api_wrong(e, f->name, v, "a string or an array of strings");
    }
    char param[32];
    for (struct json_iter i = json_iter(v); json_next(&i);) {
        snprintf(param, sizeof param, "stop[%u]", b->n_stops);
        int rc = add_stop(i.value, param, b, e);
        if (rc < 0) return rc;
    }
    return 0;
}

int api_field_stream_options(const struct api *a, const struct api_field *f,
                             struct json_value v, struct api_body *b,
                             struct api_error *e)
{
    (void)a;
    if (!json_is(v, JSON_OBJECT)) return api_wrong(e, f->name, v, "an object");
    b->has_stream_options = true;
    struct json_value usage = json_get(v, "include_usage");
    if (!json_exists(usage) || json_is(usage, JSON_NULL)) return 0;
    return api_read_bool(usage, "stream_options.include_usage", &b->include_usage, e);
}

/* A number here, where a chat has a boolean and top_logprobs: so OpenAI's API grew. */
int api_field_completion_logprobs(const struct api *a, const struct api_field *f,
                                  struct json_value v, struct api_body *b,
                                  struct api_error *e)
{
    (void)a;
    b->sampling.logprobs = true;
    return api_read_count(v, f->name, 0, SAMPLER_MAX_TOP, &b->sampling.top_logprobs, e);
}

/* A token id in plain decimal: no sign, no leading zero, nothing around it. */
static bool parse_id(const char *key, uint64_t *id)
{
    size_t n = strspn(key, "0123456789");
    if (n == 0 || n > 10 || key[n] || (key[0] == '0' && n > 1)) return false;
    *id = strtoull(key, NULL, 10);
    return true;
}

static int add_bias(const struct api *a, struct json_iter i, struct logit_bias *out,
                    struct api_error *e)
{
    char key[16] = "";
    size_t n = 0;
    uint64_t id;
    bool fits = json_string(i.key, key, sizeof key, &n) == 0 && strlen(key) == n;
    if (!fits || !parse_id(key, &id) || !api_is_token(a, id)) {
        const char *raw = json_raw(i.key, &n);
        return api_fail(e, 400, "invalid_value", "logit_bias",
                        "logit_bias has the key %.*s, but its keys must be ids of "
                        "tokens that the model has, in decimal, as strings",
                        n > API_SHOWN ? API_SHOWN : (int)n, raw);
    }
    char param[64];
    snprintf(param, sizeof param, "logit_bias[%s]", key);
    float bias;
    int rc = api_read_real(i.value, param, -100, 100, &bias, e);
    if (rc < 0) {
        snprintf(e->param, sizeof e->param, "logit_bias");
        return rc;
    }
    *out = (struct logit_bias){.id = (int32_t)id, .bias = bias};
    return 0;
}

int api_field_logit_bias(const struct api *a, const struct api_field *f,
                         struct json_value v, struct api_body *b, struct api_error *e)
{
    if (!json_is(v, JSON_OBJECT)) return api_wrong(e, f->name, v, "an object");
    uint32_t n = json_count(v), at = 0;
    if (n > SAMPLER_MAX_BIAS) {
        return api_fail(e, 400, "invalid_value", f->name,
                        "logit_bias has %u members, but may have at most %d", n,
                        SAMPLER_MAX_BIAS);
    }
    if (n == 0) return 0;
    struct logit_bias *bias = calloc(n, sizeof *bias);
    if (!bias) return api_fail(e, 500, NULL, f->name, "no memory for %u biases", n);
    b->sampling.bias = bias;
    b->sampling.n_bias = n;
    for (struct json_iter i = json_iter(v); json_next(&i); at++) {
        int rc = add_bias(a, i, &bias[at], e);
        if (rc < 0) return rc;
    }
    return 0;
}

int api_field_response_format(const struct api *a, const struct api_field *f,
                              struct json_value v, struct api_body *b,
                              struct api_error *e)
{
    (void)a;
    (void)b;
    if (!json_is(v, JSON_OBJECT)) return api_wrong(e, f->name, v, "an object");
    struct json_value type = json_get(v, "type");
    if (json_equals(type, "text")) return 0;
    if (!json_is(type, JSON_STRING)) {
        return api_wrong(e, "response_format.type", type, "a string");
    }
    return api_fail(e, 400, "unsupported_parameter", f->name,
                    "only the response_format \"text\" is supported here");
}

int api_field_modalities(const struct api *a, const struct api_field *f,
                         struct json_value v, struct api_body *b, struct api_error *e)
{
    (void)a;
    (void)b;
    if (!json_is(v, JSON_ARRAY)) return api_wrong(e, f->name, v, "an array");
    for (struct json_iter i = json_iter(v); json_next(&i);) {
        if (!json_equals(i.value, "text")) {
            return api_fail(e, 400, "unsupported_parameter", f->name,
                            "modalities other than \"text\" are not supported here");
        }
    }
    return 0;
}
