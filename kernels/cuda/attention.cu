/* attention.cu - causal attention over paged 16-bit KV on tensor cores, for decode and
 * prefill alike.
 *
 * A warp takes 16 query vectors of one KV head: neighbouring rows of a sequence times the
 * query heads that share the KV head, so each K and V is read once for all of them.  Four
 * warps share what they read where a sequence has many rows; one warp works alone where it
 * has few, and a conversation that decodes is cut into segments that go in parallel.
 *
 * Exactness: keys are taken in tiles of 32 at fixed places, by an online softmax that starts
 * empty in each segment of 256; segments are joined in order, here or by attention_join.  So
 * what a query computes depends on its position and window only, and prefill in any chunks
 * gives the bits of decode.
 *
 * Two tiles are in shared memory: one at work, one on its way (cp.async).
 */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/gpu.h"

#define TILE      32  // keys
#define MMA_WARPS 4   // of a wide block

/* One item at work in a thread block; all but m, l, o and the totals is alike in all threads
 * of a warp. */
struct keys {
    uint32_t first, last;  // of the item: first <= t < last
    const uint32_t *table;
};

template <int HD> struct tiles {
    static constexpr int LD = HD + 8;  // rows in different banks
    static constexpr size_t bytes = (size_t)2 * 2 * TILE * LD * sizeof(uint16_t);
    static_assert(bytes <= (48 << 10), "a kernel has to ask for more shared memory");
};

/* Begin to fetch tile `it` of K and V; keys that nobody sees are zeros, as what lies in
 * their place may be anything. */
template <int HD>
static __device__ __forceinline__ void fetch(uint16_t *k, const uint16_t *base,
                                             const struct cuda_kv &kv,
                                             const struct keys &keys, uint32_t it)
{
    constexpr int LD = tiles<HD>::LD;
    uint16_t *v = k + TILE * LD;
    const size_t to_v = (size_t)kv.kv_heads * kv.plane;
    for (uint32_t c = threadIdx.x; c < TILE * (HD / 8); c += blockDim.x) {
        const uint32_t r = c / (HD / 8), d = c % (HD / 8) * 8, t = it * TILE + r;
        const bool on = t >= keys.first && t < keys.last;
        const uint16_t *p = base;
        if (on)
            p += keys.table[t / KV_BLOCK_TOKENS] * kv.block_stride +
                 (size_t)(t % KV_BLOCK_TOKENS) * HD + d;
        cp_async_16(k + r * LD + d, p, on);
        cp_async_16(v + r * LD + d, p + (on ? to_v : 0), on);
    }
    cp_async_commit();
}

/* What one thread holds of 16 vectors: of rows g and g + 8 of the fragments. */
template <int HD> struct sums {
    float o[HD / 8][4], m[2], l[2];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < HD / 8; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0;
    }
};

/* One tile: scores, weights, values.  The vector of half h sees keys low[h] <= t <= high[h]. */
template <class T, int HD>
static __device__ __forceinline__ void
attend(struct sums<HD> &s, const uint32_t q[][4], const uint16_t *k, uint32_t first_key,
       const uint32_t low[2], const uint32_t high[2], float scale)
{
    constexpr int LD = tiles<HD>::LD;
    const uint16_t *v = k + TILE * LD;
    const uint32_t lane = threadIdx.x % 32, t = lane % 4;

    float p[TILE / 8][4];
#pragma unroll
    for (int j = 0; j < TILE / 8; j++) p[j][0] = p[j][1] = p[j][2] = p[j][3] = 0;
#pragma unroll
    for (int i = 0; i < HD / 16; i++)
#pragma unroll
        for (int j = 0; j < TILE / 16; j++) {
            uint32_t b[4];  // 16 keys, both halves of 16 elements
            ldmatrix_x4(b, k + (j * 16 + lane % 8 + lane / 16 * 8) * LD + i * 16 +
                               lane / 8 % 2 * 8);
            num<T>::mma(p[2 * j], q[i], b);
            num<T>::mma(p[2 * j + 1], q[i], b + 2);
        }

    float top[2] = {s.m[0], s.m[1]};
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t key = first_key + j * 8 + t * 2 + i % 2;
            const int h = i / 2;
            p[j][i] = key >= low[h] && key <= high[h] ? p[j][i] * scale : -INFINITY;
            top[h] = fmaxf(top[h], p[j][i]);
        }
    float shrink[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        top[h] = fmaxf(top[h], __shfl_xor_sync(WARP_ALL, top[h], 1));
        top[h] = fmaxf(top[h], __shfl_xor_sync(WARP_ALL, top[h], 2));
        shrink[h] = s.m[h] == -INFINITY ? 0.0f : exp2f(s.m[h] - top[h]);
        s.m[h] = top[h];
        s.l[h] *= shrink[h];
    }
    uint32_t a[TILE / 16][4];  // the accumulators' layout is that of the next operand
#pragma unroll
    for (int j = 0; j < TILE / 8; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p[j][i] = p[j][i] == -INFINITY ? 0.0f : exp2f(p[j][i] - s.m[i / 2]);
            s.l[i / 2] += p[j][i];
        }
        a[j / 2][j % 2 * 2] = num<T>::pack(p[j][0], p[j][1]);
        a[j / 2][j % 2 * 2 + 1] = num<T>::pack(p[j][2], p[j][3]);
    }
#pragma unroll
    for (int i = 0; i < HD / 8; i++) {
        s.o[i][0] *= shrink[0];
        s.o[i][1] *= shrink[0];
        s.o[i][2] *= shrink[1];
        s.o[i][3] *= shrink[1];
    }
#pragma unroll
    for (int j = 0; j < TILE / 16; j++)
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            uint32_t b[4];
            ldmatrix_x4_trans(b,
                              v + (j * 16 + lane % 16) * LD + i * 16 + lane / 16 * 8);
            num<T>::mma(s.o[2 * i], a[j], b);
            num<T>::mma(s.o[2 * i + 1], a[j], b + 2);
        }
}

/* The segment in s is at its end: its weights are summed over the lanes of a vector. */
template <int HD> static __device__ __forceinline__ void end_segment(struct sums<HD> &s)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        s.l[h] += __shfl_xor_sync(WARP_ALL, s.l[h], 1);
        s.l[h] += __shfl_xor_sync(WARP_ALL, s.l[h], 2);
    }
}

template <int HD>
static __device__ __forceinline__ void join_segment(struct sums<HD> &total,
                                                    const struct sums<HD> &s)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const struct joint j = joint_of(total.m[h], s.m[h]);
        total.m[h] = j.top;
        total.l[h] = joined(total.l[h], s.l[h], j);
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            total.o[i][2 * h] = joined(total.o[i][2 * h], s.o[i][2 * h], j);
            total.o[i][2 * h + 1] = joined(total.o[i][2 * h + 1], s.o[i][2 * h + 1], j);
        }
    }
}

template <int HD>
static __device__ __forceinline__ void
write_partial(const struct cuda_attention &a, const struct cuda_item &item,
              const struct sums<HD> &s, int h, uint32_t head)
{
    const uint32_t t = threadIdx.x % 4;
    float *to = a.partials +
                ((size_t)item.partial * a.q_heads + head) * (HD + CUDA_PARTIAL_EXTRA);
#pragma unroll
    for (int i = 0; i < HD / 8; i++) {
        to[i * 8 + t * 2] = s.o[i][2 * h];
        to[i * 8 + t * 2 + 1] = s.o[i][2 * h + 1];
    }
    if (t == 0) {
        to[HD] = s.m[h];
        to[HD + 1] = s.l[h];
    }
}

template <class T, int HD>
static __device__ __forceinline__ void write_out(const struct cuda_attention &a,
                                                 const struct sums<HD> &s, int h,
                                                 uint32_t row, uint32_t head)
{
    const uint32_t t = threadIdx.x % 4;
    const float inverse = 1.0f / s.l[h];
    float *to = a.out + ((size_t)row * a.q_heads + head) * HD;
    uint16_t *image = a.image.data;
    if (image) image += (size_t)row * a.image.ld + head * HD;
#pragma unroll
    for (int i = 0; i < HD / 8; i++) {
        const float x = s.o[i][2 * h] * inverse, y = s.o[i][2 * h + 1] * inverse;
        *reinterpret_cast<float2 *>(to + i * 8 + t * 2) = make_float2(x, y);
        if (image)
            *reinterpret_cast<uint32_t *>(image + i * 8 + t * 2) =
                narrow_to(a.image.type, x) | (uint32_t)narrow_to(a.image.type, y) << 16;
    }
}

/* Vector i of an item: query head i % group of row i / group.  Not mine: past the last one. */
struct vector {
    uint32_t row, head;
    bool mine;
};
static __device__ __forceinline__ struct vector
vector_of(const struct cuda_item &item, uint32_t i, uint32_t group, uint32_t kv_head)
{
    const bool mine = i < item.n_rows * group;
    return {item.row + (mine ? i / group : 0), kv_head * group + (mine ? i % group : 0),
            mine};
}

template <class T, int HD>
static __device__ __forceinline__ void attend_item(const struct cuda_attention &a,
                                                   const struct cuda_item &item,
                                                   uint32_t kv_head, uint16_t *smem)
{
    constexpr int LD = tiles<HD>::LD;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4,
                   t = lane % 4;
    const uint32_t group = a.group, vectors = item.n_rows * group;
    const uint32_t width = (a.q_heads + 2 * a.kv.kv_heads) * HD;

    uint32_t low[2], high[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const struct vector v = vector_of(item, warp * 16 + g + 8 * h, group, kv_head);
        high[h] = item.pos + v.row - item.row;
        low[h] =
            v.mine ? cuda_first_key(high[h], a.window) : high[h] + 1;  // or sees none
    }
    uint32_t q[HD / 16][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const struct vector v = vector_of(item, warp * 16 + g + 8 * h, group, kv_head);
        const float *from = a.qkv + (size_t)v.row * width + (size_t)v.head * HD + t * 2;
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            const float2 x = *reinterpret_cast<const float2 *>(from + i * 8);
            q[i / 2][h + i % 2 * 2] = v.mine ? num<T>::pack(x.x, x.y) : 0;
        }
    }

    // Keys of the item, and of this warp's vectors.
    struct keys keys = {cuda_first_key(item.pos, a.window), item.pos + item.n_rows,
                        a.tables + item.table};
    const bool partial = item.partial != CUDA_NO_PARTIAL;
    if (partial) {
        keys.first = max(keys.first, item.segment * CUDA_SEGMENT);
        keys.last = min(keys.last, (item.segment + 1) * CUDA_SEGMENT);
    }
    const uint32_t from = warp * 16 / group,
                   to = min(warp * 16 + 15, vectors - 1) / group;
    const bool idle = warp * 16 >= vectors;
    const uint32_t warp_low = cuda_first_key(item.pos + from, a.window),
                   warp_high = item.pos + to;

    const uint16_t *base = static_cast<const uint16_t *>(a.kv.base) +
                           (size_t)kv_head * KV_BLOCK_TOKENS * HD;
    const uint32_t end = (keys.last + TILE - 1) / TILE;
    struct sums<HD> s, total;
    s.clear();
    total.clear();
    uint32_t it = keys.first / TILE;
    fetch<HD>(smem + (it % 2) * 2 * TILE * LD, base, a.kv, keys, it);
    for (; it < end; it++) {
        if (it + 1 < end) {
            fetch<HD>(smem + ((it + 1) % 2) * 2 * TILE * LD, base, a.kv, keys, it + 1);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        if (!idle && it * TILE <= warp_high && (it + 1) * TILE > warp_low)
            attend<T, HD>(s, q, smem + (it % 2) * 2 * TILE * LD, it * TILE, low, high,
                          a.scale);
        if ((it + 1) % (CUDA_SEGMENT / TILE) == 0 || it + 1 == end) {
            end_segment(s);
            if (partial) break;
            join_segment(total, s);
            s.clear();
        }
        __syncthreads();  // before this stage is overwritten
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const struct vector v = vector_of(item, warp * 16 + g + 8 * h, group, kv_head);
        if (!v.mine) continue;
        if (partial)
            write_partial(a, item, s, h, v.head);
        else
            write_out<T, HD>(a, total, h, v.row, v.head);
    }
    __syncthreads();  // before the next item's first tile
}

template <class T, int HD>
static __global__ void __launch_bounds__(32 * MMA_WARPS, 2)
    attention_mma(struct cuda_attention a)
{
    GPU_DYN_SHARED(smem, tiles<HD>::bytes);
    const uint32_t n = *a.n_items * a.kv.kv_heads;
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x)
        attend_item<T, HD>(a, a.items[i / a.kv.kv_heads], i % a.kv.kv_heads,
                           reinterpret_cast<uint16_t *>(smem));
}
#define EACH_DIM(X) X(16) X(32) X(64) X(96) X(128)
#define NAMED(HD)                                                                      \
    GPU_KERNEL(attention_mma<__half, HD>);                                             \
    GPU_KERNEL(attention_mma<__nv_bfloat16, HD>);
EACH_DIM(NAMED)

/* Join the segments of a row: one block for a head, one thread for an element. */
static __global__ void __launch_bounds__(CUDA_MAX_HEAD_DIM)
    attention_join(struct cuda_attention a, const struct cuda_join *joins,
                   const uint32_t *n_joins)
{
    if (blockIdx.x >= *n_joins) return;
    const struct cuda_join j = joins[blockIdx.x];
    const uint32_t dim = a.kv.head_dim, head = blockIdx.y, d = threadIdx.x;
    if (d >= dim) return;
    float m = -INFINITY, l = 0, o = 0;
    for (uint32_t s = 0; s < j.n; s++) {
        const float *p = a.partials + ((size_t)(j.partial + s) * a.q_heads + head) *
                                          (dim + CUDA_PARTIAL_EXTRA);
        const struct joint t = joint_of(m, p[dim]);
        m = t.top;
        l = joined(l, p[dim + 1], t);
        o = joined(o, p[d], t);
    }
    const float v = o * (1.0f / l);
    a.out[((size_t)j.row * a.q_heads + head) * dim + d] = v;
    if (a.image.data)
        a.image.data[(size_t)j.row * a.image.ld + head * dim + d] =
            narrow_to(a.image.type, v);
}
GPU_KERNEL(attention_join);

extern "C" {

bool cuda_attention_tensor(enum dtype kv, uint32_t head_dim, uint32_t group)
{
#define IS(HD) || head_dim == HD
    return (kv == DTYPE_F16 || kv == DTYPE_BF16) && group <= CUDA_NARROW &&
           (false EACH_DIM(IS));
}

cudaError_t cuda_attention_mma(struct cuda_attention a, bool wide, uint32_t blocks,
                               cudaStream_t stream)
{
    const unsigned threads = wide ? 32 * MMA_WARPS : 32;
    a.scale *= 1.44269504f;  // exp(x) = 2^(x log2 e)
#define LAUNCH(HD)                                                                     \
    if (a.kv.head_dim == HD)                                                           \
        return gpu_launch(a.kv.type == DTYPE_F16 ? attention_mma<__half, HD>           \
                                                 : attention_mma<__nv_bfloat16, HD>,   \
                          dim3(blocks), threads, tiles<HD>::bytes, stream, a);
    EACH_DIM(LAUNCH)
    return cudaErrorInvalidValue;
}

cudaError_t cuda_attention_join(struct cuda_attention a, const struct cuda_join *joins,
                                const uint32_t *n_joins, uint32_t rows,
                                cudaStream_t stream)
{
    return gpu_launch(attention_join, dim3(rows, a.q_heads),
                      (a.kv.head_dim + 31) / 32 * 32, 0, stream, a, joins, n_joins);
}

}  // extern "C"
