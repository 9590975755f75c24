/* attention.h - what the attention kernels share: how two parts of a softmax are joined.
 *
 * Included by .cu files only.
 */
#ifndef KERNELS_CUDA_ATTENTION_H
#define KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_block.h"

/* Two parts (m, l, sum) with their own maxima, in powers of two: the factors that bring
 * them to a common one.  A part that saw nothing has m of -inf and counts for nothing. */
struct joint {
    float top, before, now;
};
static __device__ __forceinline__ struct joint joint_of(float m_before, float m_now)
{
    struct joint j;
    j.top = fmaxf(m_before, m_now);
    j.before = m_before == -INFINITY ? 0.0f : exp2f(m_before - j.top);
    j.now = m_now == -INFINITY ? 0.0f : exp2f(m_now - j.top);
    return j;
}
/* Which product is rounded first is written out, so that every kernel gets the same bits. */
static __device__ __forceinline__ float joined(float before, float now,
                                               const struct joint &j)
{
    return fmaf(before, j.before, __fmul_rn(now, j.now));
}

#endif
