/* best.cu - the best of each row of logits, so that only these come to the host.
 *
 * A block takes a row.  Each thread knows the best of its own logits, the block the best of
 * those; whose it was looks for its next one.  So a row is read once where one is asked for, and
 * a thread's part of it again for each further one.  Ranks are those of kernels/best.h: no two
 * are equal, so in which order threads are compared does not matter.
 */
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"

#define BEST_THREADS 512
#define NONE         0xffffffffffffffffull

/* A NaN has rank 0, which no number has. */
static __device__ __forceinline__ uint64_t rank_of(float logit, uint32_t id)
{
    return logit != logit ? 0 : best_rank(logit, id);
}

/* The least rank from `from` on among the thread's own logits. */
static __device__ uint64_t least_rank(const float *logits, uint32_t n, uint64_t from)
{
    uint64_t least = NONE;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < n; i += BEST_THREADS) {
        const uint64_t rank = rank_of(logits[i], i);
        if (rank >= from && rank < least) least = rank;
    }
    return least;
}

static __device__ __forceinline__ uint64_t warp_least(uint64_t rank)
{
    for (int o = 16; o; o >>= 1) {
        const uint64_t other = __shfl_xor_sync(WARP_ALL, rank, o);
        if (other < rank) rank = other;
    }
    return rank;
}

/* Of the block, in every thread.  `least` has a place for each warp, and is not that of the call
 * before, which some may still read. */
static __device__ __forceinline__ uint64_t block_least(uint64_t rank, uint64_t *least)
{
    rank = warp_least(rank);
    if (threadIdx.x % 32 == 0) least[threadIdx.x / 32] = rank;
    __syncthreads();
    return warp_least(least[threadIdx.x % (BEST_THREADS / 32)]);
}

static __global__ void __launch_bounds__(BEST_THREADS)
    find_best(struct best *out, const float *logits, uint32_t ld,
              const uint32_t *n_best, const uint32_t *n_usable)
{
    GPU_SHARED(uint64_t, least, [2][BEST_THREADS / 32]);
    const uint32_t k = n_best[blockIdx.x], n = *n_usable;
    if (k == 0) return;
    logits += (size_t)blockIdx.x * ld;
    out += (size_t)blockIdx.x * BEST_MOST;
    uint64_t mine = least_rank(logits, n, 0);
    for (uint32_t i = 0; i < k; i++) {
        const uint64_t top = block_least(mine, least[i % 2]);
        if (i == 0 && (top <= best_rank(INFINITY, UINT32_MAX) ||
                       top >= best_rank(-INFINITY, 0))) {
            if (threadIdx.x == 0) out[0] = {-1, 0.0f};
            return;
        }
        const uint32_t id = best_id(top);
        if (threadIdx.x == 0) out[i] = {(int32_t)id, logits[id]};
        if (mine == top && i + 1 < k) mine = least_rank(logits, n, top + 1);
    }
}
GPU_KERNEL(find_best);

extern "C" cudaError_t cuda_best(struct best *out, const float *logits, uint32_t ld,
                                 const uint32_t *n_best, const uint32_t *n_usable,
                                 uint32_t rows, cudaStream_t stream)
{
    return gpu_launch(find_best, dim3(rows), BEST_THREADS, 0, stream, out, logits, ld,
                      n_best, n_usable);
}
