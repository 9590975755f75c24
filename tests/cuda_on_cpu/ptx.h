/* ptx.h - the prelude of the C that ptx2c.py writes: PTX operations that C does not have.
 *
 * Owns     nothing.
 * Caller   translated kernels only.  A register is an unsigned integer of its width; F and
 *          FB, D and DB, H and HB, BF and BB see its bits as f32, f64, f16, bf16 and back.
 *
 * Every access to memory is checked: its alignment, and that it stays in one live
 * allocation or in the block's shared memory.
 */
#ifndef CUDA_ON_CPU_PTX_H
#define CUDA_ON_CPU_PTX_H

#include <immintrin.h>
#include <math.h>
#include <stdlib.h>

#include "tests/cuda_on_cpu/device.h"

#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wunused-label"
#pragma GCC diagnostic ignored "-Wunused-function"

/* ---- numbers ---- */

DEVICE_SAME_BITS(F, uint32_t, float)
DEVICE_SAME_BITS(FB, float, uint32_t)
DEVICE_SAME_BITS(D, uint64_t, double)
DEVICE_SAME_BITS(DB, double, uint64_t)
static inline float H(uint32_t h)
{
    return _cvtsh_ss((uint16_t)h);
}
static inline uint16_t HB(float f)
{
    return _cvtss_sh(f, 0);
}
static inline float BF(uint32_t h)
{
    return F(h << 16);
}
static inline uint16_t BB(float f)
{
    uint32_t u = FB(f);
    return f != f ? 0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Conversions to integers saturate, and a NaN becomes 0. */
static inline int32_t sat_s32(double v)
{
    return v != v               ? 0
           : v >= 2147483647.0  ? INT32_MAX
           : v <= -2147483648.0 ? INT32_MIN
                                : (int32_t)v;
}
static inline uint32_t sat_u32(double v)
{
    return !(v > 0) ? 0 : v >= 4294967295.0 ? UINT32_MAX : (uint32_t)v;
}
static inline int64_t sat_s64(double v)
{
    return v != v ? 0 : v >= 0x1p63 ? INT64_MAX : v <= -0x1p63 ? INT64_MIN : (int64_t)v;
}

/* ---- bits ---- */

static inline uint32_t low_bits(uint32_t n)
{
    return n >= 32 ? UINT32_MAX : (1u << n) - 1;
}
static inline uint32_t bfi32(uint32_t a, uint32_t b, uint32_t at, uint32_t n)
{
    uint32_t m = low_bits(n);
    return at >= 32 ? b : (b & ~(m << at)) | (a & m) << at;
}
static inline uint64_t bfi64(uint64_t a, uint64_t b, uint32_t at, uint32_t n)
{
    uint64_t m = n >= 64 ? UINT64_MAX : (1ull << n) - 1;
    return at >= 64 ? b : (b & ~(m << at)) | (a & m) << at;
}
static inline uint32_t bfe_u32(uint32_t a, uint32_t at, uint32_t n)
{
    return at >= 32 ? 0 : a >> at & low_bits(n);
}
static inline int32_t bfe_s32(int32_t a, uint32_t at, uint32_t n)
{
    if (!n) return 0;
    uint32_t top = at + n > 32 ? 31 : at + n - 1;  // past the end the sign goes on
    int64_t v = (int64_t)((uint64_t)(int64_t)a << (63 - top)) >> (63 - top);
    return (int32_t)(v >> (at > 31 ? 31 : at));
}
static inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t s = selector >> (4 * i) & 15,
                 v = (uint32_t)(bytes >> (8 * (s & 7))) & 255;
        if (s & 8) v = v & 128 ? 255 : 0;
        r |= v << (8 * i);
    }
    return r;
}
static inline uint64_t brev64(uint64_t v)
{
    uint64_t r = 0;
    for (int i = 0; i < 64; i++) r = r << 1 | (v >> i & 1);
    return r;
}
/* shfl's second result: whether the lane it names lies in the segment. */
static inline bool shuffle_inside(enum warp_op op, int by, int width)
{
    int lane = (int)device_lane, first = lane & ~(width - 1);
    switch (op) {
    case WARP_SHFL_UP: return lane - by >= first;
    case WARP_SHFL_DOWN: return lane + by < first + width;
    case WARP_SHFL_XOR: return (lane ^ by) < first + width;
    default: return true;
    }
}

/* ---- kernels, warps, memory ---- */

static inline void ptx_call(const struct kernel *k, void **args)
{
    ((void (*)(void **))k->fn)(args);
}

#define WARP(op, mask, arg, width, in, out, size, ...)                                 \
    device_warp(&(struct warp_call){op, mask, arg, width, in, out, size, __VA_ARGS__})

#define CHECK_GLOBAL(a, n, write, ...)                                                 \
    do {                                                                               \
        const struct device_window *w_ = &device_windows[(a) >> 12 & 15];              \
        if (__builtin_expect(                                                          \
                (a) % (n) || (a) < w_->start || (a)-w_->start + (n) > w_->length, 0))  \
            device_check_global(a, n, write, __VA_ARGS__);                             \
    } while (0)
#define CHECK_SHARED(a, n, write, ...)                                                 \
    do {                                                                               \
        if (__builtin_expect((a) % (n) || (uint64_t)(a) + (n) > device_shared_bytes,   \
                             0))                                                       \
            device_refuse_shared(a, n, write, __VA_ARGS__);                            \
    } while (0)

#endif
