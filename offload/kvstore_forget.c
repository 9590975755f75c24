/* kvstore_forget.c - deleting a conversation: its blocks leave every level.
 *
 * From its last block up, each block goes until one is met that another conversation needs:
 * the last block of another record, or one with a branch in which such a block, or one in
 * use, lies.  Above that everything is shared.  Branches on the way that belong to no record
 * (an older reply, say) go too.  Whatever has gone, the record's path is shorter by it, so
 * that one interrupted by -EBUSY goes on where it was.
 */
#include "offload/kvstore_state.h"

struct deletion {
    struct kvstore *kv;
    uint32_t record, group;
};

static bool is_others_last(const struct deletion *d, const struct block_meta *m)
{
    uint32_t r = kv_record_with_last(d->kv, m);
    if (r == d->record) r = kv_record_next(d->kv, BY_LAST, r, m);
    return r != KV_NONE;
}

/* A block that follows m, in any level; NULL. */
static const struct block_meta *any_child(const struct kvstore *kv,
                                          const struct block_meta *m)
{
    const struct block_meta *child = NULL;
    for (int l = 0; l < KV_SOURCES && !child; l++)
        child = kv_child(kv, (enum kv_source)l, m);
    return child;
}

/* The slot of a level that has it; another block of the same name is none of ours. */
static uint32_t slot_of(const struct kvstore *kv, int l, const struct block_meta *m)
{
    const struct slots *s = kv->level[l].slots;
    uint32_t i = s ? slots_find(s, &m->id) : SLOT_NONE;
    return i != SLOT_NONE && slots_at(s, i)->meta.depth == m->depth ? i : SLOT_NONE;
}

/* 0: somebody's page can be freed; -EBUSY: on its way; -EUSERS: a sequence reads it. */
static int standing(const struct kvstore *kv, const struct block_meta *m)
{
    for (int l = 0; l < KV_SOURCES; l++) {
        const struct slots *s = kv->level[l].slots;
        uint32_t i = slot_of(kv, l, m);
        if (i == SLOT_NONE) continue;
        if (l == KV_DEVICE && kv_active(kv, i)) return -EUSERS;
        if (slots_at(s, i)->state != SLOT_READY || slots_at(s, i)->pins) return -EBUSY;
        if (kv->level[l].notes[i].moving) return -EBUSY;
    }
    return 0;
}

static void erase(const struct deletion *d, const struct block_meta *m)
{
    struct kvstore *kv = d->kv;
    for (int l = 0; l < KV_SOURCES; l++) {
        struct kv_level *level = &kv->level[l];
        uint32_t i = slot_of(kv, l, m);
        if (i == SLOT_NONE) continue;
        kv_unlist(kv, (enum kv_source)l, i);
        if (l == KV_DEVICE) {
            slots_release(level->slots, i);
            kv->pages.unref(kv->pages.arg, i);
        } else {
            int rc = tier_erase(level->tier, &m->id, d->group);
            assert(rc == 0);  // standing() has looked
            (void)rc;
        }
    }
    kv_gone(kv, m);
}

/* From m: a leaf below it that nobody needs is erased, then the next, until m itself is
 * gone (0), or somebody needs it (-EUSERS), or a transfer has to land first (-EBUSY). */
static int prune(const struct deletion *d, struct block_meta m)
{
    struct kvstore *kv = d->kv;
    uint32_t top = m.depth;
    for (;;) {
        if (is_others_last(d, &m)) return -EUSERS;
        const struct block_meta *child = any_child(kv, &m);
        if (child) {
            m = *child;
            continue;
        }
        int rc = standing(kv, &m);
        if (rc < 0) return rc;
        const struct block_meta *parent = kv_parent(kv, &m);
        struct block_meta up = parent ? *parent : m;
        erase(d, &m);
        if (m.depth == top) return 0;
        if (!parent) return -EBUSY;  // cannot be: it was reached from there
        m = up;
    }
}

/* The path had a gap, so that what is above it cannot be reached from below: whatever
 * nobody needs of this tenant's blocks at that depth, and above them, goes. */
static int prune_above(const struct deletion *d, uint64_t tenant, uint32_t depth)
{
    for (int l = 0; l < KV_SOURCES; l++) {
        const struct slots *s = d->kv->level[l].slots;
        for (uint32_t i = 0; s && i < slots_capacity(s); i++) {
            const struct slot *x = slots_at(s, i);
            if (x->state == SLOT_FREE || x->meta.tenant != tenant) continue;
            if (x->meta.depth != depth) continue;
            const struct block_meta *next = &x->meta;
            int rc = 0;
            while (rc == 0 && next) {
                struct block_meta m = *next;
                rc = prune(d, m);
                next = kv_parent(d->kv, &m);
            }
            if (rc == -EBUSY) return rc;
        }
    }
    return 0;
}

int kvstore_forget(struct kvstore *kv, uint64_t tenant, const char *name)
{
    uint32_t r = kv_record_named(kv, tenant, name);
    if (r == KV_NONE) return -ENOENT;
    const struct kv_record *x = &kv->records->at[r];
    if (x->running || kv_waking(kv, r)) return -EBUSY;
    kv_end_hold(kv, r);

    const struct deletion d = {kv, r, name_group(tenant, name)};
    while (x->used && x->blocks) {
        const struct block_meta *m = kv_meta(kv, &x->last);
        if (!m || m->depth + 1 != x->blocks) {
            if (x->blocks >= 2 && prune_above(&d, tenant, x->blocks - 2) < 0)
                return -EBUSY;
            break;
        }
        int rc = prune(&d, *m);
        if (rc == -EUSERS) break;  // from here on it is shared
        if (rc < 0) return rc;
    }
    if (x->used) kv_record_remove(kv, r);
    return 0;
}

bool kvstore_erasing(const struct kvstore *kv, uint64_t tenant, const char *name)
{
    return kv->o.ssd && kv->o.ssd->to_erase[name_group(tenant, name)] > 0;
}
