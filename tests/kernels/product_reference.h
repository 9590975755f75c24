/* product_reference.h - products in double precision, and how far a kernel's may be from them.
 *
 * Threads  the test's own.
 */
#ifndef TESTS_KERNELS_PRODUCT_REFERENCE_H
#define TESTS_KERNELS_PRODUCT_REFERENCE_H

#include "kernels/cpu/quant.h"
#include "tests/kernels/fixture.h"

/* One output in double precision, and how far f32 may be from it: every product goes
 * through one rounding of its own and at most one for each later term of its block of
 * 256, one for each later block, and the bias.  A rounding below the normal numbers is off by
 * half of the least number. */
static inline void check_product(const float *x, const float *w, uint32_t cols,
                                 float bias, float got)
{
    double sum = bias, size = fabs(bias);
    for (uint32_t k = 0; k < cols; k++) {
        sum += (double)x[k] * w[k];
        size += fabs((double)x[k] * w[k]);
    }
    double roundings = fmin(cols, 256) + cols / 256.0 + 3;
    double tolerance = roundings * UNIT_ROUNDOFF * size + 2.0 * cols * 0x1p-149;
    if (!(fabs(sum - got) <= tolerance))
        fail_msg("%.9g is not %.9g with %u columns", got, sum, cols);
}

/* The same where inputs are rounded to bf16 first; the instruction counts weights, inputs
 * and sums below the normal numbers as zero. */
static inline void check_rounded_product(const float *x, const float *w, uint32_t cols,
                                         float bias, float got)
{
    double sum = bias, size = fabs(bias), flushed = 0;
    for (uint32_t k = 0; k < cols; k++) {
        float v = dtype_bf16_to_f32(dtype_f32_to_bf16(x[k]));
        sum += (double)v * w[k];
        size += fabs((double)v * w[k]);
        flushed += (fabs(v) + fabs(w[k]) + 1) * 0x1p-126;
    }
    double roundings = fmin(cols, 256) + cols / 256.0 + 3;
    if (!(fabs(sum - got) <= roundings * UNIT_ROUNDOFF * size + flushed))
        fail_msg("%.9g is not %.9g with %u columns, rounded", got, sum, cols);
}

/* The same with quantised weights w as they are kept.  An input may be off by half of a
 * 32,767th of the largest of its group, one below QUANT_LEAST by all of it; each group brings at
 * most six roundings, and one for each later group, and where a product of scales is below the
 * normal numbers half of the least number times a sum of less than 2^31. */
static inline void check_quant_product(const float *x, const float *w, uint32_t cols,
                                       float bias, float got)
{
    double sum = bias, size = fabs(bias), inputs = 0;
    for (uint32_t first = 0; first < cols; first += QUANT_GROUP) {
        double top = 0, weights = 0;
        for (uint32_t k = first; k < cols && k < first + QUANT_GROUP; k++) {
            sum += (double)x[k] * w[k];
            size += 4 * fabs((double)x[k] * w[k]);
            top = fmax(top, fabs(x[k]));
            weights += fabs(w[k]);
        }
        inputs += top * weights * (0.51 / 32767 + 2 * UNIT_ROUNDOFF) + 0x1p-117;
        if (top < (double)QUANT_LEAST) inputs += top * weights;
        size += 4 * top * weights;  // q4: q scale and low may be larger than their sum
    }
    double roundings = 8 + cols / 32.0;
    if (!(fabs(sum - got) <= inputs + roundings * UNIT_ROUNDOFF * size))
        fail_msg("%.9g is not %.9g with %u columns", got, sum, cols);
}

#endif
