/* ssd_sums.h - the checksums of blocks on their way, computed by a thread of their own.
 *
 * Owns     the thread.  Never a block.
 * Caller   lends each job, its page and its block from push to pop.
 * Order    jobs come back in the order in which they were pushed.
 * Memory   all taken by open.
 * Threads  one makes every call; none blocks but open and close.
 */
#ifndef OFFLOAD_SSD_SUMS_H
#define OFFLOAD_SSD_SUMS_H

#include "offload/disk_format.h"
#include "offload/tier.h"

struct ssd_sum {
    struct tier_io *io;  // a store: make the page's header; a load: is it that block?
    struct disk_header *page;
    uint64_t sequence;  // of a store
    bool right;         // of a load, once popped
    struct ssd_sum *next;
};

struct ssd_sums;
NODISCARD int ssd_sums_open(struct ssd_sums **out,
                            const struct crypto_hash *fingerprint, size_t block_bytes,
                            struct err *err);
void ssd_sums_close(struct ssd_sums *s);  // NULL is fine; nothing may be lent

void ssd_sums_push(struct ssd_sums *s, struct ssd_sum *job);
struct ssd_sum *ssd_sums_pop(struct ssd_sums *s);  // NULL: none is done

#endif
