/* quant_avx2.c - products with int8 and int4 weights with AVX2; see quant.h.
 *
 * A vector of 16-bit weights holds 8 outputs times 2 neighbours along k, and one
 * multiply-add of pairs (vpmaddwd) makes 8 partial sums of it: half as many instructions
 * as f32 takes for the same products, and exact.
 */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/quant.h"

#ifdef __AVX2__

#include <math.h>
#include <string.h>

/* ---- inputs ---- */

ALWAYS_INLINE uint32_t max8(__m256i v)
{
    __m128i a =
        _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

ALWAYS_INLINE int32_t sum8(__m256i v)
{
    __m128i a =
        _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

static void inputs_of_group(int16_t *q, float *scale, float *sum, const float *x,
                            uint32_t n)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 v[4];
    __m256i most = _mm256_setzero_si256(), total = most, w[4];
    for (uint32_t i = 0; i < 4; i++) {
        v[i] = n == QUANT_GROUP ? _mm256_loadu_ps(x + (size_t)8 * i)
               : n > 8 * i
                   ? _mm256_maskload_ps(x + (size_t)8 * i, avx2_lanes(n - 8 * i))
                   : _mm256_setzero_ps();
        most = _mm256_max_epi32(most,
                                _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    uint32_t bits = max8(most);
    float top;
    memcpy(&top, &bits, sizeof top);
    if (!(top < INFINITY) || top < QUANT_LEAST) {
        memset(q, 0, QUANT_GROUP * sizeof *q);
        *scale = *sum = top < INFINITY ? 0 : NAN;
        return;
    }

    __m256 by = _mm256_set1_ps(32767.0f / top);
    for (uint32_t i = 0; i < 4; i++) {
        w[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], by));
        total = _mm256_add_epi32(total, w[i]);
    }
    for (uint32_t i = 0; i < 4; i += 2) {
        __m256i both = _mm256_packs_epi32(w[i], w[i + 1]);  // in halves of 128 bits
        _mm256_storeu_si256((__m256i *)(q + (size_t)8 * i),
                            _mm256_permute4x64_epi64(both, 0xd8));
    }
    *scale = top / 32767.0f;
    *sum = (float)sum8(total) * *scale;
}

void quant_inputs_avx2(struct rounded_block *to, const float *x, uint32_t n)
{
    for (uint32_t k = 0, g = 0; k < n; k += QUANT_GROUP, g++) {
        inputs_of_group(to->q + k, &to->scale[g], &to->sum[g], x + k,
                        n - k < QUANT_GROUP ? n - k : QUANT_GROUP);
    }
}

/* ---- weights ---- */

ALWAYS_INLINE __m256 load_bf16(const uint16_t *p)
{
    return avx2_widen_bf16(_mm_loadu_si128((const __m128i *)p));
}

ALWAYS_INLINE __m256i load_i8(const int8_t *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
}

ALWAYS_INLINE __m256i load_i16(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* The i-th of the four weights in each word. */
ALWAYS_INLINE __m256i nibble(__m256i words, int i)
{
    if (i == 3) return _mm256_srli_epi16(words, 12);
    return _mm256_and_si256(_mm256_srli_epi16(words, 4 * i), _mm256_set1_epi16(15));
}

ALWAYS_INLINE void widen_scales(struct quant_wide *to, const uint16_t *scale,
                                const uint16_t *low)
{
    for (int h = 0; h < QUANT_PANEL; h += 8) {
        _mm256_storeu_ps(to->scale + h, load_bf16(scale + h));
        _mm256_storeu_ps(to->low + h, low ? load_bf16(low + h) : _mm256_setzero_ps());
    }
}

void quant_widen_avx2(struct quant_wide *to, const void *w, enum weight_format format,
                      uint32_t groups)
{
    for (uint32_t g = 0; g < groups; g++, to++) {
        if (format == WEIGHT_Q8) {
            const struct quant_q8 *from = (const struct quant_q8 *)w + g;
            widen_scales(to, from->scale, NULL);
            for (uint32_t i = 0; i < QUANT_GROUP; i++) {
                _mm256_storeu_si256((__m256i *)to->q[i / 2][i % 2 * 8],
                                    load_i8(from->q[i / 2][i % 2 * 8]));
            }
            continue;
        }
        const struct quant_q4 *from = (const struct quant_q4 *)w + g;
        widen_scales(to, from->scale, from->low);
        for (uint32_t p = 0; p < QUANT_GROUP / 2; p++) {
            for (int h = 0; h < 2; h++) {
                __m256i words = load_i16(from->q[p / 4][8 * h]);
                __m256i v = _mm256_and_si256(
                    _mm256_srl_epi16(words, _mm_cvtsi32_si128((int)(p % 4 * 4))),
                    _mm256_set1_epi16(15));
                _mm256_storeu_si256((__m256i *)to->q[p][8 * h], v);
            }
        }
    }
}

/* ---- tiles ---- */

/* The sums of one row, of outputs 0 to 7 and 8 to 15: of a group in integers. */
struct sums {
    __m256i low, high;
};

ALWAYS_INLINE void multiply_add(struct sums *s, const int16_t *x, __m256i low,
                                __m256i high)
{
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    __m256i v = _mm256_set1_epi32(pair);
    s->low = _mm256_add_epi32(s->low, _mm256_madd_epi16(v, low));
    s->high = _mm256_add_epi32(s->high, _mm256_madd_epi16(v, high));
}

/* A pair of inputs of every row. */
#define PAIR(i, low, high)                                                             \
    do {                                                                               \
        __m256i lo = (low), hi = (high);                                               \
        const int16_t *at = q + (size_t)2 * (i);                                       \
        multiply_add(&a, at, lo, hi);                                                  \
        if (rows > 1) multiply_add(&b, at + step, lo, hi);                             \
        if (rows > 2) multiply_add(&c, at + 2 * step, lo, hi);                         \
        if (rows > 3) multiply_add(&d, at + 3 * step, lo, hi);                         \
    } while (0)

struct scales {
    __m256 scale[2], low[2];
};

ALWAYS_INLINE void put(const struct sums *s, const struct scales *w, bool with_low,
                       const struct rounded_block *x, uint32_t g, float *y)
{
    __m256 scale = _mm256_set1_ps(x->scale[g]), sum = _mm256_set1_ps(x->sum[g]);
    for (int h = 0; h < 2; h++) {
        __m256 v = _mm256_cvtepi32_ps(h ? s->high : s->low);
        v = _mm256_mul_ps(v, _mm256_mul_ps(w->scale[h], scale));
        v = _mm256_add_ps(_mm256_loadu_ps(y + 8 * h), v);
        if (with_low) v = _mm256_add_ps(v, _mm256_mul_ps(w->low[h], sum));
        _mm256_storeu_ps(y + 8 * h, v);
    }
}

ALWAYS_INLINE size_t group_bytes(enum quant_kind kind)
{
    return kind == QUANT_Q8   ? sizeof(struct quant_q8)
           : kind == QUANT_Q4 ? sizeof(struct quant_q4)
                              : sizeof(struct quant_wide);
}

ALWAYS_INLINE struct scales load_scales(enum quant_kind kind, const void *w)
{
    struct scales s = {0};
    for (int h = 0; h < 2; h++) {
        if (kind == QUANT_Q8) {
            s.scale[h] = load_bf16(((const struct quant_q8 *)w)->scale + 8 * h);
        } else if (kind == QUANT_Q4) {
            s.scale[h] = load_bf16(((const struct quant_q4 *)w)->scale + 8 * h);
            s.low[h] = load_bf16(((const struct quant_q4 *)w)->low + 8 * h);
        } else {
            s.scale[h] = _mm256_loadu_ps(((const struct quant_wide *)w)->scale + 8 * h);
            s.low[h] = _mm256_loadu_ps(((const struct quant_wide *)w)->low + 8 * h);
        }
    }
    return s;
}

/* With kind and rows constant: loads, broadcasts and two instructions for 16 products. */
ALWAYS_INLINE void tile_of(enum quant_kind kind, const uint32_t rows, uint32_t groups,
                           const struct rounded_block *x, size_t ldx, const void *w,
                           float *y, size_t ldy, bool add)
{
    const size_t step = ldx * sizeof *x / sizeof(int16_t);
    const bool with_low = kind == QUANT_Q4 || kind == QUANT_WIDE_Q4;
    for (uint32_t r = 0; r < rows && !add; r++) {
        memset(y + r * ldy, 0, QUANT_PANEL * sizeof *y);
    }
    for (uint32_t g = 0; g < groups; g++) {
        const int16_t *q = x->q + (size_t)g * QUANT_GROUP;
        struct sums a = {0}, b = {0}, c = {0}, d = {0};
        if (kind == QUANT_Q4) {
            const struct quant_q4 *from = w;
            for (uint32_t i = 0; i < QUANT_GROUP / 8; i++) {
                __m256i low = load_i16(from->q[i][0]), high = load_i16(from->q[i][8]);
                PAIR(4 * i, nibble(low, 0), nibble(high, 0));
                PAIR(4 * i + 1, nibble(low, 1), nibble(high, 1));
                PAIR(4 * i + 2, nibble(low, 2), nibble(high, 2));
                PAIR(4 * i + 3, nibble(low, 3), nibble(high, 3));
            }
        } else if (kind == QUANT_Q8) {
            const struct quant_q8 *from = w;
#pragma GCC unroll 4
            for (uint32_t i = 0; i < QUANT_GROUP / 2; i++)
                PAIR(i, load_i8(from->q[i][0]), load_i8(from->q[i][8]));
        } else {
            const struct quant_wide *from = w;
#pragma GCC unroll 4
            for (uint32_t i = 0; i < QUANT_GROUP / 2; i++)
                PAIR(i, load_i16(from->q[i][0]), load_i16(from->q[i][8]));
        }
        struct scales s = load_scales(kind, w);
        put(&a, &s, with_low, x, g, y);
        if (rows > 1) put(&b, &s, with_low, x + ldx, g, y + ldy);
        if (rows > 2) put(&c, &s, with_low, x + 2 * ldx, g, y + 2 * ldy);
        if (rows > 3) put(&d, &s, with_low, x + 3 * ldx, g, y + 3 * ldy);
        w = (const char *)w + group_bytes(kind);
    }
}

ALWAYS_INLINE void tile(enum quant_kind kind, uint32_t rows, uint32_t groups,
                        const struct rounded_block *x, size_t ldx, const void *w,
                        float *y, size_t ldy, bool add)
{
    switch (rows) {
    case 1: tile_of(kind, 1, groups, x, ldx, w, y, ldy, add); break;
    case 2: tile_of(kind, 2, groups, x, ldx, w, y, ldy, add); break;
    case 3: tile_of(kind, 3, groups, x, ldx, w, y, ldy, add); break;
    case 4: tile_of(kind, 4, groups, x, ldx, w, y, ldy, add); break;
    }
}

void quant_tile_q8_avx2(uint32_t rows, uint32_t groups, const struct rounded_block *x,
                        size_t ldx, const void *w, float *y, size_t ldy, bool add)
{
    tile(QUANT_Q8, rows, groups, x, ldx, w, y, ldy, add);
}

void quant_tile_q4_avx2(uint32_t rows, uint32_t groups, const struct rounded_block *x,
                        size_t ldx, const void *w, float *y, size_t ldy, bool add)
{
    tile(QUANT_Q4, rows, groups, x, ldx, w, y, ldy, add);
}

void quant_tile_wide_q8_avx2(uint32_t rows, uint32_t groups,
                             const struct rounded_block *x, size_t ldx, const void *w,
                             float *y, size_t ldy, bool add)
{
    tile(QUANT_WIDE_Q8, rows, groups, x, ldx, w, y, ldy, add);
}

void quant_tile_wide_q4_avx2(uint32_t rows, uint32_t groups,
                             const struct rounded_block *x, size_t ldx, const void *w,
                             float *y, size_t ldy, bool add)
{
    tile(QUANT_WIDE_Q4, rows, groups, x, ldx, w, y, ldy, add);
}

#endif
