/* tier_ssd.c - the SSD tier, opened and closed: blocks in a file of slots, and beside it the
 * names of conversations. */
#include "offload/ssd_scan.h"
#include "offload/ssd_state.h"

#include <stdlib.h>

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

static uint32_t ssd_tier_close(struct tier *base)
{
    struct tier_ssd *t = ssd_of(base);
    assert(!t->ready && !t->waiting[0].n && !t->waiting[1].n);
    if (t->queue) ssd_finish_chores(t);
    uint32_t left = t->left + t->base.wipes.left + t->base.naming.left;
    ssd_close(t->queue);
    ssd_sums_close(t->sums);
    ssd_wipe_close(&t->wipe);
    ssd_names_close(&t->names);
    ssd_file_close(&t->file);
    free(t->waiting[0].io);
    free(t->waiting[1].io);
    free(t->pages);
    free(t->free_pages);
    free(t->jobs);
    free(t->runs);
    free(t->zeros);
    free(t->copy_memory);
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
    .put_name = ssd_put_name,
    .name_at = ssd_name_at,
    .lasts = ssd_lasts,
    .close = ssd_tier_close,
};

static int open_queue(struct tier_ssd *t, struct tier_ssd_found *found,
                      const struct tier_ssd_options *o, const struct ssd_sys *sys,
                      struct err *err)
{
    unsigned entries = t->depth + SSD_WIPES + SSD_NAMINGS;
    int rc = o->no_uring ? 0 : ssd_uring_open(&t->queue, entries, sys);
    found->uring = t->queue != NULL;
    if (found->uring) return 0;
    if (rc < 0)
        ssd_note(found,
                 "io_uring is not to be had here (%s), so the SSD tier uses threads.",
                 strerror(-rc));
    return ssd_threads_open(&t->queue, entries, sys, err);
}

static int take_memory(struct tier_ssd *t, struct err *err)
{
    uint32_t n_runs = t->depth + SSD_WIPES + SSD_NAMINGS;
    t->waiting[0].io = calloc(t->depth, sizeof *t->waiting[0].io);
    t->waiting[1].io = calloc(t->depth, sizeof *t->waiting[1].io);
    t->pages = aligned_alloc(DISK_PAGE, t->depth * sizeof *t->pages);
    t->free_pages = calloc(t->depth, sizeof *t->free_pages);
    t->jobs = calloc(t->depth, sizeof *t->jobs);
    t->runs = calloc(n_runs, sizeof *t->runs);
    t->zeros = aligned_alloc(DISK_PAGE, SSD_WIPE_BYTES);
    t->copy_memory = aligned_alloc(DISK_PAGE, SSD_NAMINGS * DISK_PAGE);
    if (!t->waiting[0].io || !t->waiting[1].io || !t->pages || !t->free_pages ||
        !t->jobs || !t->runs || !t->zeros || !t->copy_memory)
        return err_set(err, -ENOMEM, "no memory for %u transfers of the SSD tier",
                       t->depth);
    memset(t->zeros, 0, SSD_WIPE_BYTES);
    for (int i = 0; i < SSD_NAMINGS; i++)
        t->copies[i] = (char *)t->copy_memory + i * DISK_PAGE;
    for (uint32_t i = 0; i < t->depth; i++) t->free_pages[t->n_free_pages++] = i;
    for (uint32_t i = 0; i < n_runs; i++) ssd_give_run(t, &t->runs[i]);
    return 0;
}

static int look_around(struct tier_ssd *t, struct tier_ssd_found *found,
                       struct err *err)
{
    struct ssd_scan scan = {
        .slots = t->base.slots,
        .wipe = &t->wipe,
        .fingerprint = &t->fingerprint,
        .block_bytes = t->base.block_bytes,
        .found = found,
    };
    int rc = ssd_scan_file(&scan, &t->file, t->queue, t->depth, err);
    t->sequence = scan.last;
    ssd_count_chores(t);
    return rc;
}

static int open_names(struct tier_ssd *t, struct tier_ssd_found *found, uint32_t max,
                      struct err *err)
{
    int rc = ssd_names_open(&t->names, &t->file, found, max, &t->fingerprint,
                            t->base.to_erase, err);
    t->base.max_names = t->names.max;
    return rc;
}

int tier_ssd_check(struct tier_ssd_found *found, const struct tier_ssd_options *o,
                   struct err *err)
{
    struct ssd_file f;
    struct ssd_names names;
    *found = (struct tier_ssd_found){0};
    int rc = ssd_file_open(&f, found, o, true, err);
    if (rc < 0) return rc;
    rc = ssd_names_open(&names, &f, found, o->max_names, &o->fingerprint, NULL, err);
    ssd_names_close(&names);
    ssd_file_close(&f);
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
    t->names.fd = -1;

    int rc = ssd_file_open(&t->file, found, o, false, err);
    if (rc == 0) rc = take_memory(t, err);
    if (rc == 0) rc = ssd_sums_open(&t->sums, &t->fingerprint, o->block_bytes, err);
    if (rc == 0) rc = slots_open(&t->base.slots, t->file.capacity, err);
    if (rc == 0) rc = ssd_wipe_open(&t->wipe, t->file.capacity, t->base.to_erase, err);
    if (rc == 0) rc = open_names(t, found, o->max_names, err);
    if (rc == 0) rc = open_queue(t, found, o, sys, err);
    if (rc == 0) rc = look_around(t, found, err);
    if (rc < 0) {
        tier_close(&t->base);
        return rc;
    }
    *out = &t->base;
    return 0;
}
