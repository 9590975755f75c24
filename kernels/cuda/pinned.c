/* pinned.c - host memory that the device copies from and to by itself: in one piece, or in chunks
 * as much of it as can be had. */
#include "kernels/cuda/cuda.h"

#include <sys/mman.h>

#define PIN_BYTES ((size_t)1 << 30)  // pinned in one call

void *cuda_pin(struct cuda *c, size_t bytes)
{
    void *p = NULL;
    if (bytes == 0 || !cuda_enter(c)) return NULL;
    if (cudaHostAlloc(&p, bytes, cudaHostAllocDefault) == cudaSuccess) return p;
    (void)cudaGetLastError();
    return NULL;
}

/* One call for all of it would hold the driver's locks for minutes.  What cannot be pinned is
 * given back. */
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
    size_t done = 0;
    while (done < bytes) {
        size_t n = bytes - done < PIN_BYTES ? bytes - done : PIN_BYTES;
        if (cudaHostRegister(p + done, n, cudaHostRegisterDefault) != cudaSuccess)
            break;
        done += n;
    }
    if (done < bytes) {
        (void)cudaGetLastError();
        munmap(p + done, bytes - done);
    }
    if (done == 0) return NULL;
    arenas[i] = (struct cuda_arena){p, done};
    *got = done;
    return p;
}

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
