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

struct tiers_options {
    struct kv_pool *kv;  // borrowed
    struct policy policy;
    uint64_t ram_bytes;   // 0: no such tier
    const char *ssd_dir;  // "" or NULL: no such tier
    uint64_t ssd_bytes;   // of its file
    bool ssd_threads;     // no io_uring
    struct crypto_hash fingerprint;
    uint32_t max_wakes, max_conversations;
};

struct tiers {
    struct copyq *copies;
    struct tier *ram, *ssd;  // NULL where there is none
    bool ssd_refused;        // what lies in its folder cannot be used: found.note
    struct tier_ssd_found found;
    void *staging;
    struct cost *cost;
    struct kvstore *store;
};

/* A KV block must be a multiple of TIER_ALIGN where there is any tier.  `out` is
 * zero-initialised; tiers_close() also after an error. */
NODISCARD int tiers_open(struct tiers *out, const struct tiers_options *o,
                         struct err *err);
void tiers_close(struct tiers *t);

/* Bytes that tiers_open() will take beside a pool of so many blocks of that size; o->kv is
 * not looked at. */
uint64_t tiers_bytes(const struct tiers_options *o, uint32_t blocks,
                     uint64_t block_bytes);

/* Move a few blocks of no meaning in and out of each tier, and tell the cost model how
 * long it took; a tier that is full keeps the guess it began with.  Takes some ten
 * milliseconds. */
void tiers_calibrate(struct tiers *t);

#endif
