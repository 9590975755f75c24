/* jinja_arena.h - memory that is taken piece by piece and given back all at once.
 *
 * Owns     the chunks it took from malloc; nothing handed out is freed by itself.
 * Bounds   no more than `limit` bytes are taken; then arena_alloc() answers NULL and
 *          `full` tells that it was the limit, not the machine.
 * Threads  one at a time.
 */
#ifndef TOKENIZER_JINJA_ARENA_H
#define TOKENIZER_JINJA_ARENA_H

#include "kernels/base.h"

struct arena_chunk;

struct arena {
    struct arena_chunk *chunks;
    char *at, *end;       // what is free in the newest chunk
    size_t taken, limit;  // bytes from malloc, and the most there may be
    bool full;
};

void arena_init(struct arena *a, size_t limit);
void arena_free(struct arena *a);

/* n bytes, uninitialised and aligned for any type; NULL where there are none. */
void *arena_alloc(struct arena *a, size_t n);
void *arena_zalloc(struct arena *a, size_t n);  // the same, zeroed

#endif
