#include "kernels/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [DTYPE_F32] = {"f32", 4},
    [DTYPE_F16] = {"f16", 2},
    [DTYPE_BF16] = {"bf16", 2},
};

size_t dtype_bytes(enum dtype t)
{
    return types[t].bytes;
}

const char *dtype_name(enum dtype t)
{
    return types[t].name;
}

bool dtype_parse(const char *name, enum dtype *out)
{
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (strcmp(name, types[i].name) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float dtype_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 0x1f, mantissa = h & 0x3ff;
    if (exponent == 0x1f) {  // infinity, or a NaN made quiet as the hardware does
        return float_of(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    }
    if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in f32
        float v = (float)mantissa * 0x1p-24f;
        return sign ? -v : v;
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t dtype_f32_to_f16(float f)
{
    uint32_t u = bits_of(f), magnitude = u & 0x7fffffff;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    if (magnitude > 0x7f800000) {
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    }
    if (magnitude >= 0x477ff000)
        return sign | 0x7c00;  // 65520 and more round to infinity
    if (magnitude < 0x38800000) {
        // Below 2^-14 the result counts in units of 2^-24.  Adding 0.5 leaves exactly
        // that many mantissa bits, so the addition itself rounds to nearest even.
        float shifted = float_of(magnitude) + 0.5f;
        return (uint16_t)(sign | (bits_of(shifted) - 0x3f000000));
    }
    uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

uint16_t dtype_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void dtype_to_f32(float *dst, const void *src, enum dtype t, size_t n)
{
    const unsigned char *p = src;
    if (t == DTYPE_F32) {
        if (n) memcpy(dst, src, n * sizeof *dst);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        dst[i] = t == DTYPE_F16 ? dtype_f16_to_f32(h) : dtype_bf16_to_f32(h);
    }
}

void dtype_from_f32(void *dst, const float *src, enum dtype t, size_t n)
{
    unsigned char *p = dst;
    if (t == DTYPE_F32) {
        if (n) memcpy(dst, src, n * sizeof *src);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h =
            t == DTYPE_F16 ? dtype_f32_to_f16(src[i]) : dtype_f32_to_bf16(src[i]);
        memcpy(p + 2 * i, &h, sizeof h);
    }
}

static const char *const formats[] = {
    [WEIGHT_OWN] = "auto",
    [WEIGHT_BF16] = "bf16",
    [WEIGHT_Q8] = "q8",
    [WEIGHT_Q4] = "q4",
};

const char *weight_format_name(enum weight_format f)
{
    return formats[f];
}

bool weight_format_parse(const char *name, enum weight_format *out)
{
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        if (strcmp(name, formats[i]) == 0) {
            *out = (enum weight_format)i;
            return true;
        }
    }
    return false;
}
