#include "model/kv_pool.h"

#include <assert.h>
#include <stdlib.h>

int kv_pool_open(struct kv_pool *out, struct backend *b, const struct kv_shape *shape,
                 uint32_t n_blocks, struct err *err)
{
    if (n_blocks == 0 || n_blocks == KV_NO_BLOCK)
        return err_set(err, -EINVAL,
                       "a KV pool of %u blocks cannot be made; 1 to %u can", n_blocks,
                       KV_NO_BLOCK - 1);

    struct kv_pool p = {
        .backend = b,
        .refs = calloc(n_blocks, sizeof *p.refs),
        .next_free = malloc(n_blocks * sizeof *p.next_free),
        .n_free = n_blocks,
    };
    int rc;
    if (p.refs && p.next_free)
        rc = backend_kv_alloc(b, &p.mem, shape, n_blocks, err);
    else
        rc = err_set(err, -ENOMEM, "no memory for the lists of %u KV blocks", n_blocks);
    if (rc < 0) {
        free(p.refs);
        free(p.next_free);
        return rc;
    }
    for (uint32_t i = 0; i < n_blocks; i++)
        p.next_free[i] = i + 1 < n_blocks ? i + 1 : KV_NO_BLOCK;
    *out = p;
    return 0;
}

void kv_pool_close(struct kv_pool *p)
{
    if (p->backend) backend_kv_free(p->backend, &p->mem);
    free(p->refs);
    free(p->next_free);
    *p = (struct kv_pool){0};
}

uint32_t kv_pool_take(struct kv_pool *p)
{
    if (p->n_free == 0) return KV_NO_BLOCK;

    uint32_t block = p->free_head;
    assert(p->refs[block] == 0);
    p->free_head = p->next_free[block];
    p->n_free--;
    p->refs[block] = 1;
    return block;
}

void kv_pool_ref(struct kv_pool *p, uint32_t block)
{
    assert(block < p->mem.n_blocks && p->refs[block] > 0 &&
           p->refs[block] < UINT32_MAX);
    if (++p->refs[block] == 2) p->n_shared++;
}

void kv_pool_unref(struct kv_pool *p, uint32_t block)
{
    assert(block < p->mem.n_blocks && p->refs[block] > 0);
    if (--p->refs[block] > 0) {
        p->n_shared -= p->refs[block] == 1;
        return;
    }
    p->next_free[block] = p->free_head;
    p->free_head = block;
    p->n_free++;
}

uint32_t kv_pool_available(const struct kv_pool *p)
{
    return p->room.available ? p->room.available(p->room.arg) : p->n_free;
}

void *kv_pool_address(const struct kv_pool *p, uint32_t block)
{
    assert(block < p->mem.n_blocks);
    return (char *)p->mem.base + block * kv_block_bytes(&p->mem.shape);
}

bool kv_pool_check(const struct kv_pool *p)
{
    uint32_t listed = 0, unused = 0, shared = 0;
    for (uint32_t left = p->n_free, i = p->free_head; left > 0; left--) {
        if (i >= p->mem.n_blocks || p->refs[i] != 0) return false;
        i = p->next_free[i];
        if (left == 1 && i != KV_NO_BLOCK) return false;
        listed++;
    }
    for (uint32_t i = 0; i < p->mem.n_blocks; i++) {
        unused += p->refs[i] == 0;
        shared += p->refs[i] > 1;
    }
    return listed == unused && shared == p->n_shared;
}

/* The entries of the table that exist and that writing [from, to) would touch. */
static void touched(const struct kv_table *t, uint32_t from, uint32_t to,
                    uint32_t *first, uint32_t *end)
{
    uint32_t last = kv_blocks_for(to);
    *first = from / KV_BLOCK_TOKENS;
    *end = last < t->n_blocks ? last : t->n_blocks;
}

/* How many blocks are to be taken for [from, to), which is not empty. */
static uint32_t needed(const struct kv_pool *p, const struct kv_table *t, uint32_t from,
                       uint32_t to)
{
    uint32_t first, end, last = kv_blocks_for(to);
    touched(t, from, to, &first, &end);

    uint32_t need = last > t->n_blocks ? last - t->n_blocks : 0;
    for (uint32_t i = first; i < end; i++) need += p->refs[t->blocks[i]] > 1;
    return need;
}

int kv_table_extend(struct kv_pool *p, struct kv_table *t, uint32_t from, uint32_t to)
{
    if (from >= to) return 0;
    uint32_t first, end, last = kv_blocks_for(to);
    if (last > t->cap) return -E2BIG;
    uint32_t need = needed(p, t, from, to);
    if (need > p->n_free && p->room.make) p->room.make(p->room.arg, need);
    if (need > p->n_free) return -ENOSPC;

    touched(t, from, to, &first, &end);
    for (uint32_t i = first; i < end; i++) {
        uint32_t shared = t->blocks[i];
        if (p->refs[shared] == 1) continue;
        t->blocks[i] = kv_pool_take(p);
        backend_copy_block(p->backend, &p->mem, t->blocks[i], shared);
        kv_pool_unref(p, shared);
    }
    while (t->n_blocks < last) t->blocks[t->n_blocks++] = kv_pool_take(p);
    return 0;
}

void kv_table_fork(struct kv_pool *p, struct kv_table *dst, const struct kv_table *src,
                   uint32_t tokens)
{
    uint32_t n = kv_blocks_for(tokens);
    assert(dst->n_blocks == 0 && n <= dst->cap && n <= src->n_blocks);
    for (uint32_t i = 0; i < n; i++) {
        kv_pool_ref(p, src->blocks[i]);
        dst->blocks[i] = src->blocks[i];
    }
    dst->n_blocks = n;
}

void kv_table_trim(struct kv_pool *p, struct kv_table *t, uint32_t tokens)
{
    uint32_t keep = kv_blocks_for(tokens);
    while (t->n_blocks > keep) kv_pool_unref(p, t->blocks[--t->n_blocks]);
}

void kv_table_release(struct kv_pool *p, struct kv_table *t)
{
    for (uint32_t i = 0; i < t->n_blocks; i++) kv_pool_unref(p, t->blocks[i]);
    t->n_blocks = 0;
}
