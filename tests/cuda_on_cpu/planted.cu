/* planted.cu - kernels with one bug each.  Blocks have 64 threads where nothing else is said.
 */
#include "tests/cuda_on_cpu/planted.h"

#include <string.h>

#include "kernels/cuda/gpu.h"

#define PLANTED(name)                                                                  \
    static __global__ void name(float *out, const float *in, int n);                   \
    GPU_KERNEL(name);                                                                  \
    static __global__ void name([[maybe_unused]] float *out,                           \
                                [[maybe_unused]] const float *in,                      \
                                [[maybe_unused]] int n)

/* ---- shared memory and barriers ---- */

PLANTED(no_barrier)  // between writing s and reading what others wrote
{
    GPU_SHARED(float, s, [64]);
    s[threadIdx.x] = (float)threadIdx.x;
    out[threadIdx.x] = s[63 - threadIdx.x];
}
PLANTED(lost_update)  // all threads add to one number without an atomic operation
{
    GPU_SHARED(int, s, [1]);
    if (!threadIdx.x) s[0] = 0;
    __syncthreads();
    s[0] += 1;
    __syncthreads();
    if (!threadIdx.x) out[0] = (float)s[0];
}
PLANTED(half_at_barrier)
{
    if (threadIdx.x < 16) __syncthreads();
    out[threadIdx.x] = 1;
}
PLANTED(two_barriers)  // one for odd threads, one for even
{
    if (threadIdx.x & 1)
        __syncthreads();
    else {
        out[threadIdx.x] = 2;
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}
PLANTED(early_exit)
{
    if (threadIdx.x == 63) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}
PLANTED(unwritten_shared)
{
    GPU_SHARED(float, s, [65]);
    s[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x + 1];
}
PLANTED(static_bounds)  // n = 1: the last thread reads past the end
{
    GPU_SHARED(float, s, [64]);
    s[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x + n];
}
PLANTED(dynamic_bounds)
{
    GPU_DYN_SHARED(bytes, 256);
    float *s = reinterpret_cast<float *>(bytes);
    s[threadIdx.x + 1] = 1;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}
PLANTED(dynamic)  // right
{
    GPU_DYN_SHARED(bytes, 100 << 10);
    float *s = reinterpret_cast<float *>(bytes);
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[63 - threadIdx.x];
}

PLANTED(tie_by_order)  // of equal numbers whoever comes first is taken, not the lowest
{
    GPU_SHARED(int, s, [1]);
    if (!threadIdx.x) s[0] = 0;
    __syncthreads();
    if (in[threadIdx.x] == in[0] && atomicAdd(&s[0], 1) == 0)
        out[0] = (float)threadIdx.x;
}

/* ---- warps ---- */

PLANTED(shuffle_in_branch)
{
    float v = 1;
    if (threadIdx.x < 16) v += __shfl_xor_sync(WARP_ALL, v, 1);
    out[threadIdx.x] = v;
}
PLANTED(shuffle_as_fence)  // 32 threads; a shuffle orders no memory
{
    GPU_SHARED(float, s, [32]);
    s[threadIdx.x] = 1;
    const float v = __shfl_xor_sync(WARP_ALL, 1.0f, 1);
    out[threadIdx.x] = v + s[threadIdx.x ^ 1];
}
PLANTED(no_copy_wait)
{
    GPU_SHARED(float4, s, [16]);
    if (threadIdx.x < 16) cp_async_16(&s[threadIdx.x], in + 4 * threadIdx.x, true);
    cp_async_commit();
    __syncthreads();
    out[threadIdx.x] = reinterpret_cast<const float *>(s)[threadIdx.x];
}
PLANTED(
    product)  // right: 32 threads, d(16, 8) = a(16, 16) b(16, 8); in: f16 or bf16 by n
{
    GPU_SHARED(uint16_t, s, [32][16]);
    const uint16_t *h = reinterpret_cast<const uint16_t *>(in);
    const uint32_t lane = threadIdx.x;
    for (int i = 0; i < 16; i++) s[lane][i] = h[lane * 16 + i];  // a, then b transposed
    __syncthreads();
    uint32_t a[4], b[4];
    ldmatrix_x4(a, &s[lane % 16][lane / 16 * 8]);
    ldmatrix_x4(b, &s[16 + lane % 8][lane / 8 % 2 * 8]);
    float d[4] = {0, 0, 0, 0};
    if (n)
        mma_bf16(d, a, b);
    else
        mma_f16(d, a, b);
    for (int i = 0; i < 4; i++)
        out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

/* ---- global memory ---- */

PLANTED(add_one)  // right, as long as the caller is
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = in[i] + 1;
}
PLANTED(misaligned)
{
    const float4 v = *reinterpret_cast<const float4 *>(in + 1);
    out[0] = v.x + v.y + v.z + v.w;
}
PLANTED(race_of_blocks)
{
    if (!threadIdx.x) out[0] += 1;
}
PLANTED(atomic)  // right
{
    if (!threadIdx.x) atomicAdd(out, 1.0f);
}

/* ---- launching ---- */

static const struct {
    const char *name;
    void (*kernel)(float *, const float *, int);
} planted[] = {
    {"no_barrier", no_barrier},
    {"lost_update", lost_update},
    {"half_at_barrier", half_at_barrier},
    {"two_barriers", two_barriers},
    {"early_exit", early_exit},
    {"unwritten_shared", unwritten_shared},
    {"static_bounds", static_bounds},
    {"dynamic_bounds", dynamic_bounds},
    {"dynamic", dynamic},
    {"tie_by_order", tie_by_order},
    {"shuffle_in_branch", shuffle_in_branch},
    {"shuffle_as_fence", shuffle_as_fence},
    {"no_copy_wait", no_copy_wait},
    {"product", product},
    {"add_one", add_one},
    {"misaligned", misaligned},
    {"race_of_blocks", race_of_blocks},
    {"atomic", atomic},
};

struct piece {
    const float *in;
    int n;
};
static __global__ void copy_piece(float *out, struct piece p)
{
    if ((int)threadIdx.x < p.n) out[threadIdx.x] = p.in[threadIdx.x];
}
GPU_KERNEL(copy_piece);

extern "C" {

cudaError_t planted_launch(const char *name, dim3 grid, unsigned threads, size_t shared,
                           cudaStream_t stream, float *out, const float *in, int n)
{
    for (const auto &p : planted)
        if (!strcmp(p.name, name))
            return gpu_launch(p.kernel, grid, threads, shared, stream, out, in, n);
    return cudaErrorInvalidDeviceFunction;
}

cudaError_t planted_launch_struct(float *out, const float *in, int n)
{
    struct piece p = {in, n};
    return gpu_launch(copy_piece, dim3(1), 64, 0, nullptr, out, p);
}

cudaError_t planted_allow_shared(int bytes)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(dynamic),
                                cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // extern "C"
