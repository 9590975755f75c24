/* tokload_output.c - "post_processor" and "decoder" of tokenizer.json. */
#include "tokenizer/tokload.h"

#include <stdlib.h>

#define MAX_AFFIX 64  // ids before or after a sequence

static int append_ids(struct loader *l, const char *path, struct json_value name,
                      struct json_value ids, struct token_list *out)
{
    if (json_count(ids) == 0) {
        return tokload_refuse(l, path, name, "special_tokens does not give its ids");
    }
    for (struct json_iter i = json_iter(ids); json_next(&i);) {
        uint32_t id;
        if (!tokload_id(i.value, &id) || !vocab_flags(&l->t->vocab, id)) {
            return tokload_refuse(l, path, i.value, "no token has this id");
        }
        if (out->n == MAX_AFFIX) {
            return tokload_refuse(l, path, name, "more than 64 ids are added");
        }
        out->ids[out->n++] = (int32_t)id;
    }
    return 0;
}

/* "single": special tokens, the sequence A once, special tokens. */
static int load_template(struct loader *l, struct json_value v, const char *path)
{
    struct tokenizer *t = l->t;
    struct json_value single = json_get(v, "single");
    if (t->prefix.ids) {
        return tokload_refuse(l, path, json_get(v, "type"), "there is a second one");
    }
    t->prefix.ids = calloc(MAX_AFFIX, sizeof *t->prefix.ids);
    t->suffix.ids = calloc(MAX_AFFIX, sizeof *t->suffix.ids);
    if (!t->prefix.ids || !t->suffix.ids) return -ENOMEM;

    bool met = false;
    for (struct json_iter i = json_iter(single); json_next(&i);) {
        struct json_value sequence = json_get(i.value, "Sequence");
        struct json_value special = json_get(json_get(i.value, "SpecialToken"), "id");
        char name[ADDED_TOKEN_MAX + 1];
        size_t n;
        if (json_equals(json_get(sequence, "id"), "A") && !met) {
            met = true;
            continue;
        }
        if (!tokload_string(special, name, ADDED_TOKEN_MAX, &n)) {
            return tokload_refuse(l, path, i.value,
                                  "\"single\" is special tokens around one sequence A");
        }
        struct json_value entry = json_get(json_get(v, "special_tokens"), name);
        int rc = append_ids(l, path, special, json_get(entry, "ids"),
                            met ? &t->suffix : &t->prefix);
        if (rc < 0) return rc;
    }
    return met ? 0 : tokload_refuse(l, path, single, "\"single\" has no sequence A");
}

static int load_processor(struct loader *l, struct json_value v, const char *path,
                          unsigned depth, void *none)
{
    struct json_value type = json_get(v, "type");
    if (json_equals(type, "ByteLevel")) return 0;  // it only moves offsets
    if (json_equals(type, "TemplateProcessing")) return load_template(l, v, path);
    if (!json_equals(type, "Sequence") || depth == TOKLOAD_MAX_DEPTH) {
        return tokload_refuse(
            l, path, json_exists(type) ? type : v,
            "only null, Sequence, TemplateProcessing and ByteLevel are "
            "supported");
    }
    return tokload_each(l, v, "processors", path, depth, load_processor, none);
}

int tokload_post_processor(struct loader *l)
{
    struct json_value v = json_get(l->root, "post_processor");
    if (!json_exists(v) || json_is(v, JSON_NULL)) return 0;
    return load_processor(l, v, "post_processor", 0, NULL);
}

int tokload_decoder(struct loader *l)
{
    struct json_value v = json_get(l->root, "decoder"), type = json_get(v, "type");
    if (json_equals(type, "ByteLevel")) return 0;
    return tokload_refuse(l, "decoder", json_exists(type) ? type : v,
                          "only ByteLevel is supported");
}
