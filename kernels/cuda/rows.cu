/* rows.cu - operations that go row by row: embedding, norms, activation, gathering. */
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"

#define ROW_THREADS 256

static __device__ __forceinline__ void set_image(const struct cuda_image &image,
                                                 uint32_t row, uint32_t col, float f)
{
    if (image.data) image.data[(size_t)row * image.ld + col] = narrow_to(image.type, f);
}

/* Zeros behind the last column, so that a product with them is nothing. */
static __device__ __forceinline__ void end_image(const struct cuda_image &image,
                                                 uint32_t row, uint32_t cols)
{
    if (!image.data) return;
    for (uint32_t i = cols + threadIdx.x; i < image.ld; i += blockDim.x)
        image.data[(size_t)row * image.ld + i] = 0;
}

/* The sum over the block, in every thread, in an order that the block's size alone decides. */
static __device__ float block_sum(float v, float *sums)
{
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(WARP_ALL, v, o);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0;
    for (uint32_t w = 0; w < blockDim.x / 32; w++) sum += sums[w];
    return sum;
}

static __global__ void __launch_bounds__(ROW_THREADS)
    embed(float *x, const void *table, enum dtype type, uint32_t ld, const int32_t *ids,
          uint32_t cols)
{
    size_t from = (size_t)ids[blockIdx.x] * ld;
    x += (size_t)blockIdx.x * cols;
    for (uint32_t i = threadIdx.x; i < cols; i += blockDim.x) {
        if (type == DTYPE_F32)
            x[i] = static_cast<const float *>(table)[from + i];
        else {
            uint16_t h = static_cast<const uint16_t *>(table)[from + i];
            x[i] = type == DTYPE_F16 ? num<__half>::widen(h)
                                     : num<__nv_bfloat16>::widen(h);
        }
    }
}
GPU_KERNEL(embed);

static __global__ void __launch_bounds__(ROW_THREADS)
    rmsnorm(float *y, struct cuda_image image, float *x, const float *d, const float *w,
            float eps, uint32_t cols)
{
    GPU_SHARED(float, sums, [ROW_THREADS / 32]);
    const uint32_t row = blockIdx.x;
    x += (size_t)row * cols;
    y += (size_t)row * cols;
    float sum = 0;
    if (d) d += (size_t)row * cols;
    for (uint32_t i = threadIdx.x; i < cols; i += blockDim.x) {
        float v = x[i];
        if (d) x[i] = v = v + d[i];
        sum = fmaf(v, v, sum);
    }
    const float scale = 1.0f / sqrtf(block_sum(sum, sums) / (float)cols + eps);
    for (uint32_t i = threadIdx.x; i < cols; i += blockDim.x) {
        float v = x[i] * scale * w[i];
        y[i] = v;
        set_image(image, row, i, v);
    }
    end_image(image, row, cols);
}
GPU_KERNEL(rmsnorm);

/* The same for columns in fours. */
static __global__ void __launch_bounds__(ROW_THREADS)
    rmsnorm_wide(float *y, struct cuda_image image, float *x, const float *d,
                 const float *w, float eps, uint32_t cols)
{
    GPU_SHARED(float, sums, [ROW_THREADS / 32]);
    const uint32_t row = blockIdx.x, n = cols / 4;
    float4 *x4 = reinterpret_cast<float4 *>(x + (size_t)row * cols);
    float4 *y4 = reinterpret_cast<float4 *>(y + (size_t)row * cols);
    const float4 *d4 = reinterpret_cast<const float4 *>(d ? d + (size_t)row * cols : d);
    const float4 *w4 = reinterpret_cast<const float4 *>(w);
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        float4 v = x4[i];
        if (d) {
            const float4 a = d4[i];
            v = make_float4(v.x + a.x, v.y + a.y, v.z + a.z, v.w + a.w);
            x4[i] = v;
        }
        sum = fmaf(v.x, v.x, sum);
        sum = fmaf(v.y, v.y, sum);
        sum = fmaf(v.z, v.z, sum);
        sum = fmaf(v.w, v.w, sum);
    }
    const float scale = 1.0f / sqrtf(block_sum(sum, sums) / (float)cols + eps);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float4 v = x4[i], g = w4[i];
        const float4 r = make_float4(v.x * scale * g.x, v.y * scale * g.y,
                                     v.z * scale * g.z, v.w * scale * g.w);
        y4[i] = r;
        if (image.data) {
            ushort4 h =
                make_ushort4(narrow_to(image.type, r.x), narrow_to(image.type, r.y),
                             narrow_to(image.type, r.z), narrow_to(image.type, r.w));
            reinterpret_cast<ushort4 *>(image.data + (size_t)row * image.ld)[i] = h;
        }
    }
    end_image(image, row, cols);
}
GPU_KERNEL(rmsnorm_wide);

static __global__ void __launch_bounds__(ROW_THREADS)
    silu_mul(float *y, struct cuda_image image, const float *gu, uint32_t n)
{
    const uint32_t row = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
    const float *gate = gu + (size_t)row * 2 * n, *up = gate + n;
    if (i < n) {
        const float g = gate[i], v = g / (1.0f + expf(-g)) * up[i];
        y[(size_t)row * n + i] = v;
        set_image(image, row, i, v);
    }
    if (blockIdx.y == 0) end_image(image, row, n);
}
GPU_KERNEL(silu_mul);

static __global__ void __launch_bounds__(ROW_THREADS)
    gather(float *y, struct cuda_image image, const float *x, const uint32_t *which,
           uint32_t cols)
{
    const uint32_t row = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
    const size_t from = which ? which[row] : row;
    if (i < cols) {
        const float v = x[from * cols + i];
        if (y) y[(size_t)row * cols + i] = v;
        set_image(image, row, i, v);
    }
    if (blockIdx.y == 0) end_image(image, row, cols);
}
GPU_KERNEL(gather);

static __global__ void __launch_bounds__(ROW_THREADS)
    add_bias(float *y, const float *bias, uint32_t cols)
{
    const uint32_t i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i < cols) y[(size_t)blockIdx.x * cols + i] += bias[i];
}
GPU_KERNEL(add_bias);

static dim3 by_element(uint32_t rows, uint32_t cols)
{
    return dim3(rows, (cols + ROW_THREADS - 1) / ROW_THREADS);
}

extern "C" {

cudaError_t cuda_embed(float *x, const void *table, enum dtype type, uint32_t ld,
                       const int32_t *ids, uint32_t rows, uint32_t cols,
                       cudaStream_t stream)
{
    return gpu_launch(embed, dim3(rows), ROW_THREADS, 0, stream, x, table, type, ld,
                      ids, cols);
}

cudaError_t cuda_rmsnorm(float *y, struct cuda_image image, float *x, const float *d,
                         const float *w, float eps, uint32_t rows, uint32_t cols,
                         cudaStream_t stream)
{
    return gpu_launch(cols % 4 ? rmsnorm : rmsnorm_wide, dim3(rows), ROW_THREADS, 0,
                      stream, y, image, x, d, w, eps, cols);
}

cudaError_t cuda_silu_mul(float *y, struct cuda_image image, const float *gu,
                          uint32_t rows, uint32_t n, cudaStream_t stream)
{
    return gpu_launch(silu_mul, by_element(rows, n), ROW_THREADS, 0, stream, y, image,
                      gu, n);
}

cudaError_t cuda_gather(float *y, struct cuda_image image, const float *x,
                        const uint32_t *which, uint32_t rows, uint32_t cols,
                        cudaStream_t stream)
{
    return gpu_launch(gather, by_element(rows, cols), ROW_THREADS, 0, stream, y, image,
                      x, which, cols);
}

cudaError_t cuda_add_bias(float *y, const float *bias, uint32_t rows, uint32_t cols,
                          cudaStream_t stream)
{
    return gpu_launch(add_bias, by_element(rows, cols), ROW_THREADS, 0, stream, y, bias,
                      cols);
}

}  // extern "C"
