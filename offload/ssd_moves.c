/* ssd_moves.c - the SSD tier's blocks on their way, many at a time.
 *
 * What start() is given waits, sorted by slot, until flush() makes runs of neighbours of
 * it, loads before stores.  A run that fails is taken apart into its blocks, once, so that
 * a block fails only for itself.
 *
 *     store: start --sums--> waiting --flush--> run ---------> ready
 *     load:  start --------> waiting --flush--> run --sums---> ready
 */
#include "offload/ssd_state.h"

#define RUN_BYTES ((uint64_t)4 << 20)  // at which a run takes no more neighbours

// ---- runs ----------------------------------------------------------------------------

struct ssd_run *ssd_take_run(struct tier_ssd *t, enum ssd_run_kind kind, int fd,
                             uint64_t at)
{
    struct ssd_run *r = t->free_runs;
    assert(r);  // each run has a block in flight, or is a chore's
    t->free_runs = r->next;
    r->n_ios = r->n_segments = 0;
    r->done = r->tries = 0;
    r->some = false;
    r->kind = kind;
    r->op.fd = fd;
    r->at = at;
    return r;
}

void ssd_give_run(struct tier_ssd *t, struct ssd_run *r)
{
    r->next = t->free_runs;
    t->free_runs = r;
}

void ssd_push_run(struct tier_ssd *t, struct ssd_run *r)
{
    ssd_run_aim(r);
    ssd_push(t->queue, &r->op);
}

/* Blocks of neighbouring slots, all in one direction. */
static void push_blocks(struct tier_ssd *t, struct tier_io **io, unsigned n)
{
    uint64_t at = disk_slot_at(t->file.slot_bytes, io[0]->slot);
    struct ssd_run *r = ssd_take_run(t, SSD_RUN_MOVE, t->file.fd, at);
    r->op.write = io[0]->dir == TIER_STORE;
    r->total = n * t->file.slot_bytes;
    for (unsigned i = 0; i < n; i++) {
        r->ios[r->n_ios++] = io[i];
        r->segment[r->n_segments++] =
            (struct iovec){&t->pages[io[i]->ticket], DISK_PAGE};
        r->segment[r->n_segments++] =
            (struct iovec){io[i]->buf, tier_buffer_bytes(&t->base)};
    }
    ssd_push_run(t, r);
}

static bool run_is_full(const struct tier_ssd *t, uint32_t blocks)
{
    return blocks >= SSD_RUN_BLOCKS || (blocks + 1) * t->file.slot_bytes > RUN_BYTES;
}

static void push_waiting(struct tier_ssd *t, struct ssd_waiting *w)
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

// ---- checksums -----------------------------------------------------------------------

static void settle(struct tier_ssd *t, struct tier_io *io, int res)
{
    io->res = res;
    if (io->dir == TIER_STORE && res == 0) {
        ssd_wipe_overwritten(&t->wipe, io->slot);
        ssd_count_chores(t);
    }
    t->free_pages[t->n_free_pages++] = (uint32_t)io->ticket;
    io->next = NULL;
    *t->ready_end = io;
    t->ready_end = &io->next;
}

static void wait_to_be_pushed(struct tier_ssd *t, struct tier_io *io)
{
    struct ssd_waiting *w = &t->waiting[io->dir];
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
void ssd_flush(struct tier *base)
{
    struct tier_ssd *t = ssd_of(base);
    collect_sums(t);
    push_waiting(t, &t->waiting[TIER_LOAD]);
    uint32_t stores = t->waiting[TIER_STORE].n;
    if (t->summing == 0 || run_is_full(t, stores))
        push_waiting(t, &t->waiting[TIER_STORE]);
    ssd_push_chores(t);
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

static void end_move(struct tier_ssd *t, struct ssd_run *r)
{
    struct tier_io *ios[SSD_RUN_BLOCKS];
    unsigned n = r->n_ios, whole = (unsigned)(r->done / t->file.slot_bytes);
    int res = r->res;
    memcpy(ios, r->ios, n * sizeof *ios);
    ssd_give_run(t, r);
    for (unsigned i = 0; i < whole; i++) moved(t, ios[i], 0);
    if (n == 1 && whole == 0) moved(t, ios[0], res);
    for (unsigned i = whole; n > 1 && i < n; i++) push_blocks(t, &ios[i], 1);
}

void ssd_go_on(struct tier_ssd *t, struct ssd_op *op)
{
    struct ssd_run *r = ssd_run_of(op);
    if (!ssd_run_advance(r)) {
        ssd_push(t->queue, op);
        return;
    }
    switch (r->kind) {
    case SSD_RUN_MOVE: end_move(t, r); break;
    case SSD_RUN_WIPE: ssd_end_wipe(t, r); break;
    case SSD_RUN_NAMES: ssd_end_naming(t, r); break;
    }
}

/* Look at what has ended, until something is ready. */
static void land(struct tier_ssd *t)
{
    struct ssd_op *op;
    while (!t->ready && (op = ssd_pop(t->queue, false))) ssd_go_on(t, op);
    ssd_kick(t->queue);
}

/* A slot that is being wiped is had a moment later. */
static bool may_store(struct tier_ssd *t, uint32_t slot)
{
    if (ssd_wipe_cancel(&t->wipe, slot)) return true;
    land(t);
    return ssd_wipe_cancel(&t->wipe, slot);
}

int ssd_start(struct tier *base, struct tier_io *io)
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

struct tier_io *ssd_finish(struct tier *base)
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
