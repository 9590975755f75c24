/* block_id.h - the name of a full KV block: what it holds, under which model, for whom.
 *
 *     id = BLAKE2b-256(key, parent id || tokens, little-endian i32)
 *     key = BLAKE2b-256(fingerprint || length of salt, little-endian u64 || salt)
 *     tenant = the first 8 bytes, little-endian, of BLAKE2b-256("dormouse tenant" || name)
 *
 * The parent's id stands for all tokens before the block, so that equal ids mean equal
 * prefixes; the first block's parent is all zeros.  The key keeps tenants apart: with
 * another salt no name can be guessed or met.  Names decide nothing alone: the tokens are
 * kept with a block and compared on every match.
 *
 * Caller   has opened kernels/crypto.h.
 * Threads  pure functions.
 */
#ifndef OFFLOAD_BLOCK_ID_H
#define OFFLOAD_BLOCK_ID_H

#include "kernels/crypto.h"
#include "kernels/kv_block.h"

struct block_id {
    uint8_t bytes[CRYPTO_HASH_BYTES];
};

struct block_key {  // of one tenant, or of a group that shares
    uint8_t bytes[CRYPTO_KEY_BYTES];
};

/* Everything known of a full block besides its K and V. */
struct block_meta {
    struct block_id id, parent;
    int32_t tokens[KV_BLOCK_TOKENS];
    uint32_t depth;   // blocks before it
    uint64_t tenant;  // whose quota it counts in: block_tenant()
};

void block_key_derive(struct block_key *out, const struct crypto_hash *fingerprint,
                      const void *salt, size_t salt_n);
/* Fills `out` for the KV_BLOCK_TOKENS tokens that follow the block before (NULL: none),
 * which may be `out` itself. */
void block_meta_next(struct block_meta *out, const struct block_meta *before,
                     const struct block_key *key, const int32_t *tokens,
                     uint64_t tenant);
uint64_t block_tenant(const char *name);  // a tenant's number, the same after a restart

static inline bool block_id_equal(const struct block_id *a, const struct block_id *b)
{
    return __builtin_memcmp(a, b, sizeof *a) == 0;
}

/* Field by field: a struct has padding. */
static inline bool block_meta_equal(const struct block_meta *a,
                                    const struct block_meta *b)
{
    return block_id_equal(&a->id, &b->id) && block_id_equal(&a->parent, &b->parent) &&
           __builtin_memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0 &&
           a->depth == b->depth && a->tenant == b->tenant;
}

#endif
