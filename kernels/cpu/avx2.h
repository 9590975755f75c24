/* avx2.h - what the files with AVX2 instructions share; private to them.
 *
 * Threads  pure functions.
 */
#ifndef KERNELS_CPU_AVX2_H
#define KERNELS_CPU_AVX2_H

#ifdef __AVX2__

#include "kernels/dtype.h"
#include <immintrin.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* A mask of the first n of 8 lanes; of all from 8 on. */
ALWAYS_INLINE __m256i avx2_lanes(size_t n)
{
    __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8), index);
}

ALWAYS_INLINE __m256 avx2_widen_bf16(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* Of path_avx2.c, and of wider paths too: struct cpu_path says what they do. */
void avx2_narrow(void *dst, const float *src, enum dtype t, size_t n);
void avx2_rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps);
void avx2_add(float *x, const float *d, uint32_t n);

#endif

#endif
