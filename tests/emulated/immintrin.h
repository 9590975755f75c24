/* immintrin.h - stands in for the compiler's own header of that name where the wide kernels
 * are built for any CPU: their intrinsics in plain C, by SIMDe.
 *
 * Caller   includes it first of all (-include), for the macros that say what the target has.
 * Threads  pure functions.
 *
 * Below is what SIMDe lacks or computes otherwise than the instruction does: multiply-add
 * rounds once, what a mask hides is not touched in memory, and sums over a register add its
 * halves.  Source: Intel's Software Developer's Manual, volume 2, and intrinsics guide.
 */
#ifndef TESTS_EMULATED_IMMINTRIN_H
#define TESTS_EMULATED_IMMINTRIN_H

#define SIMDE_NO_NATIVE  // the same code whatever this compiler's target is
#define SIMDE_NO_INLINE  // compilers take minutes over tiles that are written out
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <math.h>
#include <string.h>

#define __AVX2__       1
#define __FMA__        1
#define __F16C__       1
#define __AVX512F__    1
#define __AVX512BW__   1
#define __AVX512DQ__   1
#define __AVX512VL__   1
#define __AVX512VNNI__ 1
#define __AVX512BF16__ 1

typedef simde__mmask16 __mmask16;

#define EACH_LANE(n) for (unsigned i = 0; i < (n); i++)

/* ---- multiply-add ---- */

#define EMULATED_FMA(name, type, lanes, sign)                                          \
    SIMDE_FUNCTION_ATTRIBUTES type name(type a, type b, type c)                        \
    {                                                                                  \
        EACH_LANE(lanes) c[i] = fmaf(sign a[i], b[i], c[i]);                           \
        return c;                                                                      \
    }
EMULATED_FMA(emulated_fmadd8, __m256, 8, )
EMULATED_FMA(emulated_fnmadd8, __m256, 8, -)
EMULATED_FMA(emulated_fmadd16, __m512, 16, )
EMULATED_FMA(emulated_fnmadd16, __m512, 16, -)
#undef EMULATED_FMA

SIMDE_FUNCTION_ATTRIBUTES __m512i emulated_dpwssd(__m512i sum, __m512i a, __m512i b)
{
    simde__m512i_private r = simde__m512i_to_private(sum);
    const simde__m512i_private x = simde__m512i_to_private(a),
                               y = simde__m512i_to_private(b);
    EACH_LANE(32) r.u32[i / 2] += (uint32_t)(x.i16[i] * y.i16[i]);
    return simde__m512i_from_private(r);
}

/* Numbers below the normal ones count as zero, and become zero, whatever the CPU's mode is. */
SIMDE_FUNCTION_ATTRIBUTES float emulated_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

SIMDE_FUNCTION_ATTRIBUTES float emulated_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return emulated_flush(x);
}

/* Two multiply-adds, first that of the odd elements. */
SIMDE_FUNCTION_ATTRIBUTES __m512 emulated_dpbf16(__m512 sum, __m512bh a, __m512bh b)
{
    uint16_t x[32], y[32];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    EACH_LANE(16)
    for (unsigned j = 2; j-- > 0;)
        sum[i] =
            emulated_flush(fmaf(emulated_bf16(x[2 * i + j]),
                                emulated_bf16(y[2 * i + j]), emulated_flush(sum[i])));
    return sum;
}

/* ---- masks ---- */

SIMDE_FUNCTION_ATTRIBUTES __m256 emulated_maskload8(const float *p, __m256i mask)
{
    const simde__m256i_private m = simde__m256i_to_private(mask);
    __m256 r = _mm256_setzero_ps();
    EACH_LANE(8) if (m.i32[i] < 0) r[i] = p[i];
    return r;
}

SIMDE_FUNCTION_ATTRIBUTES void emulated_maskstore8(float *p, __m256i mask, __m256 a)
{
    const simde__m256i_private m = simde__m256i_to_private(mask);
    EACH_LANE(8) if (m.i32[i] < 0) p[i] = a[i];
}

SIMDE_FUNCTION_ATTRIBUTES __m512 emulated_mask_load16(__m512 r, __mmask16 k,
                                                      const float *p)
{
    EACH_LANE(16) if (k >> i & 1) r[i] = p[i];
    return r;
}

SIMDE_FUNCTION_ATTRIBUTES void emulated_mask_store16(float *p, __mmask16 k, __m512 a)
{
    EACH_LANE(16) if (k >> i & 1) p[i] = a[i];
}

/* ---- conversions ---- */

SIMDE_FUNCTION_ATTRIBUTES __m512 emulated_cvtepi32(__m512i a)
{
    const simde__m512i_private from = simde__m512i_to_private(a);
    __m512 r;
    EACH_LANE(16) r[i] = (float)from.i32[i];
    return r;
}

SIMDE_FUNCTION_ATTRIBUTES __m512i emulated_cvtepu16(__m256i a)
{
    const simde__m256i_private from = simde__m256i_to_private(a);
    simde__m512i_private r;
    EACH_LANE(16) r.u32[i] = from.u16[i];
    return simde__m512i_from_private(r);
}

/* A signalling NaN becomes a quiet one. */
SIMDE_FUNCTION_ATTRIBUTES __m256 emulated_cvtph8(__m128i a)
{
    simde__m256_private r = simde__m256_to_private(simde_mm256_cvtph_ps(a));
    EACH_LANE(8) if (isnan(r.f32[i])) r.u32[i] |= 0x400000;
    return simde__m256_from_private(r);
}

SIMDE_FUNCTION_ATTRIBUTES __m512 emulated_cvtph16(__m256i a)
{
    const simde__m256i_private from = simde__m256i_to_private(a);
    simde__m512_private r;
    EACH_LANE(2) r.m256[i] = emulated_cvtph8(from.m128i[i]);
    return simde__m512_from_private(r);
}

/* ---- shifts ---- */

SIMDE_FUNCTION_ATTRIBUTES __m512i emulated_srli16(__m512i a, unsigned by)
{
    simde__m512i_private r = simde__m512i_to_private(a);
    EACH_LANE(32) r.u16[i] = (uint16_t)(by < 16 ? r.u16[i] >> by : 0);
    return simde__m512i_from_private(r);
}

/* ---- over a register ---- */

SIMDE_FUNCTION_ATTRIBUTES float emulated_reduce_add(__m512 a)
{
    for (unsigned half = 8; half > 0; half /= 2) EACH_LANE(half) a[i] += a[i + half];
    return a[0];
}

SIMDE_FUNCTION_ATTRIBUTES float emulated_reduce_max(__m512 a)
{
    EACH_LANE(16) a[0] = a[0] > a[i] ? a[0] : a[i];
    return a[0];
}

#undef EACH_LANE

#undef _mm256_fmadd_ps
#undef _mm256_fnmadd_ps
#undef _mm512_fmadd_ps
#undef _mm512_fnmadd_ps
#undef _mm512_dpwssd_epi32
#undef _mm512_dpbf16_ps
#undef _mm512_srli_epi16
#undef _mm256_cvtph_ps
#undef _mm256_maskload_ps
#undef _mm256_maskstore_ps
#define _MM_FROUND_NO_EXC               SIMDE_MM_FROUND_NO_EXC
#define _mm256_fmadd_ps(a, b, c)        emulated_fmadd8(a, b, c)
#define _mm256_fnmadd_ps(a, b, c)       emulated_fnmadd8(a, b, c)
#define _mm512_fmadd_ps(a, b, c)        emulated_fmadd16(a, b, c)
#define _mm512_fnmadd_ps(a, b, c)       emulated_fnmadd16(a, b, c)
#define _mm256_maskload_ps(p, mask)     emulated_maskload8(p, mask)
#define _mm256_maskstore_ps(p, mask, a) emulated_maskstore8(p, mask, a)
#define _mm512_mask_loadu_ps(src, k, p) emulated_mask_load16(src, k, p)
#define _mm512_maskz_loadu_ps(k, p)     emulated_mask_load16(_mm512_setzero_ps(), k, p)
#define _mm512_mask_storeu_ps(p, k, a)  emulated_mask_store16(p, k, a)
#define _mm512_cvtepi32_ps(a)           emulated_cvtepi32(a)
#define _mm512_cvtepu16_epi32(a)        emulated_cvtepu16(a)
#define _mm256_cvtph_ps(a)              emulated_cvtph8(a)
#define _mm512_cvtph_ps(a)              emulated_cvtph16(a)
#define _mm512_cvtss_f32(a)             ((a)[0])
#define _mm512_dpwssd_epi32(sum, a, b)  emulated_dpwssd(sum, a, b)
#define _mm512_dpbf16_ps(sum, a, b)     emulated_dpbf16(sum, a, b)
#define _mm512_srli_epi16(a, by)        emulated_srli16(a, by)
#define _mm512_reduce_add_ps(a)         emulated_reduce_add(a)
#define _mm512_reduce_max_ps(a)         emulated_reduce_max(a)

#endif
