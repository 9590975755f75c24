/* plan_pages.c - see plan_pages.h. */
#include "server/plan_pages.h"

#include <assert.h>
#include <stdlib.h>

int plan_pages_open(struct plan_pages *p, uint32_t capacity, struct err *err)
{
    *p = (struct plan_pages){.refs = calloc(capacity + (size_t)1, sizeof *p->refs),
                             .free = calloc(capacity + (size_t)1, sizeof *p->free),
                             .capacity = capacity,
                             .n_free = capacity};
    if (!p->refs || !p->free) {
        plan_pages_close(p);
        return err_set(err, -ENOMEM, "there is no memory for %u pages", capacity);
    }
    for (uint32_t i = 0; i < capacity; i++) p->free[i] = capacity - 1 - i;
    return 0;
}

void plan_pages_close(struct plan_pages *p)
{
    free(p->refs);
    free(p->free);
    *p = (struct plan_pages){0};
}

uint32_t plan_pages_take(struct plan_pages *p)
{
    if (p->n_free == 0) return UINT32_MAX;
    uint32_t page = p->free[--p->n_free];
    p->refs[page] = 1;
    return page;
}

void plan_pages_unref(struct plan_pages *p, uint32_t page)
{
    assert(page < p->capacity && p->refs[page]);
    uint32_t left = --p->refs[page];
    if (left == 0) p->free[p->n_free++] = page;
    if (left == 1) p->n_shared--;
}

/* ---- as the store wants them ---- */

static uint32_t take(void *arg)
{
    return plan_pages_take(arg);
}

static void ref(void *arg, uint32_t page)
{
    struct plan_pages *p = arg;
    assert(p->refs[page]);
    if (++p->refs[page] == 2) p->n_shared++;
}

static void unref(void *arg, uint32_t page)
{
    plan_pages_unref(arg, page);
}

static uint32_t refs(void *arg, uint32_t page)
{
    return ((struct plan_pages *)arg)->refs[page];
}

static uint32_t count_free(void *arg)
{
    return ((struct plan_pages *)arg)->n_free;
}

static uint32_t count_shared(void *arg)
{
    return ((struct plan_pages *)arg)->n_shared;
}

/* An address that nothing may be read from: a virtual tier never looks at it. */
static void *address(void *arg, uint32_t page)
{
    (void)arg;
    return (void *)(((uintptr_t)page + 1) * TIER_ALIGN);
}

struct kv_pages plan_pages_for_store(struct plan_pages *p)
{
    return (struct kv_pages){.arg = p,
                             .capacity = p->capacity,
                             .take = take,
                             .ref = ref,
                             .unref = unref,
                             .refs = refs,
                             .free = count_free,
                             .shared = count_shared,
                             .address = address};
}
