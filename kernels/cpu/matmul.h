/* matmul.h - how a product is cut into items, shared by matmul.c and matmul_quant.c.
 *
 * Few rows: an item is some neighbouring panels.  Many rows: it is some rows of some
 * panels, so that what is unpacked of a panel serves all of these rows.
 *
 * Owns     nothing; an item writes its own part of y only.
 * Threads  items run on any thread of the pool.
 */
#ifndef KERNELS_CPU_MATMUL_H
#define KERNELS_CPU_MATMUL_H

#include "kernels/cpu/cpu.h"

#include <string.h>

#define FEW_ROWS   24      // up to here, x stays in L1 however it lies
#define CHUNK_ROWS 192     // rows that share a block of weights
#define GROUP      8       // panels of one item, at most
#define ITEM_BYTES 262144  // of weights in one item of few rows, at most

struct matmul_job {
    const struct cpu *cpu;
    const struct matrix *m;
    const float *x;
    float *y;
    uint32_t rows;
    uint32_t panels, group;  // all, and of one item
    uint32_t groups;
    uint32_t chunk;  // rows of one item
    uint32_t k_block;
    bool rounded;  // inputs are, to bf16
};

/* The rounded inputs of a block of one row; the rows of a tile are neighbours. */
static inline struct rounded_block *inputs_at(const struct matmul_job *j,
                                              uint32_t block, uint32_t row)
{
    return j->cpu->inputs + (size_t)block * j->cpu->base.limits.max_rows + row;
}

/* Where the outputs of a panel go: into y, or where y has fewer than 16 columns left,
 * into `spill`, from which copy_spill takes them. */
struct target {
    float *y;
    size_t ldy;
};

static inline struct target target_of(const struct matmul_job *j, uint32_t panel,
                                      uint32_t row, float *spill)
{
    if (j->m->rows - panel * PANEL < PANEL) return (struct target){spill, PANEL};
    return (struct target){j->y + (size_t)row * j->m->rows + panel * PANEL, j->m->rows};
}

static inline void copy_spill(const struct matmul_job *j, uint32_t panel, uint32_t row,
                              uint32_t rows, const float *spill)
{
    uint32_t left = j->m->rows - panel * PANEL;
    if (left >= PANEL) return;
    float *y = j->y + (size_t)row * j->m->rows + panel * PANEL;
    for (uint32_t r = 0; r < rows; r++) {
        memcpy(y + (size_t)r * j->m->rows, spill + r * PANEL, left * sizeof *y);
    }
}

static inline void add_bias(const struct matmul_job *j, uint32_t panel, uint32_t row,
                            uint32_t rows)
{
    if (!j->m->bias) return;
    uint32_t n = cpu_min(PANEL, j->m->rows - panel * PANEL);
    const float *bias = j->m->bias + panel * PANEL;
    for (uint32_t r = row; r < row + rows; r++) {
        float *y = j->y + (size_t)r * j->m->rows + panel * PANEL;
        for (uint32_t c = 0; c < n; c++) y[c] += bias[c];
    }
}

/* Panels from p, before `end`, that many rows pass over side by side: so many, if these are
 * whole, or one. */
static inline uint32_t panels_together(const struct matmul_job *j, uint32_t p,
                                       uint32_t end, uint32_t n)
{
    return p + n <= end && (p + n) * PANEL <= j->m->rows ? n : 1;
}

/* Panels of an item: as many as `most`, but several items for every thread. */
static inline uint32_t group_of(const struct matmul_job *j, uint32_t chunks,
                                uint32_t most)
{
    uint64_t items = (uint64_t)j->panels * chunks;
    uint64_t fair = items / (4 * j->cpu->base.threads);
    if (fair < most) most = (uint32_t)fair;
    return most ? most : 1;
}

static inline void matmul_run(struct matmul_job *j, pool_fn *few, pool_fn *many)
{
    const struct matrix *m = j->m;
    j->panels = cpu_ceil_div(m->rows, PANEL);
    if (j->rows <= FEW_ROWS) {
        size_t bytes = cpu_panel_bytes(m->format, m->cols, m->type);
        j->group = group_of(j, 1, (uint32_t)(ITEM_BYTES / bytes));
        pool_run(j->cpu->pool, cpu_ceil_div(j->panels, j->group), few, j);
        return;
    }
    uint32_t chunks = cpu_ceil_div(j->rows, CHUNK_ROWS);
    j->chunk = cpu_ceil_div(j->rows, chunks);
    chunks = cpu_ceil_div(j->rows, j->chunk);
    j->group = group_of(j, chunks, GROUP);
    j->groups = cpu_ceil_div(j->panels, j->group);
    pool_run(j->cpu->pool, chunks * j->groups, many, j);
}

#endif
