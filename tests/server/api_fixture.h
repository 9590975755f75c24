/* api_fixture.h - what the API's tests share: a tiny model's API without an engine, calls
 * whose events the test pushes itself, and a look into JSON by path. */
#ifndef TESTS_SERVER_API_FIXTURE_H
#define TESTS_SERVER_API_FIXTURE_H

#include "kernels/utf8.h"
#include "server/api_internal.h"
#include "tests/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODELS  "tests/golden/models/"
#define BODIES  "tests/golden/cases/bodies/"
#define CONTEXT 131072
#define USER(x) "\"messages\":[{\"role\":\"user\",\"content\":\"" x "\"}]"
#define BODY(x) "{" USER("x") x "}"

struct fixture {
    struct api api;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct model_config config;
};

/* The template of `dir`, where it has one, with the tokenizer of tiny-rand. */
static inline void fixture_open_template(struct fixture *f, const char *dir)
{
    struct err err = {"?"};
    *f = (struct fixture){0};
    if (tokenizer_open_dir(&f->tokenizer, MODELS "tiny-rand", &err) < 0 ||
        model_config_load(&f->config, MODELS "tiny-rand", &err) < 0) {
        fail_msg("%s", err.msg);
    }
    int rc = chat_open_dir(&f->chat, dir, &err);
    if (rc < 0 && rc != -ENOENT) fail_msg("%s", err.msg);
    f->api = (struct api){
        .o = {.model_name = "tiny-rand",
              .created = 1700000000,
              .tokenizer = f->tokenizer,
              .chat = f->chat,
              .config = &f->config,
              .max_choices = 8},
        .capacity = CONTEXT,
        .event_text = 1024,
    };
}

static inline void fixture_open(struct fixture *f)
{
    fixture_open_template(f, MODELS "tiny-rand");
}

static inline void fixture_close(struct fixture *f)
{
    chat_close(f->chat);
    tokenizer_close(f->tokenizer);
}

/* The value at a path like "choices/0/delta/role"; does not exist where a step fails. */
static inline struct json_value json_at(struct json_value v, const char *path)
{
    char step[64];
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");
        snprintf(step, sizeof step, "%.*s", (int)n, p);
        p += n + (p[n] == '/');
        if (!json_is(v, JSON_ARRAY)) {
            v = json_get(v, step);
            continue;
        }
        int left = atoi(step);
        struct json_iter i = json_iter(v);
        bool found = json_next(&i);
        while (found && left-- > 0) found = json_next(&i);
        v = found ? i.value : (struct json_value){0};
    }
    return v;
}

#define assert_json(doc, path, wanted)                                                 \
    do {                                                                               \
        size_t raw_n_;                                                                 \
        const char *raw_ = json_raw(json_at(json_root(doc), path), &raw_n_);           \
        if (!raw_) fail_msg("there is no %s", path);                                   \
        char *got_ = strndup(raw_, raw_n_);                                            \
        assert_string_equal(got_, wanted);                                             \
        free(got_);                                                                    \
    } while (0)

/* Everything the API writes passes this strict reader. */
static inline struct json *json_of(const char *text, size_t n)
{
    struct json *j = NULL;
    struct err err;
    if (json_open(&j, text, n, 64, &err) < 0) {
        fail_msg("%s: %.*s", err.msg, (int)(n < 2000 ? n : 2000), text);
    }
    return j;
}

/* ---- a call, its engine being the test ---- */

static inline struct api_call *prepare(struct fixture *f, enum api_kind kind,
                                       const char *body)
{
    struct api_call *c = NULL;
    struct api_error e = {0};
    if (api_prepare(&f->api, kind, body, strlen(body), 0, &c, &e) < 0) {
        fail_msg("%s: %s", e.param, e.message);
    }
    return c;
}

static inline struct request *request_of(struct api_call *c, uint32_t part)
{
    return c->part[part].request;
}

/* One token with its logprob and one alternative as likely. */
static inline void push_token(struct api_call *c, uint32_t part, uint16_t choice,
                              int32_t id, const char *text)
{
    struct event e = {
        .kind = EVENT_TOKEN,
        .choice = choice,
        .has_logprob = c->logprobs,
        .sample = {.id = id, .logprob = -0.5f, .n_top = 1, .top = {{id, -0.5f}}},
        .text = text,
        .text_n = strlen(text),
    };
    request_push(request_of(c, part), &e);
}

static inline void push_finish(struct api_call *c, uint32_t part, uint16_t choice,
                               enum finish_reason why, const char *text,
                               uint32_t tokens)
{
    struct event e = {
        .kind = EVENT_FINISH,
        .choice = choice,
        .reason = why,
        .text = text,
        .text_n = strlen(text),
        .completion_tokens = tokens,
    };
    request_push(request_of(c, part), &e);
}

static inline void push_error(struct api_call *c, int status, const char *text)
{
    struct event e = {.kind = EVENT_FINISH,
                      .reason = FINISH_ERROR,
                      .status = status,
                      .text = text,
                      .text_n = strlen(text)};
    request_push(request_of(c, 0), &e);
}

/* Read until the call has nothing more now. */
static inline enum api_state read_on(struct api_call *c, struct bytes *out,
                                     struct api_error *e)
{
    enum api_state s;
    while ((s = api_call_read(c, out, 4096, e)) == API_MORE) {
    }
    assert_false(out->failed);
    return s;
}

/* The n-th frame of a stream as JSON; NULL for "[DONE]" and beyond the end. */
static inline struct json *frame_of(const struct bytes *out, int n)
{
    const char *p = out->data, *end = out->data + out->n;
    for (; p < end; n--) {
        const char *close = memmem(p, (size_t)(end - p), "\n\n", 2);
        assert_non_null(close);
        assert_memory_equal(p, "data: ", 6);
        if (n == 0) {
            p += 6;
            if (memcmp(p, "[DONE]", 6) == 0) return NULL;
            return json_of(p, (size_t)(close - p));
        }
        p = close + 2;
    }
    return NULL;
}

static inline int count_frames(const struct bytes *out)
{
    int n = 0;
    for (const char *p = out->data; (p = strstr(p, "\n\n")); p += 2) n++;
    return n;
}

#endif
