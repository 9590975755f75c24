/* fixture.h - what the kernel tests share: backends on every path, random numbers, and
 * one-sequence batches. */
#ifndef TESTS_KERNELS_FIXTURE_H
#define TESTS_KERNELS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/random.h"

#define UNIT_ROUNDOFF 0x1p-24  // of one f32 operation

/* The emulated ones (tests/emulated/) are there on every machine; slow as they are, tests may
 * give them fewer shapes.  Not under ThreadSanitizer, which would take minutes over them: what
 * threads do around a kernel is the same with any. */
static const char *const paths[] = {
    "portable",
    "avx2",
    "avx512",
    "avx512bf16",
#if !WATCHED_THREAD
    "emulated avx2",
    "emulated avx512",
    "emulated avx512bf16",
#endif
};
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

static const struct backend_limits wide_limits = {
    .max_rows = 1024,
    .max_seqs = 16,
    .max_blocks = 1024,
    .max_head_dim = 128,
    .max_q_heads = 32,
    .max_cols = 8192,
};

static inline bool path_is_emulated(const char *path)
{
    return strncmp(path, "emulated ", 9) == 0;
}

/* NULL where this machine lacks the path; the loop over paths then goes on. */
static inline struct backend *open_path(const char *path, uint32_t threads)
{
    struct backend_options o = {
        .threads = threads, .cpu_path = path, .limits = wide_limits};
    struct backend *b = NULL;
    struct err err;
    int rc = backend_open(&b, "cpu", &o, &err);
    if (rc == -ENODEV) return NULL;
    if (rc) fail_msg("%s", err.msg);
    return b;
}

/* Uniform in [-1, 1). */
static inline float random_unit(uint64_t *seed)
{
    return (float)((int32_t)(random_step(seed) >> 32)) * 0x1p-31f;
}

static inline float *random_floats(uint64_t seed, size_t n)
{
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++) v[i] = random_unit(&seed);
    return v;
}

/* n random numbers in type t; what they are exactly goes to exact (n). */
static inline void *random_typed(uint64_t seed, size_t n, enum dtype t, float *exact)
{
    float *v = random_floats(seed, n);
    void *typed = malloc(n * dtype_bytes(t));
    assert_non_null(typed);
    dtype_from_f32(typed, v, t, n);
    dtype_to_f32(exact, typed, t, n);
    free(v);
    return typed;
}

static inline struct buffer new_buffer(struct backend *b, uint32_t rows, uint32_t cols)
{
    struct buffer x;
    struct err err;
    if (backend_buffer_alloc(b, &x, rows, cols, &err)) fail_msg("%s", err.msg);
    return x;
}

static inline struct matrix new_matrix_as(struct backend *b, enum weight_format format,
                                          const void *data, enum dtype t, uint32_t rows,
                                          uint32_t cols, const float *bias)
{
    struct matrix m;
    struct err err;
    struct matrix_part part = {data, t, rows, bias};
    if (backend_matrix_load(b, &m, format, cols, &part, 1, &err))
        fail_msg("%s", err.msg);
    assert_true(m.rows == rows && m.cols == cols);
    return m;
}

static inline struct matrix new_matrix(struct backend *b, const void *data,
                                       enum dtype t, uint32_t rows, uint32_t cols,
                                       const float *bias)
{
    return new_matrix_as(b, WEIGHT_OWN, data, t, rows, cols, bias);
}

static inline void finish(struct backend *b)
{
    struct err err;
    if (backend_finish(b, &err)) fail_msg("%s", err.msg);
}

/* A batch of up to 1,024 rows with its arrays, and a table of identity blocks. */
struct step {
    struct batch batch;
    int32_t ids[1024];
    uint32_t pos[1024], logit_rows[1024];
    uint32_t row_start[17], block_start[17];
    uint32_t blocks[1024];
};

/* RoPE frequencies of the tests: theta 10000. */
static inline const float *frequencies(uint32_t head_dim)
{
    static float f[512];
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        f[i] = (float)pow(10000.0, -2.0 * i / head_dim);
    }
    return f;
}

static inline void step_clear(struct step *s)
{
    memset(s, 0, sizeof *s);
    s->batch = (struct batch){
        .ids = s->ids,
        .pos = s->pos,
        .row_start = s->row_start,
        .block_start = s->block_start,
        .blocks = s->blocks,
        .logit_rows = s->logit_rows,
    };
}

/* Append a sequence whose rows are positions pos .. pos + rows - 1.  Its block table is
 * `table`, or 0, 1, 2 ... where that is NULL. */
static inline void step_add(struct step *s, uint32_t pos, uint32_t rows,
                            const uint32_t *table)
{
    struct batch *t = &s->batch;
    for (uint32_t r = 0; r < rows; r++) s->pos[t->n_rows++] = pos + r;
    uint32_t at = s->block_start[t->n_seqs], n = kv_blocks_for((uint64_t)pos + rows);
    for (uint32_t i = 0; i < n; i++) s->blocks[at + i] = table ? table[i] : i;
    t->n_seqs++;
    s->row_start[t->n_seqs] = t->n_rows;
    s->block_start[t->n_seqs] = at + n;
}

/* A step of `rows` rows for operations that do not look at positions. */
static inline void begin_rows(struct backend *b, struct step *s, uint32_t rows)
{
    step_clear(s);
    step_add(s, 0, rows, NULL);
    backend_begin(b, &s->batch, frequencies(16), 16);
}

/* ---- what a pool holds ---- */

/* Element d of K (v = 0) or V (v = 1) of a position, in layer 1 of a pool that the host can
 * read. */
typedef float stored_fn(const struct kv_pool_mem *kv, const uint32_t *table,
                        uint32_t pos, int v, uint32_t head, uint32_t d);

/* Number i of the plane of K or V that the position's block has for that head. */
static inline float plane_number(const struct kv_pool_mem *kv, const uint32_t *table,
                                 uint32_t pos, int v, uint32_t head, size_t i)
{
    const struct kv_shape *shape = &kv->shape;
    const char *plane = (const char *)kv->base +
                        table[pos / KV_BLOCK_TOKENS] * kv_block_bytes(shape) +
                        kv_plane_offset(shape, 1, v, head);
    float f;
    dtype_to_f32(&f, plane + i * dtype_bytes(shape->dtype), shape->dtype, 1);
    return f;
}

/* As the CPU's kernels lay a block out: K by elements, V by tokens. */
static inline float cpu_stored(const struct kv_pool_mem *kv, const uint32_t *table,
                               uint32_t pos, int v, uint32_t head, uint32_t d)
{
    size_t token = pos % KV_BLOCK_TOKENS, dim = kv->shape.head_dim;
    return plane_number(kv, table, pos, v, head,
                        v ? token * dim + d : d * KV_BLOCK_TOKENS + token);
}

/* ---- products and rows of a matrix, where the host reads buffers ---- */

struct shape {
    uint32_t rows, cols;
};

/* Fails the test where `got` is not x w^T + bias, both of x and w (cols). */
typedef void check_output_fn(const float *x, const float *w, uint32_t cols, float bias,
                             float got);

/* Every output of m for each count of rows, and that the row after them stays as it was.
 * w (m->rows, m->cols): m's weights as they are kept; bias (m->rows), or NULL; counts
 * (n_counts): ascending. */
static inline void check_products(struct backend *b, const struct matrix *m,
                                  const float *w, const float *bias,
                                  const uint32_t *counts, size_t n_counts,
                                  check_output_fn *check_output)
{
    static struct step s;
    uint32_t most = counts[n_counts - 1];
    struct buffer x = new_buffer(b, most, m->cols), y = new_buffer(b, most, m->rows);
    float *fill = random_floats(9, (size_t)most * m->cols);
    memcpy(x.data, fill, (size_t)most * m->cols * sizeof *fill);
    for (size_t i = 0; i < n_counts; i++) {
        memset(y.data, 0xff, (size_t)most * m->rows * sizeof(float));
        begin_rows(b, &s, counts[i]);
        backend_matmul(b, &y, m, &x);
        finish(b);
        for (uint32_t r = 0; r < counts[i]; r++) {
            for (uint32_t c = 0; c < m->rows; c++) {
                check_output(fill + (size_t)r * m->cols, w + (size_t)c * m->cols,
                             m->cols, bias ? bias[c] : 0,
                             ((float *)y.data)[(size_t)r * m->rows + c]);
            }
        }
        const float *after = (float *)y.data + (size_t)counts[i] * m->rows;
        if (counts[i] < most) assert_true(isnan(*after));
    }
    backend_buffer_free(b, &x);
    backend_buffer_free(b, &y);
    free(fill);
}

/* y (rows, m->rows) of x (rows, m->cols), `group` rows at a time; the caller frees it. */
static inline float *products_by(struct backend *b, const struct matrix *m,
                                 const float *x, uint32_t rows, uint32_t group)
{
    static struct step s;
    struct buffer in = new_buffer(b, rows, m->cols), y = new_buffer(b, rows, m->rows);
    float *out = malloc((size_t)rows * m->rows * sizeof *out);
    assert_non_null(out);
    for (uint32_t r = 0; r < rows; r += group) {
        uint32_t n = r + group <= rows ? group : rows - r;
        memcpy(in.data, x + (size_t)r * m->cols, (size_t)n * m->cols * sizeof *x);
        begin_rows(b, &s, n);
        backend_matmul(b, &y, m, &in);
        finish(b);
        memcpy(out + (size_t)r * m->rows, y.data, (size_t)n * m->rows * sizeof *out);
    }
    backend_buffer_free(b, &in);
    backend_buffer_free(b, &y);
    return out;
}

/* All rows of m as embedding reads them back, in steps of up to 256 rows. */
static inline float *embedded(struct backend *b, const struct matrix *m)
{
    static struct step s;
    struct buffer x = new_buffer(b, m->rows, m->cols);
    step_clear(&s);
    step_add(&s, 0, m->rows, NULL);
    for (uint32_t i = 0; i < m->rows; i++) s.ids[i] = (int32_t)i;
    backend_begin(b, &s.batch, frequencies(16), 16);
    backend_embed(b, &x, m);
    finish(b);
    float *w = malloc((size_t)m->rows * m->cols * sizeof *w);
    memcpy(w, x.data, (size_t)m->rows * m->cols * sizeof *w);
    backend_buffer_free(b, &x);
    return w;
}

/* That they are want (m->rows, m->cols), bit for bit. */
static inline void check_embeds(struct backend *b, const struct matrix *m,
                                const float *want)
{
    float *w = embedded(b, m);
    assert_memory_equal(w, want, (size_t)m->rows * m->cols * sizeof *want);
    free(w);
}

#endif
