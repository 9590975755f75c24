/* sched_store.h - a store for the scheduler's tests: pages with names, loads that land when
 * the test says, some of them late or never.
 *
 * A block's name is its job's number and its depth, so that a sequence that comes back finds
 * what it left.  Each page that has a name carries one reference of the store's.
 *
 * Threads  one.
 */
#ifndef TESTS_SERVER_SCHED_STORE_H
#define TESTS_SERVER_SCHED_STORE_H

#include "server/sched.h"

#include <stdlib.h>

#define STORE_PAGES 128

struct sched_world_store {
    struct sched *s;
    struct kv_pool *kv;
    bool named[STORE_PAGES];
    uint32_t job[STORE_PAGES], depth[STORE_PAGES];
    uint32_t loaded_of[64];  // by sequence: blocks of its table that are being loaded
    uint32_t adopted, loads, short_loads, later;
    unsigned seed;  // of rand_r
};

static inline uint32_t store_find(const struct sched_world_store *t, uint32_t job,
                                  uint32_t depth)
{
    for (uint32_t i = 0; i < t->kv->mem.n_blocks; i++)
        if (t->named[i] && t->job[i] == job && t->depth[i] == depth) return i;
    return KV_NO_BLOCK;
}

static inline void store_drop(struct sched_world_store *t, uint32_t page)
{
    t->named[page] = false;
    kv_pool_unref(t->kv, page);
}

static inline bool store_idle(const struct sched_world_store *t, uint32_t page)
{
    return t->named[page] && t->kv->refs[page] == 1;
}

static inline uint32_t store_available(void *arg)
{
    struct sched_world_store *t = arg;
    uint32_t n = t->kv->n_free;
    for (uint32_t i = 0; i < t->kv->mem.n_blocks; i++) n += store_idle(t, i);
    return n;
}

static inline void store_make(void *arg, uint32_t n)
{
    struct sched_world_store *t = arg;
    for (uint32_t i = 0; i < t->kv->mem.n_blocks && t->kv->n_free < n; i++)
        if (store_idle(t, i)) store_drop(t, i);
}

/* Sometimes it says that it has to save something first. */
static inline enum sched_room store_has_room(void *arg, uint32_t seq, uint32_t need,
                                             uint32_t most)
{
    struct sched_world_store *t = arg;
    const struct sched_seq *q = &t->s->seqs[seq];
    uint32_t n = store_available(t);
    for (uint32_t d = 0; d < most; d++) {
        uint32_t page = store_find(t, q->job, d);
        if (page == KV_NO_BLOCK) break;
        n += !store_idle(t, page);
    }
    if (need > n) return ROOM_NONE;
    if (rand_r(&t->seed) % 8) return ROOM_NOW;
    t->later++;
    return ROOM_LATER;
}

/* What is there, then sometimes a few more that a lower tier has. */
static inline uint32_t store_adopt(void *arg, uint32_t seq, uint32_t most,
                                   bool *loading)
{
    struct sched_world_store *t = arg;
    struct sched_seq *q = &t->s->seqs[seq];
    uint32_t n = 0;
    for (uint32_t page; n < most && (page = store_find(t, q->job, n)) != KV_NO_BLOCK;
         n++) {
        kv_pool_ref(t->kv, page);
        q->table.blocks[n] = page;
    }
    uint32_t more =
        rand_r(&t->seed) % 3 ? 0 : (uint32_t)rand_r(&t->seed) % (most - n + 1);
    t->adopted += n;
    t->loaded_of[seq] = 0;
    for (; more > 0; more--) {
        if (t->kv->n_free == 0) store_make(t, 1);
        uint32_t page = kv_pool_take(t->kv);
        if (page == KV_NO_BLOCK) break;
        q->table.blocks[n++] = page;
        t->loaded_of[seq]++;
    }
    *loading = t->loaded_of[seq] > 0;
    t->loads += *loading;
    return n;
}

/* Full, computed blocks keep their names; a job's number may be another job's later, which
 * is as good as a prefix that two have in common. */
static inline void store_leave(void *arg, uint32_t seq)
{
    struct sched_world_store *t = arg;
    const struct sched_seq *q = &t->s->seqs[seq];
    t->loaded_of[seq] = 0;
    for (uint32_t d = 0; d < q->n_computed / KV_BLOCK_TOKENS; d++) {
        uint32_t page = q->table.blocks[d];
        if (t->named[page] || store_find(t, q->job, d) != KV_NO_BLOCK) continue;
        kv_pool_ref(t->kv, page);
        t->named[page] = true;
        t->job[page] = q->job;
        t->depth[page] = d;
    }
}

static inline struct sched_store store_functions(struct sched_world_store *t)
{
    return (struct sched_store){t, store_has_room, NULL, store_adopt, store_leave};
}

static inline void store_open(struct sched_world_store *t, struct sched *s,
                              struct kv_pool *kv, unsigned seed)
{
    *t = (struct sched_world_store){.s = s, .kv = kv, .seed = seed};
    s->o.store = store_functions(t);
    kv->room = (struct kv_room){t, store_available, store_make};
}

/* One that wakes is told how many arrived: often all, sometimes fewer. */
static inline void store_land(struct sched_world_store *t, uint32_t seq, uint64_t now)
{
    struct sched_seq *q = &t->s->seqs[seq];
    uint32_t lost =
        rand_r(&t->seed) % 3 ? 0 : (uint32_t)rand_r(&t->seed) % (t->loaded_of[seq] + 1);
    uint32_t n = q->n_adopted - lost;
    for (uint32_t i = n; i < q->n_adopted; i++)
        kv_pool_unref(t->kv, q->table.blocks[i]);
    t->short_loads += lost > 0;
    t->loaded_of[seq] = 0;
    sched_woken(t->s, seq, n, now);
}

static inline void store_step(struct sched_world_store *t, uint64_t now)
{
    for (uint32_t i = 0; i < t->s->o.max_running; i++)
        if (t->s->seqs[i].state == SEQ_WAKING && rand_r(&t->seed) % 3 == 0)
            store_land(t, i, now);
}

static inline void store_close(struct sched_world_store *t)
{
    for (uint32_t i = 0; i < t->kv->mem.n_blocks; i++)
        if (t->named[i]) store_drop(t, i);
    t->kv->room = (struct kv_room){0};
}

#endif
