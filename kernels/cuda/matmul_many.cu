/* matmul_many.cu - y = x W^T for many rows, with the bits that few rows give.
 *
 * A block of four warps takes 64 rows by 64 outputs, a warp 32 by 32.  Both operands come by
 * cp.async, four groups of 32 columns deep, and are used as in matmul.cu: lane (g, t) takes
 * columns 8t .. 8t+7 of a group, 16 bytes, which lie so that eight lanes touch every bank
 * once.  The groups of a part are summed from zero, the parts in order.
 *
 * Blocks of the same outputs are neighbours, so that weights come from memory once.
 */
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"

#define SIDE    64  // of a block's tile
#define STAGES  4
#define THREADS 128

/* A stage: 64 rows of W, then 64 of x, each of 32 columns. */
#define STAGE      (2 * SIDE * CUDA_GROUP)
#define ALL_STAGES (STAGES * STAGE * sizeof(uint16_t))

struct tile {
    const uint16_t *w, *x;   // first row of each
    uint32_t outputs, rows;  // that there are
    uint32_t ld;
};

static __device__ __forceinline__ void fetch(uint16_t *stage, const struct tile &t,
                                             uint32_t group)
{
    for (uint32_t c = threadIdx.x; c < 2 * SIDE * 4; c += THREADS) {
        const uint32_t r = c / 4 % SIDE, k = group * CUDA_GROUP + c % 4 * 8;
        const bool is_x = c / 4 >= SIDE;
        const bool on = k < t.ld && r < (is_x ? t.rows : t.outputs);
        const uint16_t *from = is_x ? t.x : t.w;
        cp_async_16(stage + c * 8, on ? from + (size_t)r * t.ld + k : t.w, on);
    }
    cp_async_commit();
}

template <class T>
static __device__ __forceinline__ void
multiply(float sum[2][4][4], const uint16_t *stage, uint32_t output, uint32_t row)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint16_t *w = stage + (output + g) * CUDA_GROUP + 8 * t;
    const uint16_t *x = stage + (SIDE + row + g) * CUDA_GROUP + 8 * t;
    uint4 b[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        b[j] = *reinterpret_cast<const uint4 *>(x + j * 8 * CUDA_GROUP);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint4 low = *reinterpret_cast<const uint4 *>(w + i * 16 * CUDA_GROUP);
        const uint4 high =
            *reinterpret_cast<const uint4 *>(w + (i * 16 + 8) * CUDA_GROUP);
        const uint32_t w0[4] = {low.x, high.x, low.y, high.y};
        const uint32_t w1[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t x0[2] = {b[j].x, b[j].y}, x1[2] = {b[j].z, b[j].w};
            num<T>::mma(sum[i][j], w0, x0);
            num<T>::mma(sum[i][j], w1, x1);
        }
    }
}

/* The part in `sum` is at its end. */
static __device__ __forceinline__ void end_part(float total[2][4][4],
                                                float sum[2][4][4], bool first)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                total[i][j][e] = first ? sum[i][j][e] : total[i][j][e] + sum[i][j][e];
                sum[i][j][e] = 0;
            }
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    matmul_many(float *y, struct cuda_matrix m, const uint16_t *x, uint32_t n_rows)
{
    GPU_DYN_SHARED(smem, ALL_STAGES);
    uint16_t *stages = reinterpret_cast<uint16_t *>(smem);
    const uint32_t first_row = blockIdx.x * SIDE, first_output = blockIdx.y * SIDE;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t output = warp % 2 * 32, row = warp / 2 * 32;
    const struct tile t = {
        static_cast<const uint16_t *>(m.data) + (size_t)first_output * m.ld,
        x + (size_t)first_row * m.ld, m.rows - first_output, n_rows - first_row, m.ld};
    const uint32_t groups = (m.ld + CUDA_GROUP - 1) / CUDA_GROUP;
    const uint32_t each = (groups + CUDA_PARTS - 1) / CUDA_PARTS;

    float sum[2][4][4] = {}, total[2][4][4] = {};
    for (uint32_t s = 0; s < STAGES - 1; s++) {
        if (s < groups)
            fetch(stages + s * STAGE, t, s);
        else
            cp_async_commit();
    }
    for (uint32_t k = 0; k < groups; k++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // group k is there, and nobody reads the stage before it
        if (k + STAGES - 1 < groups)
            fetch(stages + (k + STAGES - 1) % STAGES * STAGE, t, k + STAGES - 1);
        else
            cp_async_commit();
        multiply<T>(sum, stages + k % STAGES * STAGE, output, row);
        if ((k + 1) % each == 0 || k + 1 == groups) end_part(total, sum, k < each);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t o =
                    first_output + output + i * 16 + lane / 4 + e / 2 * 8;
                const uint32_t r = first_row + row + j * 8 + lane % 4 * 2 + e % 2;
                if (o >= m.rows || r >= n_rows) continue;
                float v = total[i][j][e];
                if (m.bias) v += m.bias[o];
                y[(size_t)r * m.rows + o] = v;
            }
}
GPU_KERNEL(matmul_many<__half>);
GPU_KERNEL(matmul_many<__nv_bfloat16>);

extern "C" cudaError_t cuda_matmul_many(float *y, struct cuda_matrix m, const void *x,
                                        uint32_t n_rows, cudaStream_t stream)
{
    if (m.type == DTYPE_F32) return cuda_matmul_few(y, m, x, n_rows, stream);
    const dim3 grid((n_rows + SIDE - 1) / SIDE, (m.rows + SIDE - 1) / SIDE);
    return gpu_launch(
        m.type == DTYPE_F16 ? matmul_many<__half> : matmul_many<__nv_bfloat16>, grid,
        THREADS, ALL_STAGES, stream, y, m, static_cast<const uint16_t *>(x), n_rows);
}
