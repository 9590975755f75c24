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

/* Sum n is that of row n / panels with panel n % panels: an input is loaded once for all panels.
 * Variables of their own, as in avx512.h. */
#define EACH_SUM(X) EACH_ROW_TWICE(X) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)

#define CLEAR(n) __m512 sum##n = _mm512_setzero_ps();
#define STEP(n)                                                                        \
    if (rows * panels > (n))                                                           \
        sum##n = _mm512_dpbf16_ps(sum##n,                                              \
                                  (n) % panels == 0   ? w0                             \
                                  : (n) % panels == 1 ? w1                             \
                                  : (n) % panels == 2 ? w2                             \
                                                      : w3,                            \
                                  pair_of(x + (n) / panels * ldx, i));
#define PUT(n)                                                                         \
    if (rows * panels > (n)) {                                                         \
        float *to = y + (n) / panels * ldy + (size_t)((n) % panels * PANEL);           \
        _mm512_storeu_ps(to,                                                           \
                         add ? _mm512_add_ps(_mm512_loadu_ps(to), sum##n) : sum##n);   \
    }

ALWAYS_INLINE void tile_of(const uint32_t rows, const uint32_t panels, uint32_t pairs,
                           const uint16_t *x, size_t ldx, const char *w, size_t next,
                           float *y, size_t ldy, bool add)
{
    EACH_SUM(CLEAR)
    for (uint32_t i = 0; i < pairs; i++, w += sizeof(__m512i)) {
        if (rows > 1 && panels == 1) _mm_prefetch(w + AHEAD, _MM_HINT_T0);
        __m512bh w0 = (__m512bh)_mm512_loadu_si512(w), w1 = w0, w2 = w0, w3 = w0;
        if (panels > 1) {
            w1 = (__m512bh)_mm512_loadu_si512(w + next);
            w2 = (__m512bh)_mm512_loadu_si512(w + 2 * next);
            w3 = (__m512bh)_mm512_loadu_si512(w + 3 * next);
        }
        EACH_SUM(STEP)
    }
    EACH_SUM(PUT)
}

static void tile_rounded(uint32_t rows, uint32_t panels, uint32_t pairs,
                         const uint16_t *x, size_t ldx, const void *w, size_t next,
                         float *y, size_t ldy, bool add)
{
#define ONE(n)                                                                         \
    case (n) + 1:                                                                      \
        tile_of((n) + 1, 1, pairs, x, ldx, w, 0, y, ldy, add);                         \
        break;
#define SIDE_BY_SIDE(n)                                                                \
    case (n) + 1:                                                                      \
        tile_of((n) + 1, ROUNDED_PANELS, pairs, x, ldx, w, next, y, ldy, add);         \
        break;
    if (panels == 1) {
        switch (rows) {
            EACH_ROW(ONE)
        }
        return;
    }
    switch (rows) {
        SIDE_BY_SIDE(0)
        SIDE_BY_SIDE(1)
        SIDE_BY_SIDE(2)
        SIDE_BY_SIDE(3)
        SIDE_BY_SIDE(4)
        SIDE_BY_SIDE(5)
    }
#undef ONE
#undef SIDE_BY_SIDE
}

_Static_assert(ROUNDED_ROWS == 6 && ROUNDED_PANELS == 4, "those that are written out");

const struct cpu_path cpu_path_avx512bf16 = {
    .name = "avx512bf16",
    .describe = "AVX-512 BF16",
    .tile_rounded = tile_rounded,
    AVX512_OPERATIONS,
};

#endif
