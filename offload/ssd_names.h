/* ssd_names.h - the table of conversations' names beside the SSD's blocks.
 *
 *     DIR/names    disk_format.h
 *
 * Owns     a descriptor; the table as it is to be in the file; which of its pages the file
 *          does not have like that yet, and what has been deleted from them.
 * Caller   lends the folder to the open, and counts of what is owed, by group, to the close.
 *          Moves the pages: each from ssd_names_next() to ssd_names_done().
 * Memory   TIER_SSD_NAME_BYTES a name, taken by open.
 * Threads  one; the owner's.
 *
 * Order.  A page is written as a copy of what it holds then, and not again before that write
 * has ended, so that no older copy comes after a newer one.  A name that was replaced is owed
 * until a write that began later has gone well: then no restart can find it.
 *
 * Between this file and that of the blocks no order is needed, as neither is believed without
 * the other.  An entry is put here when its block and all before it have landed, and whenever
 * the process is killed, the file has for a conversation
 *   - no entry yet, or an older one: what its blocks tell more is found as the end of the older
 *     one's, or under a derived name;
 *   - an entry whose block is gone or erased: that is refused, and what is left is found under
 *     a derived name;
 *   - an entry that was deleted, with blocks that were not erased, or that others have too: as
 *     before the deletion.  So who deletes is answered when the blocks are overwritten and the
 *     entry is not owed any more, in whichever order these happen.
 *
 * What is in the file's place and cannot be read is told, and costs the names alone.  A
 * file that may not be opened is deleted, as what is deleted meanwhile would be found in it.
 */
#ifndef OFFLOAD_SSD_NAMES_H
#define OFFLOAD_SSD_NAMES_H

#include "offload/disk_format.h"
#include "offload/ssd_file.h"

struct ssd_names {
    int fd;        // -1: none are kept
    uint32_t max;  // names; 0 likewise
    uint32_t n_pages;
    struct crypto_hash fingerprint;
    const struct ssd_sys *sys;   // borrowed
    struct disk_name *table;     // (n_pages * DISK_NAMES)
    struct ssd_name_page *page;  // (n_pages)
    uint32_t *ring;  // (n_pages) those to be written, in the order they came
    uint32_t first, n;
    uint32_t flying;
    uint32_t *owed;  // (NAME_GROUPS) pages; borrowed
};

/* Of `max` names, in the folder of f; where the file has more, those used last stay, and the
 * others go from it.  Nothing but memory is an error: what else goes wrong is noted, and then
 * none are kept. */
NODISCARD int ssd_names_open(struct ssd_names *n, struct ssd_file *f,
                             struct tier_ssd_found *found, uint32_t max,
                             const struct crypto_hash *fingerprint, uint32_t *owed,
                             struct err *err);
void ssd_names_close(struct ssd_names *n);

/* Name i, or with NULL none. */
void ssd_names_put(struct ssd_names *n, uint32_t i, const struct kept_name *name);

void ssd_names_get(const struct ssd_names *n, uint32_t i, struct kept_name *out);

/* A copy of the next page to be written, from now until ssd_names_done() says how that went:
 * one that failed is to be written again, and the file may have some of it. */
bool ssd_names_next(struct ssd_names *n, void *copy, uint32_t *page);
void ssd_names_done(struct ssd_names *n, uint32_t page, int res, bool some);
/* The same at the end, when one that failed is given up: what it owes is cut out of the file.
 * False: it could not be. */
bool ssd_names_give_up(struct ssd_names *n, uint32_t page);

static inline uint32_t ssd_names_left(const struct ssd_names *n)
{
    return n->n + n->flying;
}

static inline uint64_t ssd_names_at(uint32_t page)
{
    return (uint64_t)page * DISK_PAGE;
}

#endif
