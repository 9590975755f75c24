/* quant.h - weights in int8 and int4, and the inputs they are multiplied with.
 *
 * Along k, 32 weights of one output make a group:
 *
 *     q8:   w = scale q          -127 <= q <= 127
 *     q4:   w = scale q + low       0 <= q <= 15
 *
 * with scale and low in bf16.  A panel holds the groups of its 16 outputs one behind the
 * other, struct quant_q8 or quant_q4 each; what is past the last input or output is zero.
 *
 * The inputs of a product are rounded once to 16-bit integers, with an f32 scale for each
 * group of 32, so that all that is lost is lost by the weights: products and sums of a
 * group are exact integers.  So the bits of an output are the same on every path:
 *
 *     y = 0;  for each group in order:  y += (float)sum(q x) * (scale * x_scale)
 *                                  q4:  y += low * x_sum
 *
 * where every operation rounds by itself.  |sum(q x)| is below 32 * 127 * 32767 < 2^31.
 */
#ifndef KERNELS_CPU_QUANT_H
#define KERNELS_CPU_QUANT_H

#include "kernels/dtype.h"

#define QUANT_GROUP  32
#define QUANT_PANEL  16
#define QUANT_GROUPS 8  // of one block of inputs
#define QUANT_BLOCK  (QUANT_GROUPS * QUANT_GROUP)

#define QUANT_PAIR_ROWS 6  // most rows of two panels side by side

/* Element [pair][output][e] is weight 2 pair + e of the group.  In q4 each word holds four
 * of them: bits 4i .. 4i+3 of [quad][output][e] are that of pair 4 quad + i. */
struct quant_q8 {
    uint16_t scale[QUANT_PANEL];
    int8_t q[QUANT_GROUP / 2][QUANT_PANEL][2];
};
struct quant_q4 {
    uint16_t scale[QUANT_PANEL], low[QUANT_PANEL];
    uint16_t q[QUANT_GROUP / 8][QUANT_PANEL][2];
};
/* Either of them, unpacked for many rows of inputs. */
struct quant_wide {
    float scale[QUANT_PANEL], low[QUANT_PANEL];
    int16_t q[QUANT_GROUP / 2][QUANT_PANEL][2];
};

/* 256 inputs of one row, rounded for what they are multiplied with: for int8 and int4 to
 * x = scale q, where sum is what the x of a group add up to; for bf16 to bf16 (path.h). */
struct rounded_block {
    union {
        int16_t q[QUANT_BLOCK];
        uint16_t bf16[QUANT_BLOCK];
    };
    float scale[QUANT_GROUPS], sum[QUANT_GROUPS];
};

enum quant_kind { QUANT_Q8, QUANT_Q4, QUANT_WIDE_Q8, QUANT_WIDE_Q4, QUANT_KINDS };

/* One tile: y(rows, 16) of `groups` groups of weights at w and rows of inputs at x, ldx
 * blocks apart; with `add` onto y.  1 <= rows <= quant_rows of
 * the path. */
typedef void quant_tile_fn(uint32_t rows, uint32_t groups,
                           const struct rounded_block *x, size_t ldx, const void *w,
                           float *y, size_t ldy, bool add);

/* The same of two panels side by side in y, unpacked: the groups of the second begin at
 * w + QUANT_GROUPS * sizeof(struct quant_wide).  1 <= rows <= QUANT_PAIR_ROWS.  The same bits. */
typedef quant_tile_fn quant_pair_fn;

/* n <= 256 inputs to one block; the rest of their last group counts as zero.  A group with an
 * infinity or a NaN makes NaN of every output; one below 1e-30 is zero. */
typedef void quant_inputs_fn(struct rounded_block *to, const float *x, uint32_t n);

typedef void quant_widen_fn(struct quant_wide *to, const void *w,
                            enum weight_format format, uint32_t groups);

#define QUANT_LEAST 1e-30f

quant_tile_fn quant_tile_q8_portable, quant_tile_q4_portable,
    quant_tile_wide_q8_portable, quant_tile_wide_q4_portable;
quant_inputs_fn quant_inputs_portable;
quant_widen_fn quant_widen_portable;

quant_tile_fn quant_tile_q8_avx2, quant_tile_q4_avx2, quant_tile_wide_q8_avx2,
    quant_tile_wide_q4_avx2;
quant_inputs_fn quant_inputs_avx2;
quant_widen_fn quant_widen_avx2;

quant_tile_fn quant_tile_q8_avx512, quant_tile_q4_avx512, quant_tile_wide_q8_avx512,
    quant_tile_wide_q4_avx512;
quant_pair_fn quant_pair_q8_avx512, quant_pair_q4_avx512;

size_t quant_group_bytes(enum weight_format format);  // of one panel

/* Pack one group: w(16, 32) in f32, row by row, to `to`. */
void quant_pack(void *to, enum weight_format format,
                const float w[QUANT_PANEL][QUANT_GROUP]);
/* The n weights of output c of the panel at `panel`, from the first, as f32. */
void quant_unpack_row(float *to, const void *panel, enum weight_format format,
                      uint32_t c, uint32_t n);

#endif
