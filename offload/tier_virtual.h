/* tier_virtual.h - a tier that moves no bytes: its transfers end when a clock says so.
 *
 * Each direction is a channel of its own, where transfers follow one another:
 *
 *     end = max(start, end of the one before) + bytes / bandwidth;  it is done at
 *     end + latency
 *
 * Owns     its transfers in flight.  It has slots like any tier, but no memory for blocks.
 * Caller   keeps the clock, and does not set it back.  Buffers are never looked at.
 * Memory   taken by open.
 * Threads  one; the owner's.
 */
#ifndef OFFLOAD_TIER_VIRTUAL_H
#define OFFLOAD_TIER_VIRTUAL_H

#include "offload/tier.h"

struct tier_virtual_options {
    const char *name;     // borrowed, as the clock is
    const uint64_t *now;  // ns
    size_t block_bytes;
    uint32_t capacity, depth;  // blocks; transfers in flight
    double read, write;        // bytes a second, each more than 0
    uint64_t latency;          // ns
};
NODISCARD int tier_virtual_open(struct tier **out, const struct tier_virtual_options *o,
                                struct err *err);

/* When the next transfer is done; UINT64_MAX: none is in flight. */
uint64_t tier_virtual_next(const struct tier *t);

#endif
