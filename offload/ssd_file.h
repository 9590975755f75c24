/* ssd_file.h - the file of slots in the SSD tier's folder.
 *
 *     DIR/blocks   disk_format.h
 *
 * Owns     the folder and a descriptor.
 * Threads  one; only open, close and what says so block.
 */
#ifndef OFFLOAD_SSD_FILE_H
#define OFFLOAD_SSD_FILE_H

#include "offload/ssd_folder.h"

struct ssd_file {
    struct ssd_folder folder;
    int fd;
    bool direct;
    uint64_t slot_bytes;
    uint32_t capacity;
};

/* Of the options, checked here: at least one block must fit; o->sys is lent until the close,
 * and so is o->dir for a look: nothing is changed then, and what had to be made for it is
 * taken away by the close. */
NODISCARD int ssd_file_open(struct ssd_file *f, struct tier_ssd_found *found,
                            const struct tier_ssd_options *o, bool look,
                            struct err *err);
void ssd_file_close(struct ssd_file *f);
/* False: it has been deleted, or its folder has.  May block; from any thread. */
bool ssd_file_lasts(const struct ssd_file *f);
/* Give up a slot's room on the device, so that the file has zeros there.  May block. */
NODISCARD int ssd_file_punch(const struct ssd_file *f, uint32_t slot);

#endif
