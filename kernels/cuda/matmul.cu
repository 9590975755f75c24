/* matmul.cu - y = x W^T for few rows: decode, where reading the weights is all the time.
 *
 * 16-bit weights: a block of eight warps takes 16 outputs; each warp an eighth of the columns,
 * the parts are summed in order.  W is the 16-row operand of mma.m16n8k16 and goes from global
 * memory straight to registers, once; eight rows of x are the other operand.  Lane (g, t) of
 * the fragments needs columns 2t, 2t+1, 2t+8, 2t+9 of a group of 16: which column is called
 * which does not matter as long as W and x agree, so it loads the 16 bytes of columns
 * 8t .. 8t+7 of a group of 32 and uses them in two products.
 *
 * How many warps share the columns depends on their number only, so an output has the same
 * bits whatever the batch.
 */
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"

#define WARPS   CUDA_PARTS
#define OUTPUTS 16  // of a block
#define GROUP   CUDA_GROUP
#define AHEAD   4  // groups whose weights are loaded together

/* Products with zeros past the last row of W or x. */
static __device__ __forceinline__ uint4 load_eight(const uint16_t *p, bool there)
{
    return there ? *reinterpret_cast<const uint4 *>(p) : make_uint4(0, 0, 0, 0);
}

template <class T, int TILES>  // of eight rows of x
static __global__ void __launch_bounds__(32 * WARPS)
    matmul_few(float *y, struct cuda_matrix m, const uint16_t *x, uint32_t n_rows)
{
    GPU_SHARED(float, part, [WARPS][OUTPUTS][8 * TILES + 1]);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t g = lane / 4, t = lane % 4, first = blockIdx.x * OUTPUTS;
    const uint32_t groups = (m.ld + GROUP - 1) / GROUP,
                   each = (groups + WARPS - 1) / WARPS;
    const uint32_t begin = warp * each * GROUP;
    const uint32_t end = min((warp + 1) * each * GROUP, m.ld);

    const uint16_t *w = static_cast<const uint16_t *>(m.data) + (size_t)first * m.ld;
    const bool low = first + g < m.rows, high = first + g + 8 < m.rows;
    float sum[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; i++) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0;

    for (uint32_t k0 = begin; k0 < end; k0 += AHEAD * GROUP) {
        uint4 a[AHEAD], b[AHEAD];  // all on their way before the first is used
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const uint32_t k = k0 + u * GROUP + 8 * t;
            a[u] = load_eight(w + (size_t)g * m.ld + k, k < end && low);
            b[u] = load_eight(w + (size_t)(g + 8) * m.ld + k, k < end && high);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const uint32_t k = k0 + u * GROUP + 8 * t;
            const uint32_t w0[4] = {a[u].x, b[u].x, a[u].y, b[u].y};
            const uint32_t w1[4] = {a[u].z, b[u].z, a[u].w, b[u].w};
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                const uint32_t row = 8 * i + g;
                const uint4 v =
                    load_eight(x + (size_t)row * m.ld + k, k < end && row < n_rows);
                const uint32_t x0[2] = {v.x, v.y}, x1[2] = {v.z, v.w};
                num<T>::mma(sum[i], w0, x0);
                num<T>::mma(sum[i], w1, x1);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        part[warp][g][8 * i + 2 * t] = sum[i][0];
        part[warp][g][8 * i + 2 * t + 1] = sum[i][1];
        part[warp][g + 8][8 * i + 2 * t] = sum[i][2];
        part[warp][g + 8][8 * i + 2 * t + 1] = sum[i][3];
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < OUTPUTS * n_rows; e += 32 * WARPS) {
        const uint32_t o = e % OUTPUTS, row = e / OUTPUTS;
        if (first + o >= m.rows) continue;
        float v = part[0][o][row];
        for (int i = 1; i < WARPS; i++) v += part[i][o][row];
        if (m.bias) v += m.bias[first + o];
        y[(size_t)row * m.rows + first + o] = v;
    }
}
#define FEW(T)                                                                         \
    GPU_KERNEL(matmul_few<T, 1>);                                                      \
    GPU_KERNEL(matmul_few<T, 2>);                                                      \
    GPU_KERNEL(matmul_few<T, 4>)
FEW(__half);
FEW(__nv_bfloat16);

/* f32 weights: a warp takes one output for eight rows at a time. */
static __global__ void __launch_bounds__(32 * WARPS)
    matmul_few_f32(float *y, struct cuda_matrix m, const float *x, uint32_t n_rows)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t o = blockIdx.x * WARPS + threadIdx.x / 32;
    if (o >= m.rows) return;
    const float *w = static_cast<const float *>(m.data) + (size_t)o * m.ld;
    for (uint32_t first = 0; first < n_rows; first += 8) {
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (uint32_t k = lane; k < m.cols; k += 32) {
            const float v = w[k];
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (first + i < n_rows)
                    sum[i] = fmaf(v, x[(size_t)(first + i) * m.cols + k], sum[i]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            for (int s = 16; s; s >>= 1) sum[i] += __shfl_xor_sync(WARP_ALL, sum[i], s);
            if (lane == 0 && first + i < n_rows)
                y[(size_t)(first + i) * m.rows + o] =
                    m.bias ? sum[i] + m.bias[o] : sum[i];
        }
    }
}
GPU_KERNEL(matmul_few_f32);

template <class T>
static cudaError_t few(float *y, const struct cuda_matrix &m, const void *x,
                       uint32_t n_rows, cudaStream_t stream)
{
    auto *kernel = n_rows <= 8    ? matmul_few<T, 1>
                   : n_rows <= 16 ? matmul_few<T, 2>
                                  : matmul_few<T, 4>;
    return gpu_launch(kernel, dim3((m.rows + OUTPUTS - 1) / OUTPUTS), 32 * WARPS, 0,
                      stream, y, m, static_cast<const uint16_t *>(x), n_rows);
}

extern "C" cudaError_t cuda_matmul_few(float *y, struct cuda_matrix m, const void *x,
                                       uint32_t n_rows, cudaStream_t stream)
{
    if (m.type == DTYPE_F16) return few<__half>(y, m, x, n_rows, stream);
    if (m.type == DTYPE_BF16) return few<__nv_bfloat16>(y, m, x, n_rows, stream);
    return gpu_launch(matmul_few_f32, dim3((m.rows + WARPS - 1) / WARPS), 32 * WARPS, 0,
                      stream, y, m, static_cast<const float *>(x), n_rows);
}
