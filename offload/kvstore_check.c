/* kvstore_check.c - the invariants of kvstore_state.h as code. */
#include "offload/kvstore_state.h"

static bool list_holds(const struct kv_level *level, const struct kv_list *list,
                       enum slot_state state, bool listed)
{
    uint32_t n = 0, unsaved = 0, last = KV_NONE;
    for (uint32_t i = list->head; i != KV_NONE; last = i, i = level->notes[i].next) {
        if (slots_at(level->slots, i)->state != state) return false;
        if (level->notes[i].listed != listed || level->notes[i].prev != last)
            return false;
        unsaved += level->notes[i].unsaved;
        if (++n > list->n) return false;
    }
    return n == list->n && last == list->tail &&
           unsaved == (listed ? level->unsaved : 0);
}

/* In how many loads, or in how many stores, a page is. */
static uint32_t moves(const struct kvstore *kv, uint32_t page, enum kv_job job)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < kv->policy.max_loads + kv->policy.max_stores; i++)
        n += kv->transfers[i].job == job && kv->transfers[i].page == page;
    return n;
}

static uint32_t queued(const struct kvstore *kv, uint32_t page)
{
    uint32_t n = 0;
    for (uint32_t w = kv->oldest_wake; w != KV_NONE; w = kv->wakes[w].newer)
        for (uint32_t i = kv->wakes[w].queue.head; i != KV_NONE;
             i = kv->level[KV_DEVICE].notes[i].next)
            n += i == page;
    return n;
}

static bool pages_hold(const struct kvstore *kv)
{
    const struct kv_level *g1 = &kv->level[KV_DEVICE];
    uint32_t filling = 0;
    for (uint32_t i = 0; i < kv->pages.capacity; i++) {
        const struct slot *s = slots_at(g1->slots, i);
        if (s->state == SLOT_FREE) continue;
        if (kv->pages.refs(kv->pages.arg, i) == 0) return false;
        if (s->state == SLOT_FILLING) {
            filling++;
            if (moves(kv, i, KV_LOAD) + queued(kv, i) != 1) return false;
        } else if (s->pins != moves(kv, i, KV_STORE)) {
            return false;
        }
    }
    return filling == kv->n_filling;
}

static bool transfers_hold(const struct kvstore *kv)
{
    uint32_t loads = 0, stores = 0, saving = 0, in_tier[KV_SOURCES] = {0};
    for (uint32_t i = 0; i < kv->policy.max_loads + kv->policy.max_stores; i++) {
        const struct kv_transfer *t = &kv->transfers[i];
        if (t->job == KV_FREE) continue;
        if ((t->job == KV_LOAD) != (i < kv->policy.max_loads)) return false;
        *(t->job == KV_LOAD ? &loads : &stores) += 1;
        saving += t->job == KV_STORE;
        if (!t->retry) in_tier[t->level]++;
    }
    for (int l = KV_RAM; l < KV_SOURCES; l++) {
        const struct tier *t = kv->level[l].tier;
        if (t && t->in_flight != in_tier[l]) return false;
    }
    return loads == kv->n_loads && stores == kv->n_stores && saving == kv->n_saving;
}

static bool wakes_hold(const struct kvstore *kv)
{
    const struct kv_level *g1 = &kv->level[KV_DEVICE];
    uint32_t nodes = 0, wakes = 0, waiting[KV_SOURCES] = {0}, free_wakes = 0,
             last = KV_NONE;
    for (uint32_t i = kv->oldest_wake; i != KV_NONE; last = i, i = kv->wakes[i].newer) {
        const struct kv_wake *w = &kv->wakes[i];
        if (w->state == WAKE_FREE || ++wakes > kv->o.max_wakes) return false;
        if (w->state == WAKE_QUEUE_ONLY && w->queue.n == 0) return false;
        if (!list_holds(g1, &w->queue, SLOT_FILLING, false)) return false;
        for (uint32_t q = w->queue.head; q != KV_NONE; q = g1->notes[q].next)
            waiting[g1->notes[q].source]++;
        for (uint32_t k = w->head; k != KV_NONE; k = kv->nodes[k].next) {
            if (++nodes > 4 * kv->pages.capacity) return false;
            if (kv->pages.refs(kv->pages.arg, kv->nodes[k].page) == 0) return false;
        }
    }
    for (uint32_t i = kv->free_wake; i != KV_NONE; i = kv->wakes[i].newer)
        if (++free_wakes > kv->o.max_wakes) return false;
    return last == kv->newest_wake && wakes + free_wakes == kv->o.max_wakes &&
           nodes + kv->n_free_nodes == 4 * kv->pages.capacity &&
           waiting[KV_RAM] == kv->waiting[KV_RAM] &&
           waiting[KV_SSD] == kv->waiting[KV_SSD];
}

/* Invariant 7, until something has failed. */
static bool tiers_hold(const struct kvstore *kv)
{
    for (int l = KV_RAM; l < KV_SOURCES; l++)
        if (kv->level[l].tier && kv->level[l].tier->failed) return true;
    for (int l = KV_RAM; l < KV_SOURCES; l++) {
        const struct slots *s = kv->level[l].slots;
        for (uint32_t i = 0; s && i < slots_capacity(s); i++)
            if (slots_at(s, i)->state != SLOT_FREE &&
                !kv_joins(kv, (enum kv_source)l, &slots_at(s, i)->meta))
                return false;
    }
    return true;
}

bool kvstore_check(const struct kvstore *kv)
{
    for (int l = 0; l < KV_SOURCES; l++) {
        const struct kv_level *level = &kv->level[l];
        if (!level->slots) continue;
        if (!slots_check(level->slots)) return false;
        if (!list_holds(level, &level->to_copy, SLOT_READY, true)) return false;
    }
    return pages_hold(kv) && transfers_hold(kv) && wakes_hold(kv) && tiers_hold(kv) &&
           kv_records_check(kv) && kv_names_check(kv);
}
