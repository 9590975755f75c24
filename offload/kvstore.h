/* kvstore.h - which conversation's blocks lie where, and what moves next.
 *
 *     G1 (device pages) --copy early--> RAM --copy later--> SSD
 *        ^------------ promote -------------'-----------------'
 *
 * Owns     the names of G1's pages, the conversations' records, the transfers in flight.
 *          Where a block is, is asked of G1 and the tiers, never stored twice.
 * Caller   the engine, or a replay of a trace in virtual time: the same code serves both.
 *          It gives `now`, pages and tiers, and calls kvstore_step() every turn.
 * Pure     no clock and no I/O but what the tiers do; no thread.
 * Memory   all taken by kvstore_open(); nothing after it allocates.
 * Rule     offload may cost time, never an answer: a failed, late or damaged load shortens
 *          the prefix that a wake ends with, and counts why.
 * Threads  one; the engine's.
 *
 *     match -> wake --------------------------> (computed by the caller) seal ... idle
 *                '-- loading, step, wake_poll --'        cancel at any time
 */
#ifndef OFFLOAD_KVSTORE_H
#define OFFLOAD_KVSTORE_H

#include "offload/cost.h"
#include "offload/policy.h"
#include "offload/tier.h"

#define KVSTORE_CONVERSATION NAME_BYTES  // bytes of its name, with its NUL

/* G1: pages by number, reference-counted.  The store holds one reference for each page
 * that it has a name for; a page whose only reference is the store's is idle. */
struct kv_pages {
    void *arg;
    uint32_t capacity;
    uint32_t (*take)(void *arg);  // with count 1; UINT32_MAX: none free
    void (*ref)(void *arg, uint32_t page);
    void (*unref)(void *arg, uint32_t page);
    uint32_t (*refs)(void *arg, uint32_t page);
    uint32_t (*free)(void *arg);                 // how many
    uint32_t (*shared)(void *arg);               // how many have a count of 2 or more
    void *(*address)(void *arg, uint32_t page);  // of tier_buffer_bytes(), aligned
};

struct kvstore_options {
    struct kv_pages pages;
    struct tier *ram, *ssd;  // borrowed; either may be NULL
    struct cost *cost;       // borrowed
    struct policy policy;
    uint32_t block_tokens;  // KV_BLOCK_TOKENS; a replay may use longer ones
    uint32_t max_wakes;
    uint32_t max_conversations;  // records; the least recently used one is forgotten
    bool several_tenants;        // who share what may be held: kvstore_hold()
    void *staging;  // max_stores buffers of tier_buffer_bytes(ssd), for RAM -> SSD
};

struct kvstore;
NODISCARD int kvstore_open(struct kvstore **out, const struct kvstore_options *o,
                           struct err *err);
void kvstore_close(struct kvstore *kv);  // NULL is fine; nothing may be in flight
size_t kvstore_bytes(const struct kvstore_options *o);
size_t kvstore_note_bytes(uint32_t blocks);  // of these, for a tier of so many

enum kv_source { KV_DEVICE, KV_RAM, KV_SSD, KV_SOURCES };

/* A prompt, as the chain of its full blocks: meta[i] for tokens [16 i, 16 i + 16). */
struct kv_prompt {
    const struct block_meta *meta;
    uint32_t n_meta;  // full blocks that may be used: never the prompt's last token
    uint32_t n_tokens;
    char conversation[KVSTORE_CONVERSATION];  // "" : named after its first blocks
    bool begun;  // for kvstore_idle() alone: the report of its wake had a name
    uint64_t tenant;
    double compute_price;  // see cost.h
    bool may_begin_early;  // what follows is computed by a step that waits (copyq.h)
};

/* How long a prefix is there, and where: blocks by source.  Loading ones count where they
 * come from. */
struct kv_found {
    uint32_t blocks;
    uint32_t by[KV_SOURCES];
    /* Of these, pages of G1 that room for others cannot be made of: not now, as somebody
     * uses them or waits for them, they are on their way down, or held; not without a
     * loss, as they are still to be copied down. */
    uint32_t busy, unsaved;
};
void kvstore_match(const struct kvstore *kv, const struct kv_prompt *p,
                   struct kv_found *out);

enum kv_why {    // tokens of a prompt that are computed although they had been before
    KV_WHY_NEW,  // never seen, or forgotten
    KV_WHY_CHEAPER,  // computing was predicted to be quicker
    KV_WHY_FAILED,   // a load failed
    KV_WHY_LATE,     // the deadline passed
    KV_WHY_BUSY,     // too much in flight for this tenant
    KV_WHYS
};

struct kv_wake_report {
    char conversation[KVSTORE_CONVERSATION];  // the name it goes under; "": none yet
    struct kv_found found;
    uint32_t blocks;              // of the prefix it ended with
    uint32_t loaded[KV_SOURCES];  // of these; KV_DEVICE: already there
    uint32_t computed[KV_WHYS];   // full blocks of the prompt, by reason
    uint64_t bytes;               // promoted for it alone
    bool early;                   // the last of them were still arriving
    uint64_t began, ready;        // ns
    double predicted_ns, without_ns;
};

/* Begin: put the pages of the prefix into blocks[0..], shared or being loaded; one reference
 * on each is the caller's.  Returns the number of pages put there (<= cap), and in *wake a
 * number to ask by, or UINT32_MAX where nothing is being loaded: the report is complete then.
 * Takes as many pages as are free or can be made free, and no more.  The conversation counts
 * as active until one kvstore_idle() or kvstore_wake_cancel() for each wake; give the report's
 * name of it from here on.  A report without a name: it was not counted, for want of a block
 * to name it by or of a record that nobody uses. */
uint32_t kvstore_wake(struct kvstore *kv, const struct kv_prompt *p, uint64_t now,
                      uint32_t *blocks, uint32_t cap, uint32_t *wake,
                      struct kv_wake_report *report);
/* Is it ready?  Then *n is how many of its pages hold the prefix; the rest have been taken
 * back (their references too), and the number is free again.  report->early: some of the
 * pages are still arriving, and the device's next step, whoever's it is, waits for them. */
bool kvstore_wake_poll(struct kvstore *kv, uint32_t wake, uint64_t now, uint32_t *n,
                       struct kv_wake_report *report);
/* The caller gives up and releases its references itself, at once: pages that are being
 * written stay the store's until the transfer has landed. */
void kvstore_wake_cancel(struct kvstore *kv, uint32_t wake);

/* Page `block` now holds all of meta: give it the name, so that others find it.  False:
 * the name is taken by another page, and this one stays nameless. */
bool kvstore_seal(struct kvstore *kv, uint32_t block, const struct block_meta *meta,
                  uint64_t now);
/* The sequence has ended (or was put back): its conversation is quiet from now on.  The
 * caller drops its references afterwards. */
void kvstore_idle(struct kvstore *kv, const struct kv_prompt *p, uint64_t now);

/* Free idle pages until `n` are free, whatever it costs; how many are.  In order those that
 * have copies or never get any, those that came up just now, those still to be copied. */
uint32_t kvstore_make_room(struct kvstore *kv, uint32_t n, uint64_t now);
/* Free pages and idle ones, held ones and those on their way down among them: an estimate in
 * constant time. */
uint32_t kvstore_available(const struct kvstore *kv);
/* Can n pages be had without losing what is still to be copied down?  Those of `mine`, what
 * kvstore_match() found for who asks, are counted as his.  In constant time, but for a count
 * of the pages once a second while anything is held. */
bool kvstore_has_room(struct kvstore *kv, uint32_t n, const struct kv_found *mine,
                      uint64_t now);
/* The same for one who waits.  LATER: he is to ask again after a step, by when more has been
 * copied.  NOW also where nobody who asked has got room for policy.room_wait, or for as long
 * as it would take to compute again what is going to be lost: who lets smaller ones pass is
 * to bound that by himself.  Who goes on takes his pages before anybody else asks. */
enum kv_when { KV_NEVER, KV_LATER, KV_NOW };  // NEVER: unless others end
enum kv_when kvstore_wait_room(struct kvstore *kv, uint32_t n,
                               const struct kv_found *mine, uint64_t now);

/* For one who gets his n pages never, as nobody else uses any that could become free: holds
 * end, of what was used longest ago first, until as many can be had at some price.  So no
 * request fails for what is held. */
void kvstore_end_holds(struct kvstore *kv, uint32_t n, uint64_t now);

/* Reap, start loads that wait, copy down, free by the watermarks.  Bounded work. */
void kvstore_step(struct kvstore *kv, uint64_t now);
/* When kvstore_step() has something to do next, by time alone; UINT64_MAX: never. */
uint64_t kvstore_next(const struct kvstore *kv, uint64_t now);
/* Copy everything down to the SSD as if it had been quiet for long; true when all of it is,
 * or no more of it can be: there is no SSD, or no room on its device.  The first call has one
 * that takes no stores asked once more at once, as who stops us may have made room. */
bool kvstore_drain(struct kvstore *kv, uint64_t now);
/* Blocks that are to be copied down and have not been. */
uint32_t kvstore_unsaved(const struct kvstore *kv);
/* Before close: take back what is in flight and start nothing; true when nothing is left. */
bool kvstore_settle(struct kvstore *kv, uint64_t now);
bool kvstore_in_flight(const struct kvstore *kv);

/* ---- conversations ---- */

enum kv_state { KV_ACTIVE, KV_IDLE, KV_WAKING, KV_ASLEEP };

struct kv_conversation {
    char name[KVSTORE_CONVERSATION];
    uint64_t tenant;
    uint32_t tokens;
    uint32_t blocks[KV_SOURCES];  // present in each; a block may be in several
    enum kv_state state;
    uint64_t last_used, held_until;
};
uint32_t kvstore_conversations(const struct kvstore *kv);
/* The i-th by last use, the latest first; false beyond the last.  In a row these take the
 * time of the conversation's blocks each; of one that is not this tenant's (NULL: of any) no
 * more is told than whose it is, in constant time. */
bool kvstore_conversation_at(const struct kvstore *kv, uint32_t i,
                             const uint64_t *tenant, struct kv_conversation *out);
bool kvstore_conversation_find(const struct kvstore *kv, uint64_t tenant,
                               const char *name, struct kv_conversation *out);
/* 0; -ENOENT; -EBUSY while it is active.  Sleep: out of G1 as soon as it is copied; ends a
 * hold; -EBUSY also while its blocks are on their way up.  Prefetch: into G1 ahead of a
 * message, if it is not on its way already.  Hold: in G1 or RAM until then, what it adds too;
 * not later than now ends it.  What is held at one time takes half of RAM's blocks at most,
 * of G1's where there is no RAM, and of a tenant's no more than its quota and, where there are
 * several, than half of what the others leave of that, so that some is left for one more;
 * blocks that two share count twice.  -EDQUOT: it would be more.  What it holds already it may
 * go on to hold, for longer or shorter, whatever others have come to hold since; one that
 * grows beyond its share holds no more than it did.
 * Forget: out of every tier, blocks that others share excepted; -EBUSY also while one of its
 * blocks is on its way, so that it is to be asked again after a step.  The bytes of what RAM
 * and SSD still had of it, and its name, are overwritten, on the SSD while kvstore_erasing();
 * until then a restart may find them.  Not overwritten, but found by nobody, are pages of G1 until they
 * are taken again, and blocks that a tier had dropped before until their slots are. */
NODISCARD int kvstore_sleep(struct kvstore *kv, uint64_t tenant, const char *name,
                            uint64_t now);
NODISCARD int kvstore_prefetch(struct kvstore *kv, uint64_t tenant, const char *name,
                               uint64_t now);
NODISCARD int kvstore_hold(struct kvstore *kv, uint64_t tenant, const char *name,
                           uint64_t until, uint64_t now);
uint64_t kvstore_hold_tokens(const struct kvstore *kv);  // that half of a level
NODISCARD int kvstore_forget(struct kvstore *kv, uint64_t tenant, const char *name);
/* Step until it is false.  True as well while what one in NAME_GROUPS of all other names had
 * is being overwritten. */
bool kvstore_erasing(const struct kvstore *kv, uint64_t tenant, const char *name);

/* ---- what was counted since open ---- */

struct kvstore_counters {
    uint64_t hit_tokens[KV_SOURCES], computed_tokens[KV_WHYS];
    uint64_t promoted_bytes[KV_SOURCES], demoted_bytes[KV_SOURCES];  // from; into
    uint64_t evicted[KV_SOURCES];                                    // blocks freed
    uint64_t lost;  // of these, the last copy
    uint64_t
        unwaited;  // of those, on the list to be copied: waiting had taken too long
    uint64_t quota_bites[KV_SOURCES];  // blocks refused or freed for a quota
    uint64_t kept[KV_SOURCES];  // blocks refused for one of just now: policy.keep_for
    uint64_t load_failed, store_failed, deadline_passed, budget_refused,
        second_touch_refused;
    uint64_t began_early;  // wakes
};
void kvstore_count(const struct kvstore *kv, struct kvstore_counters *out);

bool kvstore_check(const struct kvstore *kv);  // every invariant; for tests

#endif
