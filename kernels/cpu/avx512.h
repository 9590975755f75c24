/* avx512.h - what the files with AVX-512 instructions share; private to them.
 *
 * Threads  pure functions.
 */
#ifndef KERNELS_CPU_AVX512_H
#define KERNELS_CPU_AVX512_H

#ifdef __AVX512F__

#include "kernels/cpu/avx2.h"

/* Most rows of a tile: two thirds of 32 registers are left to other things, or where
 * whole sums stand beside those of a group, a fourth of them. */
#define AVX512_ROWS 12

/* X(0) .. X(AVX512_ROWS - 1): variables of their own rather than an array, which
 * compilers would keep in memory as well as in registers. */
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

ALWAYS_INLINE __m512 avx512_widen_bf16(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

#endif

#endif
