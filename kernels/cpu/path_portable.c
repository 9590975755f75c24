/* path_portable.c - the inner kernels in plain C: the fall-back, and what to read first.
 *
 * Loops run over 16 or 8 independent lanes, which a compiler turns into whatever vector
 * registers its target has; multiply and add stay separate roundings everywhere.
 */
#include "kernels/cpu/path.h"

#include <math.h>
#include <string.h>

/* ---- tiles ---- */

/* Weight (i, c) of a panel. */
static inline float load(const void *p, unsigned kind, size_t ldw, size_t i, size_t c)
{
    switch (kind) {
    case DTYPE_F32: return ((const float *)p)[i * ldw + c];
    case DTYPE_F16: return dtype_f16_to_f32(((const uint16_t *)p)[i * ldw + c]);
    case DTYPE_BF16: return dtype_bf16_to_f32(((const uint16_t *)p)[i * ldw + c]);
    }
    return dtype_bf16_to_f32(((const uint16_t *)p)[(i / 2 * PANEL + c) * 2 + i % 2]);
}

static inline __attribute__((always_inline)) void
tile(unsigned kind, uint32_t rows, uint32_t k, const float *x, size_t ldx,
     const void *w, size_t ldw, float *y, size_t ldy, enum tile_sums sums)
{
    float sum[TILE_ROWS][PANEL] = {{0}};
    for (uint32_t r = 0; r < rows && sums == SUMS_FROM; r++) {
        memcpy(sum[r], y + r * ldy, sizeof sum[r]);
    }
    for (uint32_t i = 0; i < k; i++) {
        float v[PANEL];
        for (uint32_t c = 0; c < PANEL; c++) v[c] = load(w, kind, ldw, i, c);
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t c = 0; c < PANEL; c++) sum[r][c] += x[r * ldx + i] * v[c];
        }
    }
    for (uint32_t r = 0; r < rows; r++, y += ldy) {
        for (uint32_t c = 0; c < PANEL; c++)
            y[c] = sums == SUMS_ADD ? y[c] + sum[r][c] : sum[r][c];
    }
}

static inline __attribute__((always_inline)) void
strip(unsigned kind, uint32_t rows, uint32_t panels, uint32_t pieces, uint32_t k,
      const float *x, size_t ldx, const void *const *w, size_t ldw, float *y,
      size_t ldy, enum tile_sums sums, const struct ahead *ahead)
{
    (void)ahead;
    for (uint32_t n = 0; n < pieces * panels; n++) {
        bool goes_on = n >= panels && sums == SUMS_SET;
        tile(kind, rows, k, x + (size_t)(n / panels) * k, ldx, w[n], ldw,
             y + (size_t)(n % panels) * PANEL, ldy, goes_on ? SUMS_FROM : sums);
    }
}

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

static void narrow(void *dst, const float *src, enum dtype t, size_t n)
{
    if (t != DTYPE_F16) {
        dtype_from_f32(dst, src, t, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        float v = src[i];
        if (v > 65504.0f) v = 65504.0f;
        if (v < -65504.0f) v = -65504.0f;
        ((uint16_t *)dst)[i] = dtype_f32_to_f16(v);
    }
}

/* ---- exp ---- */

/* exp(x) = 2^n exp(r) with n = round(x / ln 2) and |r| <= ln 2 / 2, ln 2 in two parts so
 * that r is exact, and exp(r) by its Taylor series to r^7 (the next term is below
 * 2^-27).  Inputs up to 88.3 are good; above that the answer is that of 88.3. */
static inline float exp_lane(float x)
{
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    float v = x < -87.3f ? -87.3f : x > 88.3f ? 88.3f : x;
    float shifted = v * 1.44269504f + magic;
    float n = shifted - magic;
    float r = v - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4b400000u + 127) << 23;
    float two_n;
    memcpy(&two_n, &bits, sizeof two_n);
    return x < -87.3f ? 0 : p * two_n;
}

static float softmax(float *s, uint32_t n, uint32_t from, uint32_t to, float *m,
                     float *l)
{
    float top = *m;
    for (uint32_t i = from; i < to; i++) top = s[i] > top ? s[i] : top;
    float scale = exp_lane(*m - top), sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        s[i] = i >= from && i < to ? exp_lane(s[i] - top) : 0;
        sum += s[i];
    }
    *l = *l * scale + sum;
    *m = top;
    return scale;
}

/* ---- rows ---- */

static void rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    float lanes[8] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (uint32_t c = 0; c < 8; c++) lanes[c] += x[i + c] * x[i + c];
    }
    for (; i < n; i++) lanes[i % 8] += x[i] * x[i];
    for (uint32_t c = 0; c < 8; c++) sum += lanes[c];
    float scale = 1.0f / sqrtf(sum / (float)n + eps);
    for (i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
}

static void add(float *x, const float *d, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] += d[i];
}

static void silu_mul(float *y, const float *g, const float *u, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) y[i] = g[i] / (1.0f + exp_lane(-g[i])) * u[i];
}

static void rope(float *x, const float *cos, const float *sin, uint32_t half)
{
    for (uint32_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}

const struct cpu_path cpu_path_portable = {
    .name = "portable",
    .describe = "portable C",
    .tile_rows = 6,
    .strip_sums = 6,
    .tile = {[DTYPE_F32] = tile_f32,
             [DTYPE_F16] = tile_f16,
             [DTYPE_BF16] = tile_bf16,
             [TILE_PAIRS] = tile_pairs},
    .strip =
        {[DTYPE_F32] = strip_f32, [DTYPE_F16] = strip_f16, [DTYPE_BF16] = strip_bf16},
    .quant_rows = 4,
    .quant_tile = {[QUANT_Q8] = quant_tile_q8_portable,
                   [QUANT_Q4] = quant_tile_q4_portable,
                   [QUANT_WIDE_Q8] = quant_tile_wide_q8_portable,
                   [QUANT_WIDE_Q4] = quant_tile_wide_q4_portable},
    .quant_inputs = quant_inputs_portable,
    .quant_widen = quant_widen_portable,
    .widen = dtype_to_f32,
    .narrow = narrow,
    .softmax = softmax,
    .rmsnorm = rmsnorm,
    .add = add,
    .silu_mul = silu_mul,
    .rope = rope,
};
