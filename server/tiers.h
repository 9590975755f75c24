/* tiers.h - everything below the KV pool, opened in order: tiers, cost model, store.
 *
 * Owns     the copy queue, RAM and SSD tiers, staging buffers, cost model and the store.
 * Caller   opens the KV pool before and closes it after; nothing is in flight at the close
 *          (engine_drain() sees to it).
 * Memory   all taken at open.
 * Threads  one at open and close; then the engine's.
 */
#ifndef SERVER_TIERS_H
#define SERVER_TIERS_H

#include "model/kv_pool.h"
#include "offload/kvstore.h"

#include <pthread.h>

struct tiers_options {
    struct kv_pool *kv;  // borrowed
    bool device;         // its blocks lie in a device's memory
    struct policy policy;
    uint32_t layers;      // of a KV block
    uint64_t ram_bytes;   // 0: no such tier
    const char *ssd_dir;  // "" or NULL: no such tier
    uint64_t ssd_bytes;   // of its file
    bool ssd_threads;     // no io_uring
    struct crypto_hash fingerprint;
    uint32_t max_wakes, max_conversations;
    bool several_tenants;
};

/* The RAM tier while a thread of its own opens it. */
struct tiers_opening {
    pthread_t thread;
    bool running;
    struct tier_ram_options options;
    int rc;
    struct err err;
};

struct tiers {
    struct copyq *copies;
    struct tiers_opening opening;
    struct tier *ram, *ssd;  // NULL where there is none
    struct tier_ssd_found found;
    int registered;  // of the staging: what tier_register() said
    void *staging;
    struct cost *cost;
    struct {
        bool prefill, tier[COST_TIERS];
    } measured;  // at start; what is not, is assumed
    struct kvstore *store;
};

/* Could they be had?  Nothing is changed.  An error is one that tiers_open() would have, and
 * found what it would find but for the blocks: where found->tier_only holds, there is no SSD
 * tier, and found->note says why. */
NODISCARD int tiers_check(const struct tiers_options *o, size_t block_bytes,
                          struct tier_ssd_found *found, struct err *err);

/* Begin, beside what else a start does, what takes long on a device: pinning the RAM tier's
 * memory.  Before the KV pool is there; `out` is zero-initialised.  tiers_open() waits for it,
 * and so does tiers_close(). */
NODISCARD int tiers_begin(struct tiers *out, struct backend *b,
                          const struct tiers_options *o, uint64_t block_bytes,
                          struct err *err);

/* `out` is zero-initialised or begun; tiers_close() also after an error. */
NODISCARD int tiers_open(struct tiers *out, const struct tiers_options *o,
                         struct err *err);
/* What tier_close() says of the SSD. */
uint32_t tiers_close(struct tiers *t);

/* Bytes that tiers_open() will take beside a pool of so many blocks of that size; o->kv is
 * not looked at. */
uint64_t tiers_bytes(const struct tiers_options *o, uint32_t blocks,
                     uint64_t block_bytes);

/* Move a few free blocks of the pool, of no meaning, in and out of each tier, and tell the
 * cost model how long it took; a tier that is full keeps the guess it began with, and is
 * not among `measured`.  Takes some ten milliseconds. */
void tiers_calibrate(struct tiers *t, struct kv_pool *kv);

#endif
