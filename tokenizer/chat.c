#include "tokenizer/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/file.h"
#include "tokenizer/jinja.h"

#define MAX_CONTEXT_DEPTH 64
#define MAX_FILE          ((size_t)64 << 20)

#define HASH_TAG "dormouse chat 1"

struct script {
    struct jinja *code;          // NULL: there is none
    struct crypto_hash content;  // of its source
};

struct chat_template {
    struct script plain;
    struct script with_tools;  // none: `plain` serves both
    char *bos, *eos;           // NULL where the model names none
    char *source_name;
};

/* ---- opening ------------------------------------------------------------------ */

/* A whole file; -ENOENT where there is none, without a message. */
static int read_file(const char *path, char **out, size_t *out_n, struct err *err)
{
    struct err why = {{0}};
    int rc = file_load(path, MAX_FILE, out, out_n, &why);
    return rc < 0 && rc != -ENOENT ? err_set(err, rc, "%s", why.msg) : rc;
}

static char *join(const char *a, const char *b, const char *c)
{
    size_t n = strlen(a) + strlen(b) + strlen(c) + 1;
    char *s = malloc(n);
    if (s) snprintf(s, n, "%s%s%s", a, b, c);
    return s;
}

static int no_memory(struct err *err)
{
    return err_set(err, -ENOMEM, "out of memory for the chat template");
}

/* A special token: a string, or an object with "content".  *out is NULL where none. */
static int read_token(struct json_value config, const char *key, const char *path,
                      char **out, struct err *err)
{
    struct json_value v = json_get(config, key);
    if (json_is(v, JSON_OBJECT)) v = json_get(v, "content");
    *out = NULL;
    if (!json_exists(v) || json_is(v, JSON_NULL)) return 0;
    if (!json_is(v, JSON_STRING))
        return err_set(err, -EINVAL, "%s: %s is %s; it must be a string", path, key,
                       json_type_name(v));
    size_t n;
    char *s = json_string_dup(v, &n);
    if (!s) return no_memory(err);
    if (memchr(s, 0, n)) {
        free(s);
        return err_set(err, -EINVAL, "%s: %s contains a NUL character", path, key);
    }
    *out = s;
    return 0;
}

static int compile(struct script *out, const char *source, size_t n, const char *name,
                   struct err *err)
{
    struct err why = {{0}};
    int rc = crypto_open(&why);
    if (rc == 0) rc = jinja_compile(&out->code, source, n, &why);
    if (rc == 0) crypto_hash(&out->content, NULL, source, n);
    return rc && name ? err_set(err, rc, "%s: %s", name, why.msg)
           : rc       ? err_set(err, rc, "%s", why.msg)
                      : 0;
}

static int compile_json(struct script *out, struct json_value source, const char *name,
                        struct err *err)
{
    if (!json_is(source, JSON_STRING))
        return err_set(err, -EINVAL, "%s is %s; it must be a string", name,
                       json_type_name(source));
    size_t n;
    char *text = json_string_dup(source, &n);
    if (!text) return no_memory(err);
    int rc = compile(out, text, n, name, err);
    free(text);
    return rc;
}

/* "chat_template" of tokenizer_config.json: one template, or a list of named ones. */
static int open_from_config(struct chat_template *t, struct json_value config,
                            const char *path, struct err *err)
{
    struct json_value v = json_get(config, "chat_template");
    t->source_name = join("chat_template of ", path, "");
    if (!t->source_name) return no_memory(err);
    if (!json_exists(v) || json_is(v, JSON_NULL))
        return err_set(err, -ENOENT,
                       "the model has no chat template: no chat_template.jinja "
                       "and no chat_template in %s",
                       path);
    if (!json_is(v, JSON_ARRAY)) return compile_json(&t->plain, v, t->source_name, err);
    for (struct json_iter i = json_iter(v); json_next(&i);) {
        struct json_value name = json_get(i.value, "name");
        bool tools = json_equals(name, "tool_use");
        struct script *slot = tools ? &t->with_tools : &t->plain;
        if ((!tools && !json_equals(name, "default")) || slot->code) continue;
        int rc = compile_json(slot, json_get(i.value, "template"), t->source_name, err);
        if (rc) return rc;
    }
    if (t->plain.code) return 0;
    return err_set(err, -ENOENT, "%s names no template \"default\"", t->source_name);
}

static int open_parts(struct chat_template *t, const char *dir, const char *file,
                      const char *config_path, struct err *err)
{
    struct json *config = NULL;
    char *text = NULL;
    size_t n = 0;
    struct err why;
    int rc = read_file(config_path, &text, &n, err);
    if (rc == 0 && (rc = json_open(&config, text, n, JSON_MAX_DEPTH, &why)) != 0)
        err_set(err, rc, "%s: %s", config_path, why.msg);
    if (rc == -ENOENT) rc = 0;
    struct json_value root = config ? json_root(config) : (struct json_value){0};
    if (!rc) rc = read_token(root, "bos_token", config_path, &t->bos, err);
    if (!rc) rc = read_token(root, "eos_token", config_path, &t->eos, err);

    char *source = NULL;
    size_t n_source;
    if (!rc) {
        rc = read_file(file, &source, &n_source, err);
        if (rc == 0) {
            t->source_name = join(dir, "/chat_template.jinja", "");
            rc = t->source_name ? compile(&t->plain, source, n_source, file, err)
                                : no_memory(err);
        } else if (rc == -ENOENT) {
            rc = open_from_config(t, root, config_path, err);
        }
    }
    free(source);
    json_close(config);
    free(text);
    return rc;
}

int chat_open_dir(struct chat_template **out, const char *dir, struct err *err)
{
    struct chat_template *t = calloc(1, sizeof *t);
    char *file = join(dir, "/chat_template.jinja", "");
    char *config = join(dir, "/tokenizer_config.json", "");
    int rc =
        t && file && config ? open_parts(t, dir, file, config, err) : no_memory(err);
    free(file);
    free(config);
    if (rc) {
        chat_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

int chat_open(struct chat_template **out, const char *source, size_t n, const char *bos,
              const char *eos, struct err *err)
{
    struct chat_template *t = calloc(1, sizeof *t);
    if (!t) return no_memory(err);
    t->bos = bos ? strdup(bos) : NULL;
    t->eos = eos ? strdup(eos) : NULL;
    t->source_name = strdup("a template in memory");
    int rc = (bos && !t->bos) || (eos && !t->eos) || !t->source_name
                 ? no_memory(err)
                 : compile(&t->plain, source, n, NULL, err);
    if (rc) {
        chat_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void chat_close(struct chat_template *t)
{
    if (!t) return;
    jinja_free(t->plain.code);
    jinja_free(t->with_tools.code);
    free(t->bos);
    free(t->eos);
    free(t->source_name);
    free(t);
}

static void add_part(struct crypto_state *s, const struct crypto_hash *content)
{
    crypto_add_u32(s, content != NULL);
    if (content) crypto_add(s, content->bytes, sizeof content->bytes);
}

static void add_script(struct crypto_state *s, const struct script *x)
{
    add_part(s, x->code ? &x->content : NULL);
}

static void add_text(struct crypto_state *s, const char *text)
{
    struct crypto_hash content;
    if (text) crypto_hash(&content, NULL, text, strlen(text));
    add_part(s, text ? &content : NULL);
}

void chat_content_hash(const struct chat_template *t, struct crypto_hash *out)
{
    struct crypto_state s;
    crypto_begin(&s, NULL);
    crypto_add(&s, HASH_TAG, sizeof HASH_TAG - 1);
    add_script(&s, &t->plain);
    add_script(&s, &t->with_tools);
    add_text(&s, t->bos);
    add_text(&s, t->eos);
    crypto_end(&s, out);
}

const char *chat_source_name(const struct chat_template *t)
{
    return t->source_name;
}

const char *chat_eos_token(const struct chat_template *t)
{
    return t->eos ? t->eos : "";
}

/* ---- rendering ---------------------------------------------------------------- */

void chat_text_free(struct chat_text *c)
{
    free(c->text);
    free(c->plain);
    *c = (struct chat_text){0};
}

/* The runs of marked bytes. */
static int find_spans(const uint8_t *marks, size_t n, struct chat_text *out)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += marks[i] && (i == 0 || !marks[i - 1]);
    if (count == 0) return 0;
    out->plain = malloc(count * sizeof *out->plain);
    if (!out->plain) return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        if (!marks[i]) continue;
        size_t from = i;
        while (i < n && marks[i]) i++;
        out->plain[out->n_plain++] = (struct text_span){from, i};
    }
    return 0;
}

static int describe(const struct jinja_fault *why, int rc, struct err *err)
{
    if (rc == -ENOMEM) return no_memory(err);
    if (rc == -E2BIG)
        return err_set(err, rc, "the chat template was stopped on line %u: %s",
                       why->line, why->message);
    if (strcmp(why->kind, "raise_exception") == 0)
        return err_set(err, rc, "the chat template refuses: %s", why->message);
    return err_set(err, rc,
                   "the chat template cannot render these messages: %s on line %u: %s",
                   why->kind, why->line, why->message);
}

int chat_render(const struct chat_template *t, const char *context, size_t n,
                int64_t now, struct chat_text *out, struct err *err)
{
    struct json *json;
    struct jinja_output text;
    struct jinja_fault why = {.kind = "", .line = 0};
    int rc = json_open(&json, context, n, MAX_CONTEXT_DEPTH, err);
    if (rc) return rc;
    struct jinja_input in = {.context = json_root(json),
                             .context_size = n,
                             .bos = t->bos,
                             .eos = t->eos,
                             .now = now};
    if (!json_is(in.context, JSON_OBJECT)) {
        rc = err_set(err, -EINVAL,
                     "the context of a chat template is %s; it must be an "
                     "object",
                     json_type_name(in.context));
        json_close(json);
        return rc;
    }
    struct json_value tools = json_get(in.context, "tools");
    bool given = json_exists(tools) && !json_is(tools, JSON_NULL);
    rc = jinja_render(given && t->with_tools.code ? t->with_tools.code : t->plain.code,
                      &in, &text, &why);
    json_close(json);
    if (rc) return describe(&why, rc, err);
    struct chat_text made = {.text = text.text, .n = text.n};
    rc = find_spans(text.marks, text.n, &made);
    free(text.marks);
    if (rc) {
        chat_text_free(&made);
        return no_memory(err);
    }
    *out = made;
    return 0;
}
