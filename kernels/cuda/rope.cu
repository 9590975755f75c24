/* rope.cu - QK norm, rotary position embedding, and storing K and V of a step in their blocks.
 *
 * The angles of a step's rows are computed once for all layers: sine and cosine of large
 * angles take a slow path through local memory, which no layer should pay for again.
 */
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_block.h"

#define ROPE_THREADS 128
#define ROPE_HEADS   (ROPE_THREADS / 32)

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

/* One warp a head of a row, be it of Q, K or V.  T is the type of the cache. */
template <class T>
static __global__ void __launch_bounds__(ROPE_THREADS)
    rope_store(float *qkv, struct cuda_kv kv, const uint32_t *slots, const float *cos,
               const float *sin, uint32_t q_heads, struct cuda_qk_norm norm)
{
    const uint32_t row = blockIdx.x, slot = slots[row], dim = kv.head_dim,
                   half = dim / 2, turned = q_heads + kv.kv_heads,
                   heads = turned + kv.kv_heads, lane = threadIdx.x % 32,
                   h = blockIdx.y * ROPE_HEADS + threadIdx.x / 32;
    if (slot == CUDA_NO_SLOT || h >= heads) return;
    float *x = qkv + ((size_t)row * heads + h) * dim;
    cos += (size_t)row * half;
    sin += (size_t)row * half;
    using element = typename num<T>::element;
    element *to = static_cast<element *>(kv.base) +
                  slot / KV_BLOCK_TOKENS * kv.block_stride +
                  (size_t)(slot % KV_BLOCK_TOKENS) * dim;
    if (h >= q_heads) to += (size_t)(h - q_heads) * kv.plane;  // V lies behind K
    if (h >= turned) {
        for (uint32_t i = lane; i < dim; i += 32) to[i] = num<T>::narrow(x[i]);
        return;
    }

    const float *w = h < q_heads ? norm.q : norm.k;
    float scale = 1;
    if (w) {
        float sum = 0;
        for (uint32_t i = lane; i < half; i += 32) {
            sum = fmaf(x[i], x[i], sum);
            sum = fmaf(x[i + half], x[i + half], sum);
        }
        for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(WARP_ALL, sum, o);
        scale = 1.0f / sqrtf(sum / (float)dim + norm.eps);
    }
    for (uint32_t i = lane; i < half; i += 32) {
        float u = x[i], v = x[i + half];
        if (w) {
            u = u * scale * w[i];
            v = v * scale * w[i + half];
        }
        const float c = cos[i], s = sin[i];
        const float ru = u * c - v * s, rv = v * c + u * s;
        if (h < q_heads) {
            x[i] = ru;
            x[i + half] = rv;
        } else {
            to[i] = num<T>::narrow(ru);
            to[i + half] = num<T>::narrow(rv);
        }
    }
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
                            uint32_t q_heads, struct cuda_qk_norm norm,
                            cudaStream_t stream)
{
    auto *kernel = kv.type == DTYPE_F32   ? rope_store<float>
                   : kv.type == DTYPE_F16 ? rope_store<__half>
                                          : rope_store<__nv_bfloat16>;
    const uint32_t heads = q_heads + 2 * kv.kv_heads;
    return gpu_launch(kernel, dim3(rows, (heads + ROPE_HEADS - 1) / ROPE_HEADS),
                      ROPE_THREADS, 0, stream, qkv, kv, slots, cos, sin, q_heads, norm);
}

}  // extern "C"
