/* kvstore_room.c - freeing blocks: for somebody who needs the room, by quiet, by the
 * watermarks, by quotas.  kvstore_wait.c says who has to wait for it.
 *
 * The LRU list of a level gives the order: coldest first, and of one conversation the last
 * block first, because it was touched so.  A walk passes over what may not go.
 */
#include "offload/kvstore_state.h"

bool kv_tier_takes(const struct kvstore *kv, enum kv_source l, uint64_t now)
{
    const struct tier_health *h = &kv->level[l].tier->health;
    return h->writable || now >= h->retry_at;
}

bool kv_active(const struct kvstore *kv, uint32_t page)
{
    return kv->pages.refs(kv->pages.arg, page) > 1;
}

// ---- letting go --------------------------------------------------------------------------

bool kv_gone(struct kvstore *kv, const struct block_meta *meta)
{
    kv_name_left(kv, meta);
    for (int l = 0; l < KV_SOURCES; l++) {
        const struct slots *s = kv->level[l].slots;
        uint32_t i = s ? slots_find(s, &meta->id) : SLOT_NONE;
        if (i != SLOT_NONE && slots_at(s, i)->state != SLOT_LEAVING) return false;
    }
    uint32_t r;
    while ((r = kv_record_with_last(kv, meta)) != KV_NONE)
        kv_record_set_last(kv, r, meta->depth ? &meta->parent : NULL, meta->depth);
    return true;
}

void kv_evict(struct kvstore *kv, enum kv_source l, uint32_t i)
{
    struct block_meta meta = kv_slot(kv, l, i)->meta;
    kv_unlist(kv, l, i);
    if (l == KV_DEVICE) {
        slots_release(kv->level[l].slots, i);
        kv->pages.unref(kv->pages.arg, i);
    } else if (tier_drop(kv->level[l].tier, &meta.id) != 0) {
        return;
    }
    kv->count.evicted[l]++;
    if (kv_gone(kv, &meta)) kv->count.lost++;
}

bool kv_held(const struct kvstore *kv, enum kv_source l, uint32_t i, uint64_t now)
{
    const struct kv_level *level = &kv->level[l];
    if (level->notes[i].held_until <= now) return false;
    // It is to stay in G1 or RAM: either will do.
    return l == KV_RAM ||
           (l == KV_DEVICE && kv_match(kv, KV_RAM, kv_meta_at(kv, l, i)) == SLOT_NONE);
}

/* Is it going to be copied down, so that freeing it now would lose it? */
static bool pending(const struct kvstore *kv, enum kv_source l, uint32_t i,
                    uint64_t now)
{
    const struct kv_note *note = &kv->level[l].notes[i];
    if (note->moving) return true;
    if (!note->listed) return false;
    enum kv_source to = kv_next_level(kv, l);
    return kv_tier_takes(kv, to, now) && !kv_below(kv, l, kv_meta_at(kv, l, i));
}

static struct policy_block describe(const struct kvstore *kv, enum kv_source l,
                                    uint32_t i, uint64_t now)
{
    const struct kv_note *note = &kv->level[l].notes[i];
    return (struct policy_block){
        .last_used = note->last_used,
        .promoted = note->promoted,
        .uses = note->uses,
        .active = l == KV_DEVICE && kv_active(kv, i),
        .held = kv_held(kv, l, i, now),
        .lower = kv_below(kv, l, kv_meta_at(kv, l, i)),
        .needed = l != KV_DEVICE && kv_leads(kv, l, kv_meta_at(kv, l, i)),
    };
}

// ---- G1: somebody needs pages -------------------------------------------------------------

enum sweep { SAVED, RECENT, UNSAVED };

static bool may_go(const struct kvstore *kv, uint32_t page, enum sweep sweep,
                   uint64_t now)
{
    struct policy_block b = describe(kv, KV_DEVICE, page, now);
    if (sweep < UNSAVED && pending(kv, KV_DEVICE, page, now)) return false;
    return policy_may_free(&kv->policy, &b, now, true, sweep >= RECENT);
}

/* Pages that are in use are newest by that; so no walk meets them twice. */
static bool pass_active(struct kvstore *kv, uint32_t page, uint64_t now)
{
    if (!kv_active(kv, page)) return false;
    kv_touch(kv, KV_DEVICE, page, now);
    return true;
}

/* True if there is something that a later sweep may free. */
static bool sweep_pages(struct kvstore *kv, enum sweep sweep, uint32_t n, uint64_t now)
{
    struct slots *s = kv->level[KV_DEVICE].slots;
    uint32_t left = slots_used(s), next;
    bool more = false;
    for (uint32_t i = slots_coldest(s, NULL); i != SLOT_NONE && left-- > 0; i = next) {
        if (kv->pages.free(kv->pages.arg) >= n) return false;
        next = slots_at(s, i)->newer;
        if (!kv_resting(slots_at(s, i)) || pass_active(kv, i, now)) continue;
        if (may_go(kv, i, sweep, now)) {
            kv->count.unwaited += pending(kv, KV_DEVICE, i, now);
            kv_evict(kv, KV_DEVICE, i);
        } else {
            more = true;
        }
    }
    return more;
}

static uint32_t make_room(struct kvstore *kv, uint32_t n, enum sweep most, uint64_t now)
{
    const struct kv_pages *p = &kv->pages;
    bool more = p->free(p->arg) < n;
    for (int sweep = SAVED; more && sweep <= (int)most; sweep++)
        more = sweep_pages(kv, (enum sweep)sweep, n, now);
    return p->free(p->arg);
}

uint32_t kv_make_room_saved(struct kvstore *kv, uint32_t n, uint64_t now)
{
    uint32_t there = make_room(kv, n, RECENT, now);
    if (there < n) kv->room_wanted = true;
    return there;
}

uint32_t kvstore_make_room(struct kvstore *kv, uint32_t n, uint64_t now)
{
    uint32_t there = make_room(kv, n, UNSAVED, now);
    if (there >= n) return there;
    kv->room_wanted = true;
    kv_count_held(kv, now);
    return there;
}

// ---- G1: quiet for long -----------------------------------------------------------------------

/* A walk that is under way may have passed that page: it begins anew when it is over. */
void kv_quiet_at(struct kvstore *kv, uint64_t at)
{
    kv->free_at = kv_min(kv->free_at, at);
    kv->passed_until = kv_min(kv->passed_until, at);
}

void kv_free_quiet(struct kvstore *kv, uint64_t now)
{
    if (now < kv->free_at) return;
    struct slots *s = kv->level[KV_DEVICE].slots;
    uint32_t i = kv->quiet_at, next;
    if (i == KV_NONE || slots_at(s, i)->state != SLOT_READY ||
        kv_note(kv, KV_DEVICE, i)->last_used != kv->quiet_used) {
        i = slots_coldest(s, NULL);
        kv->passed_until = UINT64_MAX;
    }
    for (uint32_t looks = 0; i != SLOT_NONE; i = next, looks++) {
        const struct kv_note *note = kv_note(kv, KV_DEVICE, i);
        uint64_t due = note->last_used + kv->policy.idle_after;
        if (now < due) {
            kv->free_at = kv_min(due, kv->passed_until);
            kv->quiet_at = KV_NONE;
            return;
        }
        if (looks == KV_LOOKS) {
            kv->quiet_at = i;
            kv->quiet_used = note->last_used;
            kv->free_at = now;
            return;
        }
        next = slots_at(s, i)->newer;
        if (!kv_resting(slots_at(s, i)) || pass_active(kv, i, now)) continue;
        struct policy_block b = describe(kv, KV_DEVICE, i, now);
        if (policy_may_free(&kv->policy, &b, now, false, false)) {
            kv_evict(kv, KV_DEVICE, i);
        } else if (b.held) {
            kv->passed_until = kv_min(kv->passed_until, note->held_until);
        } else if (b.lower) {
            uint64_t stays = note->promoted + kv->policy.residency;
            kv->passed_until = kv_min(kv->passed_until, stays);
        }
    }
    kv->quiet_at = KV_NONE;
    kv->free_at = kv->passed_until;
}

// ---- watermarks -------------------------------------------------------------------------------

static uint32_t used(const struct kvstore *kv, enum kv_source l)
{
    const struct kv_pages *p = &kv->pages;
    return l == KV_DEVICE ? p->capacity - p->free(p->arg)
                          : slots_used(kv->level[l].slots);
}

static uint32_t excess(const struct kvstore *kv, enum kv_source l)
{
    uint32_t capacity = slots_capacity(kv->level[l].slots);
    return policy_excess(&kv->policy, used(kv, l), capacity);
}

bool kv_scarce(const struct kvstore *kv, enum kv_source l, uint64_t now)
{
    uint32_t capacity = slots_capacity(kv->level[l].slots);
    uint32_t stays = kv->level[l].unsaved;
    if (l == KV_DEVICE) stays = kv_staying(kv, now);
    return stays > kv->policy.low * capacity;
}

/* Only what a lower level has as well: nothing is lost before somebody needs its room. */
static bool may_shed(const struct kvstore *kv, enum kv_source l, uint32_t i,
                     uint64_t now)
{
    struct policy_block b = describe(kv, l, i, now);
    return b.lower && policy_may_free(&kv->policy, &b, now, true, false);
}

/* Above the high watermark, free down to the low one; a part of it in each step. */
void kv_shed(struct kvstore *kv, enum kv_source l, uint64_t now)
{
    struct kv_level *level = &kv->level[l];
    if (kv_next_level(kv, l) == KV_SOURCES) return;  // no lower level has anything
    if (level->excess == 0) {
        if (now < level->shed_rest) return;
        level->excess = excess(kv, l);
        level->shed_at = KV_NONE;
    }
    uint32_t i = level->shed_at, next;
    if (i == KV_NONE || slots_at(level->slots, i)->state != SLOT_READY)
        i = slots_coldest(level->slots, NULL);
    for (uint32_t looks = 0; level->excess && i != SLOT_NONE; i = next, looks++) {
        level->shed_at = i;
        if (looks == KV_LOOKS) return;
        next = slots_at(level->slots, i)->newer;
        if (!kv_resting(slots_at(level->slots, i))) continue;
        if (l == KV_DEVICE && pass_active(kv, i, now)) continue;
        if (!may_shed(kv, l, i, now)) continue;
        kv_evict(kv, l, i);
        level->excess--;
    }
    // Done, or there is no more that may go: then it pays to wait until more is copied.
    if (level->excess) level->shed_rest = now + KV_SHED_REST;
    level->excess = 0;
}

// ---- room in a tier ------------------------------------------------------------------------------

/* The coldest block that is neither held nor needed.  -EAGAIN: nobody has looked at all of them
 * yet; -ENOSPC: there is none.  Those passed over count as used just now, so that the next
 * walk goes on behind them. */
static int pass_staying(struct kvstore *kv, enum kv_source l, const uint64_t *tenant,
                        uint64_t now, uint32_t *out)
{
    struct kv_level *level = &kv->level[l];
    struct slots *s = level->slots;
    uint32_t all = tenant ? slots_used_by(s, *tenant) : slots_used(s);
    for (uint32_t looks = 0; looks < KV_LOOKS; looks++) {
        *out = slots_coldest(s, tenant);
        if (*out == SLOT_NONE) return level->tier->in_flight ? -EAGAIN : -ENOSPC;
        bool goes =
            !kv_held(kv, l, *out, now) && !kv_leads(kv, l, kv_meta_at(kv, l, *out));
        if (goes || level->n_passed >= all) {
            level->n_passed = 0;
            return goes ? 0 : -ENOSPC;
        }
        slots_touch(s, *out);
        level->n_passed++;
    }
    return -EAGAIN;
}

/* Free one block for one that was used at `before`; 0, -EAGAIN or -ENOSPC. */
static int displace(struct kvstore *kv, enum kv_source l, const uint64_t *tenant,
                    uint64_t before, uint64_t now)
{
    uint32_t i;
    int rc = pass_staying(kv, l, tenant, now, &i);
    if (rc < 0) return rc;
    if (kv_note(kv, l, i)->last_used >= before) return -ENOSPC;
    if (pending(kv, l, i, now)) {
        kv->ram_pressed = true;
        return -EAGAIN;
    }
    struct policy_block b = describe(kv, l, i, now);
    if (!policy_may_displace(&kv->policy, &b, now)) {
        kv->count.kept[l]++;
        return -ENOSPC;
    }
    kv_evict(kv, l, i);
    return 0;
}

static bool over_quota(const struct kvstore *kv, enum kv_source l, uint64_t tenant)
{
    uint64_t quota = l == KV_RAM ? kv->policy.ram_quota : kv->policy.ssd_quota;
    uint64_t bytes = (uint64_t)slots_used_by(kv->level[l].slots, tenant) + 1;
    return quota != 0 && bytes * kv->block_bytes > quota;
}

int kv_admit(struct kvstore *kv, enum kv_source l, uint64_t tenant, uint64_t before,
             uint64_t now)
{
    const struct slots *s = kv->level[l].slots;
    if (over_quota(kv, l, tenant)) {
        int rc =
            slots_used_by(s, tenant) ? displace(kv, l, &tenant, before, now) : -ENOSPC;
        if (rc == -EAGAIN) return -EDQUOT;
        kv->count.quota_bites[l]++;
        if (rc < 0) return rc;
    }
    if (slots_used(s) < slots_capacity(s)) return 0;
    return displace(kv, l, NULL, before, now);
}
