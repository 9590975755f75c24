/* The stand-in's own memory: powers of two, never given back. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/cuda_on_cpu/sanitizers.h"

enum { CHUNK = 1 << 20, HEADER = 16 };
static void *idle[48];  // by the power

void *raw_alloc(size_t n)
{
    static char *chunk, *end;
    unsigned class = 6;
    while (((size_t)1 << class) < n + HEADER) class ++;
    size_t size = (size_t)1 << class;
    char *p = idle[class];
    if (p) {
        idle[class] = *(void **)(p + HEADER);
    } else {
        if ((size_t)(end - chunk) < size) {
            size_t room = size > CHUNK ? size : CHUNK;
            chunk = mmap(NULL, room, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (chunk == MAP_FAILED) {
                perror("stand-in: memory");
                abort();
            }
            end = chunk + room;
        }
        p = chunk;
        chunk += size;
    }
    *(unsigned *)p = class;
    raw_fill(p + HEADER, 0, n);
    return p + HEADER;
}

void raw_free(void *q)
{
    if (!q) return;
    char *p = (char *)q - HEADER;
    unsigned class = *(unsigned *)p;
    *(void **)q = idle[class];
    idle[class] = p;
}
