/* quant_portable.c - products with int8 and int4 weights in plain C; see quant.h. */
#include "kernels/cpu/quant.h"

#include <math.h>
#include <string.h>

/* ---- inputs ---- */

static uint32_t magnitude(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u & 0x7fffffff;
}

/* One group of n inputs.  The order of magnitudes is that of their bits, a NaN the largest. */
static void inputs_of_group(int16_t *q, float *scale, float *sum, const float *x,
                            uint32_t n)
{
    uint32_t most = 0;
    int32_t total = 0;
    float top;
    for (uint32_t i = 0; i < n; i++)
        most = magnitude(x[i]) > most ? magnitude(x[i]) : most;
    memcpy(&top, &most, sizeof top);
    memset(q, 0, QUANT_GROUP * sizeof *q);
    *scale = top < INFINITY ? 0 : NAN;
    *sum = *scale;
    if (!(top < INFINITY) || top < QUANT_LEAST) return;

    float by = 32767.0f / top;
    for (uint32_t i = 0; i < n; i++) {
        q[i] = (int16_t)lrintf(x[i] * by);
        total += q[i];
    }
    *scale = top / 32767.0f;
    *sum = (float)total * *scale;
}

void quant_inputs_portable(struct rounded_block *to, const float *x, uint32_t n)
{
    for (uint32_t k = 0, g = 0; k < n; k += QUANT_GROUP, g++) {
        inputs_of_group(to->q + k, &to->scale[g], &to->sum[g], x + k,
                        n - k < QUANT_GROUP ? n - k : QUANT_GROUP);
    }
}

/* ---- unpacking ---- */

static void widen_q8(struct quant_wide *to, const struct quant_q8 *w)
{
    for (uint32_t c = 0; c < QUANT_PANEL; c++) {
        to->scale[c] = dtype_bf16_to_f32(w->scale[c]);
        to->low[c] = 0;
        for (uint32_t k = 0; k < QUANT_GROUP; k++)
            to->q[k / 2][c][k % 2] = w->q[k / 2][c][k % 2];
    }
}

static void widen_q4(struct quant_wide *to, const struct quant_q4 *w)
{
    for (uint32_t c = 0; c < QUANT_PANEL; c++) {
        to->scale[c] = dtype_bf16_to_f32(w->scale[c]);
        to->low[c] = dtype_bf16_to_f32(w->low[c]);
        for (uint32_t k = 0; k < QUANT_GROUP; k++)
            to->q[k / 2][c][k % 2] =
                (int16_t)(w->q[k / 8][c][k % 2] >> k / 2 % 4 * 4 & 15);
    }
}

void quant_widen_portable(struct quant_wide *to, const void *w,
                          enum weight_format format, uint32_t groups)
{
    for (uint32_t g = 0; g < groups; g++) {
        if (format == WEIGHT_Q8) {
            widen_q8(to + g, (const struct quant_q8 *)w + g);
        } else {
            widen_q4(to + g, (const struct quant_q4 *)w + g);
        }
    }
}

/* ---- tiles ---- */

static void tile_row(const struct quant_wide *w, bool low,
                     const struct rounded_block *x, uint32_t g, float *y)
{
    const int16_t *in = x->q + (size_t)g * QUANT_GROUP;
    int32_t sum[QUANT_PANEL] = {0};
    for (uint32_t k = 0; k < QUANT_GROUP; k++) {
        for (uint32_t c = 0; c < QUANT_PANEL; c++)
            sum[c] += w->q[k / 2][c][k % 2] * in[k];
    }
    for (uint32_t c = 0; c < QUANT_PANEL; c++) {
        float scale = w->scale[c] * x->scale[g];
        y[c] += (float)sum[c] * scale;
        if (low) y[c] += w->low[c] * x->sum[g];
    }
}

void quant_tile_wide_q8_portable(uint32_t rows, uint32_t groups,
                                 const struct rounded_block *x, size_t ldx,
                                 const void *w, float *y, size_t ldy, bool add)
{
    for (uint32_t r = 0; r < rows; r++, x += ldx, y += ldy) {
        if (!add) memset(y, 0, QUANT_PANEL * sizeof *y);
        for (uint32_t g = 0; g < groups; g++)
            tile_row((const struct quant_wide *)w + g, false, x, g, y);
    }
}

void quant_tile_wide_q4_portable(uint32_t rows, uint32_t groups,
                                 const struct rounded_block *x, size_t ldx,
                                 const void *w, float *y, size_t ldy, bool add)
{
    for (uint32_t r = 0; r < rows; r++, x += ldx, y += ldy) {
        if (!add) memset(y, 0, QUANT_PANEL * sizeof *y);
        for (uint32_t g = 0; g < groups; g++)
            tile_row((const struct quant_wide *)w + g, true, x, g, y);
    }
}

void quant_tile_q8_portable(uint32_t rows, uint32_t groups,
                            const struct rounded_block *x, size_t ldx, const void *w,
                            float *y, size_t ldy, bool add)
{
    struct quant_wide wide[QUANT_GROUPS];
    quant_widen_portable(wide, w, WEIGHT_Q8, groups);
    quant_tile_wide_q8_portable(rows, groups, x, ldx, wide, y, ldy, add);
}

void quant_tile_q4_portable(uint32_t rows, uint32_t groups,
                            const struct rounded_block *x, size_t ldx, const void *w,
                            float *y, size_t ldy, bool add)
{
    struct quant_wide wide[QUANT_GROUPS];
    quant_widen_portable(wide, w, WEIGHT_Q4, groups);
    quant_tile_wide_q4_portable(rows, groups, x, ldx, wide, y, ldy, add);
}
