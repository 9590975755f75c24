/* source.h - CUDA C++ as ordinary C++17: the source tier.
 *
 * Owns     nothing.  The vendor's own headers compile for a host compiler and leave out what
 *          only a GPU has; this header supplies that part.
 * Caller   kernels/cuda/gpu.h includes it in place of its own first half when it is compiled
 *          with CUDA_ON_CPU defined; kernels never do.  It has the same names.
 *
 * So gdb, ASan's red zones, UBSan and TSan see the kernels as they are written.
 */
#ifndef CUDA_ON_CPU_SOURCE_H
#define CUDA_ON_CPU_SOURCE_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "tests/cuda_on_cpu/device.h"

/* The caller's place, for reports. */
#define STANDIN_AT const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()

/* ---- built-in variables and words ---- */

extern uint3 threadIdx __asm__("device_thread"), blockIdx __asm__("device_block");
extern uint3 blockDim __asm__("device_block_dim"), gridDim __asm__("device_grid_dim");
static constexpr int warpSize = 32;
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))

/* ---- kernels and shared memory: what gpu.h defines for nvcc ---- */

namespace standin
{
template <class T> struct signature;
template <class... P> struct signature<void (*)(P...)> {
    static constexpr size_t size[sizeof...(P) + 1] = {sizeof(P)..., 0};
    template <size_t... I>
    static void call_with(void (*f)(P...), void **a, std::index_sequence<I...>)
    {
        (void)a;
        f(*static_cast<std::remove_const_t<P> *>(a[I])...);
    }
    static void call(const struct kernel *k, void **a)
    {
        call_with(reinterpret_cast<void (*)(P...)>(const_cast<void *>(k->fn)), a,
                  std::index_sequence_for<P...>{});
    }
};
struct registration {
    struct kernel k;
    template <class... P> registration(const char *name, void (*f)(P...)) : k{}
    {
        using S = signature<void (*)(P...)>;
        k.name = name;
        k.fn = reinterpret_cast<const void *>(f);
        k.call = S::call;
        k.size = S::size;
        k.n_params = sizeof...(P);
        device_register(&k);
    }
};
}  // namespace standin

#define STANDIN_PASTE_(a, b) a##b
#define STANDIN_PASTE(a, b)  STANDIN_PASTE_(a, b)
#define GPU_KERNEL(...)                                                                \
    static standin::registration STANDIN_PASTE(registration_,                          \
                                               __COUNTER__)(#__VA_ARGS__, __VA_ARGS__)
#define GPU_SHARED(type, name, dims)                                                   \
    typedef type shared_type_##name dims;                                              \
    static char shared_site_##name;                                                    \
    shared_type_##name &name = *static_cast<shared_type_##name *>(                     \
        device_shared_variable(sizeof(shared_type_##name), &shared_site_##name))
#define GPU_DYN_SHARED(name, bytes)                                                    \
    unsigned char *const name =                                                        \
        static_cast<unsigned char *>(device_dynamic_shared(bytes))

/* ---- blocks ---- */

static inline void __syncthreads(STANDIN_AT)
{
    device_barrier(0, BARRIER_COUNT, file_, line_);
}
static inline int __syncthreads_count(int p, STANDIN_AT)
{
    return device_barrier(p, BARRIER_COUNT, file_, line_);
}
static inline int __syncthreads_and(int p, STANDIN_AT)
{
    return device_barrier(p, BARRIER_AND, file_, line_);
}
static inline int __syncthreads_or(int p, STANDIN_AT)
{
    return device_barrier(p, BARRIER_OR, file_, line_);
}
static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* ---- warps ---- */

namespace standin
{
template <class In, class Out>
static inline void warp(warp_op op, unsigned mask, int arg, int width, const In *in,
                        Out *out, const char *file, int line)
{
    struct warp_call c = {op, mask, arg, width, in, out, sizeof(In), file, line};
    device_warp(&c);
}
template <class T>
static inline T shuffle(warp_op op, unsigned mask, T v, int arg, int width,
                        const char *file, int line)
{
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8,
                  "a shuffle moves 1, 2, 4 or 8 bytes");
    T r;
    warp(op, mask, arg, width, &v, &r, file, line);
    return r;
}
static inline unsigned vote(warp_op op, unsigned mask, unsigned v, const char *file,
                            int line)
{
    unsigned r;
    warp(op, mask, 0, 32, &v, &r, file, line);
    return r;
}
}  // namespace standin

static inline void __syncwarp(unsigned mask = 0xffffffffu, STANDIN_AT)
{
    struct warp_call c = {WARP_SYNC, mask, 0, 32, nullptr, nullptr, 0, file_, line_};
    device_warp(&c);
}
static inline unsigned __activemask()
{
    return device_active_mask();
}
template <class T>
static inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32, STANDIN_AT)
{
    return standin::shuffle(WARP_SHFL_IDX, mask, v, lane, width, file_, line_);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32,
                               STANDIN_AT)
{
    return standin::shuffle(WARP_SHFL_UP, mask, v, (int)by, width, file_, line_);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32,
                                 STANDIN_AT)
{
    return standin::shuffle(WARP_SHFL_DOWN, mask, v, (int)by, width, file_, line_);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T v, int by, int width = 32, STANDIN_AT)
{
    return standin::shuffle(WARP_SHFL_XOR, mask, v, by, width, file_, line_);
}
static inline unsigned __ballot_sync(unsigned mask, int p, STANDIN_AT)
{
    return standin::vote(WARP_BALLOT, mask, p != 0, file_, line_);
}
static inline int __any_sync(unsigned mask, int p, STANDIN_AT)
{
    return standin::vote(WARP_BALLOT, mask, p != 0, file_, line_) != 0;
}
static inline int __all_sync(unsigned mask, int p, STANDIN_AT)
{
    return standin::vote(WARP_BALLOT, mask, p == 0, file_, line_) == 0;
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned v, STANDIN_AT)
{
    return standin::vote(WARP_ADD, mask, v, file_, line_);
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned v, STANDIN_AT)
{
    return standin::vote(WARP_MAX, mask, v, file_, line_);
}
static inline unsigned __reduce_min_sync(unsigned mask, unsigned v, STANDIN_AT)
{
    return standin::vote(WARP_MIN, mask, v, file_, line_);
}

/* ---- tensor cores and asynchronous copies: what gpu.h writes in PTX ---- */

static inline void ldmatrix_x4(uint32_t r[4], const void *row, STANDIN_AT)
{
    struct warp_call c = {WARP_LDMATRIX, ~0u, 4, 32, &row, r, sizeof row, file_, line_};
    device_warp(&c);
}
static inline void ldmatrix_x4_trans(uint32_t r[4], const void *row, STANDIN_AT)
{
    struct warp_call c = {WARP_LDMATRIX_TRANS, ~0u,   4,    32, &row, r,
                          sizeof row,          file_, line_};
    device_warp(&c);
}
static inline void mma_on_cpu(warp_op op, float d[4], const uint32_t a[4],
                              const uint32_t b[2], const char *file, int line)
{
    uint32_t in[10];
    memcpy(in, a, 16);
    memcpy(in + 4, b, 8);
    memcpy(in + 6, d, 16);
    struct warp_call c = {op, ~0u, 0, 32, in, d, sizeof in, file, line};
    device_warp(&c);
}
static inline void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2],
                           STANDIN_AT)
{
    mma_on_cpu(WARP_MMA_F16, d, a, b, file_, line_);
}
static inline void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2],
                            STANDIN_AT)
{
    mma_on_cpu(WARP_MMA_BF16, d, a, b, file_, line_);
}
static inline void cp_async_16(void *shared, const void *global, bool on)
{
    device_cp_async(shared, global, 16, on ? 16 : 0);
}
static inline void cp_async_commit()
{
    device_cp_async_commit();
}
template <int N> static inline void cp_async_wait()
{
    device_cp_async_wait(N);
}

/* ---- atomics ---- */

namespace standin
{
template <class T, class F> static inline T atomically(T *p, F f)
{
    using U = std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>;
    U *u = reinterpret_cast<U *>(p), before = __atomic_load_n(u, __ATOMIC_RELAXED),
      after;
    T old;
    do {
        memcpy(&old, &before, sizeof old);
        T now = f(old);
        memcpy(&after, &now, sizeof after);
    } while (!__atomic_compare_exchange_n(u, &before, after, false, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    return old;
}
}  // namespace standin
template <class T> static inline T atomicAdd(T *p, std::common_type_t<T> v)
{
    return standin::atomically(p, [v](T a) -> T { return a + v; });
}
template <class T> static inline T atomicMax(T *p, std::common_type_t<T> v)
{
    return standin::atomically(p, [v](T a) -> T { return a > v ? a : v; });
}
template <class T> static inline T atomicMin(T *p, std::common_type_t<T> v)
{
    return standin::atomically(p, [v](T a) -> T { return a < v ? a : v; });
}
template <class T> static inline T atomicExch(T *p, std::common_type_t<T> v)
{
    return standin::atomically(p, [v](T) -> T { return v; });
}
template <class T>
static inline T atomicCAS(T *p, std::common_type_t<T> expected, std::common_type_t<T> v)
{
    return standin::atomically(p, [=](T a) -> T { return a == expected ? v : a; });
}

/* ---- loads and arithmetic ---- */

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <class T> static inline void __stcs(T *p, T v)
{
    *p = v;
}
template <class T> static inline void __stcg(T *p, T v)
{
    *p = v;
}
DEVICE_SAME_BITS(__int_as_float, int, float)
DEVICE_SAME_BITS(__float_as_int, float, int)
DEVICE_SAME_BITS(__uint_as_float, unsigned, float)
DEVICE_SAME_BITS(__float_as_uint, float, unsigned)
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
/* glibc has functions of its own by these names. */
#define __expf expf
#define __logf logf
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
template <class T> static inline T min(T a, T b)
{
    return a < b ? a : b;
}
template <class T> static inline T max(T a, T b)
{
    return a > b ? a : b;
}

/* The vendor's conversions for the host are right and slow; F16C rounds alike. */
namespace standin
{
static inline float from_half(__half h)
{
    return _cvtsh_ss(static_cast<__half_raw>(h).x);
}
static inline __half to_half(float f)
{
    __half_raw r;
    r.x = _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT);
    return r;
}
}  // namespace standin
#define __half2float    standin::from_half
#define __float2half    standin::to_half
#define __float2half_rn standin::to_half

#endif
