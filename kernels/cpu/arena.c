#include "kernels/cpu/arena.h"

#include "kernels/host.h"

#include <stdlib.h>

#define LINE  ((size_t)64)
#define LEAST ((size_t)1 << 20)  // of one piece
#define MOST  ((size_t)64 << 20)

struct arena_piece {
    struct arena_piece *before;
    char *base;
    size_t size, used;
    size_t arrays;  // that are not given back
};

/* As large as all before it together, so that there are few and little stays unused. */
static struct arena_piece *add_piece(struct cpu_arena *a, size_t bytes)
{
    size_t size = a->total < LEAST ? LEAST : a->total > MOST ? MOST : a->total;
    struct arena_piece *piece = malloc(sizeof *piece);
    if (!piece) return NULL;
    if (size < bytes) size = bytes;
    *piece = (struct arena_piece){a->last, host_alloc(size, LINE), size, 0, 0};
    if (!piece->base) {
        free(piece);
        return NULL;
    }
    a->total += size;
    a->last = piece;
    return piece;
}

void *cpu_arena_alloc(struct cpu_arena *a, size_t bytes)
{
    if (bytes == 0 || bytes > SIZE_MAX - LINE) return NULL;
    bytes = ALIGN_UP(bytes, LINE);
    struct arena_piece *piece = a->last;
    if (!piece || piece->size - piece->used < bytes) piece = add_piece(a, bytes);
    if (!piece) return NULL;
    void *p = piece->base + piece->used;
    piece->used += bytes;
    piece->arrays++;
    return p;
}

void cpu_arena_free(struct cpu_arena *a, void *p)
{
    if (!p) return;
    struct arena_piece **at = &a->last, *piece;
    for (; (piece = *at) != NULL; at = &piece->before) {
        if ((uintptr_t)p - (uintptr_t)piece->base < piece->used) break;
    }
    if (!piece || --piece->arrays > 0) return;
    *at = piece->before;
    a->total -= piece->size;
    free(piece->base);
    free(piece);
}
