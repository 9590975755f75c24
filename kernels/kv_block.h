/* kv_block.h - the geometry of one KV block, shared by everybody who touches one.
 *
 * A block holds KV_BLOCK_TOKENS consecutive tokens of one sequence for all layers:
 *
 *     [layer][K,V][kv_head][plane of 16 tokens of head_dim]
 *
 * contiguous, so that one block is one copy between tiers and one extent on disk, and
 * one layer of it is one contiguous slice.  Token i of a sequence lies in entry
 * i / KV_BLOCK_TOKENS of its block table, at place i % KV_BLOCK_TOKENS.
 *
 * K is stored after RoPE.  How a plane is laid out is the backend's own: on the CPU K is
 * [head_dim][token] and V [token][head_dim], so that each is read in the order in which
 * attention multiplies it.
 *
 * Threads  pure functions.
 */
#ifndef KERNELS_KV_BLOCK_H
#define KERNELS_KV_BLOCK_H

#include "kernels/dtype.h"

#define KV_BLOCK_TOKENS 16

struct kv_shape {
    uint32_t layers, kv_heads, head_dim;
    enum dtype dtype;
};

/* Bytes of one token over all layers: 2 * layers * kv_heads * head_dim * element. */
static inline size_t kv_token_bytes(const struct kv_shape *s)
{
    return (size_t)2 * s->layers * s->kv_heads * s->head_dim * dtype_bytes(s->dtype);
}

static inline size_t kv_block_bytes(const struct kv_shape *s)
{
    return kv_token_bytes(s) * KV_BLOCK_TOKENS;
}

/* Byte offset within a block of the plane of one head; v is 0 for K
 * and 1 for V. */
static inline size_t kv_plane_offset(const struct kv_shape *s, uint32_t layer, int v,
                                     uint32_t kv_head)
{
    size_t plane = (size_t)KV_BLOCK_TOKENS * s->head_dim * dtype_bytes(s->dtype);
    return (((size_t)layer * 2 + (size_t)v) * s->kv_heads + kv_head) * plane;
}

static inline uint32_t kv_blocks_for(uint64_t tokens)
{
    return (uint32_t)((tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS);
}

#endif
