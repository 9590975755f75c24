/* kvstore_conversations.c - what can be asked and done by a conversation's name.
 *
 * A record names the last block that is stored; the others are found from child to parent.
 * As the suffix goes before the prefix, that path is whole but for blocks that were lost to
 * damage.
 */
#include "offload/kvstore_state.h"

static const struct block_meta *last_of(const struct kvstore *kv, uint32_t r)
{
    const struct kv_record *x = &kv->records->at[r];
    const struct block_meta *m = x->blocks ? kv_meta(kv, &x->last) : NULL;
    return m && m->depth + 1 == x->blocks ? m : NULL;
}

// ---- holds -----------------------------------------------------------------------------------

static void set_hold(struct kvstore *kv, uint32_t r, uint64_t until)
{
    struct kv_record *x = &kv->records->at[r];
    for (const struct block_meta *m = last_of(kv, r); m; m = kv_parent(kv, m)) {
        for (int l = KV_DEVICE; l < KV_SOURCES; l++) {
            uint32_t s = kv_match(kv, (enum kv_source)l, m);
            if (s == SLOT_NONE) continue;
            // Another conversation may hold a block that both share for longer.
            uint64_t *held = &kv_note(kv, (enum kv_source)l, s)->held_until;
            if (*held < until || *held == x->held_until) *held = until;
        }
    }
    x->held_until = until;
    x->held = until ? x->blocks : 0;
    if (kv->holds_until < until) kv->holds_until = until;
    kv->n_held = 0;
    kv->held_until = 0;  // to be counted anew
    kv_quiet_at(kv, 0);
}

void kv_end_hold(struct kvstore *kv, uint32_t r)
{
    if (kv->records->at[r].held_until) set_hold(kv, r, 0);
}

/* Half of the level in which what is held is to stay. */
static uint32_t most_held(const struct kvstore *kv)
{
    enum kv_source l = kv->level[KV_RAM].slots ? KV_RAM : KV_DEVICE;
    return slots_capacity(kv->level[l].slots) / 2;
}

uint64_t kvstore_hold_tokens(const struct kvstore *kv)
{
    return (uint64_t)most_held(kv) * kv->o.block_tokens;
}

static uint32_t held_by(const struct kv_record *x, uint64_t now)
{
    return x->held_until > now ? x->held : 0;
}

/* May record r hold so many blocks, beside what all others hold?  As many as it has held
 * it may: what others have come to hold since is their share of the rest. */
static bool may_hold(const struct kvstore *kv, uint32_t r, uint32_t blocks,
                     uint32_t has_held, uint64_t now)
{
    if (blocks <= has_held) return true;
    const struct kv_records *rs = kv->records;
    uint64_t all = blocks, own = blocks;
    for (uint32_t i = rs->newest; i != KV_NONE; i = rs->at[i].older) {
        if (i == r) continue;
        uint32_t held = held_by(&rs->at[i], now);
        all += held;
        if (rs->at[i].tenant == rs->at[r].tenant) own += held;
    }
    uint64_t quota = kv->level[KV_RAM].slots ? kv->policy.ram_quota : 0;
    uint64_t most = most_held(kv), others = all - own;
    if (all > most) return false;
    if (kv->o.several_tenants && own > (most - others) / 2) return false;
    return quota == 0 || own * kv->block_bytes <= quota;
}

int kvstore_hold(struct kvstore *kv, uint64_t tenant, const char *name, uint64_t until,
                 uint64_t now)
{
    uint32_t r = kv_record_named(kv, tenant, name);
    if (r == KV_NONE) return -ENOENT;
    const struct kv_record *x = &kv->records->at[r];
    if (until > now && !may_hold(kv, r, x->blocks, held_by(x, now), now))
        return -EDQUOT;
    set_hold(kv, r, until > now ? until : 0);
    return 0;
}

/* The path of a held conversation is about to be p's.  Until when its blocks are held: new
 * ones too if they may be, and none that it leaves behind. */
static uint64_t move_hold(struct kvstore *kv, uint32_t r, const struct kv_prompt *p,
                          uint64_t now)
{
    struct kv_record *x = &kv->records->at[r];
    uint64_t until = x->held_until;
    uint32_t held = held_by(x, now);
    if (until <= now) return 0;
    bool goes_on =
        x->blocks <= p->n_meta &&
        (x->blocks == 0 || block_id_equal(&p->meta[x->blocks - 1].id, &x->last));
    if (!goes_on) set_hold(kv, r, 0);
    if (!may_hold(kv, r, p->n_meta, held, now)) return 0;
    x->held_until = until;
    x->held = p->n_meta;
    return until;
}

// ---- the end of a turn ----------------------------------------------------------------------

/* Every block of the conversation, last to first, so that the first is the newest. */
static uint32_t settle(struct kvstore *kv, const struct kv_prompt *p, uint64_t held,
                       uint64_t now)
{
    uint32_t stored = 0;
    for (uint32_t i = p->n_meta; i-- > 0;) {
        for (int l = 0; l < KV_SOURCES; l++) {
            uint32_t s = kv_match(kv, (enum kv_source)l, &p->meta[i]);
            if (s == SLOT_NONE) continue;
            kv_touch(kv, (enum kv_source)l, s, now);
            struct kv_note *note = kv_note(kv, (enum kv_source)l, s);
            if (note->held_until < held) note->held_until = held;
            note->leaving = false;
            note->tries = 0;
            if (stored == 0) stored = i + 1;
        }
    }
    return stored;
}

/* What is not in the next level yet is listed, prefix first. */
static void list_new(struct kvstore *kv, const struct kv_prompt *p)
{
    for (uint32_t i = 0; i < p->n_meta; i++) {
        for (int l = KV_DEVICE; l <= KV_RAM; l++) {
            uint32_t s = kv_match(kv, (enum kv_source)l, &p->meta[i]);
            enum kv_source to = kv_next_level(kv, (enum kv_source)l);
            if (s == SLOT_NONE || to == KV_SOURCES) continue;
            const struct kv_note *note = kv_note(kv, (enum kv_source)l, s);
            if (note->moving || note->needed) continue;
            if (kv_match(kv, to, &p->meta[i]) == SLOT_NONE)
                kv_list_block(kv, (enum kv_source)l, s);
        }
    }
}

void kvstore_idle(struct kvstore *kv, const struct kv_prompt *p, uint64_t now)
{
    uint32_t r = kv_record_of(kv, p, true);
    uint64_t held = r == KV_NONE ? 0 : move_hold(kv, r, p, now);
    uint32_t stored = settle(kv, p, held, now);
    list_new(kv, p);
    kv_quiet_at(kv, now + kv->policy.idle_after);
    if (r == KV_NONE) return;

    struct kv_record *x = &kv->records->at[r];
    if (p->begun) {
        assert(x->running > 0);
        x->running--;
    }
    x->tokens = p->n_tokens;
    kv_record_touch(kv, r, now);
    kv_record_set_last(kv, r, stored ? &p->meta[stored - 1].id : NULL, stored);
}

// ---- questions -------------------------------------------------------------------------------

static void describe(const struct kvstore *kv, uint32_t r, struct kv_conversation *out)
{
    const struct kv_record *x = &kv->records->at[r];
    *out = (struct kv_conversation){
        .tenant = x->tenant,
        .tokens = x->tokens,
        .last_used = x->last_used,
        .held_until = x->held_until,
    };
    memcpy(out->name, x->name, sizeof out->name);
    bool filling = false;
    const struct slots *g1 = kv->level[KV_DEVICE].slots;
    for (const struct block_meta *m = last_of(kv, r); m; m = kv_parent(kv, m)) {
        for (int l = 0; l < KV_SOURCES; l++)
            out->blocks[l] += kv_match(kv, (enum kv_source)l, m) != SLOT_NONE;
        uint32_t page = slots_find(g1, &m->id);
        filling |= page != SLOT_NONE && slots_at(g1, page)->state == SLOT_FILLING;
    }

    if (kv_waking(kv, r) || (filling && !x->running)) {
        out->state = KV_WAKING;
    } else if (x->running) {
        out->state = KV_ACTIVE;
    } else {
        out->state = out->blocks[KV_DEVICE] ? KV_IDLE : KV_ASLEEP;
    }
}

uint32_t kvstore_conversations(const struct kvstore *kv)
{
    return kv->records->n;
}

bool kvstore_conversation_at(const struct kvstore *kv, uint32_t i,
                             const uint64_t *tenant, struct kv_conversation *out)
{
    struct kv_records *rs = kv->records;
    if (i >= rs->n) return false;
    bool goes_on = rs->asked_record != KV_NONE && rs->asked_position <= i;
    uint32_t r = goes_on ? rs->asked_record : rs->newest;
    for (uint32_t at = goes_on ? rs->asked_position : 0; at < i; at++)
        r = rs->at[r].older;
    rs->asked_record = r;
    rs->asked_position = i;
    if (!tenant || *tenant == rs->at[r].tenant)
        describe(kv, r, out);
    else
        *out = (struct kv_conversation){.tenant = rs->at[r].tenant};
    return true;
}

bool kvstore_conversation_find(const struct kvstore *kv, uint64_t tenant,
                               const char *name, struct kv_conversation *out)
{
    uint32_t r = kv_record_named(kv, tenant, name);
    if (r != KV_NONE) describe(kv, r, out);
    return r != KV_NONE;
}

// ---- sleep, prefetch -------------------------------------------------------------------------

/* Its record, if it is there; -EBUSY where somebody is using it. */
static int quiet_record(const struct kvstore *kv, uint64_t tenant, const char *name,
                        uint32_t *r)
{
    *r = kv_record_named(kv, tenant, name);
    if (*r == KV_NONE) return -ENOENT;
    return kv->records->at[*r].running ? -EBUSY : 0;
}

int kvstore_sleep(struct kvstore *kv, uint64_t tenant, const char *name, uint64_t now)
{
    uint32_t r;
    int rc = quiet_record(kv, tenant, name, &r);
    if (rc < 0) return rc;
    (void)now;

    kv_end_hold(kv, r);
    const struct slots *g1 = kv->level[KV_DEVICE].slots;
    const struct block_meta *next;
    for (const struct block_meta *m = last_of(kv, r); m; m = next) {
        next = kv_parent(kv, m);
        uint32_t page = slots_find(g1, &m->id);
        if (page == SLOT_NONE) continue;
        if (slots_at(g1, page)->state == SLOT_FILLING) rc = -EBUSY;
        if (kv_match(kv, KV_DEVICE, m) != page || kv_active(kv, page)) continue;
        if (kv_note(kv, KV_DEVICE, page)->moving) {
            kv_note(kv, KV_DEVICE, page)->leaving = true;
        } else if (kv_below(kv, KV_DEVICE, m)) {
            kv_evict(kv, KV_DEVICE, page);
        } else if (kv_next_level(kv, KV_DEVICE) != KV_SOURCES) {
            kv_list_urgent(kv, page);  // each before the last: prefix first in the end
        }
    }
    return rc;
}

int kvstore_prefetch(struct kvstore *kv, uint64_t tenant, const char *name,
                     uint64_t now)
{
    uint32_t r;
    int rc = quiet_record(kv, tenant, name, &r);
    if (rc == -EBUSY && kv_waking(kv, r)) return 0;
    if (rc < 0) return rc;

    uint32_t n = 0, expected = kv->records->at[r].blocks, cap = kv->pages.capacity;
    for (const struct block_meta *m = last_of(kv, r); m; m = kv_parent(kv, m)) {
        if (m->depth < cap) kv->path[m->depth] = *m;
        n++;
    }
    if (n == 0 || n != expected)
        return 0;  // the message itself will find what there is
    struct kv_prompt p = {
        .meta = kv->path,
        .n_meta = n < cap ? n : cap,
        .n_tokens = (n < cap ? n : cap) * kv->o.block_tokens,
        .tenant = tenant,
        .compute_price = 1,
    };
    kv->records->at[r].running++;  // until its loads have begun
    kv_record_touch(kv, r, now);
    kv_prefetch(kv, &p, r, now);
    return 0;
}
