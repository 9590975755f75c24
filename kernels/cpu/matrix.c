/* matrix.c - weights as the CPU keeps them: packed in panels of 16 outputs.
 *
 *     panel p, [k][16]:   W[16p][0]   W[16p+1][0]  ...  W[16p+15][0]
 *                         W[16p][1]   W[16p+1][1]  ...  W[16p+15][1]
 *                         ...
 *
 * in f32 or f16; in bf16 two inputs at a time:
 *
 *     [k / 2][16][2]:     W[16p][0]  W[16p][1]  W[16p+1][0]  W[16p+1][1]  ...
 *                         W[16p][2]  W[16p][3]  W[16p+1][2]  W[16p+1][3]  ...
 *                         ...
 *
 * or in groups of 32 along k as quant.h has them.  One pass over a panel computes 16
 * outputs with all loads in sequence, whatever the number of rows of x.  Outputs past the
 * last, and the second input of a pair that has none, are zero.
 */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

size_t cpu_panel_bytes(enum weight_format format, uint32_t cols, enum dtype type)
{
    if (format == WEIGHT_OWN) {
        size_t inputs = type == DTYPE_BF16 ? ALIGN_UP((size_t)cols, 2) : cols;
        return inputs * PANEL * dtype_bytes(type);
    }
    return cpu_ceil_div(cols, QUANT_GROUP) * quant_group_bytes(format);
}

size_t cpu_matrix_bytes(enum weight_format format, uint32_t rows, uint32_t cols,
                        enum dtype type)
{
    size_t bytes, panel = cpu_panel_bytes(format, cols, type);
    if (__builtin_mul_overflow((size_t)cpu_ceil_div(rows, PANEL), panel, &bytes))
        return 0;
    return bytes;
}

struct pack_job {
    const struct matrix *m;
    const struct matrix_part *parts;
    uint32_t n_parts;
};

/* Row `row` of the stacked parts. */
static const void *find_row(const struct pack_job *j, uint32_t row, enum dtype *type)
{
    const struct matrix_part *part = j->parts;
    while (row >= part->rows) row -= part++->rows;
    *type = part->type;
    return (const char *)part->data +
           (size_t)row * j->m->cols * dtype_bytes(part->type);
}

/* Where the k-th weight of output c is in a panel, in elements. */
static size_t place(enum dtype type, uint32_t k, uint32_t c)
{
    if (type == DTYPE_BF16) return ((size_t)(k / 2) * PANEL + c) * 2 + k % 2;
    return (size_t)k * PANEL + c;
}

/* Write one row of `type` down column `column` of a panel of the matrix' type. */
static void pack_row(void *panel, enum dtype to, uint32_t column, const void *src,
                     enum dtype type, uint32_t cols)
{
    const unsigned char *s = src;
    if (to == DTYPE_F32) {
        for (uint32_t k = 0; k < cols; k++) {
            dtype_to_f32((float *)panel + place(to, k, column),
                         s + k * dtype_bytes(type), type, 1);
        }
        return;
    }
    for (uint32_t k = 0; k < cols; k++) {
        uint16_t *at = (uint16_t *)panel + place(to, k, column);
        if (to == type) {
            memcpy(at, s + (size_t)2 * k, 2);
        } else {
            float v;
            dtype_to_f32(&v, s + k * dtype_bytes(type), type, 1);
            dtype_from_f32(at, &v, to, 1);
        }
    }
}

/* A panel in groups of 32; what is past the last output or input counts as zero. */
static void pack_groups(const struct pack_job *j, uint32_t p, char *panel)
{
    const struct matrix *m = j->m;
    for (uint32_t k = 0; k < m->cols; k += QUANT_GROUP) {
        float w[PANEL][QUANT_GROUP] = {{0}};
        for (uint32_t c = 0; c < PANEL && p * PANEL + c < m->rows; c++) {
            enum dtype type;
            const char *src = find_row(j, p * PANEL + c, &type);
            dtype_to_f32(w[c], src + k * dtype_bytes(type), type,
                         cpu_min(QUANT_GROUP, m->cols - k));
        }
        quant_pack(panel, m->format, w);
        panel += quant_group_bytes(m->format);
    }
}

static void pack_panel(void *arg, uint32_t p, uint32_t thread)
{
    (void)thread;
    const struct pack_job *j = arg;
    const struct matrix *m = j->m;
    size_t bytes = cpu_panel_bytes(m->format, m->cols, m->type);
    char *panel = (char *)m->data + p * bytes;
    if (m->format != WEIGHT_OWN) {
        pack_groups(j, p, panel);
        return;
    }
    if (m->rows - p * PANEL < PANEL || m->cols % 2) memset(panel, 0, bytes);
    for (uint32_t c = 0; c < PANEL && p * PANEL + c < m->rows; c++) {
        enum dtype type;
        const void *src = find_row(j, p * PANEL + c, &type);
        pack_row(panel, m->type, c, src, type, m->cols);
    }
}

int cpu_matrix_reserve(struct backend *b, struct matrix *m,
                       const struct matrix_part *parts, uint32_t n_parts,
                       struct err *err)
{
    struct cpu_arena *weights = &cpu_of(b)->weights;
    m->data = cpu_arena_alloc(weights, m->bytes);
    if (m->data && parts[0].bias)
        m->bias = cpu_alloc((size_t)m->rows * sizeof *m->bias);
    if (!m->data || (parts[0].bias && !m->bias)) {
        cpu_arena_free(weights, m->data);
        return err_set(err, -ENOMEM,
                       "no memory for a matrix of %u rows and %u columns in %s",
                       m->rows, m->cols,
                       m->format == WEIGHT_OWN ? dtype_name(m->type)
                                               : weight_format_name(m->format));
    }
    float *bias = m->bias;
    for (uint32_t i = 0; bias && i < n_parts; bias += parts[i++].rows) {
        memcpy(bias, parts[i].bias, parts[i].rows * sizeof *bias);
    }
    return 0;
}

int cpu_matrix_load(struct backend *b, struct matrix *m,
                    const struct matrix_part *parts, uint32_t n_parts, struct err *err)
{
    int rc = cpu_matrix_reserve(b, m, parts, n_parts, err);
    if (rc) return rc;
    struct pack_job j = {m, parts, n_parts};
    pool_run(cpu_of(b)->pool, (m->rows - 1) / PANEL + 1, pack_panel, &j);
    return 0;
}

void cpu_matrix_free(struct backend *b, struct matrix *m)
{
    cpu_arena_free(&cpu_of(b)->weights, m->data);
    free(m->bias);
}

struct embed_job {
    struct buffer *x;
    const struct matrix *table;
    const int32_t *ids;
};

/* The table may be the logits head too, so a row is gathered back out of its panel. */
static void embed_row(void *arg, uint32_t r, uint32_t thread)
{
    (void)thread;
    const struct embed_job *j = arg;
    const struct matrix *t = j->table;
    uint32_t id = (uint32_t)j->ids[r];
    size_t bytes = cpu_panel_bytes(t->format, t->cols, t->type);
    const char *panel = (const char *)t->data + id / PANEL * bytes;
    float *x = cpu_row(j->x, r);
    if (t->format != WEIGHT_OWN) {
        quant_unpack_row(x, panel, t->format, id % PANEL, t->cols);
        return;
    }
    size_t size = dtype_bytes(t->type);
    for (uint32_t k = 0; k < t->cols; k++) {
        dtype_to_f32(x + k, panel + place(t->type, k, id % PANEL) * size, t->type, 1);
    }
}

void cpu_embed(struct backend *b, struct buffer *x, const struct matrix *table)
{
    struct embed_job j = {x, table, b->batch->ids};
    cpu_run_rows(cpu_of(b), b->batch->n_rows, x->cols, embed_row, &j);
}
