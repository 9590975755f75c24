/* golden.h - what the tokenizer's tests share: opening files and comparing ids.
 *
 * What cannot be read fails the test.
 */
#ifndef TESTS_TOKENIZER_GOLDEN_H
#define TESTS_TOKENIZER_GOLDEN_H

#include "kernels/json.h"
#include "tests/files.h"
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/tokenizers"

/* A JSON file, kept in memory; free both. */
struct golden {
    char *text;
    struct json *json;
    struct json_value root;
};

static inline struct golden golden_open(const char *path)
{
    struct golden g;
    struct err err;
    size_t n;
    g.text = files_read(path, &n);
    if (json_open(&g.json, g.text, n, JSON_MAX_DEPTH, &err) < 0) {
        fail_msg("%s: %s", path, err.msg);
    }
    g.root = json_root(g.json);
    return g;
}

static inline void golden_close(struct golden *g)
{
    json_close(g->json);
    free(g->text);
}

static inline struct tokenizer *golden_tokenizer(const char *path)
{
    struct tokenizer *t = NULL;
    struct err err;
    size_t n;
    char *data = files_read(path, &n);
    if (tokenizer_open(&t, data, n, path, &err) < 0) fail_msg("%s", err.msg);
    free(data);
    return t;
}

static inline struct token_list golden_encode(const struct tokenizer *t, const char *s,
                                              size_t n, const struct text_span *plain,
                                              size_t n_plain)
{
    struct token_list out = {0};
    struct err err;
    if (tokenizer_encode(t, s, n, plain, n_plain, 0, &out, &err) < 0) {
        fail_msg("%.60s: %s", s, err.msg);
    }
    return out;
}

/* The ids of an array; free the list. */
static inline struct token_list golden_ids(struct json_value v)
{
    struct token_list l = {calloc(json_count(v) + 1, sizeof *l.ids), 0, 0};
    assert_non_null(l.ids);
    for (struct json_iter i = json_iter(v); json_next(&i); l.n++) {
        int64_t id;
        assert_true(json_i64(i.value, &id));
        l.ids[l.n] = (int32_t)id;
    }
    return l;
}

static inline void golden_print(const char *what, const struct token_list *l)
{
    fprintf(stderr, "%s:", what);
    for (size_t i = 0; i < l->n; i++) fprintf(stderr, " %d", l->ids[i]);
    fprintf(stderr, "\n");
}

/* Encode and compare; false, with both lists printed, where they differ. */
static inline bool golden_same(const struct tokenizer *t, const char *s, size_t n,
                               const struct text_span *plain, size_t n_plain,
                               struct json_value ids)
{
    struct token_list got = golden_encode(t, s, n, plain, n_plain);
    struct token_list want = golden_ids(ids);
    bool same = got.n == want.n &&
                (got.n == 0 || memcmp(got.ids, want.ids, got.n * sizeof *got.ids) == 0);
    if (!same) {
        fprintf(stderr, "text: %.*s\n", (int)n, s);
        golden_print("got ", &got);
        golden_print("want", &want);
    }
    token_list_free(&got);
    token_list_free(&want);
    return same;
}

/* The text of the tokenizer at `path` with another value for one of its members. */
static inline char *golden_with_member(const char *path, const char *key,
                                       const char *value, size_t n)
{
    struct golden g = golden_open(path);
    size_t n_old, n_text = strlen(g.text);
    const char *old = json_raw(json_get(g.root, key), &n_old);
    assert_non_null(old);
    char *text = malloc(n_text + n + 1);
    assert_non_null(text);
    snprintf(text, n_text + n + 1, "%.*s%.*s%s", (int)(old - g.text), g.text, (int)n,
             value, old + n_old);
    golden_close(&g);
    return text;
}

static inline struct tokenizer *golden_open_text(char *text)
{
    struct tokenizer *t = NULL;
    struct err err;
    if (tokenizer_open(&t, text, strlen(text), "T", &err) < 0) fail_msg("%s", err.msg);
    free(text);
    return t;
}

static inline int32_t golden_find(const struct tokenizer *t, const char *content)
{
    return tokenizer_find(t, content, strlen(content));
}

static inline size_t golden_count(const struct token_list *l, int32_t id)
{
    size_t count = 0;
    for (size_t i = 0; i < l->n; i++) count += l->ids[i] == id;
    return count;
}

#endif
