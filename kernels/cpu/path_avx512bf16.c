/* path_avx512bf16.c - the path of CPUs that multiply pairs of bf16; see path.h.
 *
 * All is that of path_avx512.c but the product with weights in pairs, whose inputs are
 * rounded to bf16 first: one instruction does 32 multiply-adds, twice as many.
 */
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/path.h"

#ifdef __AVX512BF16__

#include <string.h>

/* Inputs 2 i and 2 i + 1 of a row, for all outputs. */
ALWAYS_INLINE __m512bh pair_of(const uint16_t *x, uint32_t i)
{
    int32_t pair;
    memcpy(&pair, x + (size_t)2 * i, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* Bytes of weights to ask for ahead of use, as in path_avx512.c. */
#define AHEAD 2048

#define CLEAR(n) __m512 sum##n = _mm512_setzero_ps();
#define STEP(n)                                                                        \
    if (rows > (n)) sum##n = _mm512_dpbf16_ps(sum##n, v, pair_of(x + (n)*ldx, i));
#define PUT(n)                                                                         \
    if (rows > (n)) {                                                                  \
        float *to = y + (n)*ldy;                                                       \
        _mm512_storeu_ps(to,                                                           \
                         add ? _mm512_add_ps(_mm512_loadu_ps(to), sum##n) : sum##n);   \
    }

ALWAYS_INLINE void tile_of(const uint32_t rows, uint32_t pairs, const uint16_t *x,
                           size_t ldx, const char *w, float *y, size_t ldy, bool add)
{
    EACH_ROW(CLEAR)
    for (uint32_t i = 0; i < pairs; i++, w += sizeof(__m512i)) {
        if (rows > 1) _mm_prefetch(w + AHEAD, _MM_HINT_T0);
        __m512bh v = (__m512bh)_mm512_loadu_si512(w);
        EACH_ROW(STEP)
    }
    EACH_ROW(PUT)
}

static void tile_rounded(uint32_t rows, uint32_t pairs, const uint16_t *x, size_t ldx,
                         const void *w, float *y, size_t ldy, bool add)
{
    switch (rows) {
#define CASE(n)                                                                        \
    case (n) + 1: tile_of((n) + 1, pairs, x, ldx, w, y, ldy, add); break;
        EACH_ROW(CASE)
#undef CASE
    }
}

const struct cpu_path cpu_path_avx512bf16 = {
    .name = "avx512bf16",
    .describe = "AVX-512 BF16",
    .tile_rounded = tile_rounded,
    AVX512_OPERATIONS,
};

#endif
