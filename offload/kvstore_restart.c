/* kvstore_restart.c - what a restart makes of the SSD's blocks and of the names beside them.
 *
 * An entry is a conversation if the block that it ends with is there; of two with one name the
 * later used is.  It is the record of its own number, so that nothing moves in the file; what
 * is no conversation goes from there.  Then whatever else nothing follows, a leaf, belongs to
 * the conversations of the first block above it that any of them has:
 *
 *     the last block of one              a turn that was cut short: that one goes on to the
 *                                        leaf, and of several to the one stored last
 *     in the middle of just one          an older reply of it, which goes when it is deleted
 *     shared by several, or there is     a conversation whose name is not known: it gets a
 *     no such block                      derived one
 */
#include "offload/kvstore_state.h"

#include <stdlib.h>

#define SHARED                                                                         \
    (KV_NONE - 1)  // by several conversations, or one whose name is not known

struct entry {
    uint64_t sequence;
    uint32_t record;
};

struct restart {
    struct kvstore *kv;
    const struct slots *s;
    uint32_t n_names;
    struct entry *entries;  // the conversations, the latest used first
    uint32_t n_entries;
    uint32_t *leaves;  // slots, the latest stored last
    uint32_t n_leaves;
    uint32_t *owner;  // (slots) the record whose path it is on; SHARED; KV_NONE
};

// ---- paths -----------------------------------------------------------------------------

static uint32_t slot_of(const struct restart *x, const struct block_id *id,
                        uint32_t depth)
{
    uint32_t i = slots_find(x->s, id);
    if (i == SLOT_NONE || slots_at(x->s, i)->state != SLOT_READY) return SLOT_NONE;
    return slots_at(x->s, i)->meta.depth == depth ? i : SLOT_NONE;
}

static uint32_t above(const struct restart *x, uint32_t i)
{
    const struct block_meta *m = &slots_at(x->s, i)->meta;
    return m->depth ? slot_of(x, &m->parent, m->depth - 1) : SLOT_NONE;
}

/* From slot i up it is on the path of this one too. */
static void claim(struct restart *x, uint32_t i, uint32_t record)
{
    for (; i != SLOT_NONE; i = above(x, i)) {
        uint32_t *owner = &x->owner[i];
        if (*owner == record || *owner == SHARED) return;
        *owner = *owner == KV_NONE ? record : SHARED;
    }
}

// ---- names -----------------------------------------------------------------------------

static int by_use(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->sequence != y->sequence) return x->sequence < y->sequence ? 1 : -1;
    return x->record < y->record ? 1 : -1;
}

static bool has_block(const struct restart *x, const struct kept_name *n)
{
    uint32_t i = slot_of(x, &n->last, n->depth);
    return i != SLOT_NONE && slots_at(x->s, i)->meta.tenant == n->tenant;
}

static void list_entries(struct restart *x)
{
    struct kept_name name;
    for (uint32_t i = 0; i < x->n_names; i++) {
        tier_name_at(x->kv->o.ssd, i, &name);
        if (name.name[0] && has_block(x, &name))
            x->entries[x->n_entries++] = (struct entry){name.sequence, i};
    }
    if (x->n_entries) qsort(x->entries, x->n_entries, sizeof *x->entries, by_use);
}

static void take_names(struct restart *x)
{
    uint32_t n = 0;
    struct kept_name name;
    for (uint32_t k = 0; k < x->n_entries; k++) {
        uint32_t r = x->entries[k].record;
        tier_name_at(x->kv->o.ssd, r, &name);
        if (kv_record_named(x->kv, name.tenant, name.name) != KV_NONE) continue;
        kv_record_restore(x->kv, r, &name);
        claim(x, slot_of(x, &name.last, name.depth), r);
        x->entries[n++] = x->entries[k];
    }
    x->n_entries = n;
    kv_records_link_free(x->kv->records, x->kv->o.ssd);
}

/* The last used is the newest; then come those whose names are not known. */
static void order_names(struct restart *x)
{
    for (uint32_t k = x->n_entries; k-- > 0;)
        kv_record_renew(x->kv->records, x->entries[k].record);
}

// ---- leaves ----------------------------------------------------------------------------

static void list_leaves(struct restart *x)
{
    for (uint32_t i = slots_coldest(x->s, NULL); i != SLOT_NONE;
         i = slots_at(x->s, i)->newer)
        if (slots_child(x->s, &slots_at(x->s, i)->meta.id, SLOT_NONE) == SLOT_NONE)
            x->leaves[x->n_leaves++] = i;
}

/* The first slot from there up that is on anybody's path; SLOT_NONE. */
static uint32_t first_owned(const struct restart *x, uint32_t i)
{
    while (i != SLOT_NONE && x->owner[i] == KV_NONE) i = above(x, i);
    return i;
}

static bool ends_with(const struct restart *x, uint32_t record, uint32_t i)
{
    return block_id_equal(&x->kv->records->at[record].last,
                          &slots_at(x->s, i)->meta.id);
}

/* The latest first, as the first that follows a name has it; those that are left are to get
 * one. */
static void give_leaves(struct restart *x)
{
    for (uint32_t k = x->n_leaves; k-- > 0;) {
        uint32_t leaf = x->leaves[k], at = first_owned(x, leaf);
        x->leaves[k] = SLOT_NONE;
        if (at == leaf) continue;  // a name ends with it
        uint32_t r = at == SLOT_NONE ? SHARED : x->owner[at];
        claim(x, leaf, r);
        if (r == SHARED)
            x->leaves[k] = leaf;
        else if (ends_with(x, r, at))
            kv_record_extend(x->kv, r, &slots_at(x->s, leaf)->meta);
    }
}

/* As many as there are records for. */
static void derive_names(struct restart *x)
{
    const struct kv_records *rs = x->kv->records;
    uint32_t nameless = 0;
    for (uint32_t k = 0; k < x->n_leaves; k++) nameless += x->leaves[k] != SLOT_NONE;
    for (uint32_t k = 0; k < x->n_leaves; k++) {
        if (x->leaves[k] == SLOT_NONE) continue;
        if (nameless-- <= rs->max - rs->n)
            kv_record_derive(x->kv, &slots_at(x->s, x->leaves[k])->meta);
    }
}

/* What names none of the conversations is not to be read any more. */
static void clear_rest(struct restart *x)
{
    for (uint32_t i = 0; i < x->kv->o.ssd->max_names; i++)
        if (i >= x->kv->records->max || !x->kv->records->at[i].used)
            kv_name_clear(x->kv, i);
}

// ---- all of it -------------------------------------------------------------------------

static bool take_memory(struct restart *x)
{
    uint32_t slots = slots_capacity(x->s);
    x->entries = malloc((x->n_names ? x->n_names : 1) * sizeof *x->entries);
    x->leaves = malloc((slots_used(x->s) + 1) * sizeof *x->leaves);
    x->owner = malloc(slots * sizeof *x->owner);
    if (x->owner) memset(x->owner, 0xff, slots * sizeof *x->owner);  // KV_NONE
    return x->entries && x->leaves && x->owner;
}

int kv_find_sleepers(struct kvstore *kv, struct err *err)
{
    const struct tier *t = kv->o.ssd;
    if (!t) return 0;
    uint32_t max = kv->records->max;
    struct restart x = {
        .kv = kv,
        .s = t->slots,
        .n_names = t->max_names < max ? t->max_names : max,
    };
    bool there = take_memory(&x);
    if (there) {
        list_entries(&x);
        take_names(&x);
        list_leaves(&x);
        give_leaves(&x);
        derive_names(&x);
        order_names(&x);
        clear_rest(&x);
    }
    free(x.entries);
    free(x.leaves);
    free(x.owner);
    return there
               ? 0
               : err_set(err, -ENOMEM, "no memory to look for the SSD's conversations");
}
