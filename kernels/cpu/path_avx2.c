/* path_avx2.c - the inner kernels with AVX2, FMA and F16C; see path.h for what they do.
 *
 * The tail of a row goes through the same vector instructions as the rest, under a mask,
 * so that an element's bits do not depend on where it stands.
 */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/path.h"

#ifdef __AVX2__

#include <math.h>
#include <string.h>

/* ---- loads and stores ---- */

/* Elements i .. i+7 of p as f32. */
ALWAYS_INLINE __m256 load8(const void *p, enum dtype t, size_t i)
{
    if (t == DTYPE_F32) return _mm256_loadu_ps((const float *)p + i);
    __m128i h = _mm_loadu_si128((const __m128i *)((const uint16_t *)p + i));
    return t == DTYPE_F16 ? _mm256_cvtph_ps(h) : avx2_widen_bf16(h);
}

ALWAYS_INLINE float sum8(__m256 v)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

ALWAYS_INLINE float max8(__m256 v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

/* ---- tiles ---- */

/* Bytes of weights to ask for ahead of use.  With several rows the arithmetic fills the
 * window in which the CPU itself looks ahead; with one row it does not, and asking would
 * only slow it. */
#define AHEAD 2048

/* The sums of one row.  They are variables of their own rather than an array, which
 * compilers would keep in memory as well as in registers. */
struct sums {
    __m256 low, high;
};

ALWAYS_INLINE void multiply_add(struct sums *s, const float *x, __m256 low, __m256 high)
{
    __m256 v = _mm256_broadcast_ss(x);
    s->low = _mm256_fmadd_ps(v, low, s->low);
    s->high = _mm256_fmadd_ps(v, high, s->high);
}

/* Weight i of the outputs from c, 0 or 8, of a panel; `odd` says whether i is odd. */
ALWAYS_INLINE __m256 weights(unsigned kind, const char *p, size_t ldw, uint32_t i,
                             const bool odd, uint32_t c)
{
    if (kind != TILE_PAIRS) return load8(p, (enum dtype)kind, i * ldw + c);
    const uint32_t *pairs = (const uint32_t *)p + (size_t)(i / 2) * PANEL + c;
    __m256i v = _mm256_loadu_si256((const __m256i *)pairs);
    if (!odd) return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
    // The mask stays in memory: a tile of 6 rows has no register for it.
    static const uint32_t halves[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                       0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};
    const void *mask = halves;
    __asm__ volatile("" : "+r"(mask));
    return _mm256_castsi256_ps(
        _mm256_and_si256(v, _mm256_loadu_si256((const __m256i *)mask)));
}

ALWAYS_INLINE void get(struct sums *s, const float *y)
{
    s->low = _mm256_loadu_ps(y);
    s->high = _mm256_loadu_ps(y + 8);
}

ALWAYS_INLINE void put(const struct sums *s, float *y, bool add)
{
    __m256 low = s->low, high = s->high;
    if (add) {
        low = _mm256_add_ps(_mm256_loadu_ps(y), low);
        high = _mm256_add_ps(_mm256_loadu_ps(y + 8), high);
    }
    _mm256_storeu_ps(y, low);
    _mm256_storeu_ps(y + 8, high);
}

/* Sum number n of six, in variables of their own. */
#define SUM(n)                                                                         \
    ((n) == 0 ? &a : (n) == 1 ? &b : (n) == 2 ? &c : (n) == 3 ? &d : (n) == 4 ? &e : &f)

/* Row r, and every row, of one panel with its weight at `at`. */
#define STEP(r, first)                                                                 \
    if (rows > (r)) multiply_add(SUM((first) + (r)), x + (r)*ldx + at, low, high);
#define MULTIPLY_PANEL(panel, odd)                                                     \
    if (panels > (panel)) {                                                            \
        __m256 low = weights(kind, w[panel], ldw, at, odd, 0);                         \
        __m256 high = weights(kind, w[panel], ldw, at, odd, 8);                        \
        STEP(0, (panel)*rows)                                                          \
        STEP(1, (panel)*rows)                                                          \
        STEP(2, (panel)*rows)                                                          \
        STEP(3, (panel)*rows)                                                          \
        STEP(4, (panel)*rows)                                                          \
        STEP(5, (panel)*rows)                                                          \
    }
#define MULTIPLY(i, odd)                                                               \
    do {                                                                               \
        const uint32_t at = i;                                                         \
        MULTIPLY_PANEL(0, odd)                                                         \
        MULTIPLY_PANEL(1, odd)                                                         \
        MULTIPLY_PANEL(2, odd)                                                         \
        MULTIPLY_PANEL(3, odd)                                                         \
    } while (0)

/* With kind, rows and panels constant this is a loop of loads, broadcasts and FMAs in
 * registers: 12 of the 16 hold sums for 6 rows.  Without `ahead` it asks for more of the same
 * weights. */
ALWAYS_INLINE void strip_of(unsigned kind, const uint32_t rows, const uint32_t panels,
                            uint32_t pieces, uint32_t k, const float *x, size_t ldx,
                            const void *const *w, size_t ldw, float *y, size_t ldy,
                            enum tile_sums sums, const struct ahead *ahead)
{
    struct sums a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0};
    const size_t row = (kind == TILE_PAIRS ? PANEL : ldw) * sizeof(uint16_t);
    for (uint32_t n = 0; n < rows * panels && sums == SUMS_FROM; n++)
        get(SUM(n), y + n % rows * ldy + (size_t)(n / rows * PANEL));
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
    for (uint32_t n = 0; n < rows * panels; n++)
        put(SUM(n), y + n % rows * ldy + (size_t)(n / rows * PANEL), sums == SUMS_ADD);
}

#define CASE(n, p, w, ahead)                                                           \
    case 8 * (p) + (n):                                                                \
        strip_of(kind, n, p, pieces, k, x, ldx, w, ldw, y, ldy, sums, ahead);          \
        break;
#define EACH_TILE(w, ahead)                                                            \
    CASE(1, 1, w, ahead)                                                               \
    CASE(2, 1, w, ahead)                                                               \
    CASE(3, 1, w, ahead)                                                               \
    CASE(4, 1, w, ahead)                                                               \
    CASE(5, 1, w, ahead)                                                               \
    CASE(6, 1, w, ahead)

ALWAYS_INLINE void tile(unsigned kind, uint32_t rows, uint32_t k, const float *x,
                        size_t ldx, const void *w, size_t ldw, float *y, size_t ldy,
                        enum tile_sums sums)
{
    const uint32_t pieces = 1;
    switch (8 + rows) {
        EACH_TILE(&w, NULL)
    }
}

ALWAYS_INLINE void strip(unsigned kind, uint32_t rows, uint32_t panels, uint32_t pieces,
                         uint32_t k, const float *x, size_t ldx, const void *const *w,
                         size_t ldw, float *y, size_t ldy, enum tile_sums sums,
                         const struct ahead *ahead)
{
    switch (8 * panels + rows) {
        EACH_TILE(w, ahead)
        CASE(1, 2, w, ahead)
        CASE(2, 2, w, ahead)
        CASE(3, 2, w, ahead)
        CASE(1, 4, w, ahead)
    }
}
#undef CASE
#undef EACH_TILE

#define TILE(name, kind)  static PATH_TILE(tile_##name, kind)
#define STRIP(name, kind) static PATH_STRIP(strip_##name, kind)
TILE(f32, DTYPE_F32)
TILE(f16, DTYPE_F16)
TILE(bf16, DTYPE_BF16)
TILE(pairs, TILE_PAIRS)
STRIP(f32, DTYPE_F32)
STRIP(f16, DTYPE_F16)
STRIP(bf16, DTYPE_BF16)

/* ---- conversion ---- */

static void widen(float *dst, const void *src, enum dtype t, size_t n)
{
    size_t i = 0;
    if (t == DTYPE_F16) {
        for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, load8(src, DTYPE_F16, i));
    } else if (t == DTYPE_BF16) {
        for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, load8(src, DTYPE_BF16, i));
    }
    dtype_to_f32(dst + i, (const char *)src + i * dtype_bytes(t), t, n - i);
}

ALWAYS_INLINE __m128i narrow_bf16(__m256 v)
{
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    up = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(up),
                            _mm256_extracti128_si256(up, 1));
}

/* In min and max a NaN in the second operand is the result. */
ALWAYS_INLINE __m128i narrow_f16(__m256 v)
{
    v = _mm256_min_ps(_mm256_set1_ps(65504.0f), v);
    v = _mm256_max_ps(_mm256_set1_ps(-65504.0f), v);
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

void avx2_narrow(void *dst, const float *src, enum dtype t, size_t n)
{
    if (t == DTYPE_F32) {
        memcpy(dst, src, n * sizeof *src);
        return;
    }
    for (size_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_maskload_ps(src + i, avx2_lanes(n - i));
        __m128i h = t == DTYPE_F16 ? narrow_f16(v) : narrow_bf16(v);
        uint16_t *to = (uint16_t *)dst + i;
        if (n - i >= 8) {
            _mm_storeu_si128((__m128i *)to, h);
        } else {
            memcpy(to, &h, (n - i) * sizeof *to);
        }
    }
}

/* ---- exp ---- */

/* exp(x) = 2^n exp(r) with n = round(x / ln 2) and |r| <= ln 2 / 2, ln 2 in two parts,
 * and exp(r) by its Taylor series to r^7 (the next term is below 2^-27).  Inputs up to
 * 88.3 are good; above that the answer is that of 88.3. */
ALWAYS_INLINE __m256 exp8(__m256 x)
{
    const __m256 least = _mm256_set1_ps(-87.3f);
    const __m256 magic = _mm256_set1_ps(12582912.0f);  // 1.5 * 2^23: rounds to integers
    __m256 v = _mm256_min_ps(_mm256_set1_ps(88.3f), _mm256_max_ps(least, x));
    __m256 shifted = _mm256_fmadd_ps(v, _mm256_set1_ps(1.44269504f), magic);
    __m256 n = _mm256_sub_ps(shifted, magic);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), v);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i bits = _mm256_castps_si256(shifted);
    bits = _mm256_add_epi32(bits, _mm256_set1_epi32(127 - 0x4b400000));
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23)));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, least, _CMP_LT_OQ), p);
}

/* The scores of from <= i < to in lanes i .. i+7 of s, minus infinity in the others. */
ALWAYS_INLINE __m256 masked(const float *s, uint32_t i, uint32_t from, uint32_t to)
{
    __m256i keep = _mm256_andnot_si256(avx2_lanes(from > i ? from - i : 0),
                                       avx2_lanes(to > i ? to - i : 0));
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), _mm256_loadu_ps(s + i),
                            _mm256_castsi256_ps(keep));
}

static float softmax(float *s, uint32_t n, uint32_t from, uint32_t to, float *m,
                     float *l)
{
    __m256 most = _mm256_set1_ps(-INFINITY), sum = _mm256_setzero_ps();
    bool whole = to - from == n;
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 v = whole ? _mm256_loadu_ps(s + i) : masked(s, i, from, to);
        if (!whole) _mm256_storeu_ps(s + i, v);
        most = _mm256_max_ps(most, v);
    }
    float seen = max8(most), scale = 1.0f;
    float top = seen > *m ? seen : *m;
    if (top != *m) scale = _mm256_cvtss_f32(exp8(_mm256_set1_ps(*m - top)));
    __m256 by = _mm256_set1_ps(top);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 v = exp8(_mm256_sub_ps(_mm256_loadu_ps(s + i), by));
        _mm256_storeu_ps(s + i, v);
        sum = _mm256_add_ps(sum, v);
    }
    *l = fmaf(*l, scale, sum8(sum));
    *m = top;
    return scale;
}

/* ---- rows ---- */

void avx2_rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256 v = _mm256_loadu_ps(x + i);
        a = _mm256_fmadd_ps(v, v, a);
        v = _mm256_loadu_ps(x + i + 8);
        b = _mm256_fmadd_ps(v, v, b);
        v = _mm256_loadu_ps(x + i + 16);
        c = _mm256_fmadd_ps(v, v, c);
        v = _mm256_loadu_ps(x + i + 24);
        d = _mm256_fmadd_ps(v, v, d);
    }
    for (; i < n; i += 8) {
        __m256 v = _mm256_maskload_ps(x + i, avx2_lanes(n - i));
        a = _mm256_fmadd_ps(v, v, a);
    }
    float sum = sum8(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
    float scale = 1.0f / sqrtf(sum / (float)n + eps);
    for (i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
}

void avx2_add(float *x, const float *d, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] += d[i];
}

static void silu_mul(float *y, const float *g, const float *u, uint32_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i mask = avx2_lanes(n - i);
        __m256 v = _mm256_maskload_ps(g + i, mask);
        __m256 e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), v));
        v = _mm256_div_ps(v, _mm256_add_ps(one, e));
        _mm256_maskstore_ps(y + i, mask,
                            _mm256_mul_ps(v, _mm256_maskload_ps(u + i, mask)));
    }
}

static void rope(float *x, const float *cos, const float *sin, uint32_t half)
{
    for (uint32_t i = 0; i < half; i += 8) {
        __m256i mask = avx2_lanes(half - i);
        __m256 a = _mm256_maskload_ps(x + i, mask);
        __m256 b = _mm256_maskload_ps(x + half + i, mask);
        __m256 c = _mm256_maskload_ps(cos + i, mask);
        __m256 s = _mm256_maskload_ps(sin + i, mask);
        __m256 to_a = _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s));
        __m256 to_b = _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s));
        _mm256_maskstore_ps(x + i, mask, to_a);
        _mm256_maskstore_ps(x + half + i, mask, to_b);
    }
}

const struct cpu_path cpu_path_avx2 = {
    .name = "avx2",
    .describe = "AVX2+FMA",
    .tile_rows = 6,
    .strip_sums = 6,
    .tile = {[DTYPE_F32] = tile_f32,
             [DTYPE_F16] = tile_f16,
             [DTYPE_BF16] = tile_bf16,
             [TILE_PAIRS] = tile_pairs},
    .strip =
        {[DTYPE_F32] = strip_f32, [DTYPE_F16] = strip_f16, [DTYPE_BF16] = strip_bf16},
    .quant_rows = 4,  // each product takes one more register on its way
    .quant_tile = {[QUANT_Q8] = quant_tile_q8_avx2,
                   [QUANT_Q4] = quant_tile_q4_avx2,
                   [QUANT_WIDE_Q8] = quant_tile_wide_q8_avx2,
                   [QUANT_WIDE_Q4] = quant_tile_wide_q4_avx2},
    .quant_inputs = quant_inputs_avx2,
    .quant_widen = quant_widen_avx2,
    .widen = widen,
    .narrow = avx2_narrow,
    .softmax = softmax,
    .rmsnorm = avx2_rmsnorm,
    .add = avx2_add,
    .silu_mul = silu_mul,
    .rope = rope,
};

#endif
