/* slots.h - which block sits in which slot, and which was used longest ago.
 *
 * Owns     the id-to-slot map, what is known of each block, the LRU orders (of all and of
 *          each tenant), the pins, and how many slots each tenant has.  Knows no bytes.
 * Memory   arrays taken by slots_open; nothing after it allocates.
 * Threads  one; the owner's.
 * Cost     every call takes constant time on average (ids are hashes, their bits spread),
 *          but slots_coldest, which steps over slots that are filling or pinned: at most
 *          one for each transfer in flight.
 *
 *     FREE --claim--> FILLING --commit--> READY --release---------> FREE
 *                        |                  +--doom--> LEAVING --release-->
 *                        +------------release--------------------->
 *
 * Invariants, checked by slots_check() in debug builds and by the tests:
 *   1. every slot is on exactly one list: the free list, or the LRU list;
 *   2. an id is in the map if and only if its slot is not FREE;
 *   3. only a READY slot without pins is ever what slots_coldest() returns;
 *   4. a tenant's count is the number of its slots that are not FREE, and these are the
 *      slots on its LRU list, in the order that they have on the list of all;
 *   5. a slot that is not FREE, and whose block is not the first, is found by its parent.
 */
#ifndef OFFLOAD_SLOTS_H
#define OFFLOAD_SLOTS_H

#include "offload/block_id.h"

#define SLOT_NONE  UINT32_MAX
#define SLOTS_MOST (UINT32_MAX / 4)  // of one tier

enum slot_state {
    SLOT_FREE,
    SLOT_FILLING,
    SLOT_READY,
    SLOT_LEAVING,  // found unusable while pinned: no match, released with its last pin
};

struct slot {
    struct block_meta meta;
    enum slot_state state;
    uint32_t pins;
    uint32_t chain;           // next in the same bucket
    uint32_t older, newer;    // neighbours on the LRU list of all, or on the free list
    uint32_t tenant;          // entry in the table of tenants
    uint32_t before, behind;  // LRU neighbours of the same tenant: older and newer
    uint32_t sibling, sibling_before;  // in the same bucket of parents
};

struct slots;

NODISCARD int slots_open(struct slots **out, uint32_t capacity, struct err *err);
void slots_close(struct slots *s);      // NULL is fine
size_t slots_bytes(uint32_t capacity);  // that slots_open() takes

uint32_t slots_capacity(const struct slots *s);
uint32_t slots_used(const struct slots *s);
uint32_t slots_used_by(const struct slots *s, uint64_t tenant);
const struct slot *slots_at(const struct slots *s, uint32_t i);

uint32_t slots_find(const struct slots *s, const struct block_id *id);  // any state
/* The READY slot of that id whose tokens, parent, depth and tenant are these too;
 * SLOT_NONE for anything less, so that no collision or forgery is ever a match. */
uint32_t slots_match(const struct slots *s, const struct block_meta *meta);

/* The slots, of any state, of the blocks that follow a block: the first with SLOT_NONE, then
 * the one after `previous`.  First blocks of a sequence follow none. */
uint32_t slots_child(const struct slots *s, const struct block_id *parent,
                     uint32_t previous);

uint32_t slots_claim(struct slots *s,
                     const struct block_meta *meta);  // SLOT_NONE: full
/* The same in a slot of the caller's choice (what a restart found there); false if it is
 * taken. */
bool slots_claim_at(struct slots *s, uint32_t i, const struct block_meta *meta);
void slots_commit(struct slots *s, uint32_t i);
void slots_doom(struct slots *s, uint32_t i);     // READY only
void slots_release(struct slots *s, uint32_t i);  // without pins; claimed again first
void slots_release_last(struct slots *s, uint32_t i);  // claimed again after all others

void slots_pin(struct slots *s, uint32_t i);
void slots_unpin(struct slots *s, uint32_t i);
void slots_touch(struct slots *s, uint32_t i);  // used just now
/* Used just before the block that it follows, where that one is here: so that of a chain that
 * comes first block first, the last one is to go first. */
void slots_follow(struct slots *s, uint32_t i);
/* The READY, unpinned slot used longest ago: of one tenant, or with NULL of all. */
uint32_t slots_coldest(const struct slots *s, const uint64_t *tenant);

bool slots_check(const struct slots *s);  // O(capacity)

#endif
