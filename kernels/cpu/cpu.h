/* cpu.h - the CPU backend's own state, shared by the files of this folder.
 *
 *     cpu.c         opening, memory, the table of operations
 *     arena.c       memory of the weights
 *     matrix.c      packing of weights, embed
 *     matmul.c      y = x W^T: tiles over panels and rows
 *     matmul_quant.c    the same where weights are int8 or int4 (quant.h)
 *     attention.c   paged attention, attention_tile.c its inside; rope_store in rope.c
 *     rows.c        norms, activation: everything that goes row by row
 *     path*.c, quant_*.c    inner kernels for each instruction set
 *
 * Owns     see struct cpu.
 * Threads  the caller's thread enters; items of the pool read this struct and write only
 *          their own thread's scratch and their own part of the output.
 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/backend.h"
#include "kernels/cpu/arena.h"
#include "kernels/cpu/path.h"
#include "kernels/pool.h"

#define CPU_MAX_THREADS 1024u

/* A row operation on no more elements than this stays on one thread: handing it to
 * another takes about as long as doing it. */
#define CPU_ALONE 4096

struct attention_item {
    uint32_t seq;
    uint32_t row, n_rows;  // rows of the batch, neighbours in one sequence
    uint32_t segment;      // of positions, where `partial`
    uint32_t partial;  // where the result goes in partials; NO_PARTIAL: to the output
};
#define NO_PARTIAL 0xffffffffu

struct cpu {
    struct backend base;
    const struct cpu_path *path;
    struct pool *pool;
    struct cpu_arena weights;  // empty again when all matrices are freed

    // Scratch of every thread, one behind the other:
    float *scratch;
    size_t scratch_each;  // floats

    // Of the current batch:
    float *rope_cos, *rope_sin;  // (max_rows, rope_dim / 2)
    const float *inv_freq;       // borrowed, during begin
    uint32_t *row_seq;           // (max_rows) the sequence of a row

    // Inputs of the current product, where it rounds them: (blocks of max_cols, max_rows)
    struct rounded_block *inputs;

    // Of the current attention:
    struct attention_item *items;  // (max_items)
    uint32_t max_items;
    float *partials;  // (max_partials, max_q_heads, 2 + max_head_dim padded)
    uint32_t max_partials;
};

static inline struct cpu *cpu_of(struct backend *b)
{
    return CONTAINER_OF(b, struct cpu, base);
}

static inline float *cpu_scratch(const struct cpu *c, uint32_t thread)
{
    return c->scratch + thread * c->scratch_each;
}

static inline float *cpu_row(const struct buffer *x, uint32_t row)
{
    return (float *)x->data + (size_t)row * x->cols;
}

static inline uint32_t cpu_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t cpu_max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline uint32_t cpu_ceil_div(uint32_t n, uint32_t by)
{
    return n / by + (n % by != 0);
}

/* Any number of rows in tiles of equal height, so that none is so low that the latency
 * of its few chains of additions would show:
 *     for (struct cpu_rows t = cpu_rows_of(all, most); cpu_rows_next(&t);) use(&t);
 */
struct cpu_rows {
    uint32_t all, tiles, tile;
    uint32_t first, n;  // the current tile's
};

static inline struct cpu_rows cpu_rows_of(uint32_t all, uint32_t most)
{
    return (struct cpu_rows){.all = all, .tiles = cpu_ceil_div(all, most)};
}

static inline bool cpu_rows_next(struct cpu_rows *t)
{
    if (t->tile == t->tiles) return false;
    t->tile++;
    t->first += t->n;
    t->n = (uint32_t)((uint64_t)t->all * t->tile / t->tiles) - t->first;
    return true;
}

/* tile_fn for any number of rows. */
static inline void cpu_tiles(const struct cpu_path *path, unsigned kind, uint32_t rows,
                             uint32_t k, const float *x, size_t ldx, const void *w,
                             size_t ldw, float *y, size_t ldy, enum tile_sums sums)
{
    for (struct cpu_rows t = cpu_rows_of(rows, path->tile_rows); cpu_rows_next(&t);)
        path->tile[kind](t.n, k, x + t.first * ldx, ldx, w, ldw, y + t.first * ldy, ldy,
                         sums);
}

/* host_alloc() on a cache line. */
void *cpu_alloc(size_t bytes);
/* The same for the backend's own scratch, which is counted. */
void *cpu_scratch_alloc(struct cpu *c, size_t bytes);

/* pool_run over `rows` in groups, or alone where rows * cols is small. */
void cpu_run_rows(struct cpu *c, uint32_t rows, uint32_t cols, pool_fn *fn, void *arg);

size_t cpu_panel_bytes(enum weight_format format, uint32_t cols, enum dtype type);
size_t cpu_matrix_bytes(enum weight_format format, uint32_t rows, uint32_t cols,
                        enum dtype type);
#define CPU_MATRIX_LAYOUT "panels of 16, pairs of bf16, groups of 32, version 2"
int cpu_matrix_reserve(struct backend *b, struct matrix *m,
                       const struct matrix_part *parts, uint32_t n_parts,
                       struct err *err);
int cpu_matrix_load(struct backend *b, struct matrix *m,
                    const struct matrix_part *parts, uint32_t n_parts, struct err *err);
void cpu_matrix_free(struct backend *b, struct matrix *m);
void cpu_embed(struct backend *b, struct buffer *x, const struct matrix *table);

size_t cpu_matmul_scratch(void);  // floats of one thread
void cpu_matmul(struct backend *b, struct buffer *y, const struct matrix *m,
                const struct buffer *x);
void cpu_logits(struct backend *b, float *logits, const struct matrix *m,
                const struct buffer *x);

void cpu_best(struct backend *b, struct best *best, const float *logits, uint32_t cols);

int cpu_inputs_open(struct cpu *c);
void cpu_quant_multiply(struct cpu *c, float *y, const struct matrix *m, const float *x,
                        uint32_t rows);

size_t cpu_attention_scratch(const struct backend_limits *l);  // floats of one thread
int cpu_attention_open(struct cpu *c);                         // -ENOMEM
void cpu_attention_close(struct cpu *c);
void cpu_attention(struct backend *b, struct buffer *out, const struct buffer *qkv,
                   const struct kv_pool_mem *kv, uint32_t layer,
                   const struct attention_shape *s);

int cpu_rope_open(struct cpu *c);  // -ENOMEM
void cpu_rope_close(struct cpu *c);
void cpu_rope_begin(struct backend *b, const float *inv_freq, uint32_t head_dim);
void cpu_rope_store(struct backend *b, struct buffer *qkv, struct kv_pool_mem *kv,
                    uint32_t layer, const struct attention_shape *s,
                    const struct qk_norm *norm);

void cpu_rmsnorm(struct backend *b, struct buffer *y, const struct buffer *x,
                 const float *w, float eps);
void cpu_add_rmsnorm(struct backend *b, struct buffer *y, struct buffer *x,
                     const struct buffer *d, const float *w, float eps);
void cpu_silu_mul(struct backend *b, struct buffer *y, const struct buffer *gu);
void cpu_gather_logit_rows(struct backend *b, struct buffer *y, const struct buffer *x);

#endif
