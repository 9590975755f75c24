/* path_avx512.c - the inner kernels with AVX-512; see path.h for what they do.
 *
 * A panel is one register wide, so each output is still one chain of multiply-adds; what
 * is no matter of width is that of AVX2.
 */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/path.h"

#ifdef __AVX512F__

#include <math.h>
#include <string.h>

/* Elements i .. i+15 of p as f32. */
ALWAYS_INLINE __m512 load16(const void *p, enum dtype t, size_t i)
{
    if (t == DTYPE_F32) return _mm512_loadu_ps((const float *)p + i);
    __m256i h = _mm256_loadu_si256((const __m256i *)((const uint16_t *)p + i));
    return t == DTYPE_F16 ? _mm512_cvtph_ps(h) : avx512_widen_bf16(h);
}

/* ---- tiles ---- */

/* Weight i of the 16 outputs of a panel; `odd` says whether i is odd. */
ALWAYS_INLINE __m512 weights(unsigned kind, const char *p, size_t ldw, uint32_t i,
                             const bool odd)
{
    if (kind != TILE_PAIRS) return load16(p, (enum dtype)kind, i * ldw);
    __m512i pairs = _mm512_loadu_si512(p + (size_t)(i / 2) * sizeof(__m512i));
    return _mm512_castsi512_ps(
        odd ? _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000))
            : _mm512_slli_epi32(pairs, 16));
}

/* Bytes of weights to ask for ahead of use, where several rows fill the window in which
 * the CPU itself looks ahead. */
#define AHEAD 2048

/* Sum n is that of row n % rows with panel n / rows. */
#define OUTPUT(n) (y + (n) % rows * ldy + (size_t)((n) / rows * PANEL))
#define START(n)                                                                       \
    __m512 sum##n = _mm512_setzero_ps();                                               \
    if (rows * panels > (n) && sums == SUMS_FROM) sum##n = _mm512_loadu_ps(OUTPUT(n));
#define STEP(n)                                                                        \
    if (rows * panels > (n)) {                                                         \
        __m512 w_ = (n) / rows == 0   ? w0                                             \
                    : (n) / rows == 1 ? w1                                             \
                    : (n) / rows == 2 ? w2                                             \
                                      : w3;                                            \
        sum##n =                                                                       \
            _mm512_fmadd_ps(w_, _mm512_set1_ps(x[(n) % rows * ldx + at]), sum##n);     \
    }
#define PUT(n)                                                                         \
    if (rows * panels > (n)) {                                                         \
        if (sums == SUMS_ADD)                                                          \
            sum##n = _mm512_add_ps(_mm512_loadu_ps(OUTPUT(n)), sum##n);                \
        _mm512_storeu_ps(OUTPUT(n), sum##n);                                           \
    }

/* All rows with weight i of the panels. */
#define MULTIPLY(i, odd)                                                               \
    do {                                                                               \
        const uint32_t at = i;                                                         \
        __m512 w0 = weights(kind, w[0], ldw, i, odd), w1 = w0, w2 = w0, w3 = w0;       \
        if (panels > 1) w1 = weights(kind, w[1], ldw, i, odd);                         \
        if (panels > 2) w2 = weights(kind, w[2], ldw, i, odd);                         \
        if (panels > 3) w3 = weights(kind, w[3], ldw, i, odd);                         \
        EACH_ROW_TWICE(STEP)                                                           \
    } while (0)

/* With kind, rows and panels constant this is a loop of loads and FMAs in registers.  Without
 * `ahead` it asks for more of the same weights. */
ALWAYS_INLINE void strip_of(unsigned kind, const uint32_t rows, const uint32_t panels,
                            uint32_t pieces, uint32_t k, const float *x, size_t ldx,
                            const void *const *w, size_t ldw, float *y, size_t ldy,
                            enum tile_sums sums, const struct ahead *ahead)
{
    const size_t row = (kind == TILE_PAIRS ? PANEL : ldw) * sizeof(uint16_t);
    EACH_ROW_TWICE(START)
    for (; pieces; pieces--, x += k, w += panels) {
        for (uint32_t i = 0; i < k - k % 2; i += 2) {
            for (uint32_t n = 0; ahead && n < (panels > 2 ? 4 : 2); n++)
                _mm_prefetch(
                    (const char *)((uintptr_t)ahead->line[n] + i / 2 * ahead->step),
                    _MM_HINT_T1);
            if (!ahead && kind != DTYPE_F32 && rows > 1)
                _mm_prefetch((const char *)w[0] + i * row + AHEAD, _MM_HINT_T0);
            MULTIPLY(i, false);
            MULTIPLY(i + 1, true);
        }
        if (k % 2) MULTIPLY(k - 1, false);
        if (ahead) ahead++;
    }
    EACH_ROW_TWICE(PUT)
}

#define CASE(n, p, w, ahead)                                                           \
    case 16 * (p) + (n) + 1:                                                           \
        strip_of(kind, (n) + 1, p, pieces, k, x, ldx, w, ldw, y, ldy, sums, ahead);    \
        break;

ALWAYS_INLINE void tile(unsigned kind, uint32_t rows, uint32_t k, const float *x,
                        size_t ldx, const void *w, size_t ldw, float *y, size_t ldy,
                        enum tile_sums sums)
{
    const uint32_t pieces = 1;
#define TILE(n) CASE(n, 1, &w, NULL)
    switch (16 + rows) {
        EACH_ROW(TILE)
    }
#undef TILE
}

ALWAYS_INLINE void strip(unsigned kind, uint32_t rows, uint32_t panels, uint32_t pieces,
                         uint32_t k, const float *x, size_t ldx, const void *const *w,
                         size_t ldw, float *y, size_t ldy, enum tile_sums sums,
                         const struct ahead *ahead)
{
#define ONE(n) CASE(n, 1, w, ahead)
#define TWO(n) CASE(n, 2, w, ahead)
    switch (16 * panels + rows) {
        EACH_ROW(ONE)
        EACH_ROW(TWO)
        CASE(0, 4, w, ahead)
        CASE(1, 4, w, ahead)
        CASE(2, 4, w, ahead)
        CASE(3, 4, w, ahead)
    }
#undef ONE
#undef TWO
}
#undef CASE

PATH_TILE(avx512_tile_f32, DTYPE_F32)
PATH_TILE(avx512_tile_f16, DTYPE_F16)
PATH_TILE(avx512_tile_bf16, DTYPE_BF16)
PATH_TILE(avx512_tile_pairs, TILE_PAIRS)
PATH_STRIP(avx512_strip_f32, DTYPE_F32)
PATH_STRIP(avx512_strip_f16, DTYPE_F16)
PATH_STRIP(avx512_strip_bf16, DTYPE_BF16)

/* ---- conversion ---- */

void avx512_widen(float *dst, const void *src, enum dtype t, size_t n)
{
    size_t i = 0;
    if (t == DTYPE_F16) {
        for (; i + 16 <= n; i += 16)
            _mm512_storeu_ps(dst + i, load16(src, DTYPE_F16, i));
    } else if (t == DTYPE_BF16) {
        for (; i + 16 <= n; i += 16)
            _mm512_storeu_ps(dst + i, load16(src, DTYPE_BF16, i));
    }
    dtype_to_f32(dst + i, (const char *)src + i * dtype_bytes(t), t, n - i);
}

/* ---- softmax ---- */

/* exp as in path_avx2.c: the same operations on twice as many lanes. */
ALWAYS_INLINE __m512 exp16(__m512 x)
{
    const __m512 least = _mm512_set1_ps(-87.3f);
    const __m512 magic = _mm512_set1_ps(12582912.0f);  // 1.5 * 2^23: rounds to integers
    __m512 v = _mm512_min_ps(_mm512_set1_ps(88.3f), _mm512_max_ps(least, x));
    __m512 shifted = _mm512_fmadd_ps(v, _mm512_set1_ps(1.44269504f), magic);
    __m512 n = _mm512_sub_ps(shifted, magic);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), v);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 5040);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    __m512i bits = _mm512_castps_si512(shifted);
    bits = _mm512_add_epi32(bits, _mm512_set1_epi32(127 - 0x4b400000));
    __mmask16 far = _mm512_cmp_ps_mask(x, least, _CMP_LT_OQ);
    return _mm512_mask_mul_ps(_mm512_setzero_ps(), (__mmask16)~far, p,
                              _mm512_castsi512_ps(_mm512_slli_epi32(bits, 23)));
}

float avx512_softmax(float *s, uint32_t n, uint32_t from, uint32_t to, float *m,
                     float *l)
{
    const uint64_t keep = (to < 64 ? ((uint64_t)1 << to) - 1 : ~(uint64_t)0) &
                          ~(((uint64_t)1 << from) - 1);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 v[4], most = none, sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n / 16; i++) {
        v[i] = _mm512_mask_loadu_ps(none, (__mmask16)(keep >> 16 * i), s + 16 * i);
        most = _mm512_max_ps(most, v[i]);
    }
    float seen = _mm512_reduce_max_ps(most), scale = 1.0f;
    float top = seen > *m ? seen : *m;
    if (top != *m) {
        scale = _mm512_cvtss_f32(exp16(_mm512_set1_ps(*m - top)));
    }
    for (uint32_t i = 0; i < n / 16; i++) {
        __m512 e = exp16(_mm512_sub_ps(v[i], _mm512_set1_ps(top)));
        _mm512_storeu_ps(s + (size_t)16 * i, e);
        sum = _mm512_add_ps(sum, e);
    }
    *l = fmaf(*l, scale, _mm512_reduce_add_ps(sum));
    *m = top;
    return scale;
}

/* ---- rows ---- */

/* The first n of 16 lanes; all from 16 on. */
ALWAYS_INLINE __mmask16 lanes(size_t n)
{
    return n < 16 ? (__mmask16)((1u << n) - 1) : (__mmask16)0xffff;
}

void avx512_silu_mul(float *y, const float *g, const float *u, uint32_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 mask = lanes(n - i);
        __m512 v = _mm512_maskz_loadu_ps(mask, g + i);
        __m512 e = exp16(_mm512_sub_ps(_mm512_setzero_ps(), v));
        v = _mm512_div_ps(v, _mm512_add_ps(one, e));
        v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, u + i));
        _mm512_mask_storeu_ps(y + i, mask, v);
    }
}

void avx512_rope(float *x, const float *cos, const float *sin, uint32_t half)
{
    for (uint32_t i = 0; i < half; i += 16) {
        __mmask16 mask = lanes(half - i);
        __m512 a = _mm512_maskz_loadu_ps(mask, x + i);
        __m512 b = _mm512_maskz_loadu_ps(mask, x + half + i);
        __m512 c = _mm512_maskz_loadu_ps(mask, cos + i);
        __m512 s = _mm512_maskz_loadu_ps(mask, sin + i);
        __m512 to_a = _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s));
        __m512 to_b = _mm512_add_ps(_mm512_mul_ps(b, c), _mm512_mul_ps(a, s));
        _mm512_mask_storeu_ps(x + i, mask, to_a);
        _mm512_mask_storeu_ps(x + half + i, mask, to_b);
    }
}

const struct cpu_path cpu_path_avx512 = {
    .name = "avx512",
    .describe = "AVX-512",
    AVX512_OPERATIONS,
};

#endif
