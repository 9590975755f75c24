/* kvstore_names.c - what a restart finds a conversation by: its entry in the table that lies
 * beside the SSD's blocks (struct kept_name), at the record's number.
 *
 * An entry ends with the last of the conversation's blocks as soon as that one and all before
 * it are on the SSD, as a restart finds no block before which one is missing.  Until then it
 * ends where it did, and what has gone down of a new turn is found as what follows that.
 * Blocks leave the SSD from the end: the entry goes up with them.
 */
#include "offload/kvstore_state.h"

/* A block of that name that is the last of so many; NULL: it is not on the SSD. */
static const struct block_meta *on_ssd(const struct kvstore *kv,
                                       const struct block_id *id, uint32_t blocks)
{
    const struct slots *s = kv->level[KV_SSD].slots;
    uint32_t i = s && blocks ? slots_find(s, id) : SLOT_NONE;
    if (i == SLOT_NONE || slots_at(s, i)->state != SLOT_READY) return NULL;
    const struct block_meta *m = &slots_at(s, i)->meta;
    return m->depth + 1 == blocks ? m : NULL;
}

static bool ends_with_last(const struct kv_record *x)
{
    return x->kept == x->blocks && block_id_equal(&x->last_kept, &x->last);
}

/* Are all of its blocks on the SSD?  Those up to where its entry ends have been. */
static bool is_whole(const struct kvstore *kv, const struct kv_record *x)
{
    const struct block_id *id = &x->last;
    for (uint32_t blocks = x->blocks; blocks > 0; blocks--) {
        if (blocks == x->kept && block_id_equal(id, &x->last_kept)) return true;
        const struct block_meta *m = on_ssd(kv, id, blocks);
        if (!m) return false;
        id = &m->parent;
    }
    return x->blocks > 0;
}

void kv_name_clear(struct kvstore *kv, uint32_t i)
{
    struct kept_name name;
    tier_name_at(kv->o.ssd, i, &name);
    if (!name.foreign) tier_put_name(kv->o.ssd, i, NULL);
}

void kv_name_put(struct kvstore *kv, uint32_t r)
{
    const struct kv_record *x = &kv->records->at[r];
    if (!kv->o.ssd) return;
    if (!x->used || x->kept == 0) {
        kv_name_clear(kv, r);
        return;
    }
    struct kept_name name = {
        .tenant = x->tenant,
        .last = x->last_kept,
        .depth = x->kept - 1,
        .tokens = ends_with_last(x) ? x->tokens : x->kept * kv->o.block_tokens,
        .sequence = x->sequence,
    };
    memcpy(name.name, x->name, sizeof name.name);
    tier_put_name(kv->o.ssd, r, &name);
}

void kv_name_settle(struct kvstore *kv, uint32_t r)
{
    const struct kv_record *x = &kv->records->at[r];
    if (is_whole(kv, x)) kv_record_set_kept(kv, r, &x->last, x->blocks);
    kv_name_put(kv, r);
}

/* Records that end with the block, or with one that follows it and was there before it. */
static void settle_from(struct kvstore *kv, const struct block_meta *meta,
                        uint32_t *looks)
{
    const struct slots *s = kv->level[KV_SSD].slots;
    uint32_t r = kv_record_with_last(kv, meta);
    for (; r != KV_NONE; r = kv_record_next(kv, BY_LAST, r, meta))
        kv_name_settle(kv, r);
    uint32_t i = slots_child(s, &meta->id, SLOT_NONE);
    for (; i != SLOT_NONE && *looks > 0; i = slots_child(s, &meta->id, i)) {
        --*looks;
        settle_from(kv, &slots_at(s, i)->meta, looks);
    }
}

/* More than so many that came before it are not looked for: they wait for their next turn. */
void kv_name_landed(struct kvstore *kv, const struct block_meta *meta)
{
    uint32_t looks = KV_LOOKS;
    settle_from(kv, meta, &looks);
}

/* The block before it is there too, but where one was lost to a failure. */
void kv_name_left(struct kvstore *kv, const struct block_meta *meta)
{
    uint32_t r;
    if (on_ssd(kv, &meta->id, meta->depth + 1)) return;
    bool up = on_ssd(kv, &meta->parent, meta->depth);
    while ((r = kv_record_next(kv, BY_KEPT, KV_NONE, meta)) != KV_NONE) {
        kv_record_set_kept(kv, r, up ? &meta->parent : NULL, meta->depth);
        kv_name_put(kv, r);
    }
}

bool kv_names_check(const struct kvstore *kv)
{
    const struct kv_records *rs = kv->records;
    for (uint32_t r = rs->oldest; r != KV_NONE; r = rs->at[r].newer) {
        const struct kv_record *x = &rs->at[r];
        if (x->kept && !on_ssd(kv, &x->last_kept, x->kept)) return false;
    }
    return true;
}
