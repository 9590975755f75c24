/* matmul_quant.c - y = x W^T where the weights are int8 or int4; see quant.h.
 *
 * The inputs are rounded first, once for all panels: block b of row r is at inputs[b *
 * max_rows + r], so that the rows of a tile are neighbours.  An output is then a sum over
 * the groups of its panel in order, however rows, panels and blocks are cut.
 */
#include "kernels/cpu/matmul.h"

int cpu_inputs_open(struct cpu *c)
{
    const struct backend_limits *l = &c->base.limits;
    size_t blocks = (size_t)cpu_ceil_div(l->max_cols, QUANT_BLOCK) * l->max_rows;
    c->inputs = cpu_scratch_alloc(c, blocks * sizeof *c->inputs);
    return c->inputs ? 0 : -ENOMEM;
}

static void round_row(void *arg, uint32_t r, uint32_t thread)
{
    (void)thread;
    const struct matmul_job *j = arg;
    const float *x = j->x + (size_t)r * j->m->cols;
    for (uint32_t k = 0; k < j->m->cols; k += QUANT_BLOCK) {
        j->cpu->path->quant_inputs(inputs_at(j, k / QUANT_BLOCK, r), x + k,
                                   cpu_min(QUANT_BLOCK, j->m->cols - k));
    }
}

/* quant_tile_fn for any number of rows. */
static void tiles(quant_tile_fn *tile, uint32_t most, const struct matmul_job *j,
                  uint32_t block, uint32_t row, uint32_t rows, uint32_t groups,
                  const void *w, struct target t)
{
    for (struct cpu_rows r = cpu_rows_of(rows, most); cpu_rows_next(&r);)
        tile(r.n, groups, inputs_at(j, block, row + r.first), 1, w,
             t.y + r.first * t.ldy, t.ldy, block > 0);
}

static uint32_t groups_of(const struct matmul_job *j, uint32_t block)
{
    return cpu_min(QUANT_GROUPS,
                   cpu_ceil_div(j->m->cols, QUANT_GROUP) - block * QUANT_GROUPS);
}

static const void *block_of(const struct matmul_job *j, uint32_t panel, uint32_t block)
{
    const struct matrix *m = j->m;
    return (const char *)m->data +
           panel * cpu_panel_bytes(m->format, m->cols, m->type) +
           (size_t)block * QUANT_GROUPS * quant_group_bytes(m->format);
}

static void few_rows(void *arg, uint32_t i, uint32_t thread)
{
    (void)thread;
    const struct matmul_job *j = arg;
    quant_tile_fn *tile =
        j->cpu->path->quant_tile[j->m->format == WEIGHT_Q8 ? QUANT_Q8 : QUANT_Q4];
    uint32_t end = cpu_min(j->panels, (i + 1) * j->group);
    for (uint32_t p = i * j->group; p < end; p++) {
        float spill[FEW_ROWS * PANEL];
        struct target t = target_of(j, p, 0, spill);
        for (uint32_t b = 0; b * QUANT_BLOCK < j->m->cols; b++)
            tiles(tile, j->cpu->path->quant_rows, j, b, 0, j->rows, groups_of(j, b),
                  block_of(j, p, b), t);
        copy_spill(j, p, 0, j->rows, spill);
        add_bias(j, p, 0, j->rows);
    }
}

static void many_rows(void *arg, uint32_t i, uint32_t thread)
{
    (void)thread;
    const struct matmul_job *j = arg;
    const struct cpu_path *path = j->cpu->path;
    enum weight_format format = j->m->format;
    quant_tile_fn *one =
        path->quant_tile[format == WEIGHT_Q8 ? QUANT_WIDE_Q8 : QUANT_WIDE_Q4];
    quant_pair_fn *two = path->quant_pair[format != WEIGHT_Q8];
    _Alignas(64) struct quant_wide wide[2][QUANT_GROUPS];
    float spill[CHUNK_ROWS * PANEL];
    uint32_t row = i / j->groups * j->chunk, rows = cpu_min(j->chunk, j->rows - row);
    uint32_t first = i % j->groups * j->group,
             end = cpu_min(j->panels, first + j->group);
    for (uint32_t p = first, n; p < end; p += n) {
        struct target t = target_of(j, p, row, spill);
        n = two ? panels_together(j, p, end, 2) : 1;
        for (uint32_t b = 0; b * QUANT_BLOCK < j->m->cols; b++) {
            for (uint32_t k = 0; k < n; k++)
                path->quant_widen(wide[k], block_of(j, p + k, b), format,
                                  groups_of(j, b));
            tiles(n == 2 ? two : one, n == 2 ? QUANT_PAIR_ROWS : path->quant_rows, j, b,
                  row, rows, groups_of(j, b), wide, t);
        }
        for (uint32_t k = 0; k < n; k++) {
            copy_spill(j, p + k, row, rows, spill);
            add_bias(j, p + k, row, rows);
        }
    }
}

void cpu_quant_multiply(struct cpu *c, float *y, const struct matrix *m, const float *x,
                        uint32_t rows)
{
    struct matmul_job j = {.cpu = c, .m = m, .x = x, .y = y, .rows = rows};
    cpu_run_rows(c, rows, m->cols, round_row, &j);
    matmul_run(&j, few_rows, many_rows);
}
