/* tier.h - one storage level for KV blocks.  RAM is a tier, an SSD is a tier.
 *
 * Owns     `capacity` slots of block_bytes each, and what sits in them.
 * Caller   lends each struct tier_io and its buffer from tier_submit() until
 *          tier_reap() gives them back.  A buffer is tier_buffer_bytes() long and aligned
 *          to TIER_ALIGN; it may be device memory if the tier was opened with a copy queue of
 *          that device, or given one by tier_bounce().
 * Policy   is not here.  A full tier answers -ENOSPC; the caller chooses a victim among
 *          its slots (slots_coldest) and drops it, or moves it to the next tier first.
 * Memory   is all taken by the open function; nothing after it allocates.
 * Threads  the engine thread makes every call; only open and close may block.
 *
 * A block being stored is invisible (slots_match does not find it) until its store has been
 * reaped with res == 0.  A block being loaded cannot be dropped.  A block whose load failed
 * (-EBADMSG: a wrong checksum, another block's header, a file cut short; -EIO: the medium)
 * has been dropped by the tier when it is reaped, so it is never tried twice; one whose load
 * failed because the device that it was for has failed (-ENODEV) stays.
 * A tier whose medium fails to write (-ENOSPC of the file system, -EIO) stops taking
 * stores for a while that doubles each time, and says so in its health; where that was for
 * want of room, only until a block leaves it.
 */
#ifndef OFFLOAD_TIER_H
#define OFFLOAD_TIER_H

#include "kernels/copyq.h"
#include "offload/name.h"
#include "offload/slots.h"

struct ssd_sys;
struct bounce;

#define TIER_ALIGN 4096  // for buffers: what both O_DIRECT and DMA accept

struct tier;

enum tier_dir { TIER_STORE, TIER_LOAD };

/* One block on its way into or out of a tier. */
struct tier_io {
    /* set by the caller */
    struct block_meta meta;
    enum tier_dir dir;
    void *buf;
    bool sliced;  // of a load: slice by slice where the tier can
    /* set by the tier, valid once reaped */
    int res;  // 0 or -errno
    /* the tier's own while in flight */
    uint32_t slot;
    bool needs_room;  // of a store: its slot is not among the roomy
    uint64_t ticket;
    struct tier_io *next;
};

/* What a medium supplies: the means to move one block to or from slot n. */
struct tier_medium {
    const char *name;                                  // "ram", "ssd"
    int (*start)(struct tier *t, struct tier_io *io);  // -EAGAIN: queue full
    struct tier_io *(*finish)(struct tier *t);  // next finished, res set; or NULL
    void (*flush)(struct tier *t);  // hand over to the system what was started; or NULL
    int (*reg)(struct tier *t, void *base, size_t bytes);  // tier_register(); or NULL
    /* Of a load that was started: as copyq_arriving() and copyq_await().  Or NULL. */
    bool (*arriving)(struct tier *t, const struct tier_io *io);
    bool (*await)(struct tier *t, const struct tier_io *io);
    /* The block in it is gone, and is not to be found by a restart.  Unless `group` is
     * NAME_GROUPS, none of its bytes may stay: tier_erase().  Or NULL. */
    void (*forget)(struct tier *t, uint32_t slot, uint32_t group);
    /* tier_put_name(), tier_name_at(); or NULL where max_names is 0. */
    void (*put_name)(struct tier *t, uint32_t i, const struct kept_name *name);
    void (*name_at)(const struct tier *t, uint32_t i, struct kept_name *out);
    bool (*lasts)(const struct tier *t);  // tier_lasts(); or NULL
    uint32_t (*close)(struct tier *t);    // tier_close()
};

#define TIER_PAUSE_MIN_NS 1000000000u            // after a store that failed; doubled
#define TIER_PAUSE_MAX_NS (60ull * 1000000000u)  // each time, up to here

/* What a medium does beside transfers, piece by piece. */
struct tier_chore {
    uint32_t left;  // pieces, at most: then tier_reap() has work
    int error;      // -errno of the latest that failed; 0 when none is left to do
    bool failed;    // within a call: the medium says so, and gets a new `at`
    uint64_t at;    // none is begun before, in ns
};

#define TIER_REST_NS 1000000000u  // after a piece that failed

/* Is it that the device, a quota or the limit of a file's size leaves no room? */
static inline bool tier_lacks_room(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG;
}

struct tier_health {
    bool writable;      // stores are taken
    int last_error;     // -errno of the latest failed transfer, 0: none yet
    uint64_t retry_at;  // not writable: when stores are taken again, in ns
    uint64_t pause;     // the latest one's length in ns; 0 since a store succeeded
    int paused_for;     // -errno of the store that began it
    bool
        full;  // a store has found no room on the device, and none any since: slots that
               // had a block, and so have room, come before others
};

/* Read the fields freely; only tier.c and the medium write them. */
struct tier {
    const struct tier_medium *medium;
    size_t block_bytes;
    struct slots *slots;
    uint32_t in_flight, loading;     // transfers; of these, loads
    struct tier_chore wipes;         // slots whose block is gone
    struct tier_chore naming;        // pages of the table of names
    uint32_t to_erase[NAME_GROUPS];  // slots and pages that hold what was deleted
    uint32_t roomy;   // slots that are claimed first, because they had a block
    uint32_t pieces;  // in which a sliced load comes; 0: it comes whole
    struct tier_health health;
    struct bounce *bounce;  // tier_bounce()'s; NULL: none
    uint32_t max_names;     // 0: none are kept
    /* since open */
    uint64_t stored, loaded, failed;  // blocks, reaped
    uint64_t dropped_bad;             // of the failed: dropped for it
    uint64_t bytes_in, bytes_out;     // of blocks stored and loaded
};

/* Stores are not taken before something leaves, or a while has passed. */
static inline bool tier_waits_for_room(const struct tier *t)
{
    return !t->health.writable && tier_lacks_room(t->health.paused_for);
}

struct tier_ram_options {
    size_t block_bytes;
    uint32_t capacity;     // blocks; fewer where `copies` has memory for fewer
    struct copyq *copies;  // borrowed: must outlive the tier
    uint32_t
        slices;  // equal ones that a block is made of, needed one after another; 0: none
};
NODISCARD int tier_ram_open(struct tier **out, const struct tier_ram_options *o,
                            struct err *err);

#define TIER_SSD_DEPTH 1024  // most transfers in flight; beyond, a submit is -EAGAIN

#define TIER_SSD_NAME_BYTES 258  // of memory for each of max_names

struct tier_ssd_options {
    const char *dir;  // made with mode 0700 where it does not exist
    size_t block_bytes;
    uint64_t bytes;      // of the blocks' file
    uint32_t max_names;  // of conversations that are kept beside the blocks
    struct crypto_hash fingerprint;
    uint32_t depth;  // transfers in flight, at most TIER_SSD_DEPTH
    bool no_uring;   // use threads with pread and pwrite although io_uring is there
    bool no_direct;  // go through the page cache although O_DIRECT is there
    size_t register_from;  // blocks smaller than this are not worth tier_register()
    const struct ssd_sys *sys;  // borrowed; NULL: the system itself
};
struct tier_ssd_found {  // for the log
    uint32_t blocks;     // kept
    uint32_t foreign;    // of another fingerprint: left until their slots are needed
    uint32_t damaged;    // dropped: no header whose checksum is right
    uint32_t orphans;    // dropped: a block before them is not there any more
    bool uring, direct;  // what is used
    char note[1024];     // what is not as wished and why, in whole sentences; or ""
    /* With an error: it is of what lies in the folder, which is disposable, or of a device,
     * a file system or a folder that is there but cannot be written, and not of the options
     * or of a path that can be no folder.  The caller may go on without the tier. */
    bool tier_only;
};
/* Blocks of this fingerprint that the folder already holds are there again: conversations
 * in the order in which they were last added to, the deepest block of each counted as used
 * longest ago.  -EBUSY: another process has the folder.  A file of other geometry is made
 * anew; a damaged one loses what is damaged.  Without room on the device the tier opens,
 * says so, and takes what fits.
 * The caller ignores SIGXFSZ where it limits the size of files, or a store ends it. */
NODISCARD int tier_ssd_open(struct tier **out, struct tier_ssd_found *found,
                            const struct tier_ssd_options *o, struct err *err);

/* Would it open?  Folder and files are made, locked and looked at by the same code, so that
 * errors and notes are the same, and left as they were. */
NODISCARD int tier_ssd_check(struct tier_ssd_found *found,
                             const struct tier_ssd_options *o, struct err *err);

/* Buffers that the CPU cannot read go through `depth` ones that it can, taken from `copies`,
 * which must outlive the tier.  A store that fails to come from the device is not written; a
 * load that fails to reach it fails.  -ENOMEM, and the tier is as before. */
NODISCARD int tier_bounce(struct tier *t, struct copyq *copies, uint32_t depth,
                          struct err *err);

/* Below, neighbours in one vectored transfer are quicker than requests of their own. */
#define TIER_SSD_REGISTER_FROM ((size_t)256 << 10)

/* Buffers will lie in this memory, side by side from its beginning, until the tier is
 * closed: the medium may have the system pin it once instead of for each transfer.  Nothing
 * else changes, whatever this returns: -EOPNOTSUPP, it would be of no use here; -ENOMEM,
 * -EPERM and the like, the system does not let us pin so much. */
NODISCARD int tier_register(struct tier *t, void *base, size_t bytes);

/* False: what it holds has been taken away from where a restart would look for it, and is
 * gone with the process.  It may block, and be asked from any thread until tier_close(). */
bool tier_lasts(const struct tier *t);

/* How many blocks and pages of names that were dropped or erased a restart may still find, as
 * the medium could neither overwrite nor cut them out.  NULL is fine; in_flight must be 0. */
uint32_t tier_close(struct tier *t);

/* Conversation i < max_names is to be found by a restart as that; NULL: is not.  It is not
 * written at once but soon, before naming.left is 0, at the latest when the tier is closed;
 * until then the file may have what was there before.  A write that fails is tried again as
 * long, and costs nothing else.  What replaces a name counts for the group of that one in
 * to_erase, until no restart can find it. */
void tier_put_name(struct tier *t, uint32_t i, const struct kept_name *name);
/* What was put there last, or else found at the open; zeros beyond max_names. */
void tier_name_at(const struct tier *t, uint32_t i, struct kept_name *out);

size_t
tier_buffer_bytes(const struct tier *t);  // block_bytes, rounded up to TIER_ALIGN

/* Begin a transfer.  On any error the io stays the caller's and nothing changed:
 * -EEXIST storing a present block, -ENOENT loading an absent one, -ENOSPC when
 * every slot is taken, -EAGAIN when the medium is busy (reap, then retry), -EROFS while
 * stores are not taken.  now: the engine's clock, in ns. */
NODISCARD int tier_submit(struct tier *t, struct tier_io *io, uint64_t now);
void tier_flush(struct tier *t);  // after a row of submits

/* Of a load in flight: nothing of it is left to be checked, its first slice is there and the
 * rest is on its way (copyq.h).  Then tier_await() makes the device's next step wait for it;
 * false: there is nothing left to wait for. */
bool tier_arriving(struct tier *t, const struct tier_io *io);
bool tier_await(struct tier *t, const struct tier_io *io);

/* End the pause after stores that failed: the next one is tried at once. */
void tier_try_again(struct tier *t);

/* Take back up to `cap` finished transfers and return how many.  Called now and then with
 * nothing in flight, too: what was dropped is overwritten meanwhile. */
size_t tier_reap(struct tier *t, struct tier_io **done, size_t cap, uint64_t now);

/* Forget a block: -ENOENT, or -EBUSY while it is being stored or loaded.  A restart does not
 * find it when no wipes are left, or its slot holds another block.  tier_erase also overwrites
 * its bytes: at once, or (an SSD) before to_erase of that group is 0, at the latest when the
 * tier is closed.  What cannot be overwritten is tried again until then, and at the close
 * cut out of the file, so that at least no restart finds it; what cannot be cut out either
 * is counted by tier_close().  Its slot is used again after all others, but first where the
 * device was full. */
NODISCARD int tier_drop(struct tier *t, const struct block_id *id);
NODISCARD int tier_erase(struct tier *t, const struct block_id *id, uint32_t group);

#endif
