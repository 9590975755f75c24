/* ssd_wipe.h - slots whose block is gone but whose bytes still lie in the file.
 *
 * Owns     the list of them, in the order they came; each at most once, and the first one
 *          is always to be wiped, so that n is 0 when none is.
 * Memory   6 bytes a slot, taken by open.
 * Threads  one; the owner's.
 *
 * A slot that is used again before its turn is overwritten by that, and taken off.  If all of
 * its bytes are to go, that is owed until the store has landed: one that fails puts the slot
 * back, and so does a wipe that fails.
 */
#ifndef OFFLOAD_SSD_WIPE_H
#define OFFLOAD_SSD_WIPE_H

#include "offload/name.h"

struct ssd_wipe {
    uint8_t *state;  // (capacity)
    uint32_t *ring;  // (capacity) slots, some behind the first taken off meanwhile
    uint32_t capacity, first, n;
    uint32_t erasing;  // whole slots that are not overwritten yet
    uint8_t *group;    // (capacity) for which all of a slot is to go
    uint32_t *owed;    // (NAME_GROUPS) of these, not overwritten yet; borrowed
};

NODISCARD int ssd_wipe_open(struct ssd_wipe *w, uint32_t capacity, uint32_t *owed,
                            struct err *err);
void ssd_wipe_close(struct ssd_wipe *w);

/* All of the slot, for that group; NAME_GROUPS: the header only. */
void ssd_wipe_add(struct ssd_wipe *w, uint32_t slot, uint32_t group);
/* The slot is to be written: false while it is being wiped. */
bool ssd_wipe_cancel(struct ssd_wipe *w, uint32_t slot);
void ssd_wipe_overwritten(struct ssd_wipe *w,
                          uint32_t slot);  // and has been, all of it
/* The next to be wiped from now until ssd_wipe_done(), or ssd_wipe_again() where that has
 * failed. */
bool ssd_wipe_next(struct ssd_wipe *w, uint32_t *slot, bool *whole);
void ssd_wipe_done(struct ssd_wipe *w, uint32_t slot);
void ssd_wipe_again(struct ssd_wipe *w, uint32_t slot);

#endif
