/* ssd_state.h - what the files of the SSD tier share; nobody else includes it.
 *
 *     tier_ssd.c    opening and closing
 *     ssd_moves.c   blocks on their way, many at a time
 *     ssd_chores.c  what is done beside them: wiping slots, writing names
 */
#ifndef OFFLOAD_SSD_STATE_H
#define OFFLOAD_SSD_STATE_H

#include "offload/ssd_file.h"
#include "offload/ssd_names.h"
#include "offload/ssd_run.h"
#include "offload/ssd_sums.h"
#include "offload/ssd_wipe.h"

#include <assert.h>
#include <string.h>

#define SSD_WIPES      8                     // at a time
#define SSD_WIPE_BYTES ((size_t)256 * 1024)  // of zeros, each written many times
#define SSD_NAMINGS    4                     // pages of names written at a time

struct ssd_waiting {  // of one direction, sorted by slot
    struct tier_io **io;
    uint32_t n;
};

struct tier_ssd {
    struct tier base;
    struct ssd_file file;
    struct ssd_queue *queue;
    struct crypto_hash fingerprint;
    size_t register_from;
    bool registered;    // the pages are
    uint64_t sequence;  // of the latest store
    uint32_t depth;
    struct ssd_waiting waiting[2];  // by direction
    struct disk_header *pages;      // (depth), one for each transfer: io->ticket
    uint32_t *free_pages, n_free_pages;
    struct ssd_sums *sums;
    struct ssd_sum *jobs;  // (depth) likewise
    uint32_t summing;      // stores whose checksums are being computed
    struct ssd_run *runs;  // (depth + SSD_WIPES + SSD_NAMINGS)
    struct ssd_run *free_runs;
    struct tier_io *ready, **ready_end;  // settled, not yet given back

    struct ssd_wipe wipe;
    unsigned wiping;  // in flight
    void *zeros;      // SSD_WIPE_BYTES
    struct ssd_names names;
    unsigned naming;            // in flight
    void *copies[SSD_NAMINGS];  // of pages of names; those from naming on are free
    void *copy_memory;
    bool closing;   // what cannot be written now never will
    uint32_t left;  // such blocks and pages, that could not be cut out either
};

static inline struct tier_ssd *ssd_of(struct tier *base)
{
    return CONTAINER_OF(base, struct tier_ssd, base);
}

/* ---- ssd_moves.c ---- */

/* Of the bytes from `at` in a file; given back when it has ended. */
struct ssd_run *ssd_take_run(struct tier_ssd *t, enum ssd_run_kind kind, int fd,
                             uint64_t at);
void ssd_give_run(struct tier_ssd *t, struct ssd_run *r);
void ssd_push_run(struct tier_ssd *t, struct ssd_run *r);
/* Run on what the queue gives back, or deal with its end. */
void ssd_go_on(struct tier_ssd *t, struct ssd_op *op);

int ssd_start(struct tier *base, struct tier_io *io);
struct tier_io *ssd_finish(struct tier *base);
void ssd_flush(struct tier *base);

/* ---- ssd_chores.c ---- */

void ssd_count_chores(struct tier_ssd *t);
void ssd_push_chores(struct tier_ssd *t);
void ssd_end_wipe(struct tier_ssd *t, struct ssd_run *r);
void ssd_end_naming(struct tier_ssd *t, struct ssd_run *r);
void ssd_finish_chores(struct tier_ssd *t);  // blocks; for the close

void ssd_forget(struct tier *base, uint32_t slot, uint32_t group);
void ssd_put_name(struct tier *base, uint32_t i, const struct kept_name *name);
void ssd_name_at(const struct tier *base, uint32_t i, struct kept_name *out);

#endif
