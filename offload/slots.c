#include "offload/slots_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Of any capacity, as the memory of one is asked for before it is refused. */
static size_t buckets_for(uint32_t capacity)
{
    size_t n = 1;
    while (n < capacity) n *= 2;
    return n;
}

// ---- the lists of all: the free one and the LRU one share their links -----------------

static void list_remove(struct slots *s, uint32_t *first, uint32_t *last, uint32_t i)
{
    struct slot *x = &s->slot[i];
    *(x->older == SLOT_NONE ? first : &s->slot[x->older].newer) = x->newer;
    *(x->newer == SLOT_NONE ? last : &s->slot[x->newer].older) = x->older;
}

static void list_append(struct slots *s, uint32_t *first, uint32_t *last, uint32_t i)
{
    s->slot[i].older = *last;
    s->slot[i].newer = SLOT_NONE;
    *(*last == SLOT_NONE ? first : &s->slot[*last].newer) = i;
    *last = i;
}

static void list_prepend(struct slots *s, uint32_t *first, uint32_t *last, uint32_t i)
{
    s->slot[i].older = SLOT_NONE;
    s->slot[i].newer = *first;
    *(*first == SLOT_NONE ? last : &s->slot[*first].older) = i;
    *first = i;
}

static void list_insert(struct slots *s, uint32_t *first, uint32_t i, uint32_t newer)
{
    struct slot *x = &s->slot[i], *n = &s->slot[newer];
    x->older = n->older;
    x->newer = newer;
    *(x->older == SLOT_NONE ? first : &s->slot[x->older].newer) = i;
    n->older = i;
}

// ---- tenants -------------------------------------------------------------------------

static uint32_t tenant_take(struct slots *s, uint64_t id)
{
    uint32_t t = slots_tenant(s, id);
    if (t != SLOT_NONE) return t;

    t = s->tenant_free;
    assert(t != SLOT_NONE);
    s->tenant_free = s->tenant[t].chain;
    uint32_t *head = &s->by_tenant[slots_tenant_bucket(s, id)];
    s->tenant[t] = (struct tenant){id, 0, *head, SLOT_NONE, SLOT_NONE};
    *head = t;
    return t;
}

static void tenant_give(struct slots *s, uint32_t t)
{
    uint32_t *link = &s->by_tenant[slots_tenant_bucket(s, s->tenant[t].id)];
    while (*link != t) link = &s->tenant[*link].chain;
    *link = s->tenant[t].chain;
    s->tenant[t].chain = s->tenant_free;
    s->tenant_free = t;
}

static void tenant_unlink(struct slots *s, uint32_t i)
{
    struct slot *x = &s->slot[i];
    struct tenant *t = &s->tenant[x->tenant];
    *(x->before == SLOT_NONE ? &t->oldest : &s->slot[x->before].behind) = x->behind;
    *(x->behind == SLOT_NONE ? &t->newest : &s->slot[x->behind].before) = x->before;
}

static void tenant_append(struct slots *s, uint32_t i)
{
    struct slot *x = &s->slot[i];
    struct tenant *t = &s->tenant[x->tenant];
    x->before = t->newest;
    x->behind = SLOT_NONE;
    *(t->newest == SLOT_NONE ? &t->oldest : &s->slot[t->newest].behind) = i;
    t->newest = i;
}

static void tenant_insert(struct slots *s, uint32_t i, uint32_t newer)
{
    struct slot *x = &s->slot[i], *n = &s->slot[newer];
    x->before = n->before;
    x->behind = newer;
    *(x->before == SLOT_NONE ? &s->tenant[x->tenant].oldest
                             : &s->slot[x->before].behind) = i;
    n->before = i;
}

// ---- parents: linked both ways, as one block may have very many children ---------------

static void parent_link(struct slots *s, uint32_t i)
{
    struct slot *x = &s->slot[i];
    if (x->meta.depth == 0) return;
    uint32_t *head = &s->by_parent[slots_bucket(s, &x->meta.parent)];
    x->sibling = *head;
    x->sibling_before = SLOT_NONE;
    if (*head != SLOT_NONE) s->slot[*head].sibling_before = i;
    *head = i;
}

static void parent_unlink(struct slots *s, uint32_t i)
{
    struct slot *x = &s->slot[i];
    if (x->meta.depth == 0) return;
    *(x->sibling_before == SLOT_NONE ? &s->by_parent[slots_bucket(s, &x->meta.parent)]
                                     : &s->slot[x->sibling_before].sibling) =
        x->sibling;
    if (x->sibling != SLOT_NONE) s->slot[x->sibling].sibling_before = x->sibling_before;
}

// ---- opening and closing --------------------------------------------------------------

int slots_open(struct slots **out, uint32_t capacity, struct err *err)
{
    if (capacity == 0 || capacity > SLOTS_MOST)
        return err_set(err, -EINVAL,
                       "a tier of %u blocks is not possible; expected 1 to %u",
                       capacity, SLOTS_MOST);
    struct slots *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, -ENOMEM, "no memory for an index of blocks");

    size_t buckets = buckets_for(capacity);
    *s = (struct slots){
        .slot = calloc(capacity, sizeof *s->slot),
        .tenant = calloc(capacity, sizeof *s->tenant),
        .by_id = malloc(buckets * sizeof *s->by_id),
        .by_tenant = malloc(buckets * sizeof *s->by_tenant),
        .by_parent = malloc(buckets * sizeof *s->by_parent),
        .capacity = capacity,
        .mask = (uint32_t)(buckets - 1),
        .free_first = SLOT_NONE,
        .free_last = SLOT_NONE,
        .oldest = SLOT_NONE,
        .newest = SLOT_NONE,
    };
    if (!s->slot || !s->tenant || !s->by_id || !s->by_tenant || !s->by_parent) {
        slots_close(s);
        return err_set(
            err, -ENOMEM,
            "an index of %u blocks takes %zu MiB of memory, which are not there",
            capacity, slots_bytes(capacity) >> 20);
    }
    memset(s->by_id, 0xff, buckets * sizeof *s->by_id);
    memset(s->by_tenant, 0xff, buckets * sizeof *s->by_tenant);
    memset(s->by_parent, 0xff, buckets * sizeof *s->by_parent);
    for (uint32_t i = 0; i < capacity; i++) {
        list_append(s, &s->free_first, &s->free_last, i);
        s->tenant[i].chain = i + 1 < capacity ? i + 1 : SLOT_NONE;
    }
    *out = s;
    return 0;
}

void slots_close(struct slots *s)
{
    if (!s) return;
    free(s->slot);
    free(s->tenant);
    free(s->by_id);
    free(s->by_tenant);
    free(s->by_parent);
    free(s);
}

size_t slots_bytes(uint32_t capacity)
{
    return sizeof(struct slots) +
           capacity * (sizeof(struct slot) + sizeof(struct tenant)) +
           3 * buckets_for(capacity) * sizeof(uint32_t);
}

// ---- questions -------------------------------------------------------------------------

uint32_t slots_capacity(const struct slots *s)
{
    return s->capacity;
}

uint32_t slots_used(const struct slots *s)
{
    return s->used;
}

uint32_t slots_used_by(const struct slots *s, uint64_t tenant)
{
    uint32_t t = slots_tenant(s, tenant);
    return t == SLOT_NONE ? 0 : s->tenant[t].count;
}

const struct slot *slots_at(const struct slots *s, uint32_t i)
{
    assert(i < s->capacity);
    return &s->slot[i];
}

uint32_t slots_find(const struct slots *s, const struct block_id *id)
{
    uint32_t i = s->by_id[slots_bucket(s, id)];
    while (i != SLOT_NONE && !block_id_equal(&s->slot[i].meta.id, id))
        i = s->slot[i].chain;
    return i;
}

uint32_t slots_match(const struct slots *s, const struct block_meta *meta)
{
    uint32_t i = slots_find(s, &meta->id);
    if (i == SLOT_NONE || s->slot[i].state != SLOT_READY) return SLOT_NONE;
    return block_meta_equal(&s->slot[i].meta, meta) ? i : SLOT_NONE;
}

uint32_t slots_child(const struct slots *s, const struct block_id *parent,
                     uint32_t previous)
{
    uint32_t i = previous == SLOT_NONE ? s->by_parent[slots_bucket(s, parent)]
                                       : s->slot[previous].sibling;
    while (i != SLOT_NONE && !block_id_equal(&s->slot[i].meta.parent, parent))
        i = s->slot[i].sibling;
    return i;
}

uint32_t slots_coldest(const struct slots *s, const uint64_t *tenant)
{
    uint32_t t = tenant ? slots_tenant(s, *tenant) : SLOT_NONE;
    if (tenant && t == SLOT_NONE) return SLOT_NONE;

    uint32_t i = tenant ? s->tenant[t].oldest : s->oldest;
    while (i != SLOT_NONE && (s->slot[i].state != SLOT_READY || s->slot[i].pins))
        i = tenant ? s->slot[i].behind : s->slot[i].newer;
    return i;
}

// ---- changes ---------------------------------------------------------------------------

bool slots_claim_at(struct slots *s, uint32_t i, const struct block_meta *meta)
{
    assert(slots_find(s, &meta->id) == SLOT_NONE);
    struct slot *x = &s->slot[i];
    if (i >= s->capacity || x->state != SLOT_FREE) return false;

    list_remove(s, &s->free_first, &s->free_last, i);
    x->meta = *meta;
    x->state = SLOT_FILLING;
    x->pins = 0;
    uint32_t *head = &s->by_id[slots_bucket(s, &meta->id)];
    x->chain = *head;
    *head = i;
    list_append(s, &s->oldest, &s->newest, i);
    x->tenant = tenant_take(s, meta->tenant);
    s->tenant[x->tenant].count++;
    tenant_append(s, i);
    parent_link(s, i);
    s->used++;
    return true;
}

uint32_t slots_claim(struct slots *s, const struct block_meta *meta)
{
    uint32_t i = s->free_first;
    return i != SLOT_NONE && slots_claim_at(s, i, meta) ? i : SLOT_NONE;
}

void slots_commit(struct slots *s, uint32_t i)
{
    assert(s->slot[i].state == SLOT_FILLING);
    s->slot[i].state = SLOT_READY;
}

void slots_doom(struct slots *s, uint32_t i)
{
    assert(s->slot[i].state == SLOT_READY);
    s->slot[i].state = SLOT_LEAVING;
}

static void leave(struct slots *s, uint32_t i)
{
    struct slot *x = &s->slot[i];
    assert(x->state != SLOT_FREE && x->pins == 0);

    uint32_t *link = &s->by_id[slots_bucket(s, &x->meta.id)];
    while (*link != i) link = &s->slot[*link].chain;
    *link = x->chain;
    list_remove(s, &s->oldest, &s->newest, i);
    tenant_unlink(s, i);
    parent_unlink(s, i);
    if (--s->tenant[x->tenant].count == 0) tenant_give(s, x->tenant);
    x->state = SLOT_FREE;
    s->used--;
}

void slots_release(struct slots *s, uint32_t i)
{
    leave(s, i);
    list_prepend(s, &s->free_first, &s->free_last, i);
}

void slots_release_last(struct slots *s, uint32_t i)
{
    leave(s, i);
    list_append(s, &s->free_first, &s->free_last, i);
}

void slots_pin(struct slots *s, uint32_t i)
{
    assert(s->slot[i].state == SLOT_READY);
    s->slot[i].pins++;
}

void slots_unpin(struct slots *s, uint32_t i)
{
    assert(s->slot[i].pins > 0);
    s->slot[i].pins--;
}

void slots_touch(struct slots *s, uint32_t i)
{
    assert(s->slot[i].state != SLOT_FREE);
    list_remove(s, &s->oldest, &s->newest, i);
    list_append(s, &s->oldest, &s->newest, i);
    tenant_unlink(s, i);
    tenant_append(s, i);
}

void slots_follow(struct slots *s, uint32_t i)
{
    const struct slot *x = &s->slot[i];
    assert(x->state != SLOT_FREE);
    uint32_t parent = x->meta.depth ? slots_find(s, &x->meta.parent) : SLOT_NONE;
    if (parent == SLOT_NONE || parent == i) return;
    if (s->slot[parent].tenant != x->tenant) return;
    list_remove(s, &s->oldest, &s->newest, i);
    list_insert(s, &s->oldest, i, parent);
    tenant_unlink(s, i);
    tenant_insert(s, i, parent);
}
