#include "kernels/best.h"

#include <math.h>

void best_sort(uint64_t *heap, uint32_t n)
{
    while (n-- > 1) {
        uint64_t worst = heap[0];
        heap[0] = heap[n];
        heap[n] = worst;
        best_sift(heap, n, 0);
    }
}

/* Most ids fail the one comparison with the root. */
void best_select(uint64_t *heap, uint32_t k, const float *logits, uint32_t n)
{
    for (uint32_t i = 0; i < k; i++) heap[i] = best_rank(logits[i], i);
    best_heapify(heap, k);
    for (uint32_t i = k; i < n; i++) {
        uint64_t rank = best_rank(logits[i], i);
        if (rank > heap[0]) continue;
        heap[0] = rank;
        best_sift(heap, k, 0);
    }
}

int best_largest(const float *logits, uint32_t n, float *out)
{
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (uint32_t i = 0; i < n; i++) {
        int32_t x = best_ordered(logits[i]);
        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    if (low < best_ordered(-INFINITY) || high >= best_ordered(INFINITY) ||
        high == best_ordered(-INFINITY))
        return -EDOM;

    int32_t bits = high ^ ((high >> 31) & INT32_MAX);
    memcpy(out, &bits, sizeof *out);
    return 0;
}

int32_t best_id_of(const float *logits, float value)
{
    int32_t i = 0;
    while (logits[i] != value) i++;
    return i;
}

void best_of_row(struct best *out, uint32_t k, const float *logits, uint32_t n)
{
    uint64_t heap[BEST_MOST];
    float largest;
    out[0] = (struct best){.id = -1};
    if (best_largest(logits, n, &largest) < 0) return;
    if (k == 1) {
        int32_t id = best_id_of(logits, largest);
        out[0] = (struct best){id, logits[id]};
        return;
    }
    best_select(heap, k, logits, n);
    best_sort(heap, k);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t id = best_id(heap[i]);
        out[i] = (struct best){(int32_t)id, logits[id]};
    }
}
