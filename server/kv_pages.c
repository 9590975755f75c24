#include "server/kv_pages.h"

static uint32_t take(void *arg)
{
    return kv_pool_take(arg);
}

static void ref(void *arg, uint32_t page)
{
    kv_pool_ref(arg, page);
}

static void unref(void *arg, uint32_t page)
{
    kv_pool_unref(arg, page);
}

static uint32_t refs(void *arg, uint32_t page)
{
    const struct kv_pool *p = arg;
    return p->refs[page];
}

static uint32_t n_free(void *arg)
{
    const struct kv_pool *p = arg;
    return p->n_free;
}

static uint32_t n_shared(void *arg)
{
    const struct kv_pool *p = arg;
    return p->n_shared;
}

static void *address(void *arg, uint32_t page)
{
    return kv_pool_address(arg, page);
}

struct kv_pages kv_pages_of(struct kv_pool *p)
{
    return (struct kv_pages){
        .arg = p,
        .capacity = p->mem.n_blocks,
        .take = take,
        .ref = ref,
        .unref = unref,
        .refs = refs,
        .free = n_free,
        .shared = n_shared,
        .address = address,
    };
}
