/* best.h - the best of a row of logits: which they are, in which order, and what is none.
 *
 * Order    by falling logit, then by rising id; -0 and 0 are equal.
 * Owns     nothing: a heap is the caller's array.
 * Threads  any; functions of their arguments.
 */
#ifndef KERNELS_BEST_H
#define KERNELS_BEST_H

#include "kernels/base.h"

#include <string.h>

#ifdef __CUDACC__
#define BEST_INLINE __host__ __device__ static inline
#else
#define BEST_INLINE static inline
#endif

BASE_BEGIN

#define BEST_MOST 64  // of one row that backend_best() finds

struct best {
    int32_t id;
    float logit;
};

/* The bits of a float as an integer that orders as the numbers do: negative numbers have
 * their magnitude turned over.  NaNs end up beyond the infinities. */
BEST_INLINE int32_t best_ordered(float x)
{
    int32_t i;
    memcpy(&i, &x, sizeof i);
    return i ^ ((i >> 31) & INT32_MAX);
}

/* One integer that is less the better the logit of an id is. */
BEST_INLINE uint64_t best_rank(float logit, uint32_t id)
{
    uint32_t falling = (uint32_t)INT32_MAX - (uint32_t)best_ordered(logit + 0.0f);
    return (uint64_t)falling << 32 | id;
}

BEST_INLINE uint32_t best_id(uint64_t rank)
{
    return (uint32_t)rank;
}

/* ---- a heap with the worst of its n ranks at the root ---- */

static inline void best_sift(uint64_t *heap, uint32_t n, uint32_t i)
{
    uint64_t x = heap[i];
    for (size_t child; (child = 2 * (size_t)i + 1) < n; i = (uint32_t)child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= x) break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

static inline void best_heapify(uint64_t *heap, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;) best_sift(heap, n, i);
}

/* Turn a heap into an array with the best first. */
void best_sort(uint64_t *heap, uint32_t n);
/* The k best of n logits as a heap, k <= n. */
void best_select(uint64_t *heap, uint32_t k, const float *logits, uint32_t n);

/* ---- a row ---- */

/* -EDOM unless the largest logit is finite and none is NaN. */
NODISCARD int best_largest(const float *logits, uint32_t n, float *out);
/* The lowest id whose logit is equal to `value`, which one is. */
int32_t best_id_of(const float *logits, float value);
/* The k best of n logits in order, 1 <= k <= n, k <= BEST_MOST.  Where best_largest() answers
 * -EDOM, out[0] has id -1, logit 0, and the others are not written. */
void best_of_row(struct best *out, uint32_t k, const float *logits, uint32_t n);

BASE_END

#endif
