/* kvstore_store.c - the transfers down: page to tier, and RAM to SSD through staging. */
#include "offload/kvstore_state.h"

// ---- transfers ---------------------------------------------------------------------------

struct kv_transfer *kv_transfer_take(struct kvstore *kv, enum kv_job job)
{
    uint32_t *head = job == KV_LOAD ? &kv->free_load : &kv->free_store;
    struct kv_transfer *t = &kv->transfers[*head];
    *head = t->next_free;
    *(job == KV_LOAD ? &kv->n_loads : &kv->n_stores) += 1;
    kv->n_saving += job == KV_STORE;
    *t = (struct kv_transfer){.job = job, .staging = t->staging};
    return t;
}

void kv_transfer_give(struct kvstore *kv, struct kv_transfer *t)
{
    bool load = t->job == KV_LOAD;
    kv->n_saving -= t->job == KV_STORE;
    uint32_t *head = load ? &kv->free_load : &kv->free_store;
    t->job = KV_FREE;
    t->next_free = *head;
    *head = (uint32_t)(t - kv->transfers);
    *(load ? &kv->n_loads : &kv->n_stores) -= 1;
}

int kv_transfer_submit(struct kvstore *kv, struct kv_transfer *t, uint64_t now)
{
    struct tier *tier = kv->level[t->level].tier;
    bool busy = tier->in_flight > 0;
    int rc = tier_submit(tier, &t->io, now);
    t->retry = rc == -EAGAIN && (busy || ++t->refused < UINT8_MAX);
    return t->retry ? 0 : rc;
}

// ---- G1 to the next level ------------------------------------------------------------------

enum outcome {
    GOES,   // it has begun
    LEFT,   // nothing to do about this one: next
    LATER,  // not this one now: next
    STOP,   // no other either
};

/* Who needs it is not to ask for it again and again. */
static enum outcome refused(struct kvstore *kv, enum kv_source l, uint32_t i)
{
    struct kv_note *note = kv_note(kv, l, i);
    if (note->needed) note->tries = KV_TRIES;
    kv_unlist(kv, l, i);
    return LEFT;
}

/* What was to be written to tier `to` is not. */
static void unspend(struct kvstore *kv, enum kv_source to)
{
    if (to == KV_SSD) kv->budget.bytes += (double)kv->block_bytes;
}

/* The SSD's budget, and room: nothing makes room for what may not be written. */
static enum outcome admit(struct kvstore *kv, enum kv_source from, uint32_t i,
                          enum kv_source to, uint64_t now)
{
    const struct slot *s = kv_slot(kv, from, i);
    if (to == KV_SSD && !policy_spend(&kv->policy, &kv->budget, kv->block_bytes, now)) {
        kv->count.budget_refused++;
        return refused(kv, from, i);
    }
    int rc = kv_admit(kv, to, s->meta.tenant, kv_note(kv, from, i)->last_used, now);
    if (rc == 0) return GOES;
    unspend(kv, to);
    return rc == -EAGAIN ? STOP : rc == -EDQUOT ? LATER : refused(kv, from, i);
}

static struct policy_block describe(struct kvstore *kv, enum kv_source l, uint32_t i,
                                    enum kv_source to)
{
    const struct kv_note *note = kv_note(kv, l, i);
    const struct slot *s = kv_slot(kv, l, i);
    return (struct policy_block){
        .last_used = note->last_used,
        .promoted = note->promoted,
        .uses = note->uses,
        .active = l == KV_DEVICE && kv_active(kv, i),
        .needed = note->needed,
        .lower = slots_find(kv->level[to].slots, &s->meta.id) != SLOT_NONE,
    };
}

/* Invariant 7: the block that has to go before this one does, in *first; SLOT_NONE: none.  LEFT:
 * it cannot go, so that neither can this one; STOP: it is still on its way here. */
static enum outcome find_first(const struct kvstore *kv, enum kv_source from,
                               uint32_t i, enum kv_source to, uint32_t *first)
{
    const struct block_meta *meta = kv_meta_at(kv, from, i);
    *first = SLOT_NONE;
    if (kv_joins(kv, to, meta)) return GOES;
    uint32_t before = kv_before(kv, from, meta);
    if (before == SLOT_NONE) return LEFT;
    if (kv_slot(kv, from, before)->state == SLOT_FILLING) return STOP;
    const struct kv_note *note = &kv->level[from].notes[before];
    if (note->moving) return GOES;
    *first = before;
    return note->tries < KV_TRIES ? GOES : LEFT;
}

/* There is room for it, for which the one before it may have gone: else that goes first. */
static enum outcome in_order(struct kvstore *kv, enum kv_source from, uint32_t i,
                             enum kv_source to)
{
    uint32_t first;
    enum outcome o = find_first(kv, from, i, to, &first);
    if (o == GOES && first == SLOT_NONE) return GOES;
    unspend(kv, to);
    if (o == LEFT) return refused(kv, from, i);
    if (o == GOES) kv_list_needed(kv, from, first);
    return o == GOES ? LEFT : o;
}

/* What the policy says, then room, then what comes before it. */
static enum outcome may_copy(struct kvstore *kv, enum kv_source from, uint32_t i,
                             enum kv_source to, bool pressure, uint64_t now)
{
    uint32_t first;
    enum outcome o;
    struct policy_block b = describe(kv, from, i, to);
    enum policy_way way = from == KV_RAM ? RAM_TO_SSD
                          : to == KV_SSD ? G1_TO_SSD
                                         : G1_TO_RAM;
    switch (policy_copy(&kv->policy, &b, way, now, pressure)) {
    case COPY_NOW:
        o = find_first(kv, from, i, to, &first);
        if (o == LEFT) break;
        if (o == GOES) o = admit(kv, from, i, to, now);
        return o == GOES ? in_order(kv, from, i, to) : o;
    case COPY_LATER: return STOP;
    case COPY_UNUSED: kv->count.second_touch_refused++; break;
    case COPY_NOT: break;
    }
    return refused(kv, from, i);
}

static enum outcome submit(struct kvstore *kv, struct kv_transfer *t,
                           enum kv_source from, uint32_t i, uint64_t now)
{
    int rc = tier_submit(kv->level[t->level].tier, &t->io, now);
    if (rc == 0) {
        kv_unlist(kv, from, i);
        kv_note(kv, from, i)->moving = true;
        return GOES;
    }
    unspend(kv, t->job == KV_LIFT ? KV_SSD : t->level);
    kv_transfer_give(kv, t);
    return rc == -EAGAIN || rc == -EROFS ? STOP : refused(kv, from, i);
}

/* Blocks of the level are to go down without waiting for quiet. */
static bool hurried(const struct kvstore *kv, enum kv_source l, uint64_t now)
{
    return kv->draining || kv_scarce(kv, l, now) ||
           (l == KV_DEVICE ? kv->room_wanted : kv->ram_pressed);
}

static enum outcome store_page(struct kvstore *kv, uint32_t page, uint64_t now)
{
    enum kv_source to = kv_next_level(kv, KV_DEVICE);
    bool pressure =
        kv_note(kv, KV_DEVICE, page)->leaving || hurried(kv, KV_DEVICE, now);
    enum outcome o = may_copy(kv, KV_DEVICE, page, to, pressure, now);
    if (o != GOES) return o;

    struct kv_transfer *t = kv_transfer_take(kv, KV_STORE);
    t->level = to;
    t->page = page;
    t->io.meta = kv_slot(kv, KV_DEVICE, page)->meta;
    t->io.dir = TIER_STORE;
    t->io.buf = kv->pages.address(kv->pages.arg, page);
    o = submit(kv, t, KV_DEVICE, page, now);
    if (o == GOES) slots_pin(kv->level[KV_DEVICE].slots, page);
    return o;
}

// ---- RAM to SSD --------------------------------------------------------------------------

static enum outcome lift_block(struct kvstore *kv, uint32_t i, uint64_t now)
{
    bool pressure = hurried(kv, KV_RAM, now);
    enum outcome o = may_copy(kv, KV_RAM, i, KV_SSD, pressure, now);
    if (o != GOES) return o;

    struct kv_transfer *t = kv_transfer_take(kv, KV_LIFT);
    t->level = KV_RAM;
    t->io.meta = kv_slot(kv, KV_RAM, i)->meta;
    t->io.dir = TIER_LOAD;
    t->io.buf = t->staging;
    return submit(kv, t, KV_RAM, i, now);
}

/* The RAM block of a transfer out of it, if it is still there. */
static struct kv_note *ram_note(struct kvstore *kv, const struct kv_transfer *t,
                                uint32_t *i)
{
    *i = kv_match(kv, KV_RAM, &t->io.meta);
    return *i == SLOT_NONE ? NULL : kv_note(kv, KV_RAM, *i);
}

static void relist(struct kvstore *kv, enum kv_source l, uint32_t i)
{
    struct kv_note *note = kv_note(kv, l, i);
    note->moving = false;
    if (++note->tries < KV_TRIES) kv_list_block(kv, l, i);
}

static void sink_ended(struct kvstore *kv, struct kv_transfer *t, bool well)
{
    uint32_t i;
    struct kv_note *note = ram_note(kv, t, &i);
    if (note && well) note->moving = false;
    if (note && !well) relist(kv, KV_RAM, i);
    if (!well) kv_gone(kv, &t->io.meta);
    kv_transfer_give(kv, t);
}

/* What was to arrive before this one may have been kept up, or failed. */
static bool may_sink(struct kvstore *kv, struct kv_transfer *t)
{
    if (kv_joins(kv, KV_SSD, &t->io.meta)) return true;
    uint32_t before = kv_before(kv, KV_RAM, &t->io.meta);
    t->retry =
        before != SLOT_NONE && (kv_note(kv, KV_RAM, before)->moving ||
                                kv_slot(kv, KV_RAM, before)->state == SLOT_FILLING);
    if (t->retry) return false;
    unspend(kv, KV_SSD);
    sink_ended(kv, t, false);
    return false;
}

void kv_sink(struct kvstore *kv, struct kv_transfer *t, uint64_t now)
{
    t->job = KV_SINK;
    t->level = KV_SSD;
    t->io.dir = TIER_STORE;
    t->io.buf = t->staging;
    if (!may_sink(kv, t)) return;
    int rc = kv_transfer_submit(kv, t, now);
    uint32_t i;
    const struct kv_note *note = ram_note(kv, t, &i);
    // The room that was found when it left RAM may have gone to another one.
    if (rc == -ENOSPC && note &&
        kv_admit(kv, KV_SSD, t->io.meta.tenant, note->last_used, now) == 0) {
        if (!may_sink(kv, t)) return;
        rc = kv_transfer_submit(kv, t, now);
    }
    if (rc == 0) return;
    unspend(kv, KV_SSD);
    sink_ended(kv, t, rc == -EEXIST);
}

// ---- starting --------------------------------------------------------------------------------

/* While loads wait, one store at a time goes on: reads go first, but never starve it. */
static bool may_store(const struct kvstore *kv)
{
    uint32_t waiting = kv->waiting[KV_RAM] + kv->waiting[KV_SSD];
    return kv->free_store != KV_NONE && (waiting == 0 || kv->n_stores == 0);
}

static void start_from(struct kvstore *kv, enum kv_source l, uint64_t now)
{
    enum kv_source to = kv_next_level(kv, l);
    if (to == KV_SOURCES || !kv_tier_takes(kv, to, now)) return;

    const struct kv_list *list = &kv->level[l].to_copy;
    for (uint32_t looks = 0; looks < KV_LOOKS && list->n && may_store(kv); looks++) {
        uint32_t i = list->head;
        enum outcome o =
            l == KV_DEVICE ? store_page(kv, i, now) : lift_block(kv, i, now);
        if (o == STOP) return;
        if (o == LATER) kv_list_put_off(kv, l, i);
    }
}

void kv_stores_start(struct kvstore *kv, uint64_t now)
{
    // What makes room in RAM comes before what needs it.
    if (kv->level[KV_RAM].slots) {
        start_from(kv, KV_RAM, now);
        kv->ram_pressed = false;
    }
    start_from(kv, KV_DEVICE, now);
    kv->room_wanted = false;
}

static uint64_t next_of(const struct kvstore *kv, enum kv_source l, uint64_t now,
                        uint64_t after)
{
    const struct kv_list *list = &kv->level[l].to_copy;
    enum kv_source to = kv_next_level(kv, l);
    if (list->n == 0 || to == KV_SOURCES || !may_store(kv)) return UINT64_MAX;
    if (!kv_tier_takes(kv, to, now)) return kv->level[to].tier->health.retry_at;
    const struct kv_note *note = &kv->level[l].notes[list->head];
    bool at_once = note->needed || note->leaving || hurried(kv, l, now);
    return at_once ? now : note->last_used + after;
}

uint64_t kv_stores_next(const struct kvstore *kv, uint64_t now)
{
    uint64_t a = next_of(kv, KV_DEVICE, now, kv->policy.copy_after);
    return kv_min(a, next_of(kv, KV_RAM, now, kv->policy.ssd_after));
}

// ---- landing ---------------------------------------------------------------------------------

/* A block has reached tier l: its note is that of where it came from. */
static void stored(struct kvstore *kv, enum kv_source l, const struct block_meta *meta,
                   const struct kv_note *from)
{
    uint32_t i = kv_match(kv, l, meta);
    if (i == SLOT_NONE) return;
    *kv_note(kv, l, i) = (struct kv_note){
        .last_used = from ? from->last_used : 0,
        .held_until = from ? from->held_until : 0,
        .uses = from ? from->uses : 1,
    };
    kv->count.demoted_bytes[l] += kv->block_bytes;
    if (l == KV_SSD) kv_name_landed(kv, meta);
    if (l == KV_RAM && kv->level[KV_SSD].slots && !kv_below(kv, KV_RAM, meta))
        kv_list_block(kv, KV_RAM, i);
}

static void page_landed(struct kvstore *kv, struct kv_transfer *t, uint64_t now)
{
    uint32_t page = t->page;
    struct kv_note *note = kv_note(kv, KV_DEVICE, page);
    slots_unpin(kv->level[KV_DEVICE].slots, page);
    note->moving = false;
    if (t->io.res < 0) {
        kv->count.store_failed++;
        relist(kv, KV_DEVICE, page);
    } else {
        stored(kv, t->level, &t->io.meta, note);
        note->tries = 0;
        if (note->leaving && !kv_active(kv, page)) kv_evict(kv, KV_DEVICE, page);
        kv_quiet_at(kv, now);
    }
    kv_transfer_give(kv, t);
}

void kv_store_landed(struct kvstore *kv, struct kv_transfer *t, uint64_t now)
{
    uint32_t i;
    switch (t->job) {
    case KV_STORE: page_landed(kv, t, now); break;
    case KV_LIFT:
        if (t->io.res < 0) {
            kv->count.store_failed++;
            sink_ended(kv, t, false);
        } else {
            kv_sink(kv, t, now);
        }
        break;
    case KV_SINK:
        if (t->io.res < 0) kv->count.store_failed++;
        if (t->io.res == 0) stored(kv, KV_SSD, &t->io.meta, ram_note(kv, t, &i));
        sink_ended(kv, t, t->io.res == 0);
        break;
    case KV_LOAD:
    case KV_FREE: assert(!"not a store");
    }
}
