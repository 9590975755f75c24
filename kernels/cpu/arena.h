/* arena.h - memory for the weights: many arrays side by side in few pieces of huge pages.
 *
 * A matrix of a small model is smaller than a huge page.  In ordinary pages the hardware
 * stops to look ahead at the end of each 4 KiB, and a step that reads all weights once
 * waits there.
 *
 * Owns     its pieces; one is given back when its last array is.
 * Threads  one at a time.
 */
#ifndef KERNELS_CPU_ARENA_H
#define KERNELS_CPU_ARENA_H

#include "kernels/base.h"

struct arena_piece;

/* Zeros are an empty one. */
struct cpu_arena {
    struct arena_piece *last;  // the one that is being filled
    size_t total;              // bytes of all pieces
};

/* At a multiple of 64; NULL where bytes is 0 or there is not so much. */
NODISCARD void *cpu_arena_alloc(struct cpu_arena *a, size_t bytes);
void cpu_arena_free(struct cpu_arena *a, void *p);  // NULL is fine

#endif
