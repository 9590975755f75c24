/* attention_reference.h - attention in double precision, and steps whose numbers the tests of
 * attention make up.
 *
 * Owns     nothing.
 * Threads  the test's own.
 */
#ifndef TESTS_KERNELS_ATTENTION_REFERENCE_H
#define TESTS_KERNELS_ATTENTION_REFERENCE_H

#include "tests/kernels/fixture.h"

#define BLOCKS 80  // of a test's pool

struct heads {
    uint32_t q, kv, dim;
};

static inline struct attention_shape shape_of(struct heads h, uint32_t window)
{
    return (struct attention_shape){h.q, h.kv, h.dim, window,
                                    1.0f / sqrtf((float)h.dim)};
}

/* Block tables that share no block and are in no order. */
static inline void shuffled_table(uint32_t *table, uint32_t n, uint32_t offset)
{
    for (uint32_t i = 0; i < n; i++) table[i] = (i * 37 + offset) % BLOCKS;
}

/* qkv (n_rows, width) of a batch whose sequence s is the one of that seed: a token's is the
 * same wherever and whenever computed. */
static inline void fill_rows(float *qkv, uint32_t width, const struct batch *t,
                             const uint64_t *seeds)
{
    for (uint32_t q = 0; q < t->n_seqs; q++) {
        for (uint32_t r = t->row_start[q]; r < t->row_start[q + 1]; r++) {
            uint64_t state = (seeds[q] + 1) * 1000003 + t->pos[r];
            float *row = qkv + (size_t)r * width;
            for (uint32_t i = 0; i < width; i++) row[i] = 2 * random_unit(&state);
        }
    }
}

/* Attention of one head: what it gives, and what its rounding errors grow with. */
struct attended {
    double out[256];  // (head_dim)
    double size;      // the largest sum of the sizes of a score's terms
    double largest;   // |v|
};

/* Over the keys in layer 1 of a pool that the host can read, with q (head_dim) as the step
 * rotated it; stored: how the backend lays them out. */
static inline struct attended attend(const struct attention_shape *a,
                                     const struct kv_pool_mem *kv, stored_fn *stored,
                                     const uint32_t *table, uint32_t pos, uint32_t head,
                                     const float *q)
{
    uint32_t kv_head = head / (a->q_heads / a->kv_heads), dim = a->head_dim;
    uint32_t first = a->window && pos >= a->window ? pos - a->window + 1 : 0;
    struct attended want = {.out = {0}};
    double score[1024], top = -INFINITY, sum = 0;
    assert_true(dim <= ARRAY_LEN(want.out) && pos < ARRAY_LEN(score));
    for (uint32_t i = first; i <= pos; i++) {
        double s = 0, terms = 0;
        for (uint32_t d = 0; d < dim; d++) {
            double k = (double)stored(kv, table, i, 0, kv_head, d);
            double term = (double)q[d] * k * (double)a->scale;
            s += term;
            terms += fabs(term);
        }
        score[i] = s;
        top = fmax(top, s);
        want.size = fmax(want.size, terms);
    }
    for (uint32_t i = first; i <= pos; i++) {
        double p = exp(score[i] - top);
        sum += p;
        for (uint32_t d = 0; d < dim; d++) {
            double v = (double)stored(kv, table, i, 1, kv_head, d);
            want.out[d] += p * v;
            want.largest = fmax(want.largest, fabs(v));
        }
    }
    for (uint32_t d = 0; d < dim; d++) want.out[d] /= sum;
    return want;
}

/* The f32 result may differ from the one in double precision by the error of a score
 * (head_dim roundings of terms whose sizes add up to `size`), which exp turns into a
 * relative error of each weight, and by some roundings of the weights and sums:
 * altogether 2 * (dim * size + 32) roundings of the largest |v|, and what is lost below
 * the normal numbers. */
static inline double attention_tolerance(const struct attended *want, uint32_t dim)
{
    return 2 * (dim * want->size + 32) * UNIT_ROUNDOFF * want->largest + 0x1p-139;
}

static inline void check_attended(const struct attended *want, double tolerance,
                                  const struct attention_shape *a, uint32_t pos,
                                  uint32_t head, const float *got)
{
    for (uint32_t d = 0; d < a->head_dim; d++)
        if (!(fabs(want->out[d] - (double)got[d]) <= tolerance))
            fail_msg("position %u head %u of %u/%u/%u element %u: %.9g is not %.9g",
                     pos, head, a->q_heads, a->kv_heads, a->head_dim, d, (double)got[d],
                     want->out[d]);
}

#endif
