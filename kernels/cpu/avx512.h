/* avx512.h - what the files with AVX-512 instructions share; private to them.
 *
 * Threads  pure functions.
 */
#ifndef KERNELS_CPU_AVX512_H
#define KERNELS_CPU_AVX512_H

#ifdef __AVX512F__

#include "kernels/cpu/avx2.h"
#include "kernels/cpu/path.h"

/* Most rows of a tile.  There are registers for more, but an L1 of 8 ways has no room for
 * more rows of y where these lie a multiple of 4 KiB apart. */
#define AVX512_ROWS 8

/* X(0) .. X(AVX512_ROWS - 1): variables of their own rather than an array, which
 * compilers would keep in memory as well as in registers. */
#define EACH_ROW(X)       X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define EACH_ROW_TWICE(X) EACH_ROW(X) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

ALWAYS_INLINE __m512 avx512_widen_bf16(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Of path_avx512.c: struct cpu_path says what they do. */
tile_fn avx512_tile_f32, avx512_tile_f16, avx512_tile_bf16, avx512_tile_pairs;
strip_fn avx512_strip_f32, avx512_strip_f16, avx512_strip_bf16;
void avx512_widen(float *dst, const void *src, enum dtype t, size_t n);
float avx512_softmax(float *s, uint32_t n, uint32_t from, uint32_t to, float *m,
                     float *l);
void avx512_silu_mul(float *y, const float *g, const float *u, uint32_t n);
void avx512_rope(float *x, const float *cos, const float *sin, uint32_t half);

/* Of struct cpu_path, what both paths have. */
#define AVX512_OPERATIONS                                                              \
    .tile_rows = AVX512_ROWS,                                                          \
    .tile = {[DTYPE_F32] = avx512_tile_f32,                                            \
             [DTYPE_F16] = avx512_tile_f16,                                            \
             [DTYPE_BF16] = avx512_tile_bf16,                                          \
             [TILE_PAIRS] = avx512_tile_pairs},                                        \
    .strip_sums = 2 * AVX512_ROWS,                                                     \
    .strip = {[DTYPE_F32] = avx512_strip_f32,                                          \
              [DTYPE_F16] = avx512_strip_f16,                                          \
              [DTYPE_BF16] = avx512_strip_bf16},                                       \
    .quant_rows = AVX512_ROWS,                                                         \
    .quant_tile = {[QUANT_Q8] = quant_tile_q8_avx512,                                  \
                   [QUANT_Q4] = quant_tile_q4_avx512,                                  \
                   [QUANT_WIDE_Q8] = quant_tile_wide_q8_avx512,                        \
                   [QUANT_WIDE_Q4] = quant_tile_wide_q4_avx512},                       \
    .quant_pair = {quant_pair_q8_avx512, quant_pair_q4_avx512},                        \
    .quant_inputs = quant_inputs_avx2, .quant_widen = quant_widen_avx2,                \
    .widen = avx512_widen, .narrow = avx2_narrow, .softmax = avx512_softmax,           \
    .rmsnorm = avx2_rmsnorm, .add = avx2_add, .silu_mul = avx512_silu_mul,             \
    .rope = avx512_rope

#endif

#endif
