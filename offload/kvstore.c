#include "offload/kvstore_state.h"

#include <stdlib.h>

// ---- opening -------------------------------------------------------------------------------

static int check_tier(const struct tier *t, size_t block_bytes, struct err *err)
{
    if (!t || t->block_bytes == block_bytes) return 0;
    return err_set(err, -EINVAL,
                   "the tiers have blocks of %zu and %zu bytes; expected the same",
                   block_bytes, t->block_bytes);
}

static int check_options(const struct kvstore_options *o, struct err *err)
{
    if (o->pages.capacity == 0 || o->max_wakes == 0 || o->max_conversations == 0)
        return err_set(err, -EINVAL,
                       "%u pages, %u wakes and %u conversations are not possible; "
                       "expected at least one of each",
                       o->pages.capacity, o->max_wakes, o->max_conversations);
    if (o->pages.capacity > UINT32_MAX / 8 || o->max_conversations > UINT32_MAX / 4 ||
        o->max_wakes > UINT32_MAX / 4)
        return err_set(err, -EINVAL,
                       "%u pages, %u wakes and %u conversations are too many to number",
                       o->pages.capacity, o->max_wakes, o->max_conversations);
    if (o->block_tokens == 0)
        return err_set(err, -EINVAL, "block_tokens is 0; expected at least 1");
    int rc = policy_check(&o->policy, err);
    if (rc < 0) return rc;
    return o->ram ? check_tier(o->ssd, o->ram->block_bytes, err) : 0;
}

static int open_level(struct kv_level *l, struct slots *s, struct tier *t)
{
    *l = (struct kv_level){
        .slots = s,
        .tier = t,
        .to_copy = {KV_NONE, KV_NONE, 0},
        .shed_at = KV_NONE,
    };
    if (!s) return 0;
    l->notes = calloc(slots_capacity(s), sizeof *l->notes);
    return l->notes ? 0 : -ENOMEM;
}

static int open_levels(struct kvstore *kv, struct err *err)
{
    struct slots *g1 = NULL;
    int rc = slots_open(&g1, kv->pages.capacity, err);
    if (rc < 0) return rc;
    struct tier *ram = kv->o.ram, *ssd = kv->o.ssd;
    rc = open_level(&kv->level[KV_DEVICE], g1, NULL);
    if (rc == 0) rc = open_level(&kv->level[KV_RAM], ram ? ram->slots : NULL, ram);
    if (rc == 0) rc = open_level(&kv->level[KV_SSD], ssd ? ssd->slots : NULL, ssd);
    return rc < 0 ? err_set(err, rc, "no memory for what is known of the KV blocks")
                  : 0;
}

static uint32_t n_nodes(const struct kvstore_options *o)
{
    return 4 * o->pages.capacity;
}

static int take_memory(struct kvstore *kv, struct err *err)
{
    const struct kvstore_options *o = &kv->o;
    uint32_t pages = kv->pages.capacity;
    kv->transfers =
        calloc(o->policy.max_loads + o->policy.max_stores, sizeof *kv->transfers);
    kv->wakes = calloc(o->max_wakes, sizeof *kv->wakes);
    kv->nodes = calloc(n_nodes(o), sizeof *kv->nodes);
    kv->where = calloc(pages, sizeof *kv->where);
    kv->tiers = calloc(pages, sizeof *kv->tiers);
    kv->blocks = calloc(pages, sizeof *kv->blocks);
    kv->path = calloc(pages, sizeof *kv->path);
    if (!kv->transfers || !kv->wakes || !kv->nodes || !kv->where || !kv->tiers ||
        !kv->blocks || !kv->path)
        return err_set(err, -ENOMEM,
                       "the store of KV blocks takes %zu MiB of memory, which are not "
                       "there",
                       kvstore_bytes(o) >> 20);
    return kv_records_open(&kv->records, o->max_conversations, err);
}

static void link_free(struct kvstore *kv)
{
    uint32_t loads = kv->policy.max_loads, stores = kv->policy.max_stores;
    size_t bytes = kv->o.ssd ? tier_buffer_bytes(kv->o.ssd) : 0;
    for (uint32_t i = 0; i < loads + stores; i++) {
        bool last = i + 1 == loads || i + 1 == loads + stores;
        kv->transfers[i].next_free = last ? KV_NONE : i + 1;
        if (i >= loads && kv->o.staging)
            kv->transfers[i].staging = (char *)kv->o.staging + (i - loads) * bytes;
    }
    kv->free_load = 0;
    kv->free_store = loads;
    for (uint32_t i = 0; i < kv->o.max_wakes; i++)
        kv->wakes[i].newer = i + 1 < kv->o.max_wakes ? i + 1 : KV_NONE;
    kv->oldest_wake = kv->newest_wake = KV_NONE;
    kv->n_free_nodes = n_nodes(&kv->o);
    for (uint32_t i = 0; i < kv->n_free_nodes; i++)
        kv->nodes[i].next = i + 1 < kv->n_free_nodes ? i + 1 : KV_NONE;
}

int kvstore_open(struct kvstore **out, const struct kvstore_options *o, struct err *err)
{
    int rc = check_options(o, err);
    if (rc < 0) return rc;
    struct kvstore *kv = calloc(1, sizeof *kv);
    if (!kv) return err_set(err, -ENOMEM, "no memory for the store of KV blocks");
    kv->o = *o;
    kv->pages = o->pages;
    kv->policy = o->policy;
    kv->block_bytes = o->ram ? o->ram->block_bytes : o->ssd ? o->ssd->block_bytes : 0;
    kv->budget.bytes = (double)o->policy.ssd_bytes_per_day;
    kv->quiet_at = KV_NONE;
    kv->free_at = UINT64_MAX;
    kv->passed_until = UINT64_MAX;

    rc = open_levels(kv, err);
    if (rc == 0) rc = take_memory(kv, err);
    if (rc == 0) {
        link_free(kv);
        rc = kv_find_sleepers(kv, err);
    }
    if (rc < 0) {
        kvstore_close(kv);
        return rc;
    }
    *out = kv;
    return 0;
}

/* The names go, and with them the store's references. */
static void release_names(struct kvstore *kv)
{
    struct slots *s = kv->level[KV_DEVICE].slots;
    for (uint32_t i = 0; s && i < slots_capacity(s); i++)
        if (slots_at(s, i)->state != SLOT_FREE) {
            slots_release(s, i);
            kv->pages.unref(kv->pages.arg, i);
        }
    slots_close(s);
}

void kvstore_close(struct kvstore *kv)
{
    if (!kv) return;
    assert(!kvstore_in_flight(kv));
    release_names(kv);
    for (int l = 0; l < KV_SOURCES; l++) free(kv->level[l].notes);
    kv_records_close(kv->records);
    free(kv->transfers);
    free(kv->wakes);
    free(kv->nodes);
    free(kv->where);
    free(kv->tiers);
    free(kv->blocks);
    free(kv->path);
    free(kv);
}

size_t kvstore_note_bytes(uint32_t blocks)
{
    return blocks * sizeof(struct kv_note);
}

size_t kvstore_bytes(const struct kvstore_options *o)
{
    size_t pages = o->pages.capacity, notes = kvstore_note_bytes(o->pages.capacity);
    if (o->ram) notes += kvstore_note_bytes(slots_capacity(o->ram->slots));
    if (o->ssd) notes += kvstore_note_bytes(slots_capacity(o->ssd->slots));
    return sizeof(struct kvstore) + slots_bytes(o->pages.capacity) + notes +
           o->max_wakes * sizeof(struct kv_wake) +
           (size_t)n_nodes(o) * sizeof(struct kv_node) +
           ((size_t)o->policy.max_loads + o->policy.max_stores) *
               sizeof(struct kv_transfer) +
           pages * (2 + sizeof(uint32_t) + sizeof(struct block_meta)) +
           kv_records_bytes(o->max_conversations);
}

// ---- naming --------------------------------------------------------------------------------

bool kvstore_seal(struct kvstore *kv, uint32_t page, const struct block_meta *meta,
                  uint64_t now)
{
    struct slots *s = kv->level[KV_DEVICE].slots;
    uint32_t there = slots_find(s, &meta->id);
    if (there != SLOT_NONE) return there == page && slots_match(s, meta) == page;
    if (!slots_claim_at(s, page, meta)) return false;  // it has another name
    slots_commit(s, page);
    kv->pages.ref(kv->pages.arg, page);

    struct kv_note *note = kv_note(kv, KV_DEVICE, page);
    *note = (struct kv_note){.last_used = now, .uses = 1};
    // Computed again although a tier has it: what was known of it goes on.
    for (int l = KV_RAM; l < KV_SOURCES; l++) {
        uint32_t i = kv_match(kv, (enum kv_source)l, meta);
        if (i == SLOT_NONE) continue;
        const struct kv_note *below = kv_note(kv, (enum kv_source)l, i);
        if (note->uses < below->uses) note->uses = below->uses;
        if (note->held_until < below->held_until) note->held_until = below->held_until;
    }
    return true;
}

// ---- the step ------------------------------------------------------------------------------

static void reap(struct kvstore *kv, struct tier *tier, uint64_t now)
{
    struct tier_io *done[16];
    size_t n;
    do {
        n = tier_reap(tier, done, ARRAY_LEN(done), now);
        for (size_t i = 0; i < n; i++) {
            struct kv_transfer *t = CONTAINER_OF(done[i], struct kv_transfer, io);
            if (t->job == KV_LOAD) {
                kv_load_landed(kv, t, now);
            } else {
                kv_store_landed(kv, t, now);
            }
        }
    } while (n == ARRAY_LEN(done));
}

/* Transfers in the middle of their way whose tier was busy. */
static void submit_again(struct kvstore *kv, uint64_t now)
{
    for (uint32_t i = 0; i < kv->policy.max_loads + kv->policy.max_stores; i++) {
        struct kv_transfer *t = &kv->transfers[i];
        if (t->job == KV_FREE || !t->retry) continue;
        if (t->job == KV_LOAD) {
            kv_load_again(kv, t, now);
        } else {
            kv_sink(kv, t, now);
        }
    }
}

static void reap_all(struct kvstore *kv, uint64_t now)
{
    if (kv->o.ram) reap(kv, kv->o.ram, now);
    if (kv->o.ssd) reap(kv, kv->o.ssd, now);
    submit_again(kv, now);
    kv->reaped = now;
}

void kvstore_step(struct kvstore *kv, uint64_t now)
{
    struct tier *tiers[] = {kv->o.ram, kv->o.ssd};
    reap_all(kv, now);
    kv_loads_start(kv, now);
    kv_stores_start(kv, now);
    kv_free_quiet(kv, now);
    if (now >= kv->held_until) kv->n_held = 0;
    for (int l = 0; l < KV_SOURCES; l++)
        if (kv->level[l].slots) kv_shed(kv, (enum kv_source)l, now);
    for (size_t i = 0; i < ARRAY_LEN(tiers); i++)
        if (tiers[i]) tier_flush(tiers[i]);
}

uint64_t kvstore_next(const struct kvstore *kv, uint64_t now)
{
    bool waiting = kv->waiting[KV_RAM] || kv->waiting[KV_SSD];
    if (waiting && kv->n_loads == 0) return now;
    uint64_t next = kv_min(kv->free_at, kv_stores_next(kv, now));
    const struct tier *ssd = kv->o.ssd;
    if (ssd && ssd->wipes.left) next = kv_min(next, ssd->wipes.at);
    if (ssd && ssd->naming.left) next = kv_min(next, ssd->naming.at);
    if (kv->n_held) next = kv_min(next, kv->held_until);
    if (kv->short_since && kv->short_until > now) next = kv_min(next, kv->short_until);
    for (uint32_t i = kv->oldest_wake; i != KV_NONE; i = kv->wakes[i].newer)
        if (kv->wakes[i].state == WAKE_WAITING)
            next = kv_min(next, kv->wakes[i].deadline);
    for (int l = 0; l < KV_SOURCES; l++)
        if (kv->level[l].excess) next = now;
    return next > now ? next : now;
}

/* Waiting makes no room: nobody frees any. */
static bool may_drain(const struct kvstore *kv, uint64_t now)
{
    const struct tier *ssd = kv->o.ssd;
    return ssd && (kv_tier_takes(kv, KV_SSD, now) || !tier_waits_for_room(ssd));
}

bool kvstore_drain(struct kvstore *kv, uint64_t now)
{
    if (!kv->drained && kv->o.ssd) tier_try_again(kv->o.ssd);
    kv->drained = true;
    if (!may_drain(kv, now)) return kvstore_settle(kv, now);
    kv->draining = true;
    kvstore_step(kv, now);
    kv->draining = false;
    return kv->level[KV_DEVICE].to_copy.n == 0 && kv->level[KV_RAM].to_copy.n == 0 &&
           kv->n_stores == 0;
}

uint32_t kvstore_unsaved(const struct kvstore *kv)
{
    return kv->level[KV_DEVICE].to_copy.n + kv->level[KV_RAM].to_copy.n + kv->n_stores;
}

bool kvstore_settle(struct kvstore *kv, uint64_t now)
{
    reap_all(kv, now);
    if (kv->o.ram) tier_flush(kv->o.ram);
    if (kv->o.ssd) tier_flush(kv->o.ssd);
    return !kvstore_in_flight(kv);
}

bool kvstore_in_flight(const struct kvstore *kv)
{
    return kv->n_loads || kv->n_stores;
}

void kvstore_count(const struct kvstore *kv, struct kvstore_counters *out)
{
    *out = kv->count;
}
