/* ssd_run.h - one transfer of bytes that lie together in a file, seen through to its end.
 *
 * Owns     nothing; a part of who made it.
 * Caller   fills fd, at, total, write and the segments; calls ssd_run_aim() and pushes op, and
 *          for each time that op comes back asks ssd_run_advance().
 *
 * The segments follow each other in the file.  Where they are fewer bytes than total, they
 * are gone through again from the first.
 *
 * What was short goes on behind the last whole page, as direct I/O wants it.  The system
 * may say "again" only a few times in a row.
 */
#ifndef OFFLOAD_SSD_RUN_H
#define OFFLOAD_SSD_RUN_H

#include "offload/ssd_queue.h"

#define SSD_RUN_BLOCKS (SSD_OP_SEGMENTS / 2)  // neighbouring slots in one transfer

enum ssd_run_kind { SSD_RUN_MOVE, SSD_RUN_WIPE, SSD_RUN_NAMES };

struct ssd_run {
    struct ssd_op op;
    struct iovec segment[SSD_OP_SEGMENTS];
    unsigned n_segments;
    uint64_t at, total;  // bytes of the file
    uint64_t done;       // from the start, all in place
    unsigned tries;      // without a step forward
    bool some;           // bytes have been moved, however few
    int res;             // once ended: 0 or -errno
    /* the maker's own */
    enum ssd_run_kind kind;
    uint32_t piece;  // of a wipe the slot, of names the page
    unsigned n_ios;
    struct tier_io *ios[SSD_RUN_BLOCKS];
    struct ssd_run *next;
    struct iovec iov[SSD_OP_SEGMENTS];  // what op points to
};

static inline struct ssd_run *ssd_run_of(struct ssd_op *op)
{
    return CONTAINER_OF(op, struct ssd_run, op);
}

/* Point op at what is still to be moved. */
void ssd_run_aim(struct ssd_run *r);
/* Take the result of op.  False: not at its end, op is aimed at the rest.  True: ended,
 * see res: -EBADMSG where a read met the file's end, else what the system said. */
bool ssd_run_advance(struct ssd_run *r);

#endif
