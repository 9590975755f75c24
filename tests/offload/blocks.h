/* blocks.h - blocks for tests: names, tokens and bytes that follow from two numbers. */
#ifndef TESTS_OFFLOAD_BLOCKS_H
#define TESTS_OFFLOAD_BLOCKS_H

#include "offload/block_id.h"

#include <string.h>

static inline uint64_t mix64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline struct block_id block_name(uint32_t conversation, uint32_t depth)
{
    struct block_id id;
    uint64_t state = (uint64_t)conversation << 32 | depth;
    for (size_t i = 0; i < sizeof id; i += sizeof state) {
        uint64_t x = mix64(&state);
        memcpy(id.bytes + i, &x, sizeof x);
    }
    return id;
}

/* Block `depth` of a conversation, which is also the number of its tenant. */
static inline struct block_meta block_meta_of(uint32_t conversation, uint32_t depth)
{
    struct block_meta m = {.depth = depth, .tenant = conversation};
    m.id = block_name(conversation, depth);
    if (depth > 0) m.parent = block_name(conversation, depth - 1);
    for (int i = 0; i < KV_BLOCK_TOKENS; i++)
        m.tokens[i] = (int32_t)(conversation * 1000 + depth * KV_BLOCK_TOKENS) + i;
    return m;
}

static inline void block_fill(void *buf, size_t bytes, const struct block_meta *m)
{
    uint64_t state;
    memcpy(&state, m->id.bytes, sizeof state);
    unsigned char *p = buf;
    for (size_t i = 0; i < bytes; i += sizeof state) {
        uint64_t x = mix64(&state);
        memcpy(p + i, &x, bytes - i < sizeof x ? bytes - i : sizeof x);
    }
}

static inline bool block_holds(const void *buf, size_t bytes,
                               const struct block_meta *m)
{
    uint64_t state;
    memcpy(&state, m->id.bytes, sizeof state);
    const unsigned char *p = buf;
    for (size_t i = 0; i < bytes; i += sizeof state) {
        uint64_t x = mix64(&state);
        if (memcmp(p + i, &x, bytes - i < sizeof x ? bytes - i : sizeof x) != 0)
            return false;
    }
    return true;
}

#endif
