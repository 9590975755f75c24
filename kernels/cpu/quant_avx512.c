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

/* Rows of two panels, and the outputs of either kind of tile. */
#define EACH_PAIR(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define EACH_OUT(X)  EACH_ROW(X) X(8) X(9) X(10) X(11)

/* Total n is that of row n / panels with panel n % panels.  Sum n is its, too, or of every pair
 * i with i % chains = n / outs: so few rows make sums enough to hide the latency of an
 * instruction. */
#define ROW(n)    ((n) % outs / panels)
#define OUTPUT(n) (y + ROW(n) * ldy + (size_t)((n) % panels * QUANT_PANEL))
#define LOAD(n)                                                                        \
    __m512 total##n =                                                                  \
        add && outs > (n) ? _mm512_loadu_ps(OUTPUT(n)) : _mm512_setzero_ps();
#define CLEAR(n) __m512i sum##n = _mm512_setzero_si512();
#define STEP(n)                                                                        \
    if (outs * chains > (n) && u % chains == (n) / outs)                               \
        sum##n = _mm512_dpwssd_epi32(sum##n, (n) % panels ? v1 : v0,                   \
                                     pair_of(q + ROW(n) * step + 2 * i));
#define SCALE(n)                                                                       \
    if (outs > (n)) {                                                                  \
        const struct scales s = (n) % panels ? s1 : s0;                                \
        const struct rounded_block *in = x + ROW(n) * ldx;                             \
        __m512 by = _mm512_mul_ps(s.scale, _mm512_set1_ps(in->scale[g]));              \
        total##n =                                                                     \
            _mm512_add_ps(total##n, _mm512_mul_ps(_mm512_cvtepi32_ps(sum##n), by));    \
        by = _mm512_set1_ps(in->sum[g]);                                               \
        if (with_low) total##n = _mm512_add_ps(total##n, _mm512_mul_ps(s.low, by));    \
    }
#define STORE(n)                                                                       \
    if (outs > (n)) _mm512_storeu_ps(OUTPUT(n), total##n);

/* Of a group; low counts where there is one. */
struct scales {
    __m512 scale, low;
};

ALWAYS_INLINE struct scales load_scales(enum quant_kind kind, const void *w)
{
    struct scales s = {.low = _mm512_setzero_ps()};
    if (kind == QUANT_Q8) {
        s.scale = load_bf16(((const struct quant_q8 *)w)->scale);
    } else if (kind == QUANT_Q4) {
        s.scale = load_bf16(((const struct quant_q4 *)w)->scale);
        s.low = load_bf16(((const struct quant_q4 *)w)->low);
    } else {
        s.scale = _mm512_loadu_ps(((const struct quant_wide *)w)->scale);
        s.low = _mm512_loadu_ps(((const struct quant_wide *)w)->low);
    }
    return s;
}

ALWAYS_INLINE void tile_of(enum quant_kind kind, const uint32_t rows,
                           const uint32_t panels, uint32_t groups,
                           const struct rounded_block *x, size_t ldx, const void *w,
                           float *y, size_t ldy, bool add)
{
    const size_t step = ldx * sizeof *x / sizeof(int16_t);
    const size_t next = panels == 1 ? 0 : QUANT_GROUPS * sizeof(struct quant_wide);
    const size_t bytes = kind == QUANT_Q8   ? sizeof(struct quant_q8)
                         : kind == QUANT_Q4 ? sizeof(struct quant_q4)
                                            : sizeof(struct quant_wide);
    const uint32_t outs = rows * panels, chains = outs == 1 ? 4 : outs <= 3 ? 2 : 1;
    const bool with_low = kind == QUANT_Q4 || kind == QUANT_WIDE_Q4;
    const char *from = w;
    EACH_OUT(LOAD)
    for (uint32_t g = 0; g < groups; g++, from += bytes) {
        const int16_t *q = x->q + (size_t)g * QUANT_GROUP;
        EACH_OUT(CLEAR)
        for (uint32_t quad = 0; quad < QUANT_GROUP / 2; quad += 4) {
#pragma GCC unroll 4
            for (uint32_t u = 0; u < 4; u++) {
                const uint32_t i = quad + u;
                __m512i v0 = weights(kind, from, quad, u), v1 = v0;
                if (panels > 1) v1 = weights(kind, from + next, quad, u);
                EACH_OUT(STEP)
            }
        }
        if (outs == 1) sum0 = plus(plus(sum0, sum1), plus(sum2, sum3));
        if (outs == 2) sum0 = plus(sum0, sum2), sum1 = plus(sum1, sum3);
        if (outs == 3)
            sum0 = plus(sum0, sum3), sum1 = plus(sum1, sum4), sum2 = plus(sum2, sum5);
        const struct scales s0 = load_scales(kind, from),
                            s1 = load_scales(kind, from + next);
        EACH_OUT(SCALE)
    }
    EACH_OUT(STORE)
}

#define TILE(name, kind, panels, each)                                                 \
    void name(uint32_t rows, uint32_t groups, const struct rounded_block *x,           \
              size_t ldx, const void *w, float *y, size_t ldy, bool add)               \
    {                                                                                  \
        switch (rows) {                                                                \
            each(CASE_##kind##_##panels)                                               \
        }                                                                              \
    }
#define CASE(kind, n, panels)                                                          \
    case (n) + 1:                                                                      \
        tile_of(kind, (n) + 1, panels, groups, x, ldx, w, y, ldy, add);                \
        break;
#define CASE_QUANT_Q8_1(n)      CASE(QUANT_Q8, n, 1)
#define CASE_QUANT_Q4_1(n)      CASE(QUANT_Q4, n, 1)
#define CASE_QUANT_WIDE_Q8_1(n) CASE(QUANT_WIDE_Q8, n, 1)
#define CASE_QUANT_WIDE_Q4_1(n) CASE(QUANT_WIDE_Q4, n, 1)
#define CASE_QUANT_WIDE_Q8_2(n) CASE(QUANT_WIDE_Q8, n, 2)
#define CASE_QUANT_WIDE_Q4_2(n) CASE(QUANT_WIDE_Q4, n, 2)
TILE(quant_tile_q8_avx512, QUANT_Q8, 1, EACH_ROW)
TILE(quant_tile_q4_avx512, QUANT_Q4, 1, EACH_ROW)
TILE(quant_tile_wide_q8_avx512, QUANT_WIDE_Q8, 1, EACH_ROW)
TILE(quant_tile_wide_q4_avx512, QUANT_WIDE_Q4, 1, EACH_ROW)
TILE(quant_pair_q8_avx512, QUANT_WIDE_Q8, 2, EACH_PAIR)
TILE(quant_pair_q4_avx512, QUANT_WIDE_Q4, 2, EACH_PAIR)

_Static_assert(QUANT_PAIR_ROWS == 6, "rows of EACH_PAIR");

#endif
