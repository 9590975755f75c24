/* ssd_scan.h - what a file of slots holds, found again from the headers alone.
 *
 * Owns     what it needs while it runs; the blocks go into the caller's slots.
 * Threads  one; blocks until the last header is read.
 *
 *     open -> take each header -> order -> close
 *
 * Order: a block is worth as much as the latest store among it and all that follow it, so
 * that conversations come in the order in which they were last added to, and within one
 * the deepest block is the first to go.  A block whose chain to depth 0 has a gap can never
 * be reached again, and is dropped.
 */
#ifndef OFFLOAD_SSD_SCAN_H
#define OFFLOAD_SSD_SCAN_H

#include "offload/disk_format.h"
#include "offload/ssd_file.h"
#include "offload/ssd_queue.h"
#include "offload/ssd_wipe.h"

struct ssd_scan {
    /* set by the caller; all borrowed */
    struct slots *slots;    // empty
    struct ssd_wipe *wipe;  // is given what was dropped
    const struct crypto_hash *fingerprint;
    uint64_t block_bytes;
    struct tier_ssd_found *found;
    /* the scan's own */
    uint64_t last;     // the greatest sequence number seen
    uint64_t *recent;  // (capacity) of each slot
};

NODISCARD int ssd_scan_open(struct ssd_scan *s, struct err *err);
void ssd_scan_close(struct ssd_scan *s);
void ssd_scan_take(struct ssd_scan *s, uint32_t slot, const struct disk_header *h);
NODISCARD int ssd_scan_order(struct ssd_scan *s, struct err *err);

/* All of it over a file: `depth` headers are read at a time. */
NODISCARD int ssd_scan_file(struct ssd_scan *s, const struct ssd_file *f,
                            struct ssd_queue *q, uint32_t depth, struct err *err);

#endif
