/* cuda.h - the CUDA backend's own state, shared by the files of this folder.
 *
 *     cuda.c        opening, memory, the table of operations
 *     load.c        weights through pinned staging
 *     step.c        one step: what is to be computed is listed, then run at once
 *     input.c       what a batch is to the kernels: one copy to the device
 *     run.c         launching an operation
 *     result.c      what a step computes for the host
 *     graph.c       steps of decode, recorded once for each size and replayed
 *     copyq.c       copies between host and device beside the computing
 *     pinned.c      host memory for them
 *     launch.h      the kernels (*.cu)
 *
 * Precision  activations are f32; a matrix in f16 or bf16 is multiplied with x rounded to its
 *            type, products are summed in f32.  K and V are rounded to the cache's type, and
 *            q and the weights of softmax to it too where tensor cores serve.
 * Exact      with backend_options.exact, as kernels.h promises: own kernels compute all.
 *            Without it the products of a step of more than CUDA_FEW_ROWS rows are cuBLAS's,
 *            which is quicker and chooses its kernel by the number of rows: what such a step
 *            computes may differ in the last bits of the f32 sums with how a prompt was cut
 *            and with what else the step holds, decode beside a prompt included.  Shorter
 *            steps, and attention in any step, hold the promise all the same.
 *            In either case, where a tile of keys holds an infinity or a NaN, every query that
 *            shares the tile may see it.
 * Streams    `compute` runs steps, `up` loads weights; each copy queue has two of its own.
 *            Nothing uses the legacy default stream.
 * Errors     the first one that CUDA reports ends the backend: every later step answers it.
 *
 * Owns     see struct cuda.
 * Threads  one at a time; each entry makes the device current for its thread.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

#include <cublas_v2.h>

BASE_BEGIN

/* ---- operations of a step ---- */

enum cuda_op_kind {
    OP_EMBED,
    OP_RMSNORM,
    OP_MATMUL,
    OP_ROPE_STORE,
    OP_ATTENTION,
    OP_SILU_MUL,
    OP_GATHER,  // the logits' rows
    OP_BEST,    // of them
    OP_IMAGE,   // of x, where its producer cannot write it
    OP_COPY_BLOCK
};

/* One operation with all that decides what is launched, but the number of rows.  Compared by
 * its bytes: every slot is zeroed before its fields are set. */
struct cuda_op {
    enum cuda_op_kind kind;
    bool of_logits;  // its rows are the logits'
    float *y, *x;    // y: what is written
    const float *d, *w;
    uint32_t cols;
    float eps;
    struct cuda_image image;  // of y, or for OP_IMAGE of x
    struct cuda_matrix matrix;
    struct cuda_kv kv;
    struct attention_shape shape;
    struct cuda_qk_norm norm;  // OP_ROPE_STORE
    uint32_t layer, layers;    // OP_ATTENTION: which of how many
    char *to, *from;           // OP_COPY_BLOCK
    size_t bytes;
};

#define CUDA_MAX_OPS 16384  // of one step: some 1,600 layers

/* ---- what a step reads ---- */

/* Counts first, so that kernels of a graph find them. */
struct cuda_counts {
    uint32_t wide, narrow, joins, rows;
    uint32_t usable;  // logits of a row
};

/* The same arrays in pinned host memory and on the device. */
struct cuda_input {
    struct cuda_counts *counts;
    float *inv_freq;          // (max_head_dim / 2)
    int32_t *ids;             // (max_rows)
    uint32_t *pos, *slots;    // (max_rows)
    uint32_t *logit_rows;     // (max_rows)
    uint32_t *n_best;         // (max_rows)
    struct cuda_join *joins;  // (max_seqs)
    struct cuda_item *items;  // (max_items): wide ones, then narrow ones
    uint32_t *tables;         // (max_blocks)
    size_t head_bytes;        // up to items
    void *memory;             // all of it
};

/* What the host reads, logits or the best of them, and where it is computed. */
struct cuda_result {
    char *host, *device;
    size_t room;  // bytes of each
    // To be copied when this step is done; 0: nothing.
    size_t row;    // bytes of one
    bool reduced;  // rows whose best are asked for stay there
};
#define CUDA_MAX_RESULTS 8

/* A recorded step of decode. */
struct cuda_graph {
    uint32_t rows;  // padded to; 0: none can be had
    cudaGraphExec_t exec;
    struct cuda_op *ops;
    uint32_t n_ops;
    size_t bytes;  // of device memory, as far as was seen
};
#define CUDA_GRAPHS 16

#define CUDA_STAGING_BYTES ((size_t)4 << 20)
#define CUDA_STAGINGS      4

/* Copies that arrive slice by slice and that the next step waits for. */
struct cuda_arrival {
    const struct copyq *from;  // NULL: nothing arrives
    const cudaEvent_t *marks;  // (pieces) each piece has landed
    uint32_t pieces, slices;
    uint32_t waited;  // pieces that `compute` waits for already
    uint64_t train;
};

/* Device memory that was taken, in any order. */
struct cuda_range {
    char *start;
    size_t bytes;
};

struct cuda {
    struct backend base;
    int device;
    uint32_t processors;
    bool exact;  // no cuBLAS
    cudaStream_t compute, up;
    cublasHandle_t blas;
    void *blas_workspace;

    bool dead;  // a CUDA call has failed
    struct err why_dead;

    struct cuda_range *ranges;
    uint32_t n_ranges, cap_ranges;

    struct cuda_input host, dev;
    uint32_t max_items, max_partials;
    float *cos, *sin;  // (max_rows, max_head_dim / 2)
    float *partials;
    uint16_t *image;  // of the x of the next product: (max_rows, max_cols padded)

    struct cuda_result results[CUDA_MAX_RESULTS];

    // Of the current step:
    struct cuda_op *ops;  // (CUDA_MAX_OPS)
    uint32_t n_ops, n_items, n_tables;
    uint32_t room;                 // rows that every buffer given in it has
    struct attention_shape shape;  // of its first attention; q_heads 0: none yet
    enum dtype kv_type;
    bool copying;  // something is enqueued that no finish has waited for
    struct cuda_arrival arriving;

    struct cuda_graph graphs[CUDA_GRAPHS];
    size_t graph_reserve;  // bytes; SIZE_MAX: there is no bound
    bool graphs_full;      // none is recorded any more

    // Loading:
    void *staging[CUDA_STAGINGS];
    cudaEvent_t staged[CUDA_STAGINGS];
    uint32_t next_staging;
};

static inline struct cuda *cuda_of(struct backend *b)
{
    return CONTAINER_OF(b, struct cuda, base);
}

static inline uint32_t cuda_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

void cuda_close(struct backend *b);

/* Make the device this thread's.  False, and nothing is to be done, where it is dead. */
bool cuda_enter(struct cuda *c);
/* Whether e is success; else the backend has failed, and says what was done. */
bool cuda_ok(struct cuda *c, cudaError_t e, const char *doing);
bool cuda_blas_ok(struct cuda *c, cublasStatus_t s, const char *doing);

void *cuda_device_alloc(struct cuda *c, size_t bytes);  // NULL: none left
void cuda_device_free(struct cuda *c, void *p);
bool cuda_on_device(const struct cuda *c, const void *p);  // whether p is of these

/* ---- load.c ---- */

uint32_t cuda_ld(uint32_t cols,
                 enum dtype type);  // elements of a row of a matrix or image
size_t cuda_matrix_bytes(enum weight_format format, uint32_t rows, uint32_t cols,
                         enum dtype type);
int cuda_matrix_load(struct backend *b, struct matrix *m,
                     const struct matrix_part *parts, uint32_t n_parts,
                     struct err *err);
void cuda_matrix_free(struct backend *b, struct matrix *m);
int cuda_vector_load(struct backend *b, float **out, const void *src, enum dtype type,
                     uint32_t n);
int cuda_loading_open(struct cuda *c, struct err *err);
void cuda_loading_close(struct cuda *c);

/* ---- input.c ---- */

int cuda_input_open(struct cuda *c);  // -ENOMEM
void cuda_input_close(struct cuda *c);
/* At begin: all but the items. */
void cuda_input_rows(struct cuda *c, const float *inv_freq);
/* When the shape is known: items and joins.  Then enqueue it all; rows are padded with
 * harmless ones up to `padded`. */
void cuda_input_send(struct cuda *c, uint32_t padded);

/* ---- run.c ---- */

/* Enqueue all that is listed on `compute`, for that many rows and logit rows.  recorded: for
 * every step of no more rows, whatever their positions. */
void cuda_run(struct cuda *c, uint32_t rows, uint32_t logits, bool recorded);

/* ---- result.c ---- */

void *cuda_result_alloc(struct backend *b, size_t bytes);
void cuda_result_free(struct backend *b, void *host);
/* The result that the host reads at `host`, of rows of so many bytes, to be computed in this
 * step; NULL, and the step is lost: there is none. */
struct cuda_result *cuda_result_at(struct backend *b, const void *host, size_t row);
/* Enqueue the copies to the host of what this step computes. */
void cuda_results_send(struct cuda *c);
void cuda_results_forget(struct cuda *c);

/* ---- graph.c ---- */

void cuda_graphs_open(struct cuda *c, uint32_t layers);  // 0: without a bound
struct backend_recorded cuda_recorded(const struct backend *b);
/* The rows that the current step is padded to; 0: it is none of decode, or runs without. */
uint32_t cuda_graph_rows(struct cuda *c);
/* Run the listed step, whose input has been sent padded to `rows`. */
void cuda_graph_run(struct cuda *c, uint32_t rows);
void cuda_graphs_close(struct cuda *c);
uint32_t cuda_decode_rows(const struct backend *b, uint32_t n);

/* ---- step.c ---- */

/* The step is lost, for the first such reason. */
void cuda_fail(struct cuda *c, int rc, const char *why);
extern const struct backend_ops cuda_ops;

/* ---- pinned.c ---- */

/* Host memory that was pinned chunk by chunk. */
struct cuda_arena {
    char *start;  // NULL: none
    size_t bytes;
};
#define CUDA_ARENAS 2

void *cuda_pin(struct cuda *c, size_t bytes);  // NULL: there is none
/* So many bytes or, where there are fewer, *got of them, kept account of in one of CUDA_ARENAS;
 * NULL: nothing.  In any thread, and while others use the backend. */
void *cuda_pin_most(const struct cuda *c, struct cuda_arena *arenas, size_t bytes,
                    size_t *got);
void cuda_unpin(struct cuda_arena *arenas, void *p);  // either; NULL is fine

/* ---- copyq.c ---- */

int cuda_copyq_open(struct backend *b, struct copyq **out, struct err *err);
/* Before the attention of a layer: `compute` waits for the slices of it that arrive. */
void cuda_await_layer(struct cuda *c, uint32_t layer, uint32_t layers);

BASE_END

#endif
