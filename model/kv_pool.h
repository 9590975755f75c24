/* kv_pool.h - the blocks of G1: who holds which, by reference count.
 *
 * Owns     the block memory (through the backend), the free list, the counts.
 * Caller   releases every block it took.
 * Memory   all taken at open; nothing after it allocates.
 * Threads  one; the engine's.
 *
 * A sequence's block table is a plain array that the caller owns.  A block with one
 * holder may be written; one with several is read-only, and who must write it takes a
 * copy first (kv_table_extend does).
 *
 * A block that only somebody else than a sequence holds (a store, for whoever may come back)
 * counts as available: struct kv_room says how many there are, and frees them when a table
 * needs them.
 *
 * Invariants, checked by kv_pool_check():
 *   1. a block is on the free list if and only if its count is 0;
 *   2. used + free == capacity, and n_shared of the used ones have a count above 1.
 */
#ifndef MODEL_KV_POOL_H
#define MODEL_KV_POOL_H

#include "kernels/kernels.h"

#define KV_NO_BLOCK UINT32_MAX

/* Blocks that nobody computes with; all NULL: there are none. */
struct kv_room {
    void *arg;
    uint32_t (*available)(void *arg);  // free blocks, and those that make() could free
    void (*make)(void *arg, uint32_t n);  // free some until n are free, or none is left
};

struct kv_pool {
    struct backend *backend;  // borrowed
    struct kv_room room;      // set by the owner after kv_pool_open()
    struct kv_pool_mem mem;
    uint32_t *refs;       // (n_blocks)
    uint32_t *next_free;  // (n_blocks)
    uint32_t free_head, n_free;
    uint32_t n_shared;  // blocks with several holders
};

NODISCARD int kv_pool_open(struct kv_pool *out, struct backend *b,
                           const struct kv_shape *shape, uint32_t n_blocks,
                           struct err *err);
void kv_pool_close(struct kv_pool *p);  // zero-initialised is fine

uint32_t kv_pool_take(struct kv_pool *p);  // with count 1; KV_NO_BLOCK: none left
void kv_pool_ref(struct kv_pool *p, uint32_t block);
void kv_pool_unref(struct kv_pool *p, uint32_t block);
uint32_t kv_pool_available(const struct kv_pool *p);  // with those that room can free
void *kv_pool_address(const struct kv_pool *p, uint32_t block);
bool kv_pool_check(const struct kv_pool *p);

/* The blocks of one sequence.  `blocks` is the caller's array of `cap` entries. */
struct kv_table {
    uint32_t *blocks;
    uint32_t n_blocks, cap;
};

/* Make positions [from, to) writable: take the blocks that are missing, and replace those
 * that are shared by copies.  -ENOSPC when the pool has too few, though room was asked for
 * more; -E2BIG when the table has.  The table is as before then. */
NODISCARD int kv_table_extend(struct kv_pool *p, struct kv_table *t, uint32_t from,
                              uint32_t to);
/* Make dst (empty) share the blocks of the first `tokens` tokens of src. */
void kv_table_fork(struct kv_pool *p, struct kv_table *dst, const struct kv_table *src,
                   uint32_t tokens);
/* Give up the blocks beyond those of the first `tokens` tokens. */
void kv_table_trim(struct kv_pool *p, struct kv_table *t, uint32_t tokens);
void kv_table_release(struct kv_pool *p, struct kv_table *t);  // all of them

#endif
