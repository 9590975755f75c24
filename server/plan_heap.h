/* plan_heap.h - a binary heap of (when, what), the earliest first, ties by what.
 *
 * Owns     its array; zero-initialise, free(at) when done.
 * Threads  one at a time for each.
 */
#ifndef SERVER_PLAN_HEAP_H
#define SERVER_PLAN_HEAP_H

#include "kernels/base.h"

struct plan_heap {
    struct plan_event {
        uint64_t when;
        uint32_t what;
    } * at;
    uint32_t n, cap;
};

NODISCARD int plan_heap_reserve(struct plan_heap *h, uint32_t cap, struct err *err);
void plan_heap_push(struct plan_heap *h, uint64_t when, uint32_t what);  // n < cap
struct plan_event plan_heap_pop(struct plan_heap *h);                    // n > 0

static inline uint64_t plan_heap_next(const struct plan_heap *h)  // UINT64_MAX: never
{
    return h->n ? h->at[0].when : UINT64_MAX;
}

#endif
