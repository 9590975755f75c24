/* plan_heap.c - see plan_heap.h. */
#include "server/plan_heap.h"

#include <assert.h>
#include <stdlib.h>

int plan_heap_reserve(struct plan_heap *h, uint32_t cap, struct err *err)
{
    struct plan_event *at = realloc(h->at, (cap + (size_t)1) * sizeof *at);
    if (!at) return err_set(err, -ENOMEM, "there is no memory for %u events", cap);
    h->at = at;
    h->cap = cap;
    return 0;
}

static bool before(struct plan_event a, struct plan_event b)
{
    return a.when != b.when ? a.when < b.when : a.what < b.what;
}

void plan_heap_push(struct plan_heap *h, uint64_t when, uint32_t what)
{
    assert(h->n < h->cap);
    struct plan_event e = {when, what};
    uint32_t i = h->n++;
    for (; i && before(e, h->at[(i - 1) / 2]); i = (i - 1) / 2)
        h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = e;
}

struct plan_event plan_heap_pop(struct plan_heap *h)
{
    assert(h->n);
    struct plan_event first = h->at[0], e = h->at[--h->n];
    uint32_t i = 0;
    for (uint32_t c; (c = 2 * i + 1) < h->n; i = c) {
        if (c + 1 < h->n && before(h->at[c + 1], h->at[c])) c++;
        if (!before(h->at[c], e)) break;
        h->at[i] = h->at[c];
    }
    if (h->n) h->at[i] = e;
    return first;
}
