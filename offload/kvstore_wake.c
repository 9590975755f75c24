/* kvstore_wake.c - pages for a prefix, and those who wait for them.
 *
 * A wake holds a chain of the pages from the first that has to be waited for.  The caller's
 * reference keeps such a page from being used again, so that a page whose load failed is
 * seen by its name being gone.
 */
#include "offload/kvstore_state.h"

// ---- nodes and wakes ------------------------------------------------------------------

static void node_push(struct kvstore *kv, struct kv_wake *w, uint32_t page,
                      enum kv_node_kind kind)
{
    uint32_t i = kv->free_node;
    kv->free_node = kv->nodes[i].next;
    kv->n_free_nodes--;
    kv->nodes[i] = (struct kv_node){page, KV_NONE, kind};
    *(w->head == KV_NONE ? &w->head : &kv->nodes[w->tail].next) = i;
    w->tail = i;
}

static struct kv_node node_pop(struct kvstore *kv, struct kv_wake *w)
{
    uint32_t i = w->head;
    struct kv_node node = kv->nodes[i];
    w->head = node.next;
    kv->nodes[i].next = kv->free_node;
    kv->free_node = i;
    kv->n_free_nodes++;
    return node;
}

static uint32_t wake_take(struct kvstore *kv)
{
    uint32_t i = kv->free_wake;
    struct kv_wake *w = &kv->wakes[i];
    kv->free_wake = w->newer;
    *w = (struct kv_wake){
        .state = WAKE_WAITING,
        .record = KV_NONE,
        .head = KV_NONE,
        .tail = KV_NONE,
        .queue = {KV_NONE, KV_NONE, 0},
        .newer = KV_NONE,
    };
    *(kv->newest_wake == KV_NONE ? &kv->oldest_wake
                                 : &kv->wakes[kv->newest_wake].newer) = i;
    kv->newest_wake = i;
    return i;
}

static void wake_give(struct kvstore *kv, uint32_t i)
{
    uint32_t before = KV_NONE, at = kv->oldest_wake;
    for (; at != i; at = kv->wakes[at].newer) before = at;

    *(before == KV_NONE ? &kv->oldest_wake : &kv->wakes[before].newer) =
        kv->wakes[i].newer;
    if (kv->newest_wake == i) kv->newest_wake = before;
    if (kv->wakes[i].keep) kv_record_release(kv, kv->wakes[i].record);
    kv->wakes[i].state = WAKE_FREE;
    kv->wakes[i].newer = kv->free_wake;
    kv->free_wake = i;
}

void kv_wake_drained(struct kvstore *kv, uint32_t i)
{
    if (kv->wakes[i].state == WAKE_QUEUE_ONLY && kv->wakes[i].queue.n == 0)
        wake_give(kv, i);
}

bool kv_waking(const struct kvstore *kv, uint32_t record)
{
    for (uint32_t i = kv->oldest_wake; i != KV_NONE; i = kv->wakes[i].newer) {
        const struct kv_wake *w = &kv->wakes[i];
        if (w->record == record && (w->keep || w->state == WAKE_WAITING)) return true;
    }
    return false;
}

// ---- the plan ---------------------------------------------------------------------------

/* What a wake is going to do, before it does it. */
struct plan {
    struct kv_found found;
    uint32_t wanted;  // blocks of the prefix that pay
    uint32_t take;    // of these, those that there is room for
    uint32_t first;   // blocks that are in G1 from the start on
};

static uint64_t queued_bytes(const struct kvstore *kv, enum kv_source l)
{
    const struct tier *t = kv->level[l].tier;
    return t ? ((uint64_t)t->in_flight + kv->waiting[l]) * kv->block_bytes : 0;
}

static void decide(struct kvstore *kv, const struct kv_prompt *p, bool prefetch,
                   uint64_t now, struct plan *plan, struct kv_wake_report *report)
{
    static const uint8_t cost_tier[] = {COST_TIERS, COST_RAM, COST_SSD, COST_TIERS};
    uint32_t n = plan->found.blocks;
    while (plan->first < n && kv->where[plan->first] == KV_DEVICE) plan->first++;
    for (uint32_t i = plan->first; i < n; i++) kv->tiers[i] = cost_tier[kv->where[i]];

    struct cost_question q = {
        .block_tokens = kv->o.block_tokens,
        .block_bytes = kv->block_bytes,
        .first = plan->first,
        .n = n - plan->first,
        .tier = kv->tiers + plan->first,
        .prompt = p->n_tokens,
        .queued = {queued_bytes(kv, KV_RAM), queued_bytes(kv, KV_SSD)},
        .compute_price = p->compute_price,
        .now = now,
    };
    struct cost_answer a;
    cost_decide(kv->o.cost, &q, &a);
    plan->wanted = prefetch ? n : plan->first + a.load;
    report->predicted_ns = a.load_ns + a.compute_ns;
    report->without_ns = a.without_ns;
}

/* One block was used again; true if it is listed to be copied down. */
static bool touch_block(struct kvstore *kv, const struct block_meta *meta, uint64_t now)
{
    bool listed = false;
    for (int l = 0; l < KV_SOURCES; l++) {
        uint32_t s = kv_match(kv, (enum kv_source)l, meta);
        if (s == SLOT_NONE) continue;
        kv_touch(kv, (enum kv_source)l, s, now);
        struct kv_note *note = kv_note(kv, (enum kv_source)l, s);
        note->uses++;
        note->leaving = false;
        listed |= note->listed;
    }
    return listed;
}

/* Everything found counts as used, also what will be computed again: it is this
 * conversation's, and must not be what makes room for it.  Prefix newest.  What was listed
 * goes to the end of its list, as it is quiet since now; what is needed keeps its place. */
static void touch_found(struct kvstore *kv, const struct kv_prompt *p, uint32_t n,
                        uint64_t now)
{
    bool listed = false;
    for (uint32_t i = n; i-- > 0;) listed |= touch_block(kv, &p->meta[i], now);
    for (uint32_t i = 0; listed && i < n; i++) {
        for (int l = KV_DEVICE; l <= KV_RAM; l++) {
            uint32_t s = kv_match(kv, (enum kv_source)l, &p->meta[i]);
            if (s == SLOT_NONE) continue;
            const struct kv_note *note = kv_note(kv, (enum kv_source)l, s);
            if (note->listed && !note->needed) kv_list_block(kv, (enum kv_source)l, s);
        }
    }
}

/* Nothing is lost for what nobody has asked for yet. */
static uint32_t take_page(struct kvstore *kv, bool prefetch, uint64_t now)
{
    uint32_t page = kv->pages.take(kv->pages.arg);
    if (page != UINT32_MAX) return page;
    uint32_t n =
        prefetch ? kv_make_room_saved(kv, 1, now) : kvstore_make_room(kv, 1, now);
    return n ? kv->pages.take(kv->pages.arg) : UINT32_MAX;
}

static void unref(struct kvstore *kv, uint32_t page)
{
    kv->pages.unref(kv->pages.arg, page);
}

/* Take references on what is in G1, then pages for what is missing.  Where there is no
 * room the prefix ends.  Returns the wake, or KV_NONE. */
static uint32_t gather(struct kvstore *kv, const struct kv_prompt *p, struct plan *plan,
                       bool prefetch, uint64_t now, uint32_t *blocks)
{
    uint32_t wake = KV_NONE;
    plan->take = plan->wanted;
    if (plan->take > plan->first) {
        uint32_t nodes = plan->take - plan->first;
        if (nodes > kv->n_free_nodes) nodes = kv->n_free_nodes;
        plan->take = plan->first + (kv->free_wake == KV_NONE ? 0 : nodes);
    }
    for (uint32_t i = 0; i < plan->take; i++) {
        if (kv->where[i] == KV_RAM || kv->where[i] == KV_SSD) continue;
        blocks[i] = slots_find(kv->level[KV_DEVICE].slots, &p->meta[i].id);
        kv->pages.ref(kv->pages.arg, blocks[i]);
    }
    if (plan->take > plan->first) wake = wake_take(kv);
    for (uint32_t i = plan->first; i < plan->take; i++) {
        struct kv_wake *w = &kv->wakes[wake];
        if (kv->where[i] == KV_DEVICE || kv->where[i] == KV_SOURCES) {
            node_push(kv, w, blocks[i],
                      kv->where[i] == KV_DEVICE ? NODE_HERE : NODE_SHARED);
            continue;
        }
        // Two names that collide may lie in two tiers; only one can come up.
        bool taken =
            slots_find(kv->level[KV_DEVICE].slots, &p->meta[i].id) != SLOT_NONE;
        uint32_t page = taken ? UINT32_MAX : take_page(kv, prefetch, now);
        if (page == UINT32_MAX) {
            for (uint32_t k = i; k < plan->take; k++)
                if (kv->where[k] == KV_DEVICE || kv->where[k] == KV_SOURCES)
                    unref(kv, blocks[k]);
            plan->take = i;
            break;
        }
        kv_load_queue(kv, w, page, &p->meta[i], (enum kv_source)kv->where[i]);
        kv->pages.ref(kv->pages.arg, page);
        node_push(kv, w, page, NODE_OWN);
        blocks[i] = page;
    }
    return wake;
}

static void plan_report(const struct kv_prompt *p, const struct plan *plan,
                        uint64_t now, struct kv_wake_report *r)
{
    r->found = plan->found;
    r->began = now;
    r->computed[KV_WHY_NEW] = p->n_meta - plan->found.blocks;
    r->computed[KV_WHY_CHEAPER] = plan->found.blocks - plan->wanted;
    r->computed[KV_WHY_BUSY] = plan->wanted - plan->take;
    r->loaded[KV_DEVICE] = plan->first < plan->take ? plan->first : plan->take;
    r->blocks = r->loaded[KV_DEVICE];
}

// ---- counting -----------------------------------------------------------------------------

/* The report is complete. */
static void account(struct kvstore *kv, uint32_t n_tokens, uint32_t n_meta,
                    const struct kv_wake_report *r)
{
    uint32_t b = kv->o.block_tokens;
    for (int l = 0; l < KV_SOURCES; l++)
        kv->count.hit_tokens[l] += (uint64_t)r->loaded[l] * b;
    for (int y = 0; y < KV_WHYS; y++)
        kv->count.computed_tokens[y] += (uint64_t)r->computed[y] * b;
    // What follows the last full block is never stored.
    kv->count.computed_tokens[KV_WHY_NEW] += n_tokens - n_meta * b;
}

// ---- the calls ---------------------------------------------------------------------------

static uint32_t begin_record(struct kvstore *kv, const struct kv_prompt *p,
                             uint64_t now, struct kv_wake_report *report)
{
    uint32_t r = kv_record_of(kv, p, true);
    if (r == KV_NONE) return r;
    struct kv_record *x = &kv->records->at[r];
    x->running++;
    kv_record_touch(kv, r, now);
    if (p->n_meta) kv_record_set_anchor(kv, r, &p->meta[p->n_meta - 1].id);
    memcpy(report->conversation, x->name, sizeof report->conversation);
    return r;
}

uint32_t kvstore_wake(struct kvstore *kv, const struct kv_prompt *p, uint64_t now,
                      uint32_t *blocks, uint32_t cap, uint32_t *wake,
                      struct kv_wake_report *report)
{
    struct plan plan = {0};
    *report = (struct kv_wake_report){0};
    uint32_t record = begin_record(kv, p, now, report);
    if (cap > kv->pages.capacity) cap = kv->pages.capacity;
    kv_find(kv, p, cap, kv->where, &plan.found);
    touch_found(kv, p, plan.found.blocks, now);
    decide(kv, p, false, now, &plan, report);

    *wake = gather(kv, p, &plan, false, now, blocks);
    plan_report(p, &plan, now, report);
    if (*wake == KV_NONE) {
        report->ready = now;
        account(kv, p->n_tokens, p->n_meta, report);
        return plan.take;
    }
    struct kv_wake *w = &kv->wakes[*wake];
    w->record = record;
    w->tenant = p->tenant;
    w->deadline = now + kv->policy.wake_deadline;
    w->done = plan.first;
    w->early = kv_pays_early(kv, p, plan.first, plan.take);
    w->n_tokens = p->n_tokens;
    w->n_meta = p->n_meta;
    w->report = *report;
    return plan.take;
}

/* The first of the pages it waits for is there: it is counted by where it came from. */
static void arrived(struct kvstore *kv, struct kv_wake *w)
{
    struct kv_node node = node_pop(kv, w);
    enum kv_source from = KV_DEVICE;
    if (node.kind != NODE_HERE)
        from = (enum kv_source)kv_note(kv, KV_DEVICE, node.page)->source;
    if (node.kind == NODE_OWN) w->report.bytes += kv->block_bytes;
    w->report.loaded[from]++;
    w->done++;
}

/* What it still waits for counts as there: nothing but the device can fail it. */
static void begin_early(struct kvstore *kv, struct kv_wake *w)
{
    w->report.early = kv_await_rest(kv, w);
    kv->count.began_early += w->report.early;
    while (w->head != KV_NONE) arrived(kv, w);
}

bool kvstore_wake_poll(struct kvstore *kv, uint32_t wake, uint64_t now, uint32_t *n,
                       struct kv_wake_report *report)
{
    struct kv_wake *w = &kv->wakes[wake];
    assert(w->state == WAKE_WAITING);
    enum slot_state state = SLOT_READY;
    while (w->head != KV_NONE) {
        state = kv_slot(kv, KV_DEVICE, kv->nodes[w->head].page)->state;
        if (state != SLOT_READY) break;
        arrived(kv, w);
    }
    if (w->early && state == SLOT_FILLING && kv_rest_arrives(kv, w)) begin_early(kv, w);
    if (w->head != KV_NONE && state == SLOT_FILLING && now < w->deadline) return false;

    bool late = w->head != KV_NONE && state == SLOT_FILLING;
    if (late) kv->count.deadline_passed++;
    while (w->head != KV_NONE) {
        unref(kv, node_pop(kv, w).page);
        w->report.computed[late ? KV_WHY_LATE : KV_WHY_FAILED]++;
    }
    w->report.blocks = w->done;
    w->report.ready = now;
    account(kv, w->n_tokens, w->n_meta, &w->report);
    *n = w->done;
    *report = w->report;
    w->state = WAKE_QUEUE_ONLY;
    kv_wake_drained(kv, wake);
    return true;
}

void kvstore_wake_cancel(struct kvstore *kv, uint32_t wake)
{
    struct kv_wake *w = &kv->wakes[wake];
    assert(w->state == WAKE_WAITING);
    while (w->head != KV_NONE) node_pop(kv, w);
    if (w->record != KV_NONE) kv_record_release(kv, w->record);
    w->state = WAKE_QUEUE_ONLY;
    kv_wake_drained(kv, wake);
}

void kv_prefetch(struct kvstore *kv, const struct kv_prompt *p, uint32_t record,
                 uint64_t now)
{
    struct plan plan = {0};
    struct kv_wake_report report = {0};
    uint32_t *blocks = kv->blocks;
    kv_find(kv, p, kv->pages.capacity, kv->where, &plan.found);
    touch_found(kv, p, plan.found.blocks, now);
    decide(kv, p, true, now, &plan, &report);

    uint32_t wake = gather(kv, p, &plan, true, now, blocks);
    for (uint32_t i = 0; i < plan.take; i++) unref(kv, blocks[i]);
    if (wake == KV_NONE) {
        kv_record_release(kv, record);
        return;
    }
    struct kv_wake *w = &kv->wakes[wake];
    while (w->head != KV_NONE) node_pop(kv, w);
    w->record = record;
    w->tenant = p->tenant;
    w->keep = true;
    w->deadline = now + kv->policy.wake_deadline;
    w->state = WAKE_QUEUE_ONLY;
    kv_wake_drained(kv, wake);
}
