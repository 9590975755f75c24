/* policy.h - the numbers that say when a block moves down, or goes; and the checks of them.
 *
 * A conversation that is quiet for copy_after has its new blocks copied down in the
 * background; its G1 blocks stay until idle_after or pressure frees them: copy early, free
 * late.  A block is of no use without all blocks before it: they go down first, in use or
 * not, used once or not, and none of them is displaced before it.
 *
 * Between a high and a low watermark nothing is freed; above the high one, down to the low.
 * Order: least recently used conversation first, in it the last block first; held and active
 * ones never, but a hold ends before a request fails for it; one that came up less than
 * residency ago only when nothing else is left that has a copy.  What has none goes when
 * waiting for it has taken room_wait, or as long as computing it again would take.  A tenant
 * over its quota gives up its own oldest, never another's.
 *
 * In a full tier a last copy that was used less than keep_for ago makes room for nobody: what
 * is new stays out.  Otherwise conversations that take turns, and are a little more than the
 * tier holds, would push each other out just before they return: all of it would be written
 * again at each turn and none of it found.
 *
 * Pure     functions of the numbers and of `now`.
 * Threads  any.
 */
#ifndef OFFLOAD_POLICY_H
#define OFFLOAD_POLICY_H

#include "kernels/base.h"

#define POLICY_MAX_TRANSFERS 4096

struct policy {
    uint64_t copy_after, idle_after;  // ns of quiet; copy_after <= idle_after
    uint64_t ssd_after;          // ns of quiet before a RAM block is copied to the SSD
    uint64_t residency;          // ns after a promotion
    uint64_t keep_for;           // ns of quiet in which a last copy is not displaced
    double high, low;            // of capacity, 0 < low <= high <= 1
    bool second_touch;           // the SSD takes what was used at least twice
    uint64_t ssd_bytes_per_day;  // 0: no budget
    uint64_t ram_quota, ssd_quota;   // bytes for each tenant; 0: none
    uint32_t max_loads, max_stores;  // in flight
    uint64_t max_load_bytes;         // in flight
    uint32_t max_loads_tenant;       // in flight; 0: no bound
    uint64_t wake_deadline;          // ns; then the rest is computed
    /* ns that a wake has to gain by beginning before all of it has arrived. */
    uint64_t overlap_gain;
    uint64_t room_wait;  // ns that room is waited for at most, where copies come first
};

/* 5 s, 60 s, 30 s, 10 s, 120 s; .90 and .80; no second touch, budget or quota; 32 loads of
 * 256 MiB and 8 stores; 10 s; 50 us; 2 s. */
void policy_defaults(struct policy *p);
NODISCARD int policy_check(const struct policy *p, struct err *err);

/* What is known of a block when somebody asks about it. */
struct policy_block {
    uint64_t last_used, promoted;  // ns; promoted 0: never
    uint32_t uses;                 // times a request used it
    bool active, held;
    bool lower;   // the next tier down has it
    bool needed;  // to be copied: by a block that follows it and goes, or is, there;
                  // to be displaced: by one that stays
};

/* Is it to be copied down?  pressure: the tier it is in has to shed
 * blocks, or the server stops, so that nobody waits for it to be quiet. */
enum policy_copy {
    COPY_NOW,
    COPY_LATER,   // when it has been quiet for longer
    COPY_NOT,     // not until it is used again: it is active, or there already
    COPY_UNUSED,  // likewise: the SSD takes what was used twice
};
enum policy_way { G1_TO_RAM, G1_TO_SSD, RAM_TO_SSD };
enum policy_copy policy_copy(const struct policy *p, const struct policy_block *b,
                             enum policy_way way, uint64_t now, bool pressure);
/* May a block be freed?  pressure: the tier is above its high watermark or somebody waits
 * for room; last: nothing else can be freed. */
bool policy_may_free(const struct policy *p, const struct policy_block *b, uint64_t now,
                     bool pressure, bool last);
/* May a block of a full tier be dropped for another one? */
bool policy_may_displace(const struct policy *p, const struct policy_block *b,
                         uint64_t now);
/* How many of `used` blocks should go, by the watermarks; 0 below the high one. */
uint32_t policy_excess(const struct policy *p, uint32_t used, uint32_t capacity);

/* The daily budget of bytes written to the SSD, as a bucket that fills by time and holds a
 * day's at most; it starts with as much as the caller puts there. */
struct policy_budget {
    double bytes;
    uint64_t since;
};
bool policy_spend(const struct policy *p, struct policy_budget *b, uint64_t bytes,
                  uint64_t now);

#endif
