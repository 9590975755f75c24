/* quant.c - packing weights to int8 and int4, and reading them back; at load, and for
 * rows of the embedding table. */
#include "kernels/cpu/quant.h"

#include <math.h>
#include <string.h>

size_t quant_group_bytes(enum weight_format format)
{
    return format == WEIGHT_Q8 ? sizeof(struct quant_q8) : sizeof(struct quant_q4);
}

/* The least bf16 that is no less than v >= 0, so that the largest weight of a group is in
 * reach of its scale; the largest finite one where there is none. */
static uint16_t bf16_up(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    u = (u >> 16) + ((u & 0xffff) != 0);
    return (uint16_t)(u < 0x7f7f ? u : 0x7f7f);
}

/* The greatest bf16 that is no more than v. */
static uint16_t bf16_down(float v)
{
    return v > 0 ? dtype_f32_to_bf16(v) - (dtype_bf16_to_f32(dtype_f32_to_bf16(v)) > v)
                 : (uint16_t)(bf16_up(fabsf(v)) | 0x8000);
}

static int32_t nearest(float v, int32_t least, int32_t most)
{
    if (!(v > (float)least)) return least;  // a NaN is the least
    return v < (float)most ? (int32_t)lrintf(v) : most;
}

static void pack_q8(struct quant_q8 *to, uint32_t c, const float w[QUANT_GROUP])
{
    float top = 0;
    for (uint32_t k = 0; k < QUANT_GROUP; k++) top = fmaxf(top, fabsf(w[k]));
    to->scale[c] = bf16_up(top / 127);
    float scale = dtype_bf16_to_f32(to->scale[c]);
    for (uint32_t k = 0; k < QUANT_GROUP; k++) {
        int32_t q = scale > 0 ? nearest(w[k] / scale, -127, 127) : 0;
        to->q[k / 2][c][k % 2] = (int8_t)q;
    }
}

static void pack_q4(struct quant_q4 *to, uint32_t c, const float w[QUANT_GROUP])
{
    float top = w[0], bottom = w[0];
    for (uint32_t k = 1; k < QUANT_GROUP; k++) {
        top = fmaxf(top, w[k]);
        bottom = fminf(bottom, w[k]);
    }
    to->low[c] = bf16_down(bottom);
    float low = dtype_bf16_to_f32(to->low[c]);
    to->scale[c] = bf16_up(top / 15 - low / 15);
    float scale = dtype_bf16_to_f32(to->scale[c]);
    for (uint32_t k = 0; k < QUANT_GROUP; k++) {
        int32_t q = scale > 0 ? nearest((w[k] - low) / scale, 0, 15) : 0;
        to->q[k / 8][c][k % 2] |= (uint16_t)(q << k / 2 % 4 * 4);
    }
}

void quant_pack(void *to, enum weight_format format,
                const float w[QUANT_PANEL][QUANT_GROUP])
{
    memset(to, 0, quant_group_bytes(format));
    for (uint32_t c = 0; c < QUANT_PANEL; c++) {
        if (format == WEIGHT_Q8) {
            pack_q8(to, c, w[c]);
        } else {
            pack_q4(to, c, w[c]);
        }
    }
}

static float weight_q8(const struct quant_q8 *w, uint32_t c, uint32_t k)
{
    return (float)w->q[k / 2][c][k % 2] * dtype_bf16_to_f32(w->scale[c]);
}

static float weight_q4(const struct quant_q4 *w, uint32_t c, uint32_t k)
{
    uint32_t q = w->q[k / 8][c][k % 2] >> k / 2 % 4 * 4 & 15;
    return (float)q * dtype_bf16_to_f32(w->scale[c]) + dtype_bf16_to_f32(w->low[c]);
}

void quant_unpack_row(float *to, const void *panel, enum weight_format format,
                      uint32_t c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t group = i / QUANT_GROUP, k = i % QUANT_GROUP;
        to[i] = format == WEIGHT_Q8
                    ? weight_q8((const struct quant_q8 *)panel + group, c, k)
                    : weight_q4((const struct quant_q4 *)panel + group, c, k);
    }
}
