/* backend.h - what stands behind kernels.h: the table that a backend fills in.
 *
 * kernels.c and step.c check every call before it comes here, so a backend sees only
 * arguments that fit each other, its limits and the current batch: row counts, columns,
 * token ids, block numbers, heads.  It checks nothing again.
 *
 * Owns     nothing; a backend embeds struct backend as its first part.
 * Threads  as kernels.h: one at a time.
 */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "kernels/kernels.h"

BASE_BEGIN

struct backend_ops {
    void (*close)(struct backend *b);

    int (*matrix_load)(struct backend *b, struct matrix *m,
                       const struct matrix_part *parts, uint32_t n_parts,
                       struct err *err);  // all of m but data and bias is set
    /* NULL, or the name of the layout; then also, as matrix_load but leaving data to be
     * filled: */
    const char *matrix_layout;
    int (*matrix_reserve)(struct backend *b, struct matrix *m,
                          const struct matrix_part *parts, uint32_t n_parts,
                          struct err *err);
    void (*matrix_free)(struct backend *b, struct matrix *m);
    size_t (*matrix_bytes)(enum weight_format format, uint32_t rows, uint32_t cols,
                           enum dtype type);  // 0: too many; never WEIGHT_BF16
    int (*vector_load)(struct backend *b, float **out, const void *src, enum dtype type,
                       uint32_t n);
    void *(*alloc)(struct backend *b, size_t bytes);  // where the operations compute
    void (*free)(struct backend *b, void *p);
    void *(*host_alloc)(struct backend *b, size_t bytes);  // where the host reads too
    void (*host_free)(struct backend *b, void *p);

    void (*begin)(struct backend *b, const float *inv_freq, uint32_t head_dim);
    void (*embed)(struct backend *b, struct buffer *x, const struct matrix *table);
    void (*rmsnorm)(struct backend *b, struct buffer *y, const struct buffer *x,
                    const float *w, float eps);
    void (*add_rmsnorm)(struct backend *b, struct buffer *y, struct buffer *x,
                        const struct buffer *d, const float *w, float eps);
    void (*matmul)(struct backend *b, struct buffer *y, const struct matrix *m,
                   const struct buffer *x);
    void (*rope_store)(struct backend *b, struct buffer *qkv, struct kv_pool_mem *kv,
                       uint32_t layer, const struct attention_shape *s,
                       const struct qk_norm *norm);
    void (*attention)(struct backend *b, struct buffer *out, const struct buffer *qkv,
                      const struct kv_pool_mem *kv, uint32_t layer,
                      const struct attention_shape *s);
    void (*silu_mul)(struct backend *b, struct buffer *y, const struct buffer *gu);
    void (*gather_logit_rows)(struct backend *b, struct buffer *y,
                              const struct buffer *x);
    void (*logits)(struct backend *b, float *logits, const struct matrix *m,
                   const struct buffer *x);
    void (*best)(struct backend *b, struct best *best, const float *logits,
                 uint32_t cols);
    void (*copy_block)(struct backend *b, struct kv_pool_mem *kv, uint32_t dst,
                       uint32_t src);
    int (*finish)(struct backend *b, struct err *err);  // wait; the device's own errors
    /* Where the queue's copies arrive slice by slice, attention waits on the device for the
     * slices of its layer that copyq_await() has named. */
    int (*copyq_open)(struct backend *b, struct copyq **out, struct err *err);
    // NULL where there is nothing to say:
    bool (*device_memory)(const struct backend *b, uint64_t *free_bytes);
    uint32_t (*decode_rows)(const struct backend *b, uint32_t n);
    struct backend_recorded (*recorded)(const struct backend *b);
};

struct backend {
    const struct backend_ops *ops;
    struct backend_limits limits;
    uint32_t threads;
    uint32_t activation_bytes;  // of one element of a buffer
    bool rounds[3];             // inputs of products, by the dtype of the weights
    size_t scratch_bytes;       // taken by opening it
    char describe[96];

    // Kept by step.c:
    const struct batch *batch;  // borrowed, from begin to finish; else NULL
    uint32_t rope_dim;          // head_dim of the RoPE angles of this batch
    uint32_t top_block;         // highest block number in its tables
    int rc;                     // the first error since the last finish
    struct err why;
};

/* kernels/cpu/: threads and cpu_path as in struct backend_options. */
NODISCARD int cpu_open(struct backend **out, const struct backend_options *o,
                       struct err *err);
/* kernels/cuda/: name is "cuda" or "cuda:N".  Only where the build has CUDA (HAVE_CUDA). */
NODISCARD int cuda_open(struct backend **out, const char *name,
                        const struct backend_options *o, struct err *err);

BASE_END

#endif
