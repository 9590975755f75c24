/* tokload_model.c - "model" of tokenizer.json: vocabulary, merges and their options. */
#include "tokenizer/tokload.h"

#include "tokenizer/byte_level.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct json_value model_of(const struct loader *l)
{
    return json_get(l->root, "model");
}

/* One more than the highest id of the vocabulary and the added tokens, and the bytes
 * that the vocabulary takes at most. */
static int measure(const struct loader *l, uint32_t *size, size_t *bytes)
{
    uint32_t id;
    *size = 0;
    *bytes = 0;
    for (struct json_iter i = json_iter(json_get(model_of(l), "vocab"));
         json_next(&i);) {
        if (!tokload_id(i.value, &id)) {
            return tokload_refuse(l, "model.vocab", i.key,
                                  "its id is no number below 2^22");
        }
        if (id >= *size) *size = id + 1;
        *bytes += json_string_size(i.key);
    }
    for (struct json_iter i = json_iter(json_get(l->root, "added_tokens"));
         json_next(&i);) {
        if (!tokload_id(json_get(i.value, "id"), &id)) {
            return tokload_refuse(l, "added_tokens", json_get(i.value, "content"),
                                  "its id is no number below 2^22");
        }
        if (id >= *size) *size = id + 1;
    }
    return 0;
}

static int load_entry(const struct loader *l, struct json_value key, uint32_t id,
                      char *buf)
{
    size_t n;
    bool outside;
    if (!tokload_string(key, buf, VOCAB_MAX_TOKEN, &n)) {
        return tokload_refuse(l, "model.vocab", key,
                              "a token is longer than 65536 bytes");
    }
    if (n == 0) return tokload_refuse(l, "model.vocab", key, "a token is empty");
    n = byte_level_decode(buf, n, buf, &outside);
    int rc = vocab_add(&l->t->vocab, id, buf, n, outside ? VOCAB_OUTSIDE : 0);
    if (rc == -EEXIST) {
        return tokload_refuse(l, "model.vocab", key, "another token has the same id");
    }
    if (rc == 0) vocab_index(&l->t->vocab, id);
    return rc;
}

int tokload_vocab(struct loader *l)
{
    struct json_value model = model_of(l), type = json_get(model, "type");
    struct json_value vocab = json_get(model, "vocab");
    if (json_exists(type) && !json_equals(type, "BPE")) {
        return tokload_refuse(l, "model.type", type, "only BPE is supported");
    }
    if (!json_is(vocab, JSON_OBJECT) || json_count(vocab) == 0) {
        return tokload_refuse(l, "model.vocab", vocab,
                              "it has to be an object with tokens");
    }
    uint32_t size, id = 0;
    size_t bytes;
    int rc = measure(l, &size, &bytes);
    if (rc < 0) return rc;

    struct vocab *v = &l->t->vocab;
    rc = vocab_init(v, size, json_count(vocab), bytes);
    if (rc < 0) return rc;
    char *buf = malloc(VOCAB_MAX_TOKEN + 1);
    if (!buf) return -ENOMEM;
    for (struct json_iter i = json_iter(vocab); rc == 0 && json_next(&i);) {
        rc = tokload_id(i.value, &id) ? load_entry(l, i.key, id, buf) : -EINVAL;
    }
    free(buf);
    for (int b = 0; rc == 0 && b < 256; b++) {
        char byte = (char)b;
        int32_t found = vocab_find(v, &byte, 1);
        bool outside = found >= 0 && vocab_flags(v, found) & VOCAB_OUTSIDE;
        l->t->byte_id[b] = outside ? -1 : found;
    }
    return rc;
}

/* ---- merges ---- */

struct merge_text {
    char left[VOCAB_MAX_TOKEN + 1], right[VOCAB_MAX_TOKEN + 1];
    char both[2 * VOCAB_MAX_TOKEN + 1];
    size_t n_left, n_right;
};

/* "a b" with exactly one blank, or ["a", "b"]. */
static bool read_merge(struct json_value v, struct merge_text *m)
{
    if (json_is(v, JSON_STRING)) {
        size_t n;
        if (!tokload_string(v, m->both, sizeof m->both - 1, &n)) return false;
        char *blank = memchr(m->both, ' ', n);
        if (!blank) return false;
        m->n_left = (size_t)(blank - m->both);
        m->n_right = n - m->n_left - 1;
        if (memchr(blank + 1, ' ', m->n_right)) return false;
        if (m->n_left > VOCAB_MAX_TOKEN || m->n_right > VOCAB_MAX_TOKEN) return false;
        memcpy(m->left, m->both, m->n_left);
        memcpy(m->right, blank + 1, m->n_right);
        return true;
    }
    struct json_iter i = json_iter(v);
    return json_is(v, JSON_ARRAY) && json_count(v) == 2 && json_next(&i) &&
           tokload_string(i.value, m->left, VOCAB_MAX_TOKEN, &m->n_left) &&
           json_next(&i) &&
           tokload_string(i.value, m->right, VOCAB_MAX_TOKEN, &m->n_right);
}

static int load_merge(const struct loader *l, struct json_value v, uint32_t rank,
                      struct merge_text *m)
{
    const struct vocab *vocab = &l->t->vocab;
    char path[64];
    bool outside;
    snprintf(path, sizeof path, "model.merges[%u]", rank);
    if (!read_merge(v, m)) {
        return tokload_refuse(l, path, v, "a merge is \"a b\" or [\"a\", \"b\"]");
    }
    size_t n_left = byte_level_decode(m->left, m->n_left, m->left, &outside);
    size_t n_right = byte_level_decode(m->right, m->n_right, m->right, &outside);
    memcpy(m->both, m->left, n_left);
    memcpy(m->both + n_left, m->right, n_right);

    int32_t left = vocab_find(vocab, m->left, n_left);
    int32_t right = vocab_find(vocab, m->right, n_right);
    int32_t both = vocab_find(vocab, m->both, n_left + n_right);
    const char *missing = left < 0    ? "its first part is not in the vocabulary"
                          : right < 0 ? "its second part is not in the vocabulary"
                          : both < 0  ? "its result is not in the vocabulary"
                                      : NULL;
    if (missing) return tokload_refuse(l, path, v, missing);

    /* No text may become a control token by being merged. */
    if (vocab_flags(vocab, both) & VOCAB_SPECIAL) return 0;
    bpe_add(&l->t->bpe, (uint32_t)left, (uint32_t)right, rank, (uint32_t)both);
    return 0;
}

int tokload_merges(struct loader *l)
{
    struct json_value merges = json_get(model_of(l), "merges");
    if (!json_is(merges, JSON_ARRAY)) {
        return tokload_refuse(l, "model.merges", merges, "it has to be an array");
    }
    int rc = bpe_init(&l->t->bpe, json_count(merges));
    if (rc < 0) return rc;
    struct merge_text *m = malloc(sizeof *m);
    if (!m) return -ENOMEM;
    uint32_t rank = 0;
    for (struct json_iter i = json_iter(merges); rc == 0 && json_next(&i);) {
        rc = load_merge(l, i.value, rank++, m);
    }
    free(m);
    return rc;
}

/* ---- options ---- */

static int load_unknown(const struct loader *l, struct json_value v)
{
    char buf[ADDED_TOKEN_MAX + 1];
    size_t n;
    bool outside, vanishes = false;
    l->t->unknown = -1;
    if (!json_exists(v) || json_is(v, JSON_NULL)) return 0;
    if (!tokload_string(v, buf, ADDED_TOKEN_MAX, &n)) {
        return tokload_refuse(l, "model.unk_token", v,
                              "it has to be a short string or null");
    }
    n = byte_level_decode(buf, n, buf, &outside);
    l->t->unknown = vocab_find(&l->t->vocab, buf, n);
    if (l->t->unknown < 0) {
        return tokload_refuse(l, "model.unk_token", v, "it is not in the vocabulary");
    }
    for (int b = 0; b < 256; b++) vanishes |= l->t->byte_id[b] < 0;
    if (vanishes && vocab_flags(&l->t->vocab, l->t->unknown) & VOCAB_SPECIAL) {
        return tokload_refuse(
            l, "model.unk_token", v,
            "it is a control token, and there are bytes without a token: "
            "a user's text could make it");
    }
    return 0;
}

int tokload_model_options(struct loader *l)
{
    static const char *const affixes[] = {"continuing_subword_prefix",
                                          "end_of_word_suffix"};
    struct json_value model = model_of(l);
    char path[64];
    for (size_t i = 0; i < ARRAY_LEN(affixes); i++) {
        struct json_value v = json_get(model, affixes[i]);
        if (json_exists(v) && !json_is(v, JSON_NULL) && !json_equals(v, "")) {
            snprintf(path, sizeof path, "model.%s", affixes[i]);
            return tokload_refuse(l, path, v, "only null or \"\" is supported");
        }
    }
    struct json_value dropout = json_get(model, "dropout");
    double p = 0;
    if (json_exists(dropout) && !json_is(dropout, JSON_NULL) &&
        !(json_double(dropout, &p) && p == 0)) {
        return tokload_refuse(l, "model.dropout", dropout,
                              "only null or 0 is supported");
    }
    bool byte_fallback;
    int rc = tokload_bool(l, "model", model, "byte_fallback", false, &byte_fallback);
    if (rc == 0 && byte_fallback) {
        rc = tokload_refuse(l, "model.byte_fallback", json_get(model, "byte_fallback"),
                            "SentencePiece vocabularies are not supported");
    }
    if (rc == 0) {
        rc = tokload_bool(l, "model", model, "fuse_unk", false, &l->t->fuse_unknown);
    }
    if (rc == 0) {
        rc = tokload_bool(l, "model", model, "ignore_merges", false,
                          &l->t->ignore_merges);
    }
    return rc < 0 ? rc : load_unknown(l, json_get(model, "unk_token"));
}
