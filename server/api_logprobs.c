/* api_logprobs.c - logprobs of tokens, in the two shapes that OpenAI has for them.
 *
 * A chat has an object for each token, with the token's bytes.  A completion has four
 * arrays side by side; a token that is no UTF-8 by itself is written there as
 * "bytes:\xf0\x9f", which is how that API tells such tokens apart.
 */
#include "kernels/utf8.h"
#include "server/api_internal.h"

#include <inttypes.h>
#include <string.h>

void api_logprobs_free(struct api_logprobs *l)
{
    bytes_free(&l->entry);
    bytes_free(&l->token);
    bytes_free(&l->value);
    bytes_free(&l->top);
    bytes_free(&l->offset);
    l->n = 0;
}

void api_logprobs_clear(struct api_logprobs *l)
{
    l->entry.n = l->token.n = l->value.n = l->top.n = l->offset.n = 0;
    l->n = 0;
}

bool api_logprobs_failed(const struct api_logprobs *l)
{
    return l->entry.failed || l->token.failed || l->value.failed || l->top.failed ||
           l->offset.failed;
}

static const char *bytes_of(const struct tokenizer *t, int32_t id, size_t *n)
{
    *n = 0;
    const char *s = tokenizer_bytes(t, id, n);
    return s ? s : "";
}

/* ---- chat ---- */

/* The members that a token and each of its alternatives have, without the braces. */
static void add_token(struct bytes *out, const struct tokenizer *t, int32_t id,
                      float logprob)
{
    size_t n;
    const char *s = bytes_of(t, id, &n);
    bytes_add_text(out, "\"token\":");
    api_json_text(out, s, n);
    bytes_add_text(out, ",\"logprob\":");
    api_json_real(out, logprob);
    bytes_add_text(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) {
        bytes_printf(out, "%s%u", i ? "," : "", (unsigned char)s[i]);
    }
    bytes_add_text(out, "]");
}

static void add_entry(struct bytes *out, const struct tokenizer *t,
                      const struct sample *s)
{
    bytes_add_text(out, "{");
    add_token(out, t, s->id, s->logprob);
    bytes_add_text(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < s->n_top; i++) {
        bytes_add_text(out, i ? ",{" : "{");
        add_token(out, t, s->top[i].id, s->top[i].logprob);
        bytes_add_text(out, "}");
    }
    bytes_add_text(out, "]}");
}

/* ---- completions ---- */

static void add_name(struct bytes *out, const struct tokenizer *t, int32_t id)
{
    size_t n;
    const char *s = bytes_of(t, id, &n);
    if (utf8_valid_prefix(s, n) == n) {
        api_json_text(out, s, n);
        return;
    }
    bytes_add_text(out, "\"bytes:");
    for (size_t i = 0; i < n; i++) bytes_printf(out, "\\\\x%02x", (unsigned char)s[i]);
    bytes_add_text(out, "\"");
}

static bool same_name(const struct tokenizer *t, int32_t a, int32_t b)
{
    size_t n, m;
    const char *x = bytes_of(t, a, &n), *y = bytes_of(t, b, &m);
    return n == m && memcmp(x, y, n) == 0;
}

/* The alternatives, and the token itself where it is none of them; no name twice, which
 * would be no good JSON. */
static void add_top(struct bytes *out, const struct tokenizer *t,
                    const struct sample *s)
{
    bool seen = false, comma = false;
    bytes_add_text(out, "{");
    for (uint32_t i = 0; i <= s->n_top; i++) {
        bool last = i == s->n_top, again = last && seen;
        int32_t id = last ? s->id : s->top[i].id;
        for (uint32_t k = 0; k < i && !again; k++)
            again = same_name(t, s->top[k].id, id);
        if (again) continue;
        if (comma) bytes_add_text(out, ",");
        add_name(out, t, id);
        bytes_add_text(out, ":");
        api_json_real(out, last ? s->logprob : s->top[i].logprob);
        seen = seen || id == s->id;
        comma = true;
    }
    bytes_add_text(out, "}");
}

/* ---- both ---- */

void api_logprobs_add(struct api_logprobs *l, enum api_kind kind,
                      const struct tokenizer *t, const struct sample *s, bool scored,
                      uint64_t offset)
{
    if (kind == API_CHAT) {
        if (l->n) bytes_add_text(&l->entry, ",");
        add_entry(&l->entry, t, s);
    } else {
        struct bytes *all[] = {&l->token, &l->value, &l->top, &l->offset};
        for (size_t i = 0; l->n && i < ARRAY_LEN(all); i++) bytes_add_text(all[i], ",");
        add_name(&l->token, t, s->id);
        bytes_printf(&l->offset, "%" PRIu64, offset);
        if (scored) {
            api_json_real(&l->value, s->logprob);
            add_top(&l->top, t, s);
        } else {
            bytes_add_text(&l->value, "null");
            bytes_add_text(&l->top, "null");
        }
    }
    l->n++;
}

static void add_array(struct bytes *out, const char *before, const struct bytes *list)
{
    bytes_add_text(out, before);
    if (list->n) bytes_add(out, list->data, list->n);
}

void api_logprobs_json(const struct api_logprobs *l, enum api_kind kind,
                       struct bytes *out)
{
    if (kind == API_CHAT) {
        add_array(out, "{\"content\":[", &l->entry);
        bytes_add_text(out, "],\"refusal\":null}");
        return;
    }
    add_array(out, "{\"tokens\":[", &l->token);
    add_array(out, "],\"token_logprobs\":[", &l->value);
    add_array(out, "],\"top_logprobs\":[", &l->top);
    add_array(out, "],\"text_offset\":[", &l->offset);
    bytes_add_text(out, "]}");
}
