/* quant_avx512.c - products with int8 and int4 weights with AVX-512 and VNNI; see quant.h.
 *
 * As in quant_avx2.c, but the sum of two products onto 16 outputs is one instruction
 * (vpdpwssd), and the sums of all groups stay in registers.
 */
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/quant.h"

#ifdef __AVX512VNNI__

#include <string.h>

ALWAYS_INLINE __m512 load_bf16(const uint16_t *p)
{
    return avx512_widen_bf16(_mm256_loadu_si256((const __m256i *)p));
}

/* The i-th of the four weights in each word. */
ALWAYS_INLINE __m512i nibble(__m512i words, unsigned i)
{
    if (i == 3) return _mm512_srli_epi16(words, 12);
    return _mm512_and_si512(_mm512_srli_epi16(words, 4 * i), _mm512_set1_epi16(15));
}

ALWAYS_INLINE __m512i pair_of(const int16_t *x)
{
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return _mm512_set1_epi32(pair);
}

ALWAYS_INLINE __m512i plus(__m512i a, __m512i b)
{
    return _mm512_add_epi32(a, b);
}

/* Pair quad + u of the weights of a group. */
ALWAYS_INLINE __m512i weights(enum quant_kind kind, const void *w, uint32_t quad,
                              uint32_t u)
{
    if (kind == QUANT_Q8) {
        const struct quant_q8 *from = w;
        return _mm512_cvtepi8_epi16(
            _mm256_loadu_si256((const __m256i *)from->q[quad + u][0]));
    }
    if (kind == QUANT_Q4) {
        const struct quant_q4 *from = w;
        return nibble(_mm512_loadu_si512(from->q[quad / 4][0]), u);
    }
    return _mm512_loadu_si512(((const struct quant_wide *)w)->q[quad + u][0]);
}

/* Sum n is that of row n % rows, of every pair i with i % chains = n / rows: so few rows
 * make sums enough to hide the latency of an instruction.  Elsewhere n counts the rows. */
#define LOAD(n)                                                                        \
    __m512 total##n =                                                                  \
        add && rows > (n) ? _mm512_loadu_ps(y + (n)*ldy) : _mm512_setzero_ps();
#define CLEAR(n) __m512i sum##n = _mm512_setzero_si512();
#define STEP(n)                                                                        \
    if (rows * chains > (n) && u % chains == (n) / rows)                               \
        sum##n = _mm512_dpwssd_epi32(sum##n, v, pair_of(q + (n) % rows * step + 2 * i));
#define SCALE(n)                                                                       \
    if (rows > (n)) {                                                                  \
        __m512 by = _mm512_mul_ps(scale, _mm512_set1_ps(x[(n)*ldx].scale[g]));         \
        total##n =                                                                     \
            _mm512_add_ps(total##n, _mm512_mul_ps(_mm512_cvtepi32_ps(sum##n), by));    \
        by = _mm512_set1_ps(x[(n)*ldx].sum[g]);                                        \
        if (with_low) total##n = _mm512_add_ps(total##n, _mm512_mul_ps(low, by));      \
    }
#define STORE(n)                                                                       \
    if (rows > (n)) _mm512_storeu_ps(y + (n)*ldy, total##n);

ALWAYS_INLINE void tile_of(enum quant_kind kind, const uint32_t rows, uint32_t groups,
                           const struct rounded_block *x, size_t ldx, const void *w,
                           float *y, size_t ldy, bool add)
{
    const size_t step = ldx * sizeof *x / sizeof(int16_t);
    const uint32_t chains = rows == 1 ? 4 : rows <= 3 ? 2 : 1;
    const bool with_low = kind == QUANT_Q4 || kind == QUANT_WIDE_Q4;
    EACH_ROW(LOAD)
    for (uint32_t g = 0; g < groups; g++) {
        const int16_t *q = x->q + (size_t)g * QUANT_GROUP;
        EACH_ROW(CLEAR)
        for (uint32_t quad = 0; quad < QUANT_GROUP / 2; quad += 4) {
#pragma GCC unroll 4
            for (uint32_t u = 0; u < 4; u++) {
                const uint32_t i = quad + u;
                __m512i v = weights(kind, w, quad, u);
                EACH_ROW(STEP)
            }
        }
        if (rows == 1) sum0 = plus(plus(sum0, sum1), plus(sum2, sum3));
        if (rows == 2) sum0 = plus(sum0, sum2), sum1 = plus(sum1, sum3);
        if (rows == 3)
            sum0 = plus(sum0, sum3), sum1 = plus(sum1, sum4), sum2 = plus(sum2, sum5);
        __m512 scale, low = _mm512_setzero_ps();
        size_t bytes = sizeof(struct quant_wide);
        if (kind == QUANT_Q8) {
            scale = load_bf16(((const struct quant_q8 *)w)->scale);
            bytes = sizeof(struct quant_q8);
        } else if (kind == QUANT_Q4) {
            scale = load_bf16(((const struct quant_q4 *)w)->scale);
            low = load_bf16(((const struct quant_q4 *)w)->low);
            bytes = sizeof(struct quant_q4);
        } else {
            scale = _mm512_loadu_ps(((const struct quant_wide *)w)->scale);
            if (with_low) low = _mm512_loadu_ps(((const struct quant_wide *)w)->low);
        }
        EACH_ROW(SCALE)
        w = (const char *)w + bytes;
    }
    EACH_ROW(STORE)
}

#define TILE(name, kind)                                                               \
    void name(uint32_t rows, uint32_t groups, const struct rounded_block *x,           \
              size_t ldx, const void *w, float *y, size_t ldy, bool add)               \
    {                                                                                  \
        switch (rows) {                                                                \
            EACH_ROW(CASE_##kind)                                                      \
        }                                                                              \
    }
#define CASE(kind, n)                                                                  \
    case (n) + 1:                                                                      \
        tile_of(kind, (n) + 1, groups, x, ldx, w, y, ldy, add);                        \
        break;
#define CASE_QUANT_Q8(n)      CASE(QUANT_Q8, n)
#define CASE_QUANT_Q4(n)      CASE(QUANT_Q4, n)
#define CASE_QUANT_WIDE_Q8(n) CASE(QUANT_WIDE_Q8, n)
#define CASE_QUANT_WIDE_Q4(n) CASE(QUANT_WIDE_Q4, n)
TILE(quant_tile_q8_avx512, QUANT_Q8)
TILE(quant_tile_q4_avx512, QUANT_Q4)
TILE(quant_tile_wide_q8_avx512, QUANT_WIDE_Q8)
TILE(quant_tile_wide_q4_avx512, QUANT_WIDE_Q4)

#endif
