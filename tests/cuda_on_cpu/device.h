/* device.h - what a kernel's code calls while it runs on the CPU.
 *
 * Owns     nothing.  One CUDA thread is one fiber (fiber.h); a block's fibers take turns on the
 *          OS thread that runs the kernel, one block after another.
 * Caller   is C translated from PTX (ptx.h) or a .cu file compiled as C++ (source.h);
 *          all but the registration is called from inside a kernel.  FILE and LINE name
 *          the place in the .cu file for reports.
 * Errors   a broken rule of CUDA is reported with kernel, block, thread and line on
 *          stderr, and ends the program by abort(): a test sees it, nothing goes on.
 */
#ifndef CUDA_ON_CPU_DEVICE_H
#define CUDA_ON_CPU_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* to name(from): the same bits as another type of the same size. */
#define DEVICE_SAME_BITS(name, from, to)                                               \
    static inline to name(from v)                                                      \
    {                                                                                  \
        to r;                                                                          \
        memcpy(&r, &v, sizeof r);                                                      \
        return r;                                                                      \
    }

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel that can be launched.  Static, registered once, never freed. */
struct kernel {
    const char *name;  // mangled
    void (*call)(const struct kernel *k, void **args);
    const void *fn;      // for call's use; in the source tier, what a launch names
    const size_t *size;  // bytes of each parameter
    unsigned n_params;
    size_t static_shared;  // bytes of __shared__ that the kernel lays out itself
    struct kernel *next;
};
void device_register(struct kernel *k);
/* A __device__ or __constant__ variable: n bytes that kernels may touch. */
void device_variable(void *p, size_t n);

struct dim {
    unsigned x, y, z;
};
extern struct dim device_thread, device_block, device_block_dim, device_grid_dim;

void device_report(const char *format, ...)
    __attribute__((format(printf, 1, 2), noreturn));

/* ---- a block ---- */
enum barrier_op { BARRIER_COUNT, BARRIER_AND, BARRIER_OR };
/* __syncthreads, with what its variants make of `predicate`. */
int device_barrier(int predicate, enum barrier_op op, const char *file, int line);

void *device_shared(void);  // the block's shared memory, static part first
/* Source tier: what the launch gives, which must be what the kernel says. */
void *device_dynamic_shared(size_t says);
/* Source tier: the __shared__ variable named by `site`, behind the dynamic part. */
void *device_shared_variable(size_t n, const void *site);

void device_cp_async(void *shared, const void *global, unsigned n, unsigned n_source);
void device_cp_async_commit(void);
void device_cp_async_wait(unsigned pending_groups);

/* ---- a warp ---- */
enum warp_op {
    WARP_SYNC,
    WARP_SHFL_IDX,
    WARP_SHFL_UP,
    WARP_SHFL_DOWN,
    WARP_SHFL_XOR,
    WARP_BALLOT,
    WARP_ADD,
    WARP_MAX,
    WARP_MIN,
    WARP_LDMATRIX,
    WARP_LDMATRIX_TRANS,
    WARP_MMA_F16,
    WARP_MMA_BF16,
};

/* What one lane brings to a warp operation and takes from it. */
struct warp_call {
    enum warp_op op;
    unsigned mask;
    int arg;         // lane or distance of a shuffle, matrices of ldmatrix
    int width;       // of a shuffle's segments
    const void *in;  // a shuffle's or a vote's 4 bytes, ldmatrix's row, mma's a, b, c
    void *out;       // same for every lane of the mask
    size_t size;     // bytes of a shuffled value: 1, 2, 4, 8
    const char *file;
    int line;
};
/* Returns when all lanes of the mask have come; `out` is then written. */
void device_warp(const struct warp_call *call);
extern unsigned device_lane;
unsigned device_active_mask(void);

/* ---- checked access, for translated PTX ---- */
/* The last global ranges found good; the slow path fills them. */
struct device_window {
    uint64_t start, length;
};
extern struct device_window device_windows[16];  // by bits 12 to 15 of the address
extern uint32_t device_shared_bytes;
void device_check_global(uint64_t a, unsigned n, bool write, const char *file,
                         int line);
void device_refuse_shared(uint32_t a, unsigned n, bool write, const char *file,
                          int line) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif
#endif
