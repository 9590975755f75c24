/* kvstore_wait.c - is there room in G1 for somebody, and is he to wait for it?  All of it by
 * counts, without a look at the pages but where some are held. */
#include "offload/kvstore_state.h"

static uint32_t less(uint32_t a, uint64_t b)
{
    return a > b ? a - (uint32_t)b : 0;
}

/* What is left of the idle pages is held, then.  Pages come to be held and cease to be in
 * many ways, so that a count is believed for a while only. */
void kv_count_held(struct kvstore *kv, uint64_t now)
{
    const struct slots *s = kv->level[KV_DEVICE].slots;
    kv->n_held = 0;
    kv->held_until = now + KV_ROOM_ASKED;
    for (uint32_t i = slots_coldest(s, NULL); i != SLOT_NONE;
         i = slots_at(s, i)->newer) {
        if (!kv_resting(slots_at(s, i)) || kv_active(kv, i)) continue;
        if (!kv_held(kv, KV_DEVICE, i, now)) continue;
        kv->n_held++;
        kv->held_until = kv_min(kv->held_until, kv_note(kv, KV_DEVICE, i)->held_until);
    }
}

uint32_t kvstore_available(const struct kvstore *kv)
{
    const struct kv_pages *p = &kv->pages;
    uint64_t busy = (uint64_t)p->shared(p->arg) + kv->n_filling;
    return p->free(p->arg) + less(slots_used(kv->level[KV_DEVICE].slots), busy);
}

/* Pages on their way down that could be freed but for that. */
static uint32_t saving(const struct kvstore *kv)
{
    uint32_t left = kv->n_saving, n = 0;
    for (uint32_t i = kv->policy.max_loads; left > 0; i++) {
        const struct kv_transfer *t = &kv->transfers[i];
        if (t->job != KV_STORE) continue;
        n += !kv_active(kv, t->page);
        left--;
    }
    return n;
}

/* Free pages, and those that could be freed at some price. */
static uint32_t room_at_all(const struct kvstore *kv, uint64_t now)
{
    uint32_t stays = saving(kv) + (now < kv->held_until ? kv->n_held : 0);
    return less(kvstore_available(kv), stays);
}

/* Of these, the ones that would be lost though they can be saved. */
static uint32_t unsaved_pages(const struct kvstore *kv, uint64_t now)
{
    enum kv_source to = kv_next_level(kv, KV_DEVICE);
    bool saved = to != KV_SOURCES && kv_tier_takes(kv, to, now);
    return saved ? kv->level[KV_DEVICE].unsaved : 0;
}

static uint64_t room_without_loss(const struct kvstore *kv, const struct kv_found *mine,
                                  uint64_t now)
{
    uint32_t n = less(room_at_all(kv, now), unsaved_pages(kv, now));
    return (uint64_t)n + mine->busy + mine->unsaved;
}

uint32_t kv_staying(const struct kvstore *kv, uint64_t now)
{
    static const struct kv_found nothing;
    return less(kv->pages.capacity, room_without_loss(kv, &nothing, now) + saving(kv));
}

bool kvstore_has_room(struct kvstore *kv, uint32_t n, const struct kv_found *mine,
                      uint64_t now)
{
    if (now >= kv->held_until && now < kv->holds_until) kv_count_held(kv, now);
    if (n > room_without_loss(kv, mine, now)) return false;
    kv->short_since = 0;
    return true;
}

/* It does not pay to wait longer for blocks than it takes to compute them. */
static uint64_t patience(const struct kvstore *kv, uint64_t blocks)
{
    uint64_t tokens = blocks * kv->o.block_tokens;
    double ns = cost_prefill_ns(kv->o.cost, 0,
                                tokens < UINT32_MAX ? (uint32_t)tokens : UINT32_MAX);
    if (ns < (double)KV_ROOM_LEAST) ns = (double)KV_ROOM_LEAST;
    return ns < (double)kv->policy.room_wait ? (uint64_t)ns : kv->policy.room_wait;
}

enum kv_when kvstore_wait_room(struct kvstore *kv, uint32_t n,
                               const struct kv_found *mine, uint64_t now)
{
    if (kvstore_has_room(kv, n, mine, now)) return KV_NOW;
    kv->room_wanted = true;
    if (n > (uint64_t)room_at_all(kv, now) + mine->busy) return KV_NEVER;

    if (kv->short_since == 0 || now - kv->short_asked > KV_ROOM_ASKED)
        kv->short_since = now;
    kv->short_asked = now;
    uint64_t lost = n - room_without_loss(kv, mine, now);
    kv->short_until = kv->short_since + patience(kv, lost);
    if (now < kv->short_until) return KV_LATER;
    kv->short_since = 0;  // who comes next waits for itself
    return KV_NOW;
}

/* Those used longest ago first; a conversation's ends for all of its blocks. */
void kvstore_end_holds(struct kvstore *kv, uint32_t n, uint64_t now)
{
    const struct slots *s = kv->level[KV_DEVICE].slots;
    kv_count_held(kv, now);
    for (uint32_t i = slots_coldest(s, NULL); i != SLOT_NONE;
         i = slots_at(s, i)->newer) {
        if (room_at_all(kv, now) >= n) return;
        if (!kv_resting(slots_at(s, i)) || kv_active(kv, i)) continue;
        if (!kv_held(kv, KV_DEVICE, i, now)) continue;
        uint32_t r = kv_record_with_last(kv, kv_meta_at(kv, KV_DEVICE, i));
        if (r != KV_NONE) kv_end_hold(kv, r);
        kv_note(kv, KV_DEVICE, i)->held_until = 0;
        kv_count_held(kv, now);
    }
}
