/* kvstore_load.c - the transfers up: tier to page, in the order in which wakes came.
 *
 * A page that is to be filled has its name from the start, so that whoever needs the same
 * block shares the page and its one load.  A load that nobody waits for any more when its
 * turn comes is not made; one that is under way lands, and the block is there.
 *
 * The last loads of a wake that may begin early start together and sliced, so that they
 * arrive side by side: all of them where they are few, else half of what may be in flight,
 * while the other half is still being copied.
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
    slots_follow(kv->level[KV_DEVICE].slots, page);

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

/* How many loads of a tenant may be in flight. */
static uint32_t most_loads(const struct kvstore *kv)
{
    uint64_t n = kv->policy.max_load_bytes / kv->block_bytes;
    if (n > kv->policy.max_loads) n = kv->policy.max_loads;
    uint32_t of_tenant = kv->policy.max_loads_tenant;
    if (of_tenant > 0 && n > of_tenant) n = of_tenant;
    return n > 0 ? (uint32_t)n : 1;
}

/* Can all that the wake still has to load be started now? */
static bool rest_fits(const struct kvstore *kv, const struct kv_wake *w)
{
    return w->queue.n + (uint64_t)kv->n_loads <= most_loads(kv);
}

/* It is to wait until its rest fits; something lands before that. */
static bool holds_back(const struct kvstore *kv, const struct kv_wake *w)
{
    return w->early && w->queue.n <= most_loads(kv) / 2 && kv->n_loads > 0 &&
           !rest_fits(kv, w);
}

/* 0, or -EAGAIN: its tier is busy. */
static int start(struct kvstore *kv, uint32_t page, bool sliced, uint64_t now)
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
    t->io.sliced = sliced;
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
        if (wanted && (!may_load(kv) || holds_back(kv, w))) return false;
        if (wanted && !tenant_may_load(kv, w->tenant)) return true;

        bool sliced = w->early && rest_fits(kv, w);
        queue_pop(kv, w);
        if (!wanted) {
            give_up(kv, page);
        } else if (start(kv, page, sliced, now) == -EAGAIN) {
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
    struct kv_note *note = kv_note(kv, KV_DEVICE, page);
    note->last_used = note->promoted = now;
    kv_quiet_at(kv, now + kv->policy.idle_after);
    kv_transfer_give(kv, t);
}

// ---- beginning early --------------------------------------------------------------------

bool kv_pays_early(const struct kvstore *kv, const struct kv_prompt *p, uint32_t first,
                   uint32_t take)
{
    const struct tier *ram = kv->level[KV_RAM].tier;
    if (!p->may_begin_early || !ram || ram->pieces < 2) return false;
    uint32_t n = 0, most = most_loads(kv);
    for (uint32_t i = first; i < take; i++) n += kv->where[i] == KV_RAM;
    if (n > most) n = most / 2;
    const struct cost_overlap o = {
        .bytes = n * (uint64_t)kv->block_bytes,
        .pieces = ram->pieces,
        .from = take * kv->o.block_tokens,
        .to = p->n_tokens,
        .compute_price = p->compute_price,
    };
    return n > 0 &&
           cost_overlap_gain(kv->o.cost, &o) >= (double)kv->policy.overlap_gain;
}

/* The load of a page that is being filled; NULL: it has not begun. */
static struct kv_transfer *load_of(struct kvstore *kv, uint32_t page)
{
    for (uint32_t i = 0; i < kv->policy.max_loads; i++) {
        struct kv_transfer *t = &kv->transfers[i];
        if (t->job == KV_LOAD && t->page == page) return t;
    }
    return NULL;
}

bool kv_rest_arrives(struct kvstore *kv, const struct kv_wake *w)
{
    for (uint32_t i = w->head; i != KV_NONE; i = kv->nodes[i].next) {
        uint32_t page = kv->nodes[i].page;
        enum slot_state state = kv_slot(kv, KV_DEVICE, page)->state;
        if (state == SLOT_READY) continue;
        const struct kv_transfer *t = state == SLOT_FILLING ? load_of(kv, page) : NULL;
        if (!t || t->retry || !tier_arriving(kv->level[t->level].tier, &t->io))
            return false;
    }
    return true;
}

bool kv_await_rest(struct kvstore *kv, const struct kv_wake *w)
{
    bool waits = false;
    for (uint32_t i = w->head; i != KV_NONE; i = kv->nodes[i].next) {
        const struct kv_transfer *t = load_of(kv, kv->nodes[i].page);
        if (t) waits |= tier_await(kv->level[t->level].tier, &t->io);
    }
    return waits;
}
