/* tokload_added.c - "added_tokens" and "normalizer" of tokenizer.json. */
#include "tokenizer/tokload.h"

#include "tokenizer/byte_level.h"
#include "tokenizer/normalize.h"

#include <string.h>

static int load_one_normalizer(struct loader *l, struct json_value v, const char *path,
                               unsigned depth, void *none)
{
    struct json_value type = json_get(v, "type");
    if (json_equals(type, "NFC")) {
        l->t->nfc = true;
        return 0;
    }
    if (!json_equals(type, "Sequence") || depth == TOKLOAD_MAX_DEPTH) {
        return tokload_refuse(l, path, json_exists(type) ? type : v,
                              "only null, NFC and Sequence are supported");
    }
    return tokload_each(l, v, "normalizers", path, depth, load_one_normalizer, none);
}

int tokload_normalizer(struct loader *l)
{
    struct json_value v = json_get(l->root, "normalizer");
    if (!json_exists(v) || json_is(v, JSON_NULL)) return 0;
    return load_one_normalizer(l, v, "normalizer", 0, NULL);
}

/* Enter the token into the vocabulary, or compare it with what is there. */
static int enter(struct loader *l, const char *path, struct json_value content,
                 const char *s, size_t n, uint32_t id, bool special)
{
    struct vocab *v = &l->t->vocab;
    char bytes[ADDED_TOKEN_MAX];
    bool outside;
    size_t n_bytes = byte_level_decode(s, n, bytes, &outside), n_there = 0;
    const char *there = vocab_bytes(v, id, &n_there);
    int32_t other = vocab_find(v, bytes, n_bytes);
    /* A raw blank and the character that the alphabet has for it are two tokens. */
    if (!(vocab_flags(v, other) & VOCAB_OUTSIDE) == outside) other = -1;
    unsigned flags = VOCAB_ADDED | (special ? VOCAB_SPECIAL : 0u);

    if (vocab_flags(v, id) & VOCAB_ADDED) {
        return tokload_refuse(l, path, content, "another added token has the same id");
    }
    if (there && (n_there != n_bytes || memcmp(there, bytes, n_bytes) != 0)) {
        return tokload_refuse(l, path, content,
                              "the vocabulary has another token of the same id");
    }
    if (!there && other >= 0) {
        return tokload_refuse(l, path, content, "the vocabulary gives it another id");
    }
    if (!there) return vocab_add(v, id, s, n, flags | VOCAB_OUTSIDE);
    v->flags[id] |= (uint8_t)flags;
    return n == n_bytes ? 0 : vocab_set_bytes(v, id, s, n);
}

static int load_one_added(struct loader *l, struct json_value v, const char *path,
                          unsigned depth, void *none)
{
    (void)depth;
    (void)none;
    struct json_value content = json_get(v, "content");
    struct added_token t = {0};
    char s[ADDED_TOKEN_MAX + 1];
    uint32_t id = 0;
    size_t n = 0;
    if (!tokload_string(content, s, ADDED_TOKEN_MAX, &n) || n == 0) {
        return tokload_refuse(l, path, content,
                              "its content has to be a string of 1 to 1024 bytes");
    }
    if (!tokload_id(json_get(v, "id"), &id)) return -EINVAL;
    t.id = (int32_t)id;
    int rc = tokload_bool(l, path, v, "special", false, &t.special);
    if (rc == 0) rc = tokload_bool(l, path, v, "single_word", false, &t.single_word);
    if (rc == 0) rc = tokload_bool(l, path, v, "lstrip", false, &t.lstrip);
    if (rc == 0) rc = tokload_bool(l, path, v, "rstrip", false, &t.rstrip);
    if (rc == 0) rc = tokload_bool(l, path, v, "normalized", !t.special, &t.normalized);
    if (rc == 0) rc = enter(l, path, content, s, n, id, t.special);
    if (rc < 0) return rc;

    struct normalized x = {0};
    bool normalize = t.normalized && l->t->nfc;
    if (normalize) rc = normalize_nfc(&x, s, n, NULL, 0, 0);
    if (rc == 0) {
        rc = normalize ? added_tokens_add(&l->t->added, &t, x.text, x.n)
                       : added_tokens_add(&l->t->added, &t, s, n);
    }
    normalized_free(&x);
    if (rc == -EEXIST) {
        return tokload_refuse(l, path, content, "an added token has the same content");
    }
    return rc;
}

int tokload_added_tokens(struct loader *l)
{
    int rc = tokload_each(l, l->root, "added_tokens", "", 0, load_one_added, NULL);
    return rc < 0 ? rc : added_tokens_finish(&l->t->added, l->err);
}
