#include "tokenizer/jinja_arena.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT   16
#define FIRST_CHUNK ((size_t)16 << 10)
#define LARGE_CHUNK ((size_t)1 << 20)

struct arena_chunk {
    struct arena_chunk *older;
    size_t size;
};

void arena_init(struct arena *a, size_t limit)
{
    *a = (struct arena){.limit = limit};
}

void arena_free(struct arena *a)
{
    while (a->chunks) {
        struct arena_chunk *older = a->chunks->older;
        free(a->chunks);
        a->chunks = older;
    }
    a->at = a->end = NULL;
    a->taken = 0;
}

/* Chunks double until they are large, so that a small render stays small and a large
 * one takes few. */
static bool add_chunk(struct arena *a, size_t need)
{
    size_t size = a->chunks ? a->chunks->size * 2 : FIRST_CHUNK;
    if (size > LARGE_CHUNK) size = LARGE_CHUNK;
    size_t header = ALIGN_UP(sizeof(struct arena_chunk), ALIGNMENT);
    if (size < need + header) size = need + header;
    if (size > a->limit - a->taken) {
        a->full = true;
        return false;
    }
    struct arena_chunk *c = malloc(size);
    if (!c) return false;
    *c = (struct arena_chunk){.older = a->chunks, .size = size};
    a->chunks = c;
    a->taken += size;
    a->at = (char *)c + header;
    a->end = (char *)c + size;
    return true;
}

void *arena_alloc(struct arena *a, size_t n)
{
    if (n > a->limit) {
        a->full = true;
        return NULL;
    }
    n = ALIGN_UP(n, ALIGNMENT);
    if (n == 0) n = ALIGNMENT;
    if ((size_t)(a->end - a->at) < n && !add_chunk(a, n)) return NULL;
    void *p = a->at;
    a->at += n;
    return p;
}

void *arena_zalloc(struct arena *a, size_t n)
{
    void *p = arena_alloc(a, n);
    if (p) memset(p, 0, n);
    return p;
}
