/* slots_check.c - the invariants of slots.h as code. */
#include "offload/slots_state.h"

#include <stdlib.h>

static bool free_list_holds(const struct slots *s)
{
    uint32_t n = 0, last = SLOT_NONE;
    for (uint32_t i = s->free_first; i != SLOT_NONE; last = i, i = s->slot[i].newer) {
        if (s->slot[i].state != SLOT_FREE || s->slot[i].older != last) return false;
        if (++n > s->capacity) return false;
    }
    return last == s->free_last && n == s->capacity - s->used;
}

/* The list of all in order; `next` is given, for each tenant's list, the slot that must
 * come next on it. */
static bool lru_list_holds(const struct slots *s)
{
    uint32_t n = 0, last = SLOT_NONE;
    for (uint32_t i = s->oldest; i != SLOT_NONE; last = i, i = s->slot[i].newer) {
        const struct slot *x = &s->slot[i];
        if (x->state == SLOT_FREE || x->older != last || ++n > s->capacity)
            return false;
        if (slots_find(s, &x->meta.id) != i) return false;
        if (x->pins && x->state == SLOT_FILLING) return false;
        const struct tenant *t = &s->tenant[x->tenant];
        if (t->id != x->meta.tenant || slots_tenant(s, t->id) != x->tenant)
            return false;

        // The next of this tenant on the list of all is the next on its own.
        if (x->behind == SLOT_NONE ? t->newest != i : s->slot[x->behind].before != i)
            return false;
        if (x->before == SLOT_NONE && t->oldest != i) return false;
    }
    return last == s->newest && n == s->used;
}

/* Each tenant's list has its count of slots, all its own, in the order of the list of
 * all: walking both together, every slot of the tenant is met when it is due. */
static bool tenants_hold(const struct slots *s)
{
    uint32_t counted = 0, *due = malloc(s->capacity * sizeof *due);
    if (!due) return false;
    for (uint32_t b = 0; b <= s->mask; b++) {
        for (uint32_t t = s->by_tenant[b]; t != SLOT_NONE; t = s->tenant[t].chain) {
            due[t] = s->tenant[t].oldest;
            counted += s->tenant[t].count;
            if (s->tenant[t].count == 0) counted = UINT32_MAX / 2;
        }
    }
    bool holds = counted == s->used;
    for (uint32_t i = s->oldest; holds && i != SLOT_NONE; i = s->slot[i].newer) {
        holds = due[s->slot[i].tenant] == i;
        due[s->slot[i].tenant] = s->slot[i].behind;
    }
    for (uint32_t i = s->oldest; holds && i != SLOT_NONE; i = s->slot[i].newer)
        holds = due[s->slot[i].tenant] == SLOT_NONE;
    free(due);
    return holds;
}

static bool parents_hold(const struct slots *s)
{
    uint32_t children = 0, linked = 0;
    for (uint32_t i = 0; i < s->capacity; i++)
        children += s->slot[i].state != SLOT_FREE && s->slot[i].meta.depth != 0;
    for (uint32_t b = 0; b <= s->mask; b++) {
        uint32_t last = SLOT_NONE;
        for (uint32_t i = s->by_parent[b]; i != SLOT_NONE; i = s->slot[i].sibling) {
            const struct slot *x = &s->slot[i];
            if (x->state == SLOT_FREE || x->sibling_before != last) return false;
            if (slots_bucket(s, &x->meta.parent) != b) return false;
            if (++linked > children) return false;
            last = i;
        }
    }
    return linked == children;
}

bool slots_check(const struct slots *s)
{
    return free_list_holds(s) && lru_list_holds(s) && tenants_hold(s) &&
           parents_hold(s);
}
