/* kvstore_find.c - where a block is: asked of the levels each time. */
#include "offload/kvstore_state.h"

uint32_t kv_match(const struct kvstore *kv, enum kv_source l,
                  const struct block_meta *meta)
{
    const struct slots *s = kv->level[l].slots;
    return s ? slots_match(s, meta) : SLOT_NONE;
}

bool kv_below(const struct kvstore *kv, enum kv_source l, const struct block_meta *meta)
{
    for (int k = (int)l + 1; k < KV_SOURCES; k++)
        if (kv_match(kv, (enum kv_source)k, meta) != SLOT_NONE) return true;
    return false;
}

enum kv_source kv_next_level(const struct kvstore *kv, enum kv_source l)
{
    int k = (int)l + 1;
    while (k < KV_SOURCES && !kv->level[k].slots) k++;
    return (enum kv_source)k;
}

const struct block_meta *kv_meta(const struct kvstore *kv, const struct block_id *id)
{
    for (int l = 0; l < KV_SOURCES; l++) {
        const struct slots *s = kv->level[l].slots;
        uint32_t i = s ? slots_find(s, id) : SLOT_NONE;
        if (i != SLOT_NONE && slots_at(s, i)->state != SLOT_LEAVING)
            return &slots_at(s, i)->meta;
    }
    return NULL;
}

const struct block_meta *kv_parent(const struct kvstore *kv,
                                   const struct block_meta *meta)
{
    if (meta->depth == 0) return NULL;
    const struct block_meta *p = kv_meta(kv, &meta->parent);
    return p && p->depth + 1 == meta->depth ? p : NULL;
}

uint32_t kv_before(const struct kvstore *kv, enum kv_source l,
                   const struct block_meta *meta)
{
    const struct slots *s = kv->level[l].slots;
    uint32_t i = s && meta->depth ? slots_find(s, &meta->parent) : SLOT_NONE;
    if (i == SLOT_NONE || slots_at(s, i)->state == SLOT_LEAVING) return SLOT_NONE;
    return slots_at(s, i)->meta.depth + 1 == meta->depth ? i : SLOT_NONE;
}

const struct block_meta *kv_child(const struct kvstore *kv, enum kv_source l,
                                  const struct block_meta *meta)
{
    const struct slots *s = kv->level[l].slots;
    uint32_t i = SLOT_NONE;
    if (!s) return NULL;
    while ((i = slots_child(s, &meta->id, i)) != SLOT_NONE)
        if (slots_at(s, i)->meta.depth == meta->depth + 1) return &slots_at(s, i)->meta;
    return NULL;
}

bool kv_joins(const struct kvstore *kv, enum kv_source l, const struct block_meta *meta)
{
    if (meta->depth == 0) return true;
    for (int k = l; k < KV_SOURCES; k++)
        if (kv_before(kv, (enum kv_source)k, meta) != SLOT_NONE) return true;
    return false;
}

bool kv_leads(const struct kvstore *kv, enum kv_source l, const struct block_meta *meta)
{
    if (kv_below(kv, l, meta)) return false;
    for (int k = (int)l; k >= KV_RAM; k--) {
        if (k < (int)l && kv_match(kv, (enum kv_source)k, meta) != SLOT_NONE)
            return false;
        if (kv_child(kv, (enum kv_source)k, meta)) return true;
    }
    return false;
}

/* One block: its source, and in *where what a wake has to do about it.  KV_SOURCES: it is
 * nowhere, or it cannot come up because its name is taken by another block. */
static enum kv_source find_one(const struct kvstore *kv, const struct block_meta *meta,
                               uint8_t *where)
{
    const struct kv_level *g1 = &kv->level[KV_DEVICE];
    uint32_t i = slots_find(g1->slots, &meta->id);
    if (i != SLOT_NONE) {
        const struct slot *s = slots_at(g1->slots, i);
        if (!block_meta_equal(&s->meta, meta)) return KV_SOURCES;
        bool ready = s->state == SLOT_READY;
        *where = ready ? KV_DEVICE : KV_SOURCES;
        return ready ? KV_DEVICE : (enum kv_source)g1->notes[i].source;
    }
    enum kv_source l = KV_RAM;
    if (kv_match(kv, KV_RAM, meta) == SLOT_NONE)
        l = kv_match(kv, KV_SSD, meta) == SLOT_NONE ? KV_SOURCES : KV_SSD;
    *where = (uint8_t)l;
    return l;
}

static void count_page(const struct kvstore *kv, uint32_t page, struct kv_found *out)
{
    if (page == SLOT_NONE) return;
    const struct kv_note *note = &kv->level[KV_DEVICE].notes[page];
    bool filling = kv_slot(kv, KV_DEVICE, page)->state == SLOT_FILLING;
    bool held = kv->n_held > 0 && note->held_until >= kv->held_until;
    if (filling || note->moving || held || kv_active(kv, page))
        out->busy++;
    else
        out->unsaved += note->unsaved;
}

uint32_t kv_find(const struct kvstore *kv, const struct kv_prompt *p, uint32_t cap,
                 uint8_t *where, struct kv_found *out)
{
    *out = (struct kv_found){0};
    uint32_t n = p->n_meta < cap ? p->n_meta : cap;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t unused;
        enum kv_source l = find_one(kv, &p->meta[i], where ? &where[i] : &unused);
        if (l == KV_SOURCES) break;
        count_page(kv, slots_find(kv->level[KV_DEVICE].slots, &p->meta[i].id), out);
        out->by[l]++;
        out->blocks++;
    }
    return out->blocks;
}

void kvstore_match(const struct kvstore *kv, const struct kv_prompt *p,
                   struct kv_found *out)
{
    kv_find(kv, p, kv->pages.capacity, NULL, out);
}

void kv_touch(struct kvstore *kv, enum kv_source l, uint32_t i, uint64_t now)
{
    slots_touch(kv->level[l].slots, i);
    kv_note(kv, l, i)->last_used = now;
}
