/* attention_plain.cu - causal attention over paged KV for the shapes and types that tensor
 * cores do not serve: f32 caches, odd head dimensions.
 *
 * A warp takes one query head of one row, 32 keys at a time: a lane computes the score of
 * one key; then all lanes go over the keys' values together.
 */
#include "kernels/cuda/attention.h"

#define PLAIN_WARPS 4
#define EACH        (CUDA_MAX_HEAD_DIM / 32)  // elements of the output in a lane

template <class T>
static __device__ void attend_row(const struct cuda_attention &a, uint32_t row,
                                  uint32_t pos, const uint32_t *table, uint32_t head,
                                  float *q)
{
    using element = typename num<T>::element;
    const uint32_t lane = threadIdx.x % 32, dim = a.kv.head_dim;
    const uint32_t kv_head = head / a.group;
    const element *base =
        static_cast<const element *>(a.kv.base) + (size_t)kv_head * a.kv.plane;
    const size_t to_v = (size_t)a.kv.kv_heads * a.kv.plane;
    const float *from =
        a.qkv + ((size_t)row * (a.q_heads + 2 * a.kv.kv_heads) + head) * dim;
    __syncwarp();
    for (uint32_t d = lane; d < dim; d += 32) q[d] = from[d] * a.scale;
    __syncwarp();

    float m = -INFINITY, l = 0, sum[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) sum[i] = 0;
    const uint32_t first = cuda_first_key(pos, a.window);
    for (uint32_t k0 = first / 32 * 32; k0 <= pos; k0 += 32) {
        const uint32_t key = k0 + lane;
        const bool seen = key >= first && key <= pos;
        const element *k = base;
        float score = -INFINITY;
        if (seen) {
            k += table[key / KV_BLOCK_TOKENS] * a.kv.block_stride +
                 (size_t)(key % KV_BLOCK_TOKENS) * dim;
            score = 0;
            for (uint32_t d = 0; d < dim; d++)
                score = fmaf(q[d], num<T>::widen(k[d]), score);
        }
        float top = fmaxf(m, score);
        for (int o = 16; o; o >>= 1)
            top = fmaxf(top, __shfl_xor_sync(WARP_ALL, top, o));
        const float shrink = m == -INFINITY ? 0.0f : expf(m - top);
        const float weight = seen ? expf(score - top) : 0.0f;
        float weights = weight;
        for (int o = 16; o; o >>= 1) weights += __shfl_xor_sync(WARP_ALL, weights, o);
        l = fmaf(l, shrink, weights);
        m = top;
#pragma unroll
        for (int i = 0; i < EACH; i++) sum[i] *= shrink;
        // Only keys that are seen are touched: what lies in the others may be anything.
        const uint32_t begin = max(first, k0) - k0, end = min(pos - k0 + 1, 32u);
        for (uint32_t j = begin; j < end; j++) {
            const float p = __shfl_sync(WARP_ALL, weight, (int)j);
            const element *v = base + to_v +
                               table[(k0 + j) / KV_BLOCK_TOKENS] * a.kv.block_stride +
                               (size_t)((k0 + j) % KV_BLOCK_TOKENS) * dim;
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (lane + 32 * i < dim)
                    sum[i] = fmaf(p, num<T>::widen(v[lane + 32 * i]), sum[i]);
        }
    }
    float *out = a.out + ((size_t)row * a.q_heads + head) * dim;
    const float inverse = 1.0f / l;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (lane + 32 * i < dim) out[lane + 32 * i] = sum[i] * inverse;
}

/* Eight blocks on a multiprocessor: without the number ptxas saves registers and spills. */
template <class T>
static __global__ void __launch_bounds__(32 * PLAIN_WARPS, 8)
    attention_plain(struct cuda_attention a)
{
    GPU_SHARED(float, q, [PLAIN_WARPS][CUDA_MAX_HEAD_DIM]);
    const uint32_t warp = threadIdx.x / 32;
    for (uint32_t i = blockIdx.x; i < *a.n_items; i += gridDim.x) {
        const struct cuda_item item = a.items[i];
        for (uint32_t e = warp; e < item.n_rows * a.q_heads; e += PLAIN_WARPS)
            attend_row<T>(a, item.row + e / a.q_heads, item.pos + e / a.q_heads,
                          a.tables + item.table, e % a.q_heads, q[warp]);
    }
}
GPU_KERNEL(attention_plain<float>);
GPU_KERNEL(attention_plain<__half>);
GPU_KERNEL(attention_plain<__nv_bfloat16>);

extern "C" cudaError_t cuda_attention_plain(struct cuda_attention a, uint32_t blocks,
                                            cudaStream_t stream)
{
    auto *kernel = a.kv.type == DTYPE_F32   ? attention_plain<float>
                   : a.kv.type == DTYPE_F16 ? attention_plain<__half>
                                            : attention_plain<__nv_bfloat16>;
    return gpu_launch(kernel, dim3(blocks), 32 * PLAIN_WARPS, 0, stream, a);
}
