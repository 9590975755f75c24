/* ssd_wipe.h - slots whose block is gone but whose bytes still lie in the file.
 *
 * Owns     the list of them, in the order they came; each at most once.
 * Memory   5 bytes a slot, taken by open.
 * Threads  one; the owner's.
 *
 * A slot whose header alone is to go, and that is used again before its turn, is overwritten
 * by that; it is taken off.  One whose bytes are to go waits for its turn, as what comes next
 * may fail to be written.
 */
#ifndef OFFLOAD_SSD_WIPE_H
#define OFFLOAD_SSD_WIPE_H

#include "kernels/base.h"

struct ssd_wipe {
    uint8_t *state;  // (capacity)
    uint32_t *ring;  // (capacity) slots, some taken off meanwhile
    uint32_t capacity, first, n;
    uint32_t erasing;  // whole slots that are not overwritten yet
};

NODISCARD int ssd_wipe_open(struct ssd_wipe *w, uint32_t capacity, struct err *err);
void ssd_wipe_close(struct ssd_wipe *w);

void ssd_wipe_add(struct ssd_wipe *w, uint32_t slot, bool whole);  // or the header only
/* The slot is to be written: false while it is being wiped, and until it has been where all
 * of it is to go. */
bool ssd_wipe_cancel(struct ssd_wipe *w, uint32_t slot);
/* The next to be wiped from now until ssd_wipe_done(). */
bool ssd_wipe_next(struct ssd_wipe *w, uint32_t *slot, bool *whole);
void ssd_wipe_done(struct ssd_wipe *w, uint32_t slot);

#endif
