/* bench_batch.h - the batch that the benchmarks of the operations compute.
 *
 * Owns     nothing: the arrays are the caller's, as large as the largest batch.
 * Threads  a pure function.
 */
#ifndef TESTS_BENCH_BATCH_H
#define TESTS_BENCH_BATCH_H

#include "kernels/kernels.h"

struct batch_arrays {
    uint32_t *pos;                      // (seqs * rows)
    uint32_t *row_start, *block_start;  // (seqs + 1)
    uint32_t *blocks;                   // (seqs * kv_blocks_for(context))
};

/* seqs sequences of `rows` rows whose last position is context - 1. */
static inline struct batch batch_fill(const struct batch_arrays *a, uint32_t seqs,
                                      uint32_t rows, uint32_t context)
{
    uint32_t blocks = kv_blocks_for(context);
    for (uint32_t s = 0; s <= seqs; s++) {
        a->row_start[s] = s * rows;
        a->block_start[s] = s * blocks;
    }
    for (uint32_t r = 0; r < seqs * rows; r++) a->pos[r] = context - rows + r % rows;
    // As a pool in use hands them out: neighbours in a table are none in memory.
    uint32_t last = (seqs * blocks - 1) & ~1u;
    for (uint32_t i = 0; i < seqs * blocks; i++) a->blocks[i] = i % 2 ? i : last - i;
    return (struct batch){
        .n_rows = seqs * rows,
        .n_seqs = seqs,
        .pos = a->pos,
        .row_start = a->row_start,
        .block_start = a->block_start,
        .blocks = a->blocks,
    };
}

#endif
