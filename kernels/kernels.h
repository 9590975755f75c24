/* kernels.h - the one seam between the model and the machine: a backend.
 *
 * Owns     its memory, its threads or streams, and every matrix and buffer made by it.
 * Caller   is model/: it calls backend_begin() with a batch, the operations in the
 *          order of the transformer, then backend_finish().  Operations may be
 *          enqueued; what they write is valid after backend_finish() answered 0.
 * Errors   an operation that fails makes the backend remember it; backend_finish()
 *          reports the first one.  So forward.c reads as the model does.
 * Memory   all of it is taken by the *_alloc and *_load calls; an operation allocates
 *          nothing.
 * Threads  one thread at a time makes every call.
 * Exact    each output element is computed by a sequence of floating-point operations
 *          that depends only on its own inputs and position: never on how many rows
 *          are in the batch, how a prompt was cut into chunks, or how many threads
 *          there are.  The tests compare bits.
 *
 * The activations between the operations are the backend's own type (f32 on the CPU),
 * in row-major (rows, cols).  Logits are always f32 that the host may read.
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "kernels/best.h"
#include "kernels/kv_block.h"

BASE_BEGIN

struct backend;
struct copyq;

/* A weight matrix as the backend keeps it: y = x W^T + bias, rows outputs from cols
 * inputs.  The layout of data is the backend's own (packed). */
struct matrix {
    uint32_t rows, cols;
    enum weight_format format;  // WEIGHT_OWN: in `type`; or WEIGHT_Q8, WEIGHT_Q4
    enum dtype type;
    void *data;
    size_t bytes;
    float *bias;  // (rows) or NULL
};

/* What a matrix is made of: parts stacked along rows, each row-major (rows, cols) in
 * host memory of any alignment. bias is (rows) in f32, or NULL for all parts. */
struct matrix_part {
    const void *data;
    enum dtype type;
    uint32_t rows;
    const float *bias;
};

/* Activations or other scratch: rows x cols elements of the backend's own type. */
struct buffer {
    void *data;
    uint32_t rows, cols;
};

/* The KV block pool as the operations see it: block i is at base + i * kv_block_bytes. */
struct kv_pool_mem {
    struct kv_shape shape;
    uint32_t n_blocks;
    void *base;
};

/* One step.  Row r is one token to compute; the rows of one sequence are neighbours,
 * in ascending, gapless positions.  All arrays are host memory and stay unchanged
 * until backend_finish(). */
struct batch {
    uint32_t n_rows, n_seqs, n_logits;
    const int32_t *ids;         // (n_rows) token ids
    const uint32_t *pos;        // (n_rows) position within the sequence, from 0
    const uint32_t *row_start;  // (n_seqs + 1) first row of sequence s; last is n_rows
    const uint32_t
        *block_start;        // (n_seqs + 1) first entry of s's block table in blocks
    const uint32_t *blocks;  // block tables, one behind the other: block numbers
    const uint32_t *logit_rows;  // (n_logits) ascending rows whose logits are wanted
    // NULL, or (n_logits): of how many of its best the host asks in place of a row of logits,
    // at most BEST_MOST; 0: for the row itself.
    const uint32_t *n_best;
    uint32_t
        n_usable;  // with n_best: logits that may be among them, the first of a row
};

struct attention_shape {
    uint32_t q_heads, kv_heads, head_dim;
    uint32_t window;  // sees keys i-window+1..i; 0: all
    float scale;      // usually 1 / sqrt(head_dim)
};

/* RMSNorm of each query head and each key head by itself, as Qwen3 has it. */
struct qk_norm {
    const float *q, *k;  // (head_dim) for all query heads, for all key heads
    float eps;
};

struct backend_limits {
    uint32_t max_rows;    // of one batch
    uint32_t max_seqs;    // of one batch
    uint32_t max_blocks;  // entries of all block tables of one batch
    uint32_t max_head_dim;
    uint32_t max_q_heads;
    uint32_t max_cols;  // of any matrix
};

struct backend_options {
    uint32_t threads;  // 0: as many as this process may run on
    // NULL: the best this CPU has; "portable", "avx2", "avx512" or "avx512bf16": that one
    const char *cpu_path;
    bool exact;  // CUDA: hold the promise above whatever a step's size, and be slower
    // Of the model: what recorded steps may take is reckoned from them; 0: without a bound
    uint32_t layers;
    struct backend_limits limits;
};

/* name is "cpu", "cuda" or "cuda:N".  -ENODEV where this machine has no such device or
 * instruction set, or this build not the backend. */
NODISCARD int backend_open(struct backend **out, const char *name,
                           const struct backend_options *o, struct err *err);
void backend_close(struct backend *b);                  // NULL is fine
const char *backend_describe(const struct backend *b);  // "cpu (AVX2+FMA, 2 threads)"
uint32_t backend_threads(const struct backend *b);
/* Whether products with weights that are kept in that type round their inputs to it first. */
bool backend_rounds(const struct backend *b, enum dtype weights);
/* What it took at opening for its own use, in the memory where the operations compute. */
size_t backend_scratch_bytes(const struct backend *b);
/* Bytes of the device's own memory that are free now; false: it computes in the host's. */
bool backend_device_memory(const struct backend *b, uint64_t *free_bytes);
/* A step in which each of n sequences computes one row costs as much as one of this many,
 * and its first one costs more than those after it; 0: neither is so. */
uint32_t backend_decode_rows(const struct backend *b, uint32_t n);
/* Steps that the backend has recorded to replay them, and device memory for them: what is to
 * be set aside, and what the device was seen to give.  Where that is used up, or the device has
 * none, other steps run as they are: slower, and with the same bits.  All 0: it records none. */
struct backend_recorded {
    size_t reserve, taken;
    uint32_t steps;  // recorded now
    bool full;       // no more are
};
struct backend_recorded backend_recorded(const struct backend *b);
/* A queue (copyq.h) for copies between host memory and this backend's, beside its computing;
 * to be closed before the backend. */
NODISCARD int backend_copyq_open(struct backend *b, struct copyq **out,
                                 struct err *err);

/* ---- memory: at start only ---- */

/* Parts of several types are kept as the widest.  -ENOTSUP: this backend has no such
 * format. */
NODISCARD int backend_matrix_load(struct backend *b, struct matrix *out,
                                  enum weight_format format, uint32_t cols,
                                  const struct matrix_part *parts, uint32_t n_parts,
                                  struct err *err);
/* The same without the packing: out->data, of out->bytes, is for the caller to fill with
 * what another matrix of this shape, format and layout has there.  -ENOTSUP where the
 * backend has no layout. */
NODISCARD int backend_matrix_reserve(struct backend *b, struct matrix *out,
                                     enum weight_format format, uint32_t cols,
                                     const struct matrix_part *parts, uint32_t n_parts,
                                     struct err *err);
/* The name of how data is laid out in memory that the host may read, its version
 * included; NULL where there is none. */
const char *backend_matrix_layout(const struct backend *b);
void backend_matrix_free(struct backend *b, struct matrix *m);
/* What backend_matrix_load would take for data of this type; 0: too many. */
size_t backend_matrix_bytes(const struct backend *b, enum weight_format format,
                            uint32_t rows, uint32_t cols, enum dtype type);
NODISCARD int backend_vector_load(struct backend *b, float **out, const void *src,
                                  enum dtype type, uint32_t n, struct err *err);
void backend_vector_free(struct backend *b, float *v);
NODISCARD int backend_buffer_alloc(struct backend *b, struct buffer *out, uint32_t rows,
                                   uint32_t cols, struct err *err);
void backend_buffer_free(struct backend *b, struct buffer *x);
/* Rows of f32 that the host reads after backend_finish(). */
NODISCARD int backend_logits_alloc(struct backend *b, float **out, uint32_t rows,
                                   uint32_t cols, struct err *err);
void backend_logits_free(struct backend *b, float *p);
/* Likewise BEST_MOST places for each row. */
NODISCARD int backend_best_alloc(struct backend *b, struct best **out, uint32_t rows,
                                 struct err *err);
void backend_best_free(struct backend *b, struct best *p);
NODISCARD int backend_kv_alloc(struct backend *b, struct kv_pool_mem *out,
                               const struct kv_shape *shape, uint32_t n_blocks,
                               struct err *err);
void backend_kv_free(struct backend *b, struct kv_pool_mem *kv);

/* ---- one step: begin, operations, finish ---- */

/* inv_freq (head_dim / 2): the model's RoPE frequencies.  The angle of a row is the f32
 * product pos * inv_freq[i], as in the models' own implementation. */
void backend_begin(struct backend *b, const struct batch *batch, const float *inv_freq,
                   uint32_t head_dim);

/* x(n_rows, cols) = rows `ids` of the table (vocab, cols). */
void backend_embed(struct backend *b, struct buffer *x, const struct matrix *table);

/* y = x / sqrt(mean(x^2) + eps) * w, by row. y may be x. */
void backend_rmsnorm(struct backend *b, struct buffer *y, const struct buffer *x,
                     const float *w, float eps);
/* x += d, then y = rmsnorm(x): the residual stream and the next norm in one pass. */
void backend_add_rmsnorm(struct backend *b, struct buffer *y, struct buffer *x,
                         const struct buffer *d, const float *w, float eps);

/* y(n_rows, m->rows) = x(n_rows, m->cols) W^T + bias. */
void backend_matmul(struct backend *b, struct buffer *y, const struct matrix *m,
                    const struct buffer *x);

/* qkv(n_rows, (q_heads + 2 kv_heads) * head_dim): norm the heads of q and k where norm is not
 * NULL, rotate q in place (HF's halves), rotate k, and write k and v of each row into its
 * block of `layer`. */
void backend_rope_store(struct backend *b, struct buffer *qkv, struct kv_pool_mem *kv,
                        uint32_t layer, const struct attention_shape *s,
                        const struct qk_norm *norm);

/* out(n_rows, q_heads * head_dim): causal paged attention of every row over positions
 * 0..pos of its sequence (those within the window), from the block pool. */
void backend_attention(struct backend *b, struct buffer *out, const struct buffer *qkv,
                       const struct kv_pool_mem *kv, uint32_t layer,
                       const struct attention_shape *s);

/* y(n_rows, n) = silu(gu[:, :n]) * gu[:, n:], gu(n_rows, 2 n) = gate beside up. */
void backend_silu_mul(struct backend *b, struct buffer *y, const struct buffer *gu);

/* y(n_logits, cols) = the batch's logit_rows of x. */
void backend_gather_logit_rows(struct backend *b, struct buffer *y,
                               const struct buffer *x);

/* logits(n_logits, m->rows) = x(n_logits, m->cols) W^T, in f32. */
void backend_logits(struct backend *b, float *logits, const struct matrix *m,
                    const struct buffer *x);

/* Of the rows of logits(n_logits, cols), which this step computes, whose n_best is not 0: what
 * best_of_row() says of the first n_usable, at best[BEST_MOST * row].  The rows themselves need
 * not come to the host then. */
void backend_best(struct backend *b, struct best *best, const float *logits,
                  uint32_t cols);

/* Copy whole block src to dst (copy on write).  Ordered with the operations around it;
 * may also be called between backend_finish() and the next backend_begin(). */
void backend_copy_block(struct backend *b, struct kv_pool_mem *kv, uint32_t dst,
                        uint32_t src);

/* Wait for everything; 0, or the first error since the last finish. */
NODISCARD int backend_finish(struct backend *b, struct err *err);

BASE_END

#endif
