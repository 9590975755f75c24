/* kvstore_records.c - the table of conversations: found by name, by their last block, and by
 * the last block of their latest prompt; in order of last use. */
#include "offload/kvstore_state.h"

#include <stdio.h>
#include <stdlib.h>

// ---- keys ---------------------------------------------------------------------------------

static uint32_t id_hash(const struct block_id *id)
{
    uint32_t bits;
    memcpy(&bits, id->bytes, sizeof bits);
    return bits;
}

static bool has_key(const struct kv_record *r, enum kv_key key)
{
    switch (key) {
    case BY_LAST: return r->blocks > 0;
    case BY_ANCHOR: return r->anchored;
    case BY_KEPT: return r->kept > 0;
    default: return true;
    }
}

static uint32_t *head_of(const struct kv_records *rs, const struct kv_record *r,
                         enum kv_key key)
{
    uint32_t h = key == BY_NAME   ? name_hash(r->tenant, r->name)
                 : key == BY_LAST ? id_hash(&r->last)
                 : key == BY_KEPT ? id_hash(&r->last_kept)
                                  : id_hash(&r->anchor);
    return &rs->heads[key][h & rs->mask];
}

static void key_link(struct kv_records *rs, uint32_t i, enum kv_key key)
{
    struct kv_record *r = &rs->at[i];
    if (!has_key(r, key)) return;
    uint32_t *head = head_of(rs, r, key);
    r->link[key] = (struct kv_link){KV_NONE, *head};
    if (*head != KV_NONE) rs->at[*head].link[key].prev = i;
    *head = i;
}

static void key_unlink(struct kv_records *rs, uint32_t i, enum kv_key key)
{
    struct kv_record *r = &rs->at[i];
    if (!has_key(r, key)) return;
    struct kv_link *l = &r->link[key];
    *(l->prev == KV_NONE ? head_of(rs, r, key) : &rs->at[l->prev].link[key].next) =
        l->next;
    if (l->next != KV_NONE) rs->at[l->next].link[key].prev = l->prev;
}

static void lru_unlink(struct kv_records *rs, uint32_t i)
{
    struct kv_record *r = &rs->at[i];
    *(r->older == KV_NONE ? &rs->oldest : &rs->at[r->older].newer) = r->newer;
    *(r->newer == KV_NONE ? &rs->newest : &rs->at[r->newer].older) = r->older;
    rs->asked_record = KV_NONE;
}

static void lru_append(struct kv_records *rs, uint32_t i)
{
    rs->at[i].older = rs->newest;
    rs->at[i].newer = KV_NONE;
    *(rs->newest == KV_NONE ? &rs->oldest : &rs->at[rs->newest].newer) = i;
    rs->newest = i;
    rs->asked_record = KV_NONE;
}

// ---- opening ------------------------------------------------------------------------------

static uint32_t buckets_for(uint32_t max)
{
    uint32_t n = 1;
    while (n < max) n *= 2;
    return n;
}

int kv_records_open(struct kv_records **out, uint32_t max, struct err *err)
{
    struct kv_records *rs = calloc(1, sizeof *rs);
    if (!rs) return err_set(err, -ENOMEM, "no memory for the table of conversations");
    uint32_t buckets = buckets_for(max);
    *rs = (struct kv_records){
        .at = calloc(max, sizeof *rs->at),
        .max = max,
        .mask = buckets - 1,
        .oldest = KV_NONE,
        .newest = KV_NONE,
        .asked_record = KV_NONE,
    };
    bool there = rs->at != NULL;
    for (int k = 0; k < KV_KEYS; k++) {
        rs->heads[k] = malloc(buckets * sizeof *rs->heads[k]);
        if (rs->heads[k]) memset(rs->heads[k], 0xff, buckets * sizeof *rs->heads[k]);
        there = there && rs->heads[k];
    }
    if (!there) {
        kv_records_close(rs);
        return err_set(err, -ENOMEM,
                       "a table of %u conversations takes %zu MiB of memory, which are "
                       "not there",
                       max, kv_records_bytes(max) >> 20);
    }
    kv_records_link_free(rs, NULL);
    *out = rs;
    return 0;
}

void kv_records_close(struct kv_records *rs)
{
    if (!rs) return;
    for (int k = 0; k < KV_KEYS; k++) free(rs->heads[k]);
    free(rs->at);
    free(rs);
}

size_t kv_records_bytes(uint32_t max)
{
    return sizeof(struct kv_records) + (size_t)max * sizeof(struct kv_record) +
           (size_t)KV_KEYS * buckets_for(max) * sizeof(uint32_t);
}

// ---- finding ------------------------------------------------------------------------------

uint32_t kv_record_named(const struct kvstore *kv, uint64_t tenant, const char *name)
{
    const struct kv_records *rs = kv->records;
    uint32_t i = rs->heads[BY_NAME][name_hash(tenant, name) & rs->mask];
    while (i != KV_NONE &&
           (rs->at[i].tenant != tenant || strcmp(rs->at[i].name, name) != 0))
        i = rs->at[i].link[BY_NAME].next;
    return i;
}

static bool has_block(const struct kv_record *r, enum kv_key key,
                      const struct block_meta *meta)
{
    uint32_t blocks = key == BY_LAST ? r->blocks : r->kept;
    const struct block_id *last = key == BY_LAST ? &r->last : &r->last_kept;
    return blocks == meta->depth + 1 && block_id_equal(last, &meta->id);
}

uint32_t kv_record_next(const struct kvstore *kv, enum kv_key key, uint32_t after,
                        const struct block_meta *meta)
{
    const struct kv_records *rs = kv->records;
    assert(key == BY_LAST || key == BY_KEPT);
    uint32_t i = after == KV_NONE ? rs->heads[key][id_hash(&meta->id) & rs->mask]
                                  : rs->at[after].link[key].next;
    while (i != KV_NONE && !has_block(&rs->at[i], key, meta))
        i = rs->at[i].link[key].next;
    return i;
}

uint32_t kv_record_with_last(const struct kvstore *kv, const struct block_meta *meta)
{
    return kv_record_next(kv, BY_LAST, KV_NONE, meta);
}

static uint32_t with_anchor(const struct kv_records *rs, uint64_t tenant,
                            const struct block_id *id)
{
    uint32_t i = rs->heads[BY_ANCHOR][id_hash(id) & rs->mask];
    while (i != KV_NONE &&
           (rs->at[i].tenant != tenant || !block_id_equal(&rs->at[i].anchor, id)))
        i = rs->at[i].link[BY_ANCHOR].next;
    return i;
}

// ---- making and removing ------------------------------------------------------------------

void kv_record_remove(struct kvstore *kv, uint32_t i)
{
    struct kv_records *rs = kv->records;
    for (int k = 0; k < KV_KEYS; k++) key_unlink(rs, i, (enum kv_key)k);
    lru_unlink(rs, i);
    rs->at[i] = (struct kv_record){.newer = rs->free};
    rs->free = i;
    rs->n--;
    kv_name_put(kv, i);
}

/* The one used longest ago that may go: held ones only after some looking. */
static uint32_t victim(const struct kv_records *rs)
{
    uint32_t looks = 0, any = KV_NONE;
    for (uint32_t i = rs->oldest; i != KV_NONE && looks < KV_LOOKS;
         i = rs->at[i].newer) {
        if (rs->at[i].running) continue;
        if (rs->at[i].held_until <= rs->at[rs->newest].last_used) return i;
        if (any == KV_NONE) any = i;
        looks++;
    }
    return any;
}

static void fill(struct kv_records *rs, uint32_t i, uint64_t tenant, const char *name)
{
    rs->at[i] = (struct kv_record){.used = true, .tenant = tenant};
    memcpy(rs->at[i].name, name, strnlen(name, KVSTORE_CONVERSATION - 1));
    rs->n++;
    key_link(rs, i, BY_NAME);
    lru_append(rs, i);
}

static uint32_t make(struct kvstore *kv, uint64_t tenant, const char *name)
{
    struct kv_records *rs = kv->records;
    if (rs->free == KV_NONE) {
        uint32_t old = victim(rs);
        if (old == KV_NONE) return KV_NONE;
        kv_end_hold(kv, old);
        kv_record_remove(kv, old);
    }
    uint32_t i = rs->free;
    rs->free = rs->at[i].newer;
    fill(rs, i, tenant, name);
    return i;
}

/* A name of the last block of the first prompt; a number makes it the only one. */
static uint32_t make_derived(struct kvstore *kv, const struct block_meta *meta)
{
    char name[KVSTORE_CONVERSATION], hex[2 * 12 + 1];
    for (int i = 0; i < 12; i++) snprintf(hex + 2 * i, 3, "%02x", meta->id.bytes[i]);
    snprintf(name, sizeof name, "conv-%s", hex);
    while (kv_record_named(kv, meta->tenant, name) != KV_NONE)
        snprintf(name, sizeof name, "conv-%s-%u", hex, ++kv->records->serial);
    return make(kv, meta->tenant, name);
}

uint32_t kv_record_of(struct kvstore *kv, const struct kv_prompt *p, bool may_make)
{
    if (p->conversation[0]) {
        uint32_t i = kv_record_named(kv, p->tenant, p->conversation);
        return i == KV_NONE && may_make ? make(kv, p->tenant, p->conversation) : i;
    }
    for (uint32_t n = p->n_meta; n-- > 0;) {
        uint32_t i = with_anchor(kv->records, p->tenant, &p->meta[n].id);
        if (i != KV_NONE) return i;
    }
    if (p->n_meta == 0 || !may_make) return KV_NONE;
    return make_derived(kv, &p->meta[p->n_meta - 1]);
}

// ---- a restart -----------------------------------------------------------------------------

static void push_free(struct kv_records *rs, const struct tier *ssd, bool foreign)
{
    struct kept_name name = {0};
    for (uint32_t i = rs->max; i-- > 0;) {
        if (rs->at[i].used) continue;
        if (ssd) tier_name_at(ssd, i, &name);
        if (name.foreign != foreign) continue;
        rs->at[i].newer = rs->free;
        rs->free = i;
    }
}

void kv_records_link_free(struct kv_records *rs, const struct tier *ssd)
{
    rs->free = KV_NONE;
    push_free(rs, ssd, true);
    push_free(rs, ssd, false);
}

/* All these blocks are on the SSD, and its tokens fill them at least. */
static void end_with(struct kvstore *kv, uint32_t i, const struct block_id *last,
                     uint32_t blocks, uint32_t tokens)
{
    uint32_t least = blocks * kv->o.block_tokens;
    kv->records->at[i].tokens = tokens > least ? tokens : least;
    kv_record_set_kept(kv, i, last, blocks);
    kv_record_set_last(kv, i, last, blocks);
    kv_record_set_anchor(kv, i, last);
}

void kv_record_restore(struct kvstore *kv, uint32_t i, const struct kept_name *name)
{
    struct kv_records *rs = kv->records;
    fill(rs, i, name->tenant, name->name);
    rs->at[i].sequence = name->sequence;
    if (rs->sequence < name->sequence) rs->sequence = name->sequence;
    end_with(kv, i, &name->last, name->depth + 1, name->tokens);
}

void kv_record_extend(struct kvstore *kv, uint32_t i, const struct block_meta *leaf)
{
    end_with(kv, i, &leaf->id, leaf->depth + 1, 0);
}

void kv_record_derive(struct kvstore *kv, const struct block_meta *leaf)
{
    uint32_t i = make_derived(kv, leaf);
    if (i != KV_NONE) kv_record_extend(kv, i, leaf);
}

// ---- changing ------------------------------------------------------------------------------

void kv_record_renew(struct kv_records *rs, uint32_t i)
{
    lru_unlink(rs, i);
    lru_append(rs, i);
}

void kv_record_touch(struct kvstore *kv, uint32_t i, uint64_t now)
{
    kv_record_renew(kv->records, i);
    kv->records->at[i].last_used = now;
    kv->records->at[i].sequence = ++kv->records->sequence;
}

void kv_record_set_last(struct kvstore *kv, uint32_t i, const struct block_id *last,
                        uint32_t blocks)
{
    struct kv_record *r = &kv->records->at[i];
    key_unlink(kv->records, i, BY_LAST);
    r->blocks = last ? blocks : 0;
    if (r->blocks) r->last = *last;
    if (r->held > r->blocks) r->held = r->blocks;
    key_link(kv->records, i, BY_LAST);
    if (r->blocks == 0 && r->running == 0)
        kv_record_remove(kv, i);
    else
        kv_name_settle(kv, i);
}

void kv_record_set_kept(struct kvstore *kv, uint32_t i, const struct block_id *last,
                        uint32_t blocks)
{
    struct kv_record *r = &kv->records->at[i];
    key_unlink(kv->records, i, BY_KEPT);
    r->kept = last ? blocks : 0;
    if (r->kept) r->last_kept = *last;
    key_link(kv->records, i, BY_KEPT);
}

void kv_record_release(struct kvstore *kv, uint32_t i)
{
    struct kv_record *r = &kv->records->at[i];
    if (r->running) r->running--;
    if (r->blocks == 0 && r->running == 0) kv_record_remove(kv, i);
}

void kv_record_set_anchor(struct kvstore *kv, uint32_t i, const struct block_id *anchor)
{
    key_unlink(kv->records, i, BY_ANCHOR);
    kv->records->at[i].anchor = *anchor;
    kv->records->at[i].anchored = true;
    key_link(kv->records, i, BY_ANCHOR);
}

// ---- the invariants --------------------------------------------------------------------------

static bool found_by(const struct kv_records *rs, uint32_t i, enum kv_key key)
{
    if (!has_key(&rs->at[i], key)) return true;
    uint32_t k = *head_of(rs, &rs->at[i], key), before = KV_NONE;
    for (; k != KV_NONE && k != i; k = rs->at[k].link[key].next) before = k;
    return k == i && rs->at[i].link[key].prev == before;
}

bool kv_records_check(const struct kvstore *kv)
{
    const struct kv_records *rs = kv->records;
    uint32_t n = 0, last = KV_NONE, free_ones = 0;
    for (uint32_t i = rs->oldest; i != KV_NONE; last = i, i = rs->at[i].newer) {
        if (!rs->at[i].used || rs->at[i].older != last || ++n > rs->n) return false;
        for (int k = 0; k < KV_KEYS; k++)
            if (!found_by(rs, i, (enum kv_key)k)) return false;
    }
    for (uint32_t i = rs->free; i != KV_NONE && free_ones <= rs->max;
         i = rs->at[i].newer)
        free_ones++;
    return n == rs->n && last == rs->newest && n + free_ones == rs->max;
}
