/* api_server.h - the API of a tiny model over a real engine.
 *
 * Owns     what server_open() opened, until server_close().
 */
#ifndef TESTS_SERVER_API_SERVER_H
#define TESTS_SERVER_API_SERVER_H

#include "tests/server/api_fixture.h"
#include "tests/server/engine_fixture.h"

struct server {
    struct world w;
    struct chat_template *chat;
    struct api *api;
};

static inline void server_open(struct server *s, const struct world_options *o)
{
    struct err err = {"?"};
    world_open(&s->w, o);
    assert_int_equal(chat_open_dir(&s->chat, MODELS "tiny-rand", &err), 0);
    struct api_options ao = {
        .model_name = "tiny-rand",
        .tokenizer = s->w.tokenizer,
        .chat = s->chat,
        .config = &s->w.model.config,
        .engine = s->w.engine,
        .metrics = s->w.metrics,
        .max_choices = 8,
    };
    assert_int_equal(api_open(&s->api, &ao, &err), 0);
}

static inline void server_close(struct server *s)
{
    world_close(&s->w);
    api_close(s->api);
    chat_close(s->chat);
}

static inline void wake_reader(void *arg)
{
    sem_post(arg);
}

/* The whole answer of a body that is right.  name: as X-Conversation-Id would give it, or
 * NULL. */
static inline struct bytes ask(struct server *s, enum api_kind kind, uint32_t tenant,
                               const char *body, const char *name)
{
    struct api_call *c;
    struct api_error e = {0};
    struct bytes out = {0};
    sem_t woken;
    sem_init(&woken, 0, 0);
    if (api_prepare(s->api, kind, body, strlen(body), tenant, &c, &e) < 0)
        fail_msg("%s", e.message);
    if (name) api_call_name(c, name);
    if (api_submit(c, wake_reader, &woken, &e) < 0) fail_msg("%s", e.message);
    while (read_on(c, &out, &e) != API_DONE) sem_wait(&woken);
    api_call_free(c);
    sem_destroy(&woken);
    return out;
}

#endif
