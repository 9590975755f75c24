/* slots_state.h - what slots.c and slots_check.c share; private to them.
 *
 * Owns     nothing.
 * Threads  the owner's.
 */
#ifndef OFFLOAD_SLOTS_STATE_H
#define OFFLOAD_SLOTS_STATE_H

#include "offload/slots.h"

#include <string.h>

/* A tenant that has slots.  There are never more of these than slots. */
struct tenant {
    uint64_t id;
    uint32_t count;           // slots; 0: this entry is free
    uint32_t chain;           // next in the same bucket, or next free entry
    uint32_t oldest, newest;  // its LRU list
};

struct slots {
    struct slot *slot;
    struct tenant *tenant;
    uint32_t *by_id, *by_tenant, *by_parent;  // heads of chains, a power of two each
    uint32_t capacity, used, mask;            // mask: buckets - 1
    uint32_t free_first, free_last;           // linked through older and newer
    uint32_t tenant_free;
    uint32_t oldest, newest;
};

/* Of an id or a parent's.  Ids are hashes already; any of their bits will do. */
static inline uint32_t slots_bucket(const struct slots *s, const struct block_id *id)
{
    uint32_t bits;
    memcpy(&bits, id->bytes, sizeof bits);
    return bits & s->mask;
}

/* Tenants' numbers may be small ones: their bits are spread by Fibonacci's multiplier. */
static inline uint32_t slots_tenant_bucket(const struct slots *s, uint64_t tenant)
{
    return (uint32_t)(tenant * 0x9e3779b97f4a7c15u >> 32) & s->mask;
}

/* A tenant's entry; SLOT_NONE: it has no slots. */
static inline uint32_t slots_tenant(const struct slots *s, uint64_t tenant)
{
    uint32_t t = s->by_tenant[slots_tenant_bucket(s, tenant)];
    while (t != SLOT_NONE && s->tenant[t].id != tenant) t = s->tenant[t].chain;
    return t;
}

#endif
