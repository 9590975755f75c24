/* tier_ssd.c - the SSD tier: blocks in a file of slots, moved many at a time.
 *
 * What start() is given waits, sorted by slot, until flush() makes runs of neighbours of
 * it, loads before stores.  A run that fails is taken apart into its blocks, once, so that
 * a block fails only for itself.
 *
 *     store: start --sums--> waiting --flush--> run ---------> ready
 *     load:  start --------> waiting --flush--> run --sums---> ready
 *
 * Wipes have runs of their own, so that they neither hold up transfers nor wait for them.
 */
#include "offload/disk_format.h"
#include "offload/ssd_file.h"
#include "offload/ssd_run.h"
#include "offload/ssd_scan.h"
#include "offload/ssd_sums.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define WIPES      8                     // at a time
#define WIPE_BYTES ((size_t)256 * 1024)  // of zeros, each written many times
#define RUN_BYTES  ((uint64_t)4 << 20)   // at which a run takes no more neighbours

struct waiting {  // of one direction, sorted by slot
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
    struct waiting waiting[2];  // by direction
    struct disk_header *pages;  // (depth), one for each transfer: io->ticket
    uint32_t *free_pages, n_free_pages;
    struct ssd_sums *sums;
    struct ssd_sum *jobs;  // (depth) likewise
    uint32_t summing;      // stores whose checksums are being computed
    struct ssd_run *runs;  // (depth + WIPES)
    struct ssd_run *free_runs;
    struct tier_io *ready, **ready_end;  // settled, not yet given back
    struct ssd_wipe wipe;
    unsigned wiping;
    bool closing;   // what cannot be wiped now never will
    uint32_t left;  // such blocks, that could not be cut out either
    void *zeros;    // WIPE_BYTES
};

static struct tier_ssd *ssd_of(struct tier *base)
{
    return CONTAINER_OF(base, struct tier_ssd, base);
}

// ---- runs ----------------------------------------------------------------------------

static struct ssd_run *take_run(struct tier_ssd *t, uint32_t slot)
{
    struct ssd_run *r = t->free_runs;
    assert(r);  // each run has a block in flight, or is a wipe
    t->free_runs = r->next;
    r->n_ios = r->n_segments = 0;
    r->done = r->tries = 0;
    r->slot = slot;
    r->at = disk_slot_at(t->file.slot_bytes, slot);
    return r;
}

static void give_run(struct tier_ssd *t, struct ssd_run *r)
{
    r->next = t->free_runs;
    t->free_runs = r;
}

static void push_run(struct tier_ssd *t, struct ssd_run *r)
{
    ssd_run_aim(r);
    ssd_push(t->queue, &r->op);
}

/* Blocks of neighbouring slots, all in one direction. */
static void push_blocks(struct tier_ssd *t, struct tier_io **io, unsigned n)
{
    struct ssd_run *r = take_run(t, io[0]->slot);
    r->op.write = io[0]->dir == TIER_STORE;
    r->total = n * t->file.slot_bytes;
    for (unsigned i = 0; i < n; i++) {
        r->ios[r->n_ios++] = io[i];
        r->segment[r->n_segments++] =
            (struct iovec){&t->pages[io[i]->ticket], DISK_PAGE};
        r->segment[r->n_segments++] =
            (struct iovec){io[i]->buf, tier_buffer_bytes(&t->base)};
    }
    push_run(t, r);
}

static bool run_is_full(const struct tier_ssd *t, uint32_t blocks)
{
    return blocks >= SSD_RUN_BLOCKS || (blocks + 1) * t->file.slot_bytes > RUN_BYTES;
}

static void push_waiting(struct tier_ssd *t, struct waiting *w)
{
    for (uint32_t i = 0, n; i < w->n; i += n) {
        n = 1;
        while (!run_is_full(t, n) && i + n < w->n &&
               w->io[i + n]->slot == w->io[i]->slot + n)
            n++;
        push_blocks(t, &w->io[i], n);
    }
    w->n = 0;
}

static void count_wipes(struct tier_ssd *t)
{
    t->base.to_wipe = t->wipe.n + t->wiping;
    t->base.to_erase = t->wipe.erasing;
    if (t->base.to_wipe == 0 && t->base.to_erase == 0) t->base.wipe_error = 0;
}

static void push_wipes(struct tier_ssd *t)
{
    uint32_t slot;
    bool whole;
    while (t->base.wipe_at == 0 && !t->base.wipe_failed && t->wiping < WIPES &&
           ssd_wipe_next(&t->wipe, &slot, &whole)) {
        struct ssd_run *r = take_run(t, slot);
        r->op.write = true;
        while (r->n_segments < ARRAY_LEN(r->segment))
            r->segment[r->n_segments++] = (struct iovec){t->zeros, WIPE_BYTES};
        r->total = whole ? t->file.slot_bytes : DISK_PAGE;
        t->wiping++;
        push_run(t, r);
    }
    count_wipes(t);
}

// ---- checksums -----------------------------------------------------------------------

static void settle(struct tier_ssd *t, struct tier_io *io, int res)
{
    io->res = res;
    if (io->dir == TIER_STORE && res == 0) {
        ssd_wipe_overwritten(&t->wipe, io->slot);
        count_wipes(t);
    }
    t->free_pages[t->n_free_pages++] = (uint32_t)io->ticket;
    io->next = NULL;
    *t->ready_end = io;
    t->ready_end = &io->next;
}

static void wait_to_be_pushed(struct tier_ssd *t, struct tier_io *io)
{
    struct waiting *w = &t->waiting[io->dir];
    uint32_t i = w->n++;
    for (; i > 0 && w->io[i - 1]->slot > io->slot; i--) w->io[i] = w->io[i - 1];
    w->io[i] = io;
}

static void sum(struct tier_ssd *t, struct tier_io *io)
{
    struct ssd_sum *job = &t->jobs[io->ticket];
    *job = (struct ssd_sum){.io = io, .page = &t->pages[io->ticket]};
    if (io->dir == TIER_STORE) {
        job->sequence = ++t->sequence;
        t->summing++;
    }
    ssd_sums_push(t->sums, job);
}

static void collect_sums(struct tier_ssd *t)
{
    for (struct ssd_sum *job; (job = ssd_sums_pop(t->sums)) != NULL;) {
        if (job->io->dir == TIER_LOAD) {
            settle(t, job->io, job->right ? 0 : -EBADMSG);
        } else {
            t->summing--;
            wait_to_be_pushed(t, job->io);
        }
    }
}

// ---- transfers -----------------------------------------------------------------------

/* Stores that were given together are summed one by one, and wait for as many as make a
 * run, so that neighbours stay together. */
static void ssd_flush(struct tier *base)
{
    struct tier_ssd *t = ssd_of(base);
    collect_sums(t);
    push_waiting(t, &t->waiting[TIER_LOAD]);
    uint32_t stores = t->waiting[TIER_STORE].n;
    if (t->summing == 0 || run_is_full(t, stores))
        push_waiting(t, &t->waiting[TIER_STORE]);
    push_wipes(t);
    ssd_kick(t->queue);
}

/* What a run came to, of one of its blocks. */
static void moved(struct tier_ssd *t, struct tier_io *io, int res)
{
    if (res == 0 && io->dir == TIER_LOAD)
        sum(t, io);
    else
        settle(t, io, res);
}

/* One that failed is done again later; at the close its room in the file is given up, and
 * with it what no restart is to find.  For a header alone that the device has no room for,
 * nothing is there: no store has got so far.  (A file system that copies what it overwrites
 * may have no room for others; then a restart finds a block that was pushed out.) */
static void end_wipe(struct tier_ssd *t, struct ssd_run *r)
{
    int res = r->total == DISK_PAGE && tier_lacks_room(r->res) ? 0 : r->res;
    if (res < 0 && t->closing) res = ssd_file_punch(&t->file, r->slot);
    if (res < 0) t->base.wipe_error = res;
    if (res == 0 || t->closing) {
        ssd_wipe_done(&t->wipe, r->slot);
        t->left += res < 0;
    } else {
        ssd_wipe_again(&t->wipe, r->slot);
        t->base.wipe_failed = true;
    }
    t->wiping--;
    give_run(t, r);
    push_wipes(t);
}

static void end_run(struct tier_ssd *t, struct ssd_run *r)
{
    if (r->n_ios == 0) {
        end_wipe(t, r);
        return;
    }
    struct tier_io *ios[SSD_RUN_BLOCKS];
    unsigned n = r->n_ios, whole = (unsigned)(r->done / t->file.slot_bytes);
    int res = r->res;
    memcpy(ios, r->ios, n * sizeof *ios);
    give_run(t, r);
    for (unsigned i = 0; i < whole; i++) moved(t, ios[i], 0);
    if (n == 1 && whole == 0) moved(t, ios[0], res);
    for (unsigned i = whole; n > 1 && i < n; i++) push_blocks(t, &ios[i], 1);
}

/* Look at what has ended, until something is ready. */
static void land(struct tier_ssd *t)
{
    struct ssd_op *op;
    while (!t->ready && (op = ssd_pop(t->queue, false))) {
        struct ssd_run *r = ssd_run_of(op);
        if (ssd_run_advance(r))
            end_run(t, r);
        else
            ssd_push(t->queue, op);
    }
    ssd_kick(t->queue);
}

/* A slot that is being wiped is had a moment later. */
static bool may_store(struct tier_ssd *t, uint32_t slot)
{
    if (ssd_wipe_cancel(&t->wipe, slot)) return true;
    land(t);
    return ssd_wipe_cancel(&t->wipe, slot);
}

static int ssd_start(struct tier *base, struct tier_io *io)
{
    struct tier_ssd *t = ssd_of(base);
    if (t->n_free_pages == 0) return -EAGAIN;
    bool store = io->dir == TIER_STORE;
    if (store && !may_store(t, io->slot)) return -EAGAIN;

    io->ticket = t->free_pages[--t->n_free_pages];
    if (store)
        sum(t, io);
    else
        wait_to_be_pushed(t, io);
    return 0;
}

static struct tier_io *ssd_finish(struct tier *base)
{
    struct tier_ssd *t = ssd_of(base);
    if (!t->ready) {
        ssd_flush(base);
        land(t);
        collect_sums(t);
    }
    struct tier_io *io = t->ready;
    if (!io) return NULL;
    t->ready = io->next;
    if (!t->ready) t->ready_end = &t->ready;
    return io;
}

static void ssd_forget(struct tier *base, uint32_t slot, bool erase)
{
    struct tier_ssd *t = ssd_of(base);
    ssd_wipe_add(&t->wipe, slot, erase);
    count_wipes(t);
}

static bool ssd_lasts(const struct tier *base)
{
    return ssd_file_lasts(&CONTAINER_OF(base, const struct tier_ssd, base)->file);
}

/* Headers and blocks go in one transfer, so neither is of use without the other. */
static int ssd_tier_register(struct tier *base, void *p, size_t bytes)
{
    struct tier_ssd *t = ssd_of(base);
    if (base->block_bytes < t->register_from) return -EOPNOTSUPP;
    if (!t->registered) {
        int rc =
            ssd_register(t->queue, t->pages, t->depth * sizeof *t->pages, DISK_PAGE);
        if (rc < 0) return rc;
        t->registered = true;
    }
    return ssd_register(t->queue, p, bytes, tier_buffer_bytes(base));
}

// ---- opening and closing -------------------------------------------------------------

static void finish_wipes(struct tier_ssd *t)
{
    t->closing = true;
    t->base.wipe_at = 0;
    push_wipes(t);
    while (t->wiping > 0) {
        ssd_kick(t->queue);
        struct ssd_op *op = ssd_pop(t->queue, true);
        if (!op) return;
        struct ssd_run *r = ssd_run_of(op);
        if (ssd_run_advance(r))
            end_run(t, r);
        else
            ssd_push(t->queue, op);
    }
}

static uint32_t ssd_tier_close(struct tier *base)
{
    struct tier_ssd *t = ssd_of(base);
    assert(!t->ready && !t->waiting[0].n && !t->waiting[1].n);
    if (t->queue && t->zeros) finish_wipes(t);
    uint32_t left = t->left + t->wipe.n + t->wiping;
    ssd_close(t->queue);
    ssd_sums_close(t->sums);
    ssd_wipe_close(&t->wipe);
    ssd_file_close(&t->file);
    free(t->waiting[0].io);
    free(t->waiting[1].io);
    free(t->pages);
    free(t->free_pages);
    free(t->jobs);
    free(t->runs);
    free(t->zeros);
    free(t);
    return left;
}

static const struct tier_medium ssd_medium = {
    .name = "ssd",
    .start = ssd_start,
    .finish = ssd_finish,
    .flush = ssd_flush,
    .reg = ssd_tier_register,
    .forget = ssd_forget,
    .lasts = ssd_lasts,
    .close = ssd_tier_close,
};

static int open_queue(struct tier_ssd *t, struct tier_ssd_found *found,
                      const struct tier_ssd_options *o, const struct ssd_sys *sys,
                      struct err *err)
{
    unsigned entries = t->depth + WIPES;
    int rc = o->no_uring ? 0 : ssd_uring_open(&t->queue, t->file.fd, entries, sys);
    found->uring = t->queue != NULL;
    if (found->uring) return 0;
    if (rc < 0)
        ssd_note(found,
                 "io_uring is not to be had here (%s), so the SSD tier uses threads.",
                 strerror(-rc));
    return ssd_threads_open(&t->queue, t->file.fd, entries, sys, err);
}

static int take_memory(struct tier_ssd *t, struct err *err)
{
    uint32_t n_runs = t->depth + WIPES;
    t->waiting[0].io = calloc(t->depth, sizeof *t->waiting[0].io);
    t->waiting[1].io = calloc(t->depth, sizeof *t->waiting[1].io);
    t->pages = aligned_alloc(DISK_PAGE, t->depth * sizeof *t->pages);
    t->free_pages = calloc(t->depth, sizeof *t->free_pages);
    t->jobs = calloc(t->depth, sizeof *t->jobs);
    t->runs = calloc(n_runs, sizeof *t->runs);
    t->zeros = aligned_alloc(DISK_PAGE, WIPE_BYTES);
    if (!t->waiting[0].io || !t->waiting[1].io || !t->pages || !t->free_pages ||
        !t->jobs || !t->runs || !t->zeros)
        return err_set(err, -ENOMEM, "no memory for %u transfers of the SSD tier",
                       t->depth);
    memset(t->zeros, 0, WIPE_BYTES);
    for (uint32_t i = 0; i < t->depth; i++) t->free_pages[t->n_free_pages++] = i;
    for (uint32_t i = 0; i < n_runs; i++) give_run(t, &t->runs[i]);
    return 0;
}

static int look_around(struct tier_ssd *t, struct tier_ssd_found *found,
                       struct err *err)
{
    t->base.labels = calloc(t->file.capacity, sizeof *t->base.labels);
    if (!t->base.labels)
        return err_set(err, -ENOMEM, "no memory for the names of %u blocks",
                       t->file.capacity);
    struct ssd_scan scan = {
        .slots = t->base.slots,
        .wipe = &t->wipe,
        .fingerprint = &t->fingerprint,
        .block_bytes = t->base.block_bytes,
        .found = found,
        .labels = t->base.labels,
    };
    int rc = ssd_scan_file(&scan, &t->file, t->queue, t->depth, err);
    t->sequence = scan.last;
    count_wipes(t);
    return rc;
}

int tier_ssd_check(struct tier_ssd_found *found, const struct tier_ssd_options *o,
                   struct err *err)
{
    struct ssd_file f;
    *found = (struct tier_ssd_found){0};
    int rc = ssd_file_open(&f, found, o, true, err);
    if (rc == 0) ssd_file_close(&f);
    return rc;
}

int tier_ssd_open(struct tier **out, struct tier_ssd_found *found,
                  const struct tier_ssd_options *o, struct err *err)
{
    const struct ssd_sys *sys = o->sys ? o->sys : &ssd_sys_real;
    struct tier_ssd *t = calloc(1, sizeof *t);
    if (!t) return err_set(err, -ENOMEM, "no memory for the SSD tier");
    *found = (struct tier_ssd_found){0};
    t->base.medium = &ssd_medium;
    t->base.block_bytes = o->block_bytes;
    t->base.health.writable = true;
    t->fingerprint = o->fingerprint;
    t->register_from = o->register_from;
    t->depth = o->depth;
    t->ready_end = &t->ready;

    int rc = ssd_file_open(&t->file, found, o, false, err);
    if (rc == 0) rc = take_memory(t, err);
    if (rc == 0) rc = ssd_sums_open(&t->sums, &t->fingerprint, o->block_bytes, err);
    if (rc == 0) rc = slots_open(&t->base.slots, t->file.capacity, err);
    if (rc == 0) rc = ssd_wipe_open(&t->wipe, t->file.capacity, err);
    if (rc == 0) rc = open_queue(t, found, o, sys, err);
    if (rc == 0) rc = look_around(t, found, err);
    if (rc < 0) {
        tier_close(&t->base);
        return rc;
    }
    *out = &t->base;
    return 0;
}
