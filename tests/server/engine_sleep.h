/* engine_sleep.h - an engine whose conversations sleep, and conversations by their names.
 *
 * Owns     a folder for the SSD of one world at a time.
 * Threads  the test's own.
 */
#ifndef TESTS_SERVER_ENGINE_SLEEP_H
#define TESTS_SERVER_ENGINE_SLEEP_H

#include "tests/files.h"
#include "tests/server/engine_prompts.h"

#define TURNS 8  // tokens of a reply

static struct client client;
static char folder[256];

static inline struct world_options sleeping(uint32_t ram, uint32_t ssd)
{
    return (struct world_options){
        .model = "tiny-rand",
        .keeps = true,
        .ram_blocks = ram,
        .ssd_blocks = ssd,
        .ssd_dir = folder,
    };
}

static const struct world_options forgetful = {.model = "tiny-rand"};

static inline void empty_folder(void)
{
    if (access(folder, F_OK) == 0) files_remove_dir(strdup(folder));
}

/* ---- conversations by name ---- */

static inline bool look_up(struct world *w, const char *name,
                           struct kv_conversation *out)
{
    struct err err;
    struct engine_command c = {.op = ENGINE_FIND, .list = out, .cap = 1};
    strcpy(c.name, name);
    return engine_command(w->engine, &c, &err) == 0;
}

/* Whether nothing of it is in G1, and all of it has arrived in `source`. */
static inline bool is_asleep(struct world *w, const char *name, enum kv_source source)
{
    struct kv_conversation c;
    assert_true(look_up(w, name, &c));
    return c.blocks[KV_DEVICE] == 0 && c.state == KV_ASLEEP &&
           (c.blocks[source] >= c.tokens / 16 || c.tokens < 16);
}

static inline void wait_asleep(struct world *w, const char *name, enum kv_source source)
{
    while (!is_asleep(w, name, source)) usleep(500);
}

static inline struct request *named(struct request *r, const char *name)
{
    strcpy(r->conversation, name);
    return r;
}

/* As client_ask(), and what its start was like. */
static inline struct kv_wake_report ask(struct client *c, struct world *w,
                                        struct request *r)
{
    client_begin(c, w, r);
    client_read(c);
    struct kv_wake_report report = c->r->wake;
    client_end(c);
    return report;
}

static inline int run_in_folder(const struct CMUnitTest *tests, size_t n)
{
    char *base = files_temp_dir();
    snprintf(folder, sizeof folder, "%s/ssd", base);
    int rc = _cmocka_run_group_tests("sleep", tests, n, NULL, NULL);
    empty_folder();
    files_remove_dir(base);
    return rc;
}

#endif
