/* pinned.c - host memory that the device copies from and to by itself: in one piece, or in chunks
 * as much of it as can be had. */
#include "kernels/cuda/cuda.h"

#include <sys/mman.h>

#define PIN_BYTES ((size_t)1 << 30)  // pinned in one call
#define PIN_LEAST ((size_t)1 << 20)  // where there is less, none of it is taken

void *cuda_pin(struct cuda *c, size_t bytes)
{
    void *p = NULL;
    if (bytes == 0 || !cuda_enter(c)) return NULL;
    if (cudaHostAlloc(&p, bytes, cudaHostAllocDefault) == cudaSuccess) return p;
    (void)cudaGetLastError();
    return NULL;
}

static bool pin(char *p, size_t bytes)
{
    if (cudaHostRegister(p, bytes, cudaHostRegisterDefault) == cudaSuccess) return true;
    (void)cudaGetLastError();
    return false;
}

/* Chunk by chunk, as one call for all of it would hold the driver's locks for minutes: so many
 * bytes could be pinned. */
static size_t pin_chunks(char *p, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        size_t n = bytes - done < PIN_BYTES ? bytes - done : PIN_BYTES;
        if (!pin(p + done, n)) break;
        done += n;
    }
    return done;
}

/* Of memory of which there is less than `bytes` to be pinned, a part; as much again is left
 * for others, who pin after this, and without whose part nothing runs. */
static size_t pin_some(char *p, size_t bytes)
{
    for (size_t n = PIN_BYTES / 2; n >= PIN_LEAST; n /= 2) {
        if (2 * n > bytes || !pin(p, n)) continue;
        if (pin(p + n, n)) {
            (void)cudaHostUnregister(p + n);
            return n;
        }
        (void)cudaHostUnregister(p);
    }
    return 0;
}

/* All of it, or what could be had from its beginning. */
static size_t pin_from(char *p, size_t bytes)
{
    size_t done = pin_chunks(p, bytes);
    if (done == bytes) return done;
    size_t some = pin_some(p + done, bytes - done);
    if (some > 0 || done == 0) return done + some;
    done -= PIN_BYTES;  // the chunks have left nothing to others
    (void)cudaHostUnregister(p + done);
    return done + pin_some(p + done, PIN_BYTES);
}

/* What cannot be pinned is given back. */
void *cuda_pin_most(const struct cuda *c, struct cuda_arena *arenas, size_t bytes,
                    size_t *got)
{
    int i = 0;
    while (i < CUDA_ARENAS && arenas[i].start) i++;
    if (i == CUDA_ARENAS || bytes == 0) return NULL;
    if (cudaSetDevice(c->device) != cudaSuccess) return NULL;
    char *p =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t done = pin_from(p, bytes);
    if (done < bytes) munmap(p + done, bytes - done);
    if (done == 0) return NULL;
    arenas[i] = (struct cuda_arena){p, done};
    *got = done;
    return p;
}

/* Every piece begins where a chunk does. */
void cuda_unpin(struct cuda_arena *arenas, void *p)
{
    for (int i = 0; p && i < CUDA_ARENAS; i++) {
        struct cuda_arena *a = &arenas[i];
        if (a->start != p) continue;
        for (size_t at = 0; at < a->bytes; at += PIN_BYTES)
            (void)cudaHostUnregister(a->start + at);
        munmap(a->start, a->bytes);
        *a = (struct cuda_arena){0};
        return;
    }
    if (p) (void)cudaFreeHost(p);
}
