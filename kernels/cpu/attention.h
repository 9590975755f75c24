/* attention.h - what the files of attention share; private to attention*.c.
 *
 * Exactness: positions are cut into segments of 256 at fixed places.  Within a segment a
 * query goes over chunks of 64, at fixed places too, in order with an online softmax that
 * starts empty (attention_tile.c); the segments are then joined in order (attention.c).  So
 * what a query computes depends on its position and window only.
 *
 * Owns     nothing: a tile's memory is its thread's scratch.
 * Threads  a tile is one thread's; the job is read by all.
 */
#ifndef KERNELS_CPU_ATTENTION_H
#define KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/cpu.h"

#define CHUNK_BLOCKS   4
#define CHUNK          (CHUNK_BLOCKS * KV_BLOCK_TOKENS)
#define SEGMENT_BLOCKS 16
#define SEGMENT        (SEGMENT_BLOCKS * KV_BLOCK_TOKENS)
#define TILE_QUERIES   64  // query vectors of an item, where a group has no more

_Static_assert(KV_BLOCK_TOKENS == PANEL, "scores of one block are one panel wide");
_Static_assert(SEGMENT_BLOCKS % CHUNK_BLOCKS == 0, "a chunk lies in one segment");

struct attention_job {
    const struct cpu *cpu;
    float *out;
    const struct buffer *qkv;
    const struct kv_pool_mem *kv;
    uint32_t layer;
    const struct attention_shape *shape;
    uint32_t group;                   // query heads of a KV head
    uint32_t dim;                     // head_dim
    uint32_t padded;                  // head_dim in whole panels
    uint32_t n_items;                 // without the factor of kv_heads
    enum dtype type;                  // of K and V
    size_t token_bytes, block_bytes;  // of one head's K, and of the whole block
};

/* What an item reads: blocks first <= block < end of a sequence, for one KV head. */
struct reach {
    const uint32_t *table;  // the sequence's blocks
    const char *plane[2];   // K and V of the head in block 0 of the pool
    uint32_t first, end;
};

/* An item at work.  Query vector r * group + g is head g of the group in row r. */
struct tile {
    const struct attention_job *job;
    const struct attention_item *item;
    uint32_t kv_head;
    const uint32_t *pos;       // (n_rows)
    struct reach reach, next;  // of this item, and of that which this thread has next

    float *q;            // (queries, dim), scaled
    float *sum, *total;  // (queries, padded) of the segment, and of those before it
    float *m, *l;        // (queries) likewise: running maximum and sum of softmax
    float *total_m, *total_l;
    float *scores;  // (queries, CHUNK)
    float *values;  // V of one chunk, as [CHUNK][padded]
};

static inline size_t attention_padded(uint32_t dim)
{
    return ALIGN_UP((size_t)dim, PANEL);
}

/* The first key that the query at `pos` sees. */
static inline uint32_t attention_first_key(const struct attention_job *j, uint32_t pos)
{
    uint32_t w = j->shape->window;
    return w && pos >= w ? pos - w + 1 : 0;
}

/* Lay out a tile, of which job, item, pos, reach and next are set, in its thread's scratch of
 * cpu_attention_scratch() floats, and fill q. */
void attention_tile_set_up(struct tile *t, float *scratch);

/* One segment into sum, m and l; blocks that the tile does not reach are not read. */
void attention_tile_segment(const struct tile *t, uint32_t segment);

#endif
