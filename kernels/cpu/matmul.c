/* matmul.c - y = x W^T over packed panels, for one row and for hundreds.
 *
 * Exactness: k is cut into blocks whose length depends on the number of columns only.
 * Each output is the sum over one block, plus the sum over the next, and so on, plus the
 * bias; a sum over a block is one tile_fn.  How rows, panels and threads are grouped
 * around that changes when an output is computed, never how.
 *
 * A tile reads the packed weights as they are and widens them in registers.  Or it is a
 * rounded_tile_fn: then the inputs are rounded first, once for all panels, block by block
 * as in matmul_quant.c.
 * Few rows: memory is the limit.  Panels are read one after the other, as they lie: a core
 * reads one stream a quarter faster than two or four side by side, and the one chain of
 * additions that a row then has just keeps up with it.
 * Many rows: all rows of a chunk pass over a panel's block while it is in L1.  Their block
 * of x is copied together first, because rows that lie a multiple of 2 KiB apart would
 * push each other out of the caches.  Rounded inputs pass over ROUNDED_PANELS at once, which
 * may be all of L1: fewer loads are worth more.  Arithmetic is the limit.
 */
#include "kernels/cpu/matmul.h"

#include <string.h>

#define K_BLOCK QUANT_BLOCK  // at most; [256][16] is half of a 32 KiB L1 even in f32

#define LDX (K_BLOCK + PANEL)  // between rows of the copied x: no power of two

/* Of a thread: outputs past the edge, the block of x. */
size_t cpu_matmul_scratch(void)
{
    return (size_t)CHUNK_ROWS * (PANEL + LDX);
}

/* Blocks of nearly the same length, so that none is too short to be worth its turn; of an
 * even one, so that no pair is cut. */
static uint32_t k_block_of(uint32_t cols)
{
    return ALIGN_UP(cpu_ceil_div(cols, cpu_ceil_div(cols, K_BLOCK)), 2);
}

static unsigned kind_of(const struct matrix *m)
{
    return m->type == DTYPE_BF16 ? TILE_PAIRS : m->type;
}

static const void *block_of(const struct matrix *m, uint32_t panel, uint32_t k)
{
    return (const char *)m->data +
           panel * cpu_panel_bytes(m->format, m->cols, m->type) +
           (size_t)k * PANEL * dtype_bytes(m->type);
}

static void round_row(void *arg, uint32_t r, uint32_t thread)
{
    (void)thread;
    const struct matmul_job *j = arg;
    for (uint32_t k = 0; k < j->m->cols; k += j->k_block) {
        uint16_t *to = inputs_at(j, k / j->k_block, r)->bf16;
        uint32_t n = cpu_min(j->k_block, j->m->cols - k);
        j->cpu->path->narrow(to, j->x + (size_t)r * j->m->cols + k, DTYPE_BF16, n);
        if (n % 2) to[n] = 0;
    }
}

/* As cpu_tiles(), for rows from `row` of rounded inputs and panels side by side. */
static void rounded_tiles(const struct matmul_job *j, uint32_t row, uint32_t rows,
                          uint32_t k, uint32_t n_k, const void *w, uint32_t panels,
                          struct target t)
{
    const size_t ldx = sizeof(struct rounded_block) / sizeof(uint16_t);
    const size_t next = cpu_panel_bytes(j->m->format, j->m->cols, j->m->type);
    const struct cpu_path *path = j->cpu->path;
    uint32_t most = panels == 1 ? path->tile_rows : ROUNDED_ROWS;
    for (struct cpu_rows r = cpu_rows_of(rows, most); cpu_rows_next(&r);)
        path->tile_rounded(r.n, panels, cpu_ceil_div(n_k, 2),
                           inputs_at(j, k / j->k_block, row + r.first)->bf16, ldx, w,
                           next, t.y + r.first * t.ldy, t.ldy, k > 0);
}

/* Block k of panels from p with rows from `row`, which are at x unless they are rounded. */
static void multiply_block(const struct matmul_job *j, uint32_t p, uint32_t panels,
                           uint32_t k, uint32_t row, uint32_t rows, const float *x,
                           size_t ldx, struct target t)
{
    const void *w = block_of(j->m, p, k);
    uint32_t n_k = cpu_min(j->k_block, j->m->cols - k);
    if (j->rounded)
        rounded_tiles(j, row, rows, k, n_k, w, panels, t);
    else
        cpu_tiles(j->cpu->path, kind_of(j->m), rows, n_k, x, ldx, w, PANEL, t.y, t.ldy,
                  k > 0 ? SUMS_ADD : SUMS_SET);
}

static void few_rows(void *arg, uint32_t i, uint32_t thread)
{
    (void)thread;
    const struct matmul_job *j = arg;
    const struct matrix *m = j->m;
    uint32_t end = cpu_min(j->panels, (i + 1) * j->group);
    for (uint32_t p = i * j->group; p < end; p++) {
        float spill[FEW_ROWS * PANEL];
        struct target t = target_of(j, p, 0, spill);
        for (uint32_t k = 0; k < m->cols; k += j->k_block) {
            multiply_block(j, p, 1, k, 0, j->rows, j->x + k, m->cols, t);
        }
        copy_spill(j, p, 0, j->rows, spill);
        add_bias(j, p, 0, j->rows);
    }
}

/* Columns from k of rows from `row`, LDX apart. */
static void copy_block(float *x, const struct matmul_job *j, uint32_t row,
                       uint32_t rows, uint32_t k, uint32_t n_k)
{
    for (uint32_t r = 0; r < rows; r++) {
        memcpy(x + (size_t)r * LDX, j->x + (size_t)(row + r) * j->m->cols + k,
               n_k * sizeof *x);
    }
}

static void many_rows(void *arg, uint32_t i, uint32_t thread)
{
    const struct matmul_job *j = arg;
    const struct matrix *m = j->m;
    float *spill = cpu_scratch(j->cpu, thread), *x = spill + CHUNK_ROWS * PANEL;
    uint32_t row = i / j->groups * j->chunk, rows = cpu_min(j->chunk, j->rows - row);
    uint32_t first = i % j->groups * j->group,
             end = cpu_min(j->panels, first + j->group);
    for (uint32_t k = 0; k < m->cols; k += j->k_block) {
        uint32_t n_k = cpu_min(j->k_block, m->cols - k);
        if (!j->rounded) copy_block(x, j, row, rows, k, n_k);
        for (uint32_t p = first, n; p < end; p += n) {
            struct target t = target_of(j, p, row, spill);
            n = j->rounded ? panels_together(j, p, end, ROUNDED_PANELS) : 1;
            multiply_block(j, p, n, k, row, rows, x, LDX, t);
        }
    }
    for (uint32_t p = first; p < end; p++) {
        copy_spill(j, p, row, rows, spill);
        add_bias(j, p, row, rows);
    }
}

static void multiply(struct cpu *c, float *y, const struct matrix *m, const float *x,
                     uint32_t rows)
{
    if (m->format != WEIGHT_OWN) {
        cpu_quant_multiply(c, y, m, x, rows);
        return;
    }
    struct matmul_job j = {.cpu = c, .m = m, .x = x, .y = y, .rows = rows};
    j.k_block = k_block_of(m->cols);
    j.rounded = backend_rounds(&c->base, m->type);
    if (j.rounded) cpu_run_rows(c, rows, m->cols, round_row, &j);
    matmul_run(&j, few_rows, many_rows);
}

void cpu_matmul(struct backend *b, struct buffer *y, const struct matrix *m,
                const struct buffer *x)
{
    multiply(cpu_of(b), y->data, m, x->data, b->batch->n_rows);
}

void cpu_logits(struct backend *b, float *logits, const struct matrix *m,
                const struct buffer *x)
{
    multiply(cpu_of(b), logits, m, x->data, b->batch->n_logits);
}
