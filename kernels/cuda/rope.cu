/* rope.cu - rotary position embedding, and storing K and V of a step in their blocks.
 *
 * The angles of a step's rows are computed once for all layers: sine and cosine of large
 * angles take a slow path through local memory, which no layer should pay for again.
 */
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_block.h"

#define ROPE_THREADS 128

static __global__ void __launch_bounds__(ROPE_THREADS)
    rope_angles(float *cos, float *sin, const uint32_t *pos, const float *inv_freq,
                uint32_t half)
{
    for (uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
        const float angle = (float)pos[blockIdx.x] * inv_freq[i];
        cos[(size_t)blockIdx.x * half + i] = cosf(angle);
        sin[(size_t)blockIdx.x * half + i] = sinf(angle);
    }
}
GPU_KERNEL(rope_angles);

/* One block a row.  T is the type of the cache. */
template <class T>
static __global__ void __launch_bounds__(ROPE_THREADS)
    rope_store(float *qkv, struct cuda_kv kv, const uint32_t *slots, const float *cos,
               const float *sin, uint32_t q_heads)
{
    const uint32_t row = blockIdx.x, slot = slots[row], dim = kv.head_dim,
                   half = dim / 2, heads = q_heads + kv.kv_heads;
    if (slot == CUDA_NO_SLOT) return;
    float *x = qkv + (size_t)row * (heads + kv.kv_heads) * dim;
    cos += (size_t)row * half;
    sin += (size_t)row * half;
    using element = typename num<T>::element;
    element *to = static_cast<element *>(kv.base) +
                  slot / KV_BLOCK_TOKENS * kv.block_stride +
                  (size_t)(slot % KV_BLOCK_TOKENS) * dim;
    const size_t plane = kv.plane;

    for (uint32_t e = threadIdx.x; e < heads * half; e += blockDim.x) {
        const uint32_t h = e / half, i = e % half;
        float *a = x + h * dim + i, *b = a + half;
        const float c = cos[i], s = sin[i], u = *a, v = *b;
        const float ra = u * c - v * s, rb = v * c + u * s;
        if (h < q_heads) {
            *a = ra;
            *b = rb;
        } else {
            to[(h - q_heads) * plane + i] = num<T>::narrow(ra);
            to[(h - q_heads) * plane + i + half] = num<T>::narrow(rb);
        }
    }
    to += kv.kv_heads * plane;  // V lies behind K
    for (uint32_t e = threadIdx.x; e < kv.kv_heads * dim; e += blockDim.x)
        to[e / dim * plane + e % dim] = num<T>::narrow(x[heads * dim + e]);
}
GPU_KERNEL(rope_store<float>);
GPU_KERNEL(rope_store<__half>);
GPU_KERNEL(rope_store<__nv_bfloat16>);

extern "C" {

cudaError_t cuda_rope_angles(float *cos, float *sin, const uint32_t *pos,
                             const float *inv_freq, uint32_t rows, uint32_t half,
                             cudaStream_t stream)
{
    return gpu_launch(rope_angles, dim3(rows), ROPE_THREADS, 0, stream, cos, sin, pos,
                      inv_freq, half);
}

cudaError_t cuda_rope_store(float *qkv, struct cuda_kv kv, const uint32_t *slots,
                            const float *cos, const float *sin, uint32_t rows,
                            uint32_t q_heads, cudaStream_t stream)
{
    auto *kernel = kv.type == DTYPE_F32   ? rope_store<float>
                   : kv.type == DTYPE_F16 ? rope_store<__half>
                                          : rope_store<__nv_bfloat16>;
    return gpu_launch(kernel, dim3(rows), ROPE_THREADS, 0, stream, qkv, kv, slots, cos,
                      sin, q_heads);
}

}  // extern "C"
