/* ssd_file.h - the folder of the SSD tier, its lock, and the file of slots.
 *
 *     DIR/lock     held with flock: one process at a time
 *     DIR/blocks   disk_format.h
 *
 * Owns     the three descriptors.
 * Threads  one; only open and close block.
 */
#ifndef OFFLOAD_SSD_FILE_H
#define OFFLOAD_SSD_FILE_H

#include "offload/ssd_sys.h"
#include "offload/tier.h"

struct ssd_file {
    int dir, lock, fd;
    bool direct;
    uint64_t slot_bytes;
    uint32_t capacity;
};

/* Add a sentence to what was found. */
void ssd_note(struct tier_ssd_found *found, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Of the options, checked here: at least one block must fit. */
NODISCARD int ssd_file_open(struct ssd_file *f, struct tier_ssd_found *found,
                            const struct tier_ssd_options *o, const struct ssd_sys *sys,
                            struct err *err);
void ssd_file_close(struct ssd_file *f);
/* False: it has been deleted, or its folder has.  May block; from any thread. */
bool ssd_file_lasts(const struct ssd_file *f);
/* Give up a slot's room on the device, so that the file has zeros there.  May block. */
int ssd_file_punch(const struct ssd_file *f, uint32_t slot);

#endif
