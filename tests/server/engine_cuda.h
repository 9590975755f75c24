/* engine_cuda.h - an engine on the CUDA backend whose conversations sleep, and histories of them.
 *
 * Steps have at most 32 rows, so that own kernels compute all of them and the promise of
 * kernels.h holds whole.  Under TSan, where a CUDA thread costs a hundred times as much, there
 * is less of everything, and as what synchronises costs in proportion to all threads that ever
 * were, no two worlds that compute are open at a time.
 *
 * Owns     the worlds' folder (engine_sleep.h).
 * Threads  the test's own.
 */
#ifndef TESTS_SERVER_ENGINE_CUDA_H
#define TESTS_SERVER_ENGINE_CUDA_H

#include "tests/cuda_on_cpu/sanitizers.h"
#include "tests/cuda_on_cpu/standin.h"
#include "tests/random.h"
#include "tests/server/engine_sleep.h"

#define REPLY 6  // tokens of a reply here

static struct client other;

static inline struct world_options on_device(uint32_t blocks, uint32_t ram,
                                             uint32_t ssd)
{
    struct world_options o = sleeping(ram, ssd);
    o.device = "cuda";
    o.f16 = true;
    o.blocks = blocks;
    o.context = 512;
    o.max_running = 4;
    o.step_tokens = 32;
    o.keeps = ram || ssd;
    return o;
}

/* Ends the test where there is no device. */
static inline void need_device(void)
{
    struct backend *b = NULL;
    struct err err = {{0}};
    const struct backend_options o = {.limits = {1, 1, 1, 16, 1, 1}};
    int rc = backend_open(&b, "cuda", &o, &err);
    if (rc == -ENODEV) {
        print_message("skipped: %s\n", err.msg);
        skip();
    }
    if (rc < 0) fail_msg("%s", err.msg);
    backend_close(b);
}

/* ---- histories ---- */

#define CONVERSATIONS 6

static inline void assert_answered(const struct client *c, const struct world *w)
{
    struct err why = {{0}};
    const struct event *end = &c->choices[0].end;
    if (end->reason == FINISH_LENGTH) return;
    engine_failure(w->engine, &why);
    fail_msg("a reply ended by %d, status %d: %s", end->reason, end->status, why.msg);
}

/* Conversations grow in any order: each turn's prompt is the beginning of one endless text,
 * a little longer than before.  Beside it another one's is asked again, where it is another. */
struct turn {
    uint32_t talk[2], length[2], n;
    struct client right[2];  // of one that never slept
};

static inline void make_history(struct turn *turns, uint32_t n, uint64_t seed)
{
    uint32_t length[CONVERSATIONS];
    for (uint32_t i = 0; i < CONVERSATIONS; i++) length[i] = 10 + 7 * i;
    for (struct turn *t = turns; t < turns + n; t++) {
        uint32_t i = random_below(&seed, CONVERSATIONS);
        uint32_t j = random_below(&seed, CONVERSATIONS);
        length[i] += random_below(&seed, 25);
        if (length[i] > 120) length[i] = 120;
        t->n = i == j ? 1 : 2;
        t->talk[0] = i;
        t->talk[1] = j;
        t->length[0] = length[i];
        t->length[1] = length[j];
    }
}

static inline struct request *request_of(const struct world *w, const struct turn *t,
                                         uint32_t k)
{
    char name[16];
    snprintf(name, sizeof name, "talk %u", t->talk[k]);
    return named(prompt_of(w, t->length[k], t->talk[k], 0, REPLY), name);
}

static inline void answer_cold(struct world *w, struct turn *turns, uint32_t n)
{
    for (struct turn *t = turns; t < turns + n; t++)
        for (uint32_t k = 0; k < t->n; k++) {
            client_ask(&t->right[k], w,
                       prompt_of(w, t->length[k], t->talk[k], 0, REPLY));
            assert_answered(&t->right[k], w);
        }
}

/* Over a pool that holds two of them. */
static inline void run_history(struct world *w, const struct turn *turns, uint32_t n)
{
    static struct client reply[2];
    for (const struct turn *t = turns; t < turns + n; t++) {
        for (uint32_t k = 0; k < t->n; k++)
            client_begin(&reply[k], w, request_of(w, t, k));
        for (uint32_t k = 0; k < t->n; k++) {
            client_read(&reply[k]);
            client_end(&reply[k]);
            assert_answered(&reply[k], w);
            assert_same(&t->right[k], &reply[k]);
        }
    }
}

/* Wakes that began while blocks were arriving, of an engine that is not asked any more. */
static inline uint64_t begun_early(struct world *w)
{
    struct kvstore_counters c;
    engine_drain(w->engine, 0);
    kvstore_count(w->tiers.store, &c);
    return c.began_early;
}

#endif
