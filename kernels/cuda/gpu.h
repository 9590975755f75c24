/* gpu.h - what the kernels need of a GPU beyond CUDA C++: number types, tensor cores,
 * asynchronous copies, and launching.
 *
 * Included by .cu files only.  nvcc compiles them for a GPU; with CUDA_ON_CPU defined, any
 * C++17 compiler makes them run on a CPU, and tests/cuda_on_cpu/source.h has the same names.
 *
 * Fragments of mma.m16n8k16 and ldmatrix are laid out as the PTX ISA says ("Matrix fragments
 * for mma.m16n8k16 with floating point type").
 */
#ifndef KERNELS_CUDA_GPU_H
#define KERNELS_CUDA_GPU_H

#ifdef CUDA_ON_CPU
#include <tests/cuda_on_cpu/source.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define GPU_KERNEL(...)              // names a kernel to the CPU's launcher
#define GPU_SHARED(type, name, dims) __shared__ __align__(16) type name dims
/* Shared memory that the launch gives.  How much is left in the PTX as a remark, for who counts
 * what a kernel takes (report.py). */
#define GPU_DYN_SHARED(name, bytes)                                                    \
    extern __shared__ __align__(128) unsigned char name[];                             \
    asm volatile("// %0 bytes of shared memory by the launch" ::"n"((int)(bytes)))
#endif
#include "kernels/dtype.h"

#include <utility>

#define WARP_ALL 0xffffffffu

/* Where every launch goes through: kernel<<<grid, block, smem, stream>>>(args...) in plain
 * C++. */
template <class... P, class... A>
static inline cudaError_t gpu_launch(void (*kernel)(P...), dim3 grid, unsigned block,
                                     size_t smem, cudaStream_t stream, A &&...args)
{
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3(block);
    c.dynamicSmemBytes = smem;
    c.stream = stream;
    return cudaLaunchKernelEx(&c, kernel, std::forward<A>(args)...);
}

/* ---- tensor cores and copies ---- */

#ifndef CUDA_ON_CPU
__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
/* 16 bytes from global to shared memory; zeros where !on, and gmem is not read then. */
__device__ __forceinline__ void cp_async_16(void *smem, const void *gmem, bool on)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(smem)),
        "l"(gmem), "r"(on ? 16 : 0)
        : "memory");
}
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* d += a b, m16n8k16, sums in f32. */
#define GPU_MMA(name, type)                                                            \
    __device__ __forceinline__ void name(float d[4], const uint32_t a[4],              \
                                         const uint32_t b[2])                          \
    {                                                                                  \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "    \
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"           \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]),          \
                       "r"(b[1]));                                                     \
    }
GPU_MMA(mma_f16, "f16")
GPU_MMA(mma_bf16, "bf16")
#undef GPU_MMA
#endif

/* ---- numbers: T is float, __half or __nv_bfloat16; an element is how it is kept ---- */

template <class T> struct num;

template <> struct num<float> {
    using element = float;
    static __device__ __forceinline__ float narrow(float f) { return f; }
    static __device__ __forceinline__ float widen(float f) { return f; }
};

template <> struct num<__half> {
    using element = uint16_t;
    /* To nearest even; what lies beyond f16 becomes +-65504, a NaN stays one. */
    static __device__ __forceinline__ uint16_t narrow(float f)
    {
        f = f > 65504.0f ? 65504.0f : f < -65504.0f ? -65504.0f : f;
        return __half_as_ushort(__float2half_rn(f));
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high)
    {
        return narrow(low) | (uint32_t)narrow(high) << 16;
    }
    static __device__ __forceinline__ float widen(uint16_t h)
    {
        return __half2float(__ushort_as_half(h));
    }
    static __device__ __forceinline__ void mma(float d[4], const uint32_t a[4],
                                               const uint32_t b[2])
    {
        mma_f16(d, a, b);
    }
};

template <> struct num<__nv_bfloat16> {
    using element = uint16_t;
    static __device__ __forceinline__ uint16_t narrow(float f)
    {
        return __bfloat16_as_ushort(__float2bfloat16_rn(f));
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high)
    {
        return narrow(low) | (uint32_t)narrow(high) << 16;
    }
    static __device__ __forceinline__ float widen(uint16_t h)
    {
        return __uint_as_float((uint32_t)h << 16);
    }
    static __device__ __forceinline__ void mma(float d[4], const uint32_t a[4],
                                               const uint32_t b[2])
    {
        mma_bf16(d, a, b);
    }
};

/* As `type`, f16 or bf16, keeps f. */
static __device__ __forceinline__ uint16_t narrow_to(enum dtype type, float f)
{
    return type == DTYPE_F16 ? num<__half>::narrow(f) : num<__nv_bfloat16>::narrow(f);
}

#endif
