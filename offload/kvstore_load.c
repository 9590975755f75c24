/* kvstore_load.c - the transfers up: tier to page, in the order in which wakes came.
 *
 * A page that is to be filled has its name from the start, so that whoever needs the same
 * block shares the page and its one load.  A load that nobody waits for any more when its
 * turn comes is not made; one that is under way lands, and the block is there.
 */
#include "offload/kvstore_state.h"

static uint32_t refs(const struct kvstore *kv, uint32_t page)
{
    return kv->pages.refs(kv->pages.arg, page);
}

void kv_load_queue(struct kvstore *kv, struct kv_wake *w, uint32_t page,
                   const struct block_meta *meta, enum kv_source from)
{
    uint32_t lower = kv_match(kv, from, meta);
    bool claimed = slots_claim_at(kv->level[KV_DEVICE].slots, page, meta);
    assert(claimed && lower != SLOT_NONE);
    (void)claimed;

    const struct kv_note *below = kv_note(kv, from, lower);
    *kv_note(kv, KV_DEVICE, page) = (struct kv_note){
        .last_used = below->last_used,
        .held_until = below->held_until,
        .uses = below->uses,
        .source = (uint8_t)from,
    };
    kv_list_append(&w->queue, kv->level[KV_DEVICE].notes, page);
    kv->waiting[from]++;
    kv->n_filling++;
}

/* The page gets no content: its name goes, and the store's reference. */
static void give_up(struct kvstore *kv, uint32_t page)
{
    struct block_meta meta = kv_slot(kv, KV_DEVICE, page)->meta;
    slots_release(kv->level[KV_DEVICE].slots, page);
    kv->pages.unref(kv->pages.arg, page);
    kv->n_filling--;
    kv_gone(kv, &meta);
}

/* Where the block can be loaded from now; it may have moved on while it waited. */
static enum kv_source source_of(const struct kvstore *kv, const struct block_meta *meta)
{
    for (int l = KV_RAM; l < KV_SOURCES; l++)
        if (kv_match(kv, (enum kv_source)l, meta) != SLOT_NONE)
            return (enum kv_source)l;
    return KV_SOURCES;
}

/* What the transfer's time is measured by. */
static void ask(struct kvstore *kv, struct kv_transfer *t, uint64_t now)
{
    struct tier *tier = kv->level[t->level].tier;
    kv_note(kv, KV_DEVICE, t->page)->source = (uint8_t)t->level;
    t->asked = now;
    t->ahead = (uint64_t)tier->in_flight * kv->block_bytes;
}

static bool tenant_may_load(const struct kvstore *kv, uint64_t tenant)
{
    uint32_t n = 0;
    if (kv->policy.max_loads_tenant == 0) return true;
    for (uint32_t i = 0; i < kv->policy.max_loads; i++)
        n += kv->transfers[i].job == KV_LOAD &&
             kv->transfers[i].io.meta.tenant == tenant;
    return n < kv->policy.max_loads_tenant;
}

static bool may_load(const struct kvstore *kv)
{
    uint64_t bytes = ((uint64_t)kv->n_loads + 1) * kv->block_bytes;
    return kv->free_load != KV_NONE &&
           (kv->n_loads == 0 || bytes <= kv->policy.max_load_bytes);
}

/* 0, or -EAGAIN: its tier is busy. */
static int start(struct kvstore *kv, uint32_t page, uint64_t now)
{
    const struct block_meta *meta = &kv_slot(kv, KV_DEVICE, page)->meta;
    enum kv_source from = source_of(kv, meta);
    if (from == KV_SOURCES) {
        kv->count.load_failed++;
        give_up(kv, page);
        return 0;
    }
    struct kv_transfer *t = kv_transfer_take(kv, KV_LOAD);
    t->level = from;
    t->page = page;
    t->io.meta = *meta;
    t->io.dir = TIER_LOAD;
    t->io.buf = kv->pages.address(kv->pages.arg, page);
    ask(kv, t, now);
    int rc = tier_submit(kv->level[from].tier, &t->io, now);
    if (rc == 0) return 0;

    kv_transfer_give(kv, t);
    if (rc == -EAGAIN) return rc;
    kv->count.load_failed++;
    give_up(kv, page);
    return 0;
}

static void queue_pop(struct kvstore *kv, struct kv_wake *w)
{
    uint32_t page = w->queue.head;
    kv->waiting[kv_note(kv, KV_DEVICE, page)->source]--;
    kv_list_remove(&w->queue, kv->level[KV_DEVICE].notes, page);
}

static void queue_unpop(struct kvstore *kv, struct kv_wake *w, uint32_t page)
{
    kv->waiting[kv_note(kv, KV_DEVICE, page)->source]++;
    kv_list_prepend(&w->queue, kv->level[KV_DEVICE].notes, page);
}

/* What can be started of one wake; false when no wake can start anything now. */
static bool start_of(struct kvstore *kv, struct kv_wake *w, uint64_t now)
{
    while (w->queue.n) {
        uint32_t page = w->queue.head;
        bool wanted = (w->keep && now < w->deadline) || refs(kv, page) > 1;
        if (wanted && !may_load(kv)) return false;
        if (wanted && !tenant_may_load(kv, w->tenant)) return true;

        queue_pop(kv, w);
        if (!wanted) {
            give_up(kv, page);
        } else if (start(kv, page, now) == -EAGAIN) {
            queue_unpop(kv, w, page);
            return false;
        }
    }
    return true;
}

void kv_loads_start(struct kvstore *kv, uint64_t now)
{
    uint32_t next;
    for (uint32_t i = kv->oldest_wake; i != KV_NONE; i = next) {
        next = kv->wakes[i].newer;
        bool more = start_of(kv, &kv->wakes[i], now);
        kv_wake_drained(kv, i);
        if (!more) return;
    }
}

static void failed(struct kvstore *kv, struct kv_transfer *t)
{
    uint32_t page = t->page;
    kv->count.load_failed++;
    kv_transfer_give(kv, t);
    give_up(kv, page);
}

void kv_load_again(struct kvstore *kv, struct kv_transfer *t, uint64_t now)
{
    ask(kv, t, now);
    if (kv_transfer_submit(kv, t, now) != 0) failed(kv, t);
}

void kv_load_landed(struct kvstore *kv, struct kv_transfer *t, uint64_t now)
{
    if (t->io.res < 0) {
        // The tier has dropped it.  The one below is tried once.
        kv_forget_slot(kv, t);
        bool lower = t->level == KV_RAM && !t->second &&
                     kv_match(kv, KV_SSD, &t->io.meta) != SLOT_NONE;
        if (!lower) {
            failed(kv, t);
            return;
        }
        kv->count.load_failed++;
        t->second = true;
        t->level = KV_SSD;
        kv_load_again(kv, t, now);
        return;
    }
    uint32_t page = t->page;
    enum cost_tier tier = t->level == KV_RAM ? COST_RAM : COST_SSD;
    const struct cost_load took = {
        .tier = tier,
        .bytes = kv->block_bytes,
        .ahead = t->ahead,
        .least = kv->reaped > t->asked ? kv->reaped - t->asked : 0,
        .most = now > t->asked ? now - t->asked : 0,
    };
    cost_observe_load(kv->o.cost, &took, now);
    kv->count.promoted_bytes[t->level] += kv->block_bytes;
    slots_commit(kv->level[KV_DEVICE].slots, page);
    kv->n_filling--;
    kv_touch(kv, KV_DEVICE, page, now);
    kv_note(kv, KV_DEVICE, page)->promoted = now;
    kv_order_path(kv, KV_DEVICE, &t->io.meta);
    kv_quiet_at(kv, now + kv->policy.idle_after);
    kv_transfer_give(kv, t);
}
