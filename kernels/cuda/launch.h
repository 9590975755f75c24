/* launch.h - the kernels as C functions: each enqueues one kernel on a stream.
 *
 * Owns     nothing.  All pointers but `stream` are device memory.
 * Caller   has checked shapes (kernels/step.c does); rows of f32 activations lie without
 *          gaps.  An answer other than cudaSuccess is the launch's own error.
 * Threads  any; a stream orders what is enqueued on it.
 *
 * Images.  Matrices in f16 or bf16 are multiplied with x rounded to their type.  A kernel that
 * computes such an x writes that image of its result, too: rows of `ld` elements, ld the next
 * multiple of 8 of the columns.  data NULL: none is wanted.
 *
 * Structs  go to kernels by value, so they have no padding.
 *
 * Exact    what an output is computed from and in which order depends on its own row, its
 *          position and the shape of the model; never on other rows or on the grid.
 */
#ifndef KERNELS_CUDA_LAUNCH_H
#define KERNELS_CUDA_LAUNCH_H

#include "kernels/best.h"
#include "kernels/dtype.h"

#include <cuda_runtime_api.h>

BASE_BEGIN

struct cuda_image {
    uint16_t *data;
    uint32_t ld;
    enum dtype type;  // f16 or bf16
};

/* ---- rows.cu ---- */

/* x(rows, cols) = rows `ids` of the table (vocab, ld). */
cudaError_t cuda_embed(float *x, const void *table, enum dtype type, uint32_t ld,
                       const int32_t *ids, uint32_t rows, uint32_t cols,
                       cudaStream_t stream);
/* x += d where d is there; y = x / sqrt(mean(x^2) + eps) * w. */
cudaError_t cuda_rmsnorm(float *y, struct cuda_image image, float *x, const float *d,
                         const float *w, float eps, uint32_t rows, uint32_t cols,
                         cudaStream_t stream);
/* y(rows, n) = silu(gu[:, :n]) * gu[:, n:] */
cudaError_t cuda_silu_mul(float *y, struct cuda_image image, const float *gu,
                          uint32_t rows, uint32_t n, cudaStream_t stream);
/* Row i of y is row which[i] of x; which NULL: row i, and y is not written where it is NULL. */
cudaError_t cuda_gather(float *y, struct cuda_image image, const float *x,
                        const uint32_t *which, uint32_t rows, uint32_t cols,
                        cudaStream_t stream);
cudaError_t cuda_add_bias(float *y, const float *bias, uint32_t rows, uint32_t cols,
                          cudaStream_t stream);

/* ---- best.cu ---- */

/* As backend_best(): of row i of logits (rows, ld) the n_best[i] best of the first *n_usable,
 * at out[BEST_MOST * i]; all are on the device. */
cudaError_t cuda_best(struct best *out, const float *logits, uint32_t ld,
                      const uint32_t *n_best, const uint32_t *n_usable, uint32_t rows,
                      cudaStream_t stream);

/* ---- rope.cu ---- */

#define CUDA_NO_SLOT 0xffffffffu

struct cuda_kv {
    void *base;             // the layer's K of block 0
    uint64_t block_stride;  // elements from one block to the next
    enum dtype type;
    uint32_t kv_heads, head_dim;
    uint32_t plane;  // elements of one KV head in a block: 16 * head_dim
};

/* cos and sin (rows, half) of the f32 products pos * inv_freq. */
cudaError_t cuda_rope_angles(float *cos, float *sin, const uint32_t *pos,
                             const float *inv_freq, uint32_t rows, uint32_t half,
                             cudaStream_t stream);
/* Weights of the norms of query and key heads; NULL: there is none. */
struct cuda_qk_norm {
    const float *q, *k;
    float eps;
    uint32_t zero;  // no padding
};

/* As backend_rope_store(); slots[row] is 16 * block + place, or CUDA_NO_SLOT for a row of
 * padding, which is left alone. */
cudaError_t cuda_rope_store(float *qkv, struct cuda_kv kv, const uint32_t *slots,
                            const float *cos, const float *sin, uint32_t rows,
                            uint32_t q_heads, struct cuda_qk_norm norm,
                            cudaStream_t stream);

/* ---- matmul.cu, matmul_many.cu ---- */

#define CUDA_FEW_ROWS 32  // up to here own kernels multiply
#define CUDA_GROUP    32  // columns that two products of 16 take
#define CUDA_PARTS    8   // of the columns' groups, summed apart and then in order

struct cuda_matrix {
    const void *data;  // (rows, ld), zeros behind cols
    const float *bias;
    uint32_t rows, cols, ld;
    enum dtype type;
};

/* y(n_rows, m.rows) = x W^T + bias, n_rows <= CUDA_FEW_ROWS.  x is an image of the matrix'
 * type, or f32 rows of m.cols where the matrix is f32. */
cudaError_t cuda_matmul_few(float *y, struct cuda_matrix m, const void *x,
                            uint32_t n_rows, cudaStream_t stream);

/* The same for any number of rows: the same bits, where the matrix is not f32 by tiles.  Slower
 * than cuBLAS. */
cudaError_t cuda_matmul_many(float *y, struct cuda_matrix m, const void *x,
                             uint32_t n_rows, cudaStream_t stream);

/* ---- attention.cu, attention_plain.cu ---- */

#ifdef __CUDACC__
#define CUDA_EVERYWHERE __host__ __device__
#else
#define CUDA_EVERYWHERE
#endif

/* The first key that the query at `pos` sees; window 0: all. */
CUDA_EVERYWHERE static inline uint32_t cuda_first_key(uint32_t pos, uint32_t window)
{
    return window && pos >= window ? pos - window + 1 : 0;
}

#define CUDA_SEGMENT       256  // positions summed together, at fixed places
#define CUDA_NO_PARTIAL    0xffffffffu
#define CUDA_NARROW        16  // query vectors that one warp takes
#define CUDA_WIDE          64  // and four warps
#define CUDA_MAX_HEAD_DIM  256
#define CUDA_PARTIAL_EXTRA 2  // floats beside a head's sum: maximum and sum of weights

/* Some neighbouring rows of one sequence, for every KV head. */
struct cuda_item {
    uint32_t row, n_rows;
    uint32_t pos;      // of the first row
    uint32_t table;    // where the sequence's blocks begin
    uint32_t segment;  // where `partial`: the only one
    uint32_t partial;  // where its result goes; CUDA_NO_PARTIAL: to the output
};
/* A row whose partials are to be joined. */
struct cuda_join {
    uint32_t row, partial, n;
};

struct cuda_attention {
    float *out;
    struct cuda_image image;
    const float *qkv;
    struct cuda_kv kv;
    const uint32_t *tables;
    const struct cuda_item *items;
    const uint32_t *n_items;  // on the device, so that a graph serves any number
    float *partials;          // (partials, q_heads, head_dim + CUDA_PARTIAL_EXTRA)
    uint32_t q_heads, group;  // group: of them to a KV head
    uint32_t window;
    float scale;
};

/* Whether tensor cores serve this shape; else cuda_attention_plain does. */
bool cuda_attention_tensor(enum dtype kv, uint32_t head_dim, uint32_t group);
/* Items of at most CUDA_NARROW (one warp) or CUDA_WIDE query vectors.  `blocks` thread blocks
 * take the items in turn. */
cudaError_t cuda_attention_mma(struct cuda_attention a, bool wide, uint32_t blocks,
                               cudaStream_t stream);
/* Any shape and type; items without partials. */
cudaError_t cuda_attention_plain(struct cuda_attention a, uint32_t blocks,
                                 cudaStream_t stream);
/* The first *n_joins of at most `rows` joins. */
cudaError_t cuda_attention_join(struct cuda_attention a, const struct cuda_join *joins,
                                const uint32_t *n_joins, uint32_t rows,
                                cudaStream_t stream);

BASE_END

#endif
