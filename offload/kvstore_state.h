/* kvstore_state.h - what the files of the store share; nobody else includes it.
 *
 *     kvstore.c               opening, the step, what is counted
 *     kvstore_find.c          where a block is
 *     kvstore_wake.c          pages for a prefix, and those who wait for them
 *     kvstore_load.c          the transfers up
 *     kvstore_list.c          what is to be copied down, in order
 *     kvstore_store.c         the transfers down
 *     kvstore_room.c          freeing, quotas, watermarks
 *     kvstore_wait.c          whether there is room, or somebody waits for it
 *     kvstore_records.c       the table of conversations
 *     kvstore_names.c         what a restart finds a conversation by
 *     kvstore_restart.c       conversations found again
 *     kvstore_conversations.c what can be asked and done by a conversation's name
 *     kvstore_forget.c        deleting one
 *     kvstore_check.c         the invariants
 *
 * A level is G1, RAM or SSD.  Each has a struct slots and, beside it, a note for every slot.
 * In G1 the slot's number is the page's: a page has at most one name.
 *
 * Invariants, checked by kvstore_check():
 *   1. a named page has the store's reference, a FILLING one is in exactly one queue of
 *      loads or in exactly one transfer;
 *   2. a page is pinned by exactly the transfers that read it;
 *   3. what is listed to be copied is READY, once, the lists are whole, and what they hold
 *      unsaved is counted;
 *   4. every transfer that a tier has is one of ours;
 *   5. every place of a waiting wake is in its chain or free;
 *   6. a record is found by its name, its last block, its anchor and its last block on the
 *      SSD, which is there, and is on the LRU list;
 *   7. a block in a tier joins: the block before it is in that tier or in one below, or on its
 *      way there, so that whatever a restart finds on the SSD is found from its beginning.
 *      Until a tier loses a block to a failure, that is: what followed it stays for when it
 *      has been computed again, and then it goes down first.
 *
 * How 7 is kept.  What is about to go down and would not join puts the block before it
 * on the list in front of itself (needed): that one goes whatever its own quiet, as its bytes
 * do not change while others read them; and where it cannot go, neither can what follows
 * it.  Of a tier a block by which others join (kv_leads) is not displaced.
 *
 * Work     kvstore_step(): O(transfers finished or started + max_wakes + KV_LOOKS).  Wake,
 *          idle and match: O(blocks of the prompt).  make_room: O(pages that cannot be freed).
 */
#ifndef OFFLOAD_KVSTORE_STATE_H
#define OFFLOAD_KVSTORE_STATE_H

#include "offload/kvstore.h"

#include <assert.h>
#include <string.h>

#define KV_NONE      UINT32_MAX
#define KV_LOOKS     64  // blocks looked at by each walk along an LRU list, in one go
#define KV_TRIES     3  // stores of one block that fail before it is left until used again
#define KV_SHED_REST UINT64_C(50000000)  // ns
/* Waiting for room is cut to no less than that; one that nobody asked for so long is over,
 * and so is a count of what is held. */
#define KV_ROOM_LEAST UINT64_C(100000000)   // ns
#define KV_ROOM_ASKED UINT64_C(1000000000)  // ns

struct kv_note {  // of the block in slot i of a level
    uint64_t last_used, promoted, held_until;
    uint32_t uses;
    uint32_t prev, next;  // on the list to be copied, or (next) in a queue of loads
    uint8_t source;       // of a FILLING or promoted page: where from
    uint8_t tries;  // stores of it that failed; KV_TRIES also: refused though needed
    bool listed;    // to be copied down
    bool unsaved;   // listed, and no level below had it then
    bool moving;    // being copied down
    bool leaving;   // a page to be freed as soon as it is copied
    bool needed;    // listed first: one that follows it is to go there, or is there
};

struct kv_list {
    uint32_t head, tail, n;
};

struct kv_level {
    struct slots *slots;  // NULL: there is no such level
    struct tier *tier;    // NULL: G1
    struct kv_note *notes;
    struct kv_list to_copy;  // needed ones, then quiet longest first; prefix first
    uint32_t unsaved;        // of these
    uint32_t excess;         // to be freed until it is at its low watermark
    uint32_t shed_at;        // where the walk of that goes on
    uint64_t shed_rest;      // until then, after a walk that found too little
    uint32_t
        n_passed;  // of the coldest, held or needed, since one was found that is not
};

enum kv_job {
    KV_FREE,
    KV_LOAD,   // tier -> page
    KV_STORE,  // page -> tier
    KV_LIFT,   // RAM -> staging
    KV_SINK,   // staging -> SSD
};

struct kv_transfer {
    struct tier_io io;
    enum kv_job job;
    enum kv_source level;  // whose tier has it
    uint32_t page;
    void *staging;  // KV_LIFT, KV_SINK
    uint64_t asked, ahead;
    bool second;      // a load that was tried in another tier before
    bool retry;       // the tier was busy: to be submitted again
    uint8_t refused;  // how often it was, though it had nothing to do
    uint32_t next_free;
};

enum kv_wake_state { WAKE_FREE, WAKE_WAITING, WAKE_QUEUE_ONLY };

struct kv_wake {
    enum kv_wake_state state;
    bool keep;   // its loads are wanted although nobody waits: a prefetch
    bool early;  // it is ready as soon as the last of its pages are arriving
    uint32_t record;
    uint64_t tenant, deadline;
    uint32_t head,
        tail;       // nodes: the pages from the first that was not there, in order
    uint32_t done;  // pages of the prefix that are there
    struct kv_list queue;  // pages whose loads have not begun
    uint32_t newer;        // in order of arrival; or next free
    uint32_t n_tokens, n_meta;
    struct kv_wake_report report;
};

enum kv_node_kind { NODE_HERE, NODE_OWN, NODE_SHARED };

struct kv_node {
    uint32_t page, next;
    enum kv_node_kind kind;
};

enum kv_key { BY_NAME, BY_LAST, BY_ANCHOR, BY_KEPT, KV_KEYS };

struct kv_link {
    uint32_t prev, next;
};

/* About 300 bytes a conversation, with its share of the tables. */
struct kv_record {
    char name[KVSTORE_CONVERSATION];
    uint64_t tenant;
    struct block_id last;       // its last block that is stored, if blocks > 0
    struct block_id anchor;     // the last block of its latest prompt, if anchored
    struct block_id last_kept;  // of its blocks on the SSD, if kept > 0
    uint64_t last_used, held_until;
    uint64_t sequence;  // of its latest use: of all records, through restarts
    uint32_t tokens, blocks;
    uint32_t kept;     // blocks that a restart finds it by, with last_kept
    uint32_t held;     // of the blocks, from the first: until held_until
    uint32_t running;  // wakes that have not been ended
    bool used, anchored;
    struct kv_link link[KV_KEYS];
    uint32_t older, newer;
};

struct kv_records {
    struct kv_record *at;      // (max)
    uint32_t *heads[KV_KEYS];  // (mask + 1)
    uint32_t max, n, mask;
    uint32_t oldest, newest, free;
    uint32_t serial;    // of derived names
    uint64_t sequence;  // of the latest use
    /* Of the latest question by position, until the order changes. */
    uint32_t asked_position, asked_record;
};

struct kvstore {
    struct kvstore_options o;
    struct kv_pages pages;
    struct policy policy;
    size_t block_bytes;
    struct kv_level level[KV_SOURCES];

    struct kv_transfer *transfers;  // (max_loads), then (max_stores)
    uint32_t free_load, free_store;
    uint32_t n_loads, n_stores;  // in flight
    uint32_t n_saving;           // of the stores, those of pages

    struct kv_wake *wakes;  // (max_wakes)
    uint32_t free_wake, oldest_wake, newest_wake;
    struct kv_node *nodes;  // (4 * pages)
    uint32_t free_node, n_free_nodes;
    uint32_t waiting[KV_SOURCES];  // loads that have not begun, by source
    uint32_t n_filling;

    uint64_t reaped;  // when the tiers were looked at last

    struct kv_records *records;
    struct policy_budget budget;
    bool draining, drained;  // just now; at some time
    bool ram_pressed;  // somebody could not be stored in RAM for want of saved blocks
    bool room_wanted;  // somebody waits for what is to be copied first
    uint64_t short_since, short_asked;  // since when, and the last time; 0: nobody
    uint64_t short_until;               // then it is dropped
    uint32_t n_held;                    // idle pages that were found held,
    uint64_t held_until;                // until then
    uint64_t holds_until;               // no hold lasts longer than that
    uint64_t quiet_used;                // of that one, to see whether it has moved
    uint32_t quiet_at;                  // where the walk for quiet pages goes on
    uint64_t free_at;                   // when it has something to do
    uint64_t passed_until;  // of those it passed over, the first to be let go
    struct kvstore_counters count;

    /* for the length of a call */
    uint8_t *where;           // (pages): enum kv_source, or KV_SOURCES: being loaded
    uint8_t *tiers;           // (pages): enum cost_tier
    uint32_t *blocks;         // (pages)
    struct block_meta *path;  // (pages)
};

static inline uint64_t kv_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline bool kv_resting(const struct slot *s)
{
    return s->state == SLOT_READY && s->pins == 0;
}

static inline struct kv_note *kv_note(struct kvstore *kv, enum kv_source l, uint32_t i)
{
    return &kv->level[l].notes[i];
}

static inline const struct slot *kv_slot(const struct kvstore *kv, enum kv_source l,
                                         uint32_t i)
{
    return slots_at(kv->level[l].slots, i);
}

static inline const struct block_meta *kv_meta_at(const struct kvstore *kv,
                                                  enum kv_source l, uint32_t i)
{
    return &slots_at(kv->level[l].slots, i)->meta;
}

/* ---- kvstore_find.c ---- */

/* The READY slot that holds just this block; SLOT_NONE. */
uint32_t kv_match(const struct kvstore *kv, enum kv_source l,
                  const struct block_meta *meta);
bool kv_below(const struct kvstore *kv, enum kv_source l,
              const struct block_meta *meta);
/* The next level down; KV_SOURCES: none. */
enum kv_source kv_next_level(const struct kvstore *kv, enum kv_source l);
/* What is known of a block that lies anywhere, or is on its way; NULL. */
const struct block_meta *kv_meta(const struct kvstore *kv, const struct block_id *id);
/* The block before it, by name and depth; NULL: it has none, or it is not stored. */
const struct block_meta *kv_parent(const struct kvstore *kv,
                                   const struct block_meta *meta);
/* The slot of a level that the block before it has, by name and depth, READY or on its way
 * there; SLOT_NONE. */
uint32_t kv_before(const struct kvstore *kv, enum kv_source l,
                   const struct block_meta *meta);
/* A block that follows it in a level; NULL. */
const struct block_meta *kv_child(const struct kvstore *kv, enum kv_source l,
                                  const struct block_meta *meta);
/* Invariant 7, of a tier: may the block be in it, as the one before it is? */
bool kv_joins(const struct kvstore *kv, enum kv_source l,
              const struct block_meta *meta);
/* Is the copy in a tier the one by which blocks that follow it join? */
bool kv_leads(const struct kvstore *kv, enum kv_source l,
              const struct block_meta *meta);
/* Fill where[] for the longest prefix of at most cap blocks, and count it. */
uint32_t kv_find(const struct kvstore *kv, const struct kv_prompt *p, uint32_t cap,
                 uint8_t *where, struct kv_found *out);
/* Mark as used: newest of its level. */
void kv_touch(struct kvstore *kv, enum kv_source l, uint32_t i, uint64_t now);

/* ---- kvstore_wake.c ---- */

void kv_prefetch(struct kvstore *kv, const struct kv_prompt *p, uint32_t record,
                 uint64_t now);
void kv_wake_drained(struct kvstore *kv, uint32_t wake);  // its queue may be empty now
bool kv_waking(const struct kvstore *kv, uint32_t record);

/* ---- kvstore_conversations.c ---- */

void kv_end_hold(struct kvstore *kv, uint32_t r);

/* ---- kvstore_load.c ---- */

/* Page `page`, just taken, is to be filled with the block. */
void kv_load_queue(struct kvstore *kv, struct kv_wake *w, uint32_t page,
                   const struct block_meta *meta, enum kv_source from);
void kv_loads_start(struct kvstore *kv, uint64_t now);
/* Beginning early pays for a wake that takes `take` blocks of the prompt, the first `first`
 * of them from G1. */
bool kv_pays_early(const struct kvstore *kv, const struct kv_prompt *p, uint32_t first,
                   uint32_t take);
/* Are all pages that it waits for there or arriving? */
bool kv_rest_arrives(struct kvstore *kv, const struct kv_wake *w);
/* Then the next step is to wait for them; false: they have landed meanwhile. */
bool kv_await_rest(struct kvstore *kv, const struct kv_wake *w);
void kv_load_landed(struct kvstore *kv, struct kv_transfer *t, uint64_t now);
void kv_load_again(struct kvstore *kv, struct kv_transfer *t, uint64_t now);

/* ---- kvstore_list.c ---- */

void kv_list_append(struct kv_list *list, struct kv_note *notes, uint32_t i);
void kv_list_prepend(struct kv_list *list, struct kv_note *notes, uint32_t i);
void kv_list_remove(struct kv_list *list, struct kv_note *notes, uint32_t i);
/* List the block in slot i to be copied: as the last one, or as the first where one that
 * follows it is below already. */
void kv_list_block(struct kvstore *kv, enum kv_source l, uint32_t i);
/* As the first: to be freed then; as one that follows it is to go.  As the last. */
void kv_list_urgent(struct kvstore *kv, uint32_t page);
void kv_list_needed(struct kvstore *kv, enum kv_source l, uint32_t i);
void kv_list_put_off(struct kvstore *kv, enum kv_source l, uint32_t i);
void kv_unlist(struct kvstore *kv, enum kv_source l, uint32_t i);
/* The tier has dropped what was in this slot: a load of it failed. */
void kv_forget_slot(struct kvstore *kv, const struct kv_transfer *t);

/* ---- kvstore_store.c ---- */

void kv_stores_start(struct kvstore *kv, uint64_t now);
void kv_store_landed(struct kvstore *kv, struct kv_transfer *t, uint64_t now);
void kv_sink(struct kvstore *kv, struct kv_transfer *t, uint64_t now);
uint64_t kv_stores_next(const struct kvstore *kv, uint64_t now);
struct kv_transfer *kv_transfer_take(struct kvstore *kv, enum kv_job job);
/* Submit, or have it submitted again where the tier is busy (0 too).  A tier that refuses
 * although nothing is in flight in it is asked a few times only. */
NODISCARD int kv_transfer_submit(struct kvstore *kv, struct kv_transfer *t,
                                 uint64_t now);
void kv_transfer_give(struct kvstore *kv, struct kv_transfer *t);

/* ---- kvstore_room.c ---- */

bool kv_tier_takes(const struct kvstore *kv, enum kv_source l, uint64_t now);
/* So much of the level is in use or without a copy that it could not be freed down to the
 * low mark. */
bool kv_scarce(const struct kvstore *kv, enum kv_source l, uint64_t now);
/* As kvstore_make_room(), of what has copies or never gets any. */
uint32_t kv_make_room_saved(struct kvstore *kv, uint32_t n, uint64_t now);
bool kv_active(const struct kvstore *kv, uint32_t page);
/* Is the block to stay in this level, as nobody else has it for a hold? */
bool kv_held(const struct kvstore *kv, enum kv_source l, uint32_t i, uint64_t now);
/* Free a READY, unpinned block of a level; counted as an eviction. */
void kv_evict(struct kvstore *kv, enum kv_source l, uint32_t i);
/* A copy of this block is no more: records whose last block it was go one up if it was
 * the last copy.  True then. */
bool kv_gone(struct kvstore *kv, const struct block_meta *meta);
/* Make room in a tier for one more block of a tenant, used at `used`.  0; -EAGAIN: when
 * something has been copied down, or as long as held blocks are passed over; -EDQUOT: the same, for this tenant alone; -ENOSPC: never,
 * all there was used later or is held. */
int kv_admit(struct kvstore *kv, enum kv_source l, uint64_t tenant, uint64_t used,
             uint64_t now);
/* Some page may be freed for its quiet from then on. */
void kv_quiet_at(struct kvstore *kv, uint64_t at);
void kv_free_quiet(struct kvstore *kv, uint64_t now);
void kv_shed(struct kvstore *kv, enum kv_source l, uint64_t now);

/* ---- kvstore_wait.c ---- */

/* What is left of the idle pages is held, then: count them. */
void kv_count_held(struct kvstore *kv, uint64_t now);
/* Pages that cannot be freed without a loss, but for those on their way down. */
uint32_t kv_staying(const struct kvstore *kv, uint64_t now);

/* ---- kvstore_records.c ---- */

NODISCARD int kv_records_open(struct kv_records **out, uint32_t max, struct err *err);
void kv_records_close(struct kv_records *rs);
size_t kv_records_bytes(uint32_t max);
uint32_t kv_record_named(const struct kvstore *kv, uint64_t tenant, const char *name);
/* The conversation of a prompt: by its name, or the deepest whose latest prompt is a prefix
 * of this one; made where there is none and it can be.  KV_NONE. */
uint32_t kv_record_of(struct kvstore *kv, const struct kv_prompt *p, bool make);
uint32_t kv_record_with_last(const struct kvstore *kv, const struct block_meta *meta);
/* The next record that has the block by such a key, after one that does; KV_NONE: the first. */
uint32_t kv_record_next(const struct kvstore *kv, enum kv_key key, uint32_t after,
                        const struct block_meta *meta);
/* For a restart: record i as it was kept, before kv_records_link_free(); it goes on to a block
 * that follows its last one; one of a block that no name is known of.  Those whose
 * entry is foreign are taken after all others. */
void kv_record_restore(struct kvstore *kv, uint32_t i, const struct kept_name *name);
void kv_record_extend(struct kvstore *kv, uint32_t i, const struct block_meta *leaf);
void kv_record_derive(struct kvstore *kv, const struct block_meta *leaf);
void kv_records_link_free(struct kv_records *rs, const struct tier *ssd);
void kv_record_renew(struct kv_records *rs, uint32_t r);  // the newest from now on
void kv_record_touch(struct kvstore *kv, uint32_t r, uint64_t now);
/* NULL: it has no blocks any more. */
void kv_record_set_last(struct kvstore *kv, uint32_t r, const struct block_id *last,
                        uint32_t blocks);
void kv_record_set_anchor(struct kvstore *kv, uint32_t r,
                          const struct block_id *anchor);
/* NULL: none of its blocks is on the SSD. */
void kv_record_set_kept(struct kvstore *kv, uint32_t r, const struct block_id *last,
                        uint32_t blocks);
/* One use of it has ended. */
void kv_record_release(struct kvstore *kv, uint32_t r);
void kv_record_remove(struct kvstore *kv, uint32_t r);
bool kv_records_check(const struct kvstore *kv);

/* ---- kvstore_names.c ---- */

/* Entry i is to name nothing of ours; another fingerprint's stays, as its blocks may. */
void kv_name_clear(struct kvstore *kv, uint32_t i);
/* The record's entry is to be what the record says. */
void kv_name_put(struct kvstore *kv, uint32_t r);
/* Its last block is another one, and may be on the SSD with all before it. */
void kv_name_settle(struct kvstore *kv, uint32_t r);
/* A block has landed on the SSD, before or after those that follow it; it may have left it. */
void kv_name_landed(struct kvstore *kv, const struct block_meta *meta);
void kv_name_left(struct kvstore *kv, const struct block_meta *meta);
bool kv_names_check(const struct kvstore *kv);

/* ---- kvstore_restart.c ---- */

NODISCARD int kv_find_sleepers(struct kvstore *kv, struct err *err);

#endif
