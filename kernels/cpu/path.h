/* path.h - the inner kernels of the CPU backend, once for each instruction set.
 *
 * The files beside this one split an operation into items for the thread pool; what runs
 * within an item is one of these functions.  All are pure: they read and write their
 * arguments only, on the calling thread.  Pointers need the alignment of their element.
 *
 * Exact    within one path, each output element is computed by operations that depend
 *          on its own inputs only: not on `rows`, not on its place in a vector register.
 *          Paths may differ from each other in the last bits, but for the quant_*
 *          functions, which are the same bits on all of them.
 *
 * A panel is 16 outputs of a matrix side by side: [k][16] in one of the dtypes, or bf16 in
 * pairs, [k / 2][16][2], where one load has two inputs' weights and a shift or a mask is all
 * that makes them f32.  Weights in bf16 lie in pairs (matrix.c), KV in bf16 does not.
 */
#ifndef KERNELS_CPU_PATH_H
#define KERNELS_CPU_PATH_H

#include "kernels/cpu/quant.h"

#define PANEL     16  // outputs in a panel
#define TILE_ROWS 8   // most rows of one tile on any path

#define STRIP_PANELS 4  // most panels of one strip

#define ROUNDED_PANELS 4  // side by side, with rounded inputs
#define ROUNDED_ROWS   6  // most rows of these

_Static_assert(PANEL == QUANT_PANEL, "all weights are packed in panels of one width");

/* Kinds of tiles: enum dtype, and this one. */
#define TILE_PAIRS (DTYPE_BF16 + 1)
#define TILE_KINDS (TILE_PAIRS + 1)

/* What becomes of the sums of a tile. */
enum tile_sums {
    SUMS_SET,   // y = sum
    SUMS_ADD,   // y += sum
    SUMS_FROM,  // y = sum that started from y: where k is cut does not change its bits
};

/* One tile: the sums are those of x(rows, k) w(k, 16); 1 <= rows <= tile_rows.
 * Each goes over ascending k by multiply-add, from zero but for SUMS_FROM.  ldx, ldw, ldy are
 * the strides in elements between rows of x, k and rows of y.  Pairs follow each other: there
 * ldw counts for nothing.  Where k is odd, the last pair has its second weights, but x ends
 * before them. */
typedef void tile_fn(uint32_t rows, uint32_t k, const float *x, size_t ldx,
                     const void *w, size_t ldw, float *y, size_t ldy,
                     enum tile_sums sums);

/* Cache lines that a strip asks for while it multiplies, for later use (where KV is f32 not all
 * that there are, and none with the last weights of an odd k): with weights i that at
 * line[i % 2] + i / 2 * step, and where it has four panels line[2 + i % 2] likewise.  They may
 * be anywhere, and need not be memory of ours.  In between, they cost no time; all at once
 * they would: a CPU can wait for so many lines at a time only. */
struct ahead {
    const char *line[4];
    size_t step;
};

/* A strip: the tiles of `panels` panels side by side in y, cut into pieces of k weights each:
 * piece n of panel p is at w[n * panels + p], and has inputs from x + n * k and ahead[n].  The
 * bits are those of tiles over the whole.  So few rows make enough independent sums to fill
 * the multipliers, and keep them in registers.  panels is 1, 2 or 4, and at most
 * strip_panels(); sums is not SUMS_ADD. */
typedef void strip_fn(uint32_t rows, uint32_t panels, uint32_t pieces, uint32_t k,
                      const float *x, size_t ldx, const void *const *w, size_t ldw,
                      float *y, size_t ldy, enum tile_sums sums,
                      const struct ahead *ahead);

/* The tiles of `panels` panels, `next` bytes apart, side by side in y, of `pairs` pairs with inputs
 * that are rounded to bf16 too, x(rows, 2 pairs).  Either one panel with up to tile_rows rows, or
 * ROUNDED_PANELS with up to ROUNDED_ROWS, which loads less for each product; the same bits.
 * Each element is the sum over ascending pairs, from zero: onto it go the product of the
 * second two, then that of the first two, each by a multiply-add of one rounding, to
 * nearest even; `add` then adds it to y.  A denormal counts as zero, in weights, inputs and
 * sums. */
typedef void rounded_tile_fn(uint32_t rows, uint32_t panels, uint32_t pairs,
                             const uint16_t *x, size_t ldx, const void *w, size_t next,
                             float *y, size_t ldy, bool add);

struct cpu_path {
    const char *name;      // for cpu_path
    const char *describe;  // for people

    uint32_t
        tile_rows;  // most rows of one tile: as many as have their sums in registers
    tile_fn *tile[TILE_KINDS];
    uint32_t strip_sums;  // most sums of a strip, likewise
    strip_fn *strip[3];   // by the dtype of w

    /* NULL, or the path multiplies weights in pairs by this, rather than by
     * tile[TILE_PAIRS], with inputs that it rounds by `narrow`.  So does the CUDA backend. */
    rounded_tile_fn *tile_rounded;

    uint32_t quant_rows;  // the same of one quant_tile
    quant_tile_fn *quant_tile[QUANT_KINDS];
    quant_pair_fn *quant_pair[2];  // of q8 and q4; NULL: one panel alone is as good
    quant_inputs_fn *quant_inputs;
    quant_widen_fn *quant_widen;

    void (*widen)(float *dst, const void *src, enum dtype t, size_t n);  // exact

    /* To nearest even.  What lies beyond f16 becomes +-65504, so that one outlier cannot
     * turn a whole attention row into NaN. */
    void (*narrow)(void *dst, const float *src, enum dtype t, size_t n);

    /* One step of online softmax (Milakov and Gimelshein, 2018).  s holds n scores, n a
     * multiple of 16 up to 64; those of from <= i < to count, at least one.  With
     * m' = max(*m, them): s becomes exp(s - m'), 0 where it does not count; *l becomes
     * *l exp(*m - m') + sum(s); *m becomes m'.  Answers exp(*m - m'), by which the caller
     * scales what it has summed so far.
     * exp is within 2 ulp above -87.3, and 0 below. */
    float (*softmax)(float *s, uint32_t n, uint32_t from, uint32_t to, float *m,
                     float *l);

    /* y = x / sqrt(mean(x^2) + eps) * w; y may be x. */
    void (*rmsnorm)(float *y, const float *x, const float *w, uint32_t n, float eps);
    void (*add)(float *x, const float *d, uint32_t n);  // x += d
    void (*silu_mul)(float *y, const float *g, const float *u, uint32_t n);

    /* HF's halves: (x[i], x[i + half]) rotated by the angle of cos[i], sin[i]. */
    void (*rope)(float *x, const float *cos, const float *sin, uint32_t half);
};

/* The functions of one kind, in a path's file that has tile() and strip() of every kind. */
#define PATH_TILE(name, kind)                                                          \
    void name(uint32_t rows, uint32_t k, const float *x, size_t ldx, const void *w,    \
              size_t ldw, float *y, size_t ldy, enum tile_sums sums)                   \
    {                                                                                  \
        tile(kind, rows, k, x, ldx, w, ldw, y, ldy, sums);                             \
    }
#define PATH_STRIP(name, kind)                                                         \
    void name(uint32_t rows, uint32_t panels, uint32_t pieces, uint32_t k,             \
              const float *x, size_t ldx, const void *const *w, size_t ldw, float *y,  \
              size_t ldy, enum tile_sums sums, const struct ahead *ahead)              \
    {                                                                                  \
        strip(kind, rows, panels, pieces, k, x, ldx, w, ldw, y, ldy, sums, ahead);     \
    }

/* Panels of a strip for so many rows: 1 where these have enough independent sums. */
static inline uint32_t strip_panels(const struct cpu_path *path, uint32_t rows)
{
    uint32_t panels = STRIP_PANELS;
    while (panels > 1 && rows * panels > path->strip_sums) panels /= 2;
    return panels;
}

extern const struct cpu_path cpu_path_portable;
extern const struct cpu_path cpu_path_avx2, cpu_path_avx512,
    cpu_path_avx512bf16;  // on x86-64

/* The best supported path, or the one of that name.  -ENODEV. */
NODISCARD int cpu_path_choose(const struct cpu_path **out, const char *name,
                              struct err *err);

#endif
