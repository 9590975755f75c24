/* plan_pages.h - device pages that are numbers and counts, without memory behind them.
 *
 * Owns     the counts and the list of free ones; zero-initialise, plan_pages_close() when
 *          done.
 * Threads  one at a time for each.
 */
#ifndef SERVER_PLAN_PAGES_H
#define SERVER_PLAN_PAGES_H

#include "offload/kvstore.h"

struct plan_pages {
    uint32_t *refs, *free;  // (capacity)
    uint32_t capacity, n_free;
    uint32_t n_shared;  // have a count of 2 or more
};

NODISCARD int plan_pages_open(struct plan_pages *p, uint32_t capacity, struct err *err);
void plan_pages_close(struct plan_pages *p);

uint32_t plan_pages_take(struct plan_pages *p);  // UINT32_MAX: none is free
void plan_pages_unref(struct plan_pages *p, uint32_t page);

struct kv_pages plan_pages_for_store(struct plan_pages *p);

#endif
