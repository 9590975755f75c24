/* tokload.c - opens a tokenizer.json. */
#include "tokenizer/tokload.h"

#include "kernels/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE ((size_t)256 << 20)

const char *tokload_quote(struct json_value v, struct tokload_text *out)
{
    size_t n = 0;
    const char *raw = json_raw(v, &n);
    if (!json_exists(v)) {
        snprintf(out->s, sizeof out->s, "nothing");
    } else if (n < sizeof out->s) {
        snprintf(out->s, sizeof out->s, "%.*s", (int)n, raw);
    } else {
        size_t cut = sizeof out->s - 4;  // "..." and the NUL
        while (cut > 0 && ((unsigned char)raw[cut] & 0xc0) == 0x80) cut--;
        snprintf(out->s, sizeof out->s, "%.*s...", (int)cut, raw);
    }
    for (char *c = out->s; *c; c++) {
        if (*c == '\n' || *c == '\r' || *c == '\t') *c = ' ';
    }
    return out->s;
}

int tokload_refuse(const struct loader *l, const char *path, struct json_value v,
                   const char *why)
{
    struct tokload_text text;
    return err_set(l->err, -EINVAL, "%s: %s: %s: %s", l->name, path,
                   tokload_quote(v, &text), why);
}

int tokload_bool(const struct loader *l, const char *path, struct json_value of,
                 const char *key, bool absent, bool *out)
{
    struct json_value v = json_get(of, key);
    *out = absent;
    if (!json_exists(v) || json_is(v, JSON_NULL) || json_bool(v, out)) return 0;
    char inner[320];
    snprintf(inner, sizeof inner, "%s.%s", path, key);
    return tokload_refuse(l, inner, v, "it has to be true or false");
}

int tokload_each(struct loader *l, struct json_value of, const char *key,
                 const char *path, unsigned depth, tokload_element *element,
                 void *state)
{
    struct json_value list = json_get(of, key);
    char inner[256];
    int rc = 0, k = 0;
    const char *dot = *path ? "." : "";
    if (json_exists(list) && !json_is(list, JSON_ARRAY)) {
        if (snprintf(inner, sizeof inner, "%s%s%s", path, dot, key) < 0) return -EINVAL;
        return tokload_refuse(l, inner, list, "it has to be an array");
    }
    for (struct json_iter i = json_iter(list); rc == 0 && json_next(&i); k++) {
        if (snprintf(inner, sizeof inner, "%s%s%s[%d]", path, dot, key, k) < 0) break;
        rc = element(l, i.value, inner, depth + 1, state);
    }
    return rc;
}

bool tokload_id(struct json_value v, uint32_t *out)
{
    uint64_t id;
    if (!json_u64(v, &id) || id >= VOCAB_MAX_IDS) return false;
    *out = (uint32_t)id;
    return true;
}

bool tokload_string(struct json_value v, char *buf, size_t cap, size_t *n)
{
    return json_is(v, JSON_STRING) && json_string(v, buf, cap + 1, n) == 0;
}

static int load(struct loader *l)
{
    if (!json_is(l->root, JSON_OBJECT)) {
        return tokload_refuse(l, "the file", l->root, "it has to be an object");
    }
    int (*const sections[])(struct loader *) = {
        tokload_vocab,          tokload_normalizer, tokload_added_tokens,
        tokload_model_options,  tokload_merges,     tokload_pre_tokenizer,
        tokload_post_processor, tokload_decoder};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(sections); i++) rc = sections[i](l);
    return rc;
}

int tokenizer_open(struct tokenizer **out, const char *data, size_t n, const char *name,
                   struct err *err)
{
    struct err why;
    struct json *json = NULL;
    int rc = crypto_open(&why);
    if (rc == 0 && n > MAX_FILE)
        rc = err_set(&why, -EINVAL, "it is larger than 256 MiB");
    if (rc == 0) rc = json_open(&json, data, n, JSON_MAX_DEPTH, &why);
    if (rc < 0) return err_set(err, rc, "%s: %s", name, why.msg);

    struct tokenizer *t = calloc(1, sizeof *t);
    struct loader l = {t, json_root(json), name, err};
    rc = t ? load(&l) : -ENOMEM;
    if (rc == 0) crypto_hash(&t->content, NULL, data, n);
    json_close(json);
    if (rc == -ENOMEM) err_set(err, rc, "%s: no memory for the tokenizer", name);
    if (rc < 0) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

int tokenizer_open_dir(struct tokenizer **out, const char *dir, struct err *err)
{
    size_t size = strlen(dir) + sizeof "/tokenizer.json", n = 0;
    char *path = malloc(size), *data = NULL;
    if (!path) return err_set(err, -ENOMEM, "no memory for a path");
    snprintf(path, size, "%s/tokenizer.json", dir);
    int rc = file_load(path, MAX_FILE, &data, &n, err);
    if (rc == 0) {
        rc = tokenizer_open(out, data, n, path, err);
        free(data);
    }
    free(path);
    return rc;
}
