/* dtype.h - element types of weights and KV, and exact conversion of rows of them.
 *
 * Threads  pure functions.
 */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include "kernels/base.h"

BASE_BEGIN

enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16 };

size_t dtype_bytes(enum dtype t);                     // of one element
const char *dtype_name(enum dtype t);                 // "f32", "f16", "bf16"
bool dtype_parse(const char *name, enum dtype *out);  // the same names

float dtype_f16_to_f32(uint16_t h);
uint16_t dtype_f32_to_f16(float f);  // nearest even; overflow becomes infinity
static inline float dtype_bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)h << 16};
    return v.f;
}
uint16_t dtype_f32_to_bf16(float f);  // nearest even; a NaN stays a NaN

/* n elements of type t from src (any alignment) as f32. */
void dtype_to_f32(float *dst, const void *src, enum dtype t, size_t n);
void dtype_from_f32(void *dst, const float *src, enum dtype t, size_t n);

/* How a weight matrix is kept: in the type its file has, rounded to bf16, or rounded to
 * 8 or 4 bits with a scale for each 32 weights of an output. */
enum weight_format { WEIGHT_OWN, WEIGHT_BF16, WEIGHT_Q8, WEIGHT_Q4 };

const char *weight_format_name(enum weight_format f);  // "auto", "bf16", "q8", "q4"
bool weight_format_parse(const char *name, enum weight_format *out);  // the same names

BASE_END

#endif
