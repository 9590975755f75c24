#include "offload/ssd_scan.h"

#include "offload/ssd_run.h"

#include <stdlib.h>

int ssd_scan_open(struct ssd_scan *s, struct err *err)
{
    s->last = 0;
    s->recent = calloc(slots_capacity(s->slots), sizeof *s->recent);
    return s->recent ? 0
                     : err_set(err, -ENOMEM, "no memory to look at the SSD's blocks");
}

void ssd_scan_close(struct ssd_scan *s)
{
    free(s->recent);
    s->recent = NULL;
}

static void damaged(struct ssd_scan *s, uint32_t slot)
{
    s->found->damaged++;
    ssd_wipe_add(s->wipe, slot, NAME_GROUPS);
}

/* Two slots may hold one block: it was evicted, stored again elsewhere, and the first slot
 * not yet wiped when the process ended.  The later one stays. */
static bool make_way(struct ssd_scan *s, const struct block_meta *meta,
                     uint64_t sequence)
{
    uint32_t other = slots_find(s->slots, &meta->id);
    if (other == SLOT_NONE) return true;
    if (s->recent[other] >= sequence) return false;
    slots_release(s->slots, other);
    ssd_wipe_add(s->wipe, other, NAME_GROUPS);
    return true;
}

void ssd_scan_take(struct ssd_scan *s, uint32_t slot, const struct disk_header *h)
{
    struct block_meta meta;
    uint64_t sequence;
    enum disk_verdict v =
        disk_header_read(h, s->fingerprint, s->block_bytes, &meta, &sequence);
    if (v == DISK_DAMAGED) damaged(s, slot);
    if (v == DISK_FOREIGN) s->found->foreign++;
    if (v != DISK_OURS) return;

    if (sequence > s->last) s->last = sequence;
    if (!make_way(s, &meta, sequence) || !slots_claim_at(s->slots, slot, &meta)) {
        ssd_wipe_add(s->wipe, slot, NAME_GROUPS);
        return;
    }
    slots_commit(s->slots, slot);
    s->recent[slot] = sequence;
}

// ---- order -----------------------------------------------------------------------------

struct place {
    uint64_t recent;
    uint32_t depth, slot;
};

static int by_depth(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return (x->depth > y->depth) - (x->depth < y->depth);
}

static int by_age(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->recent != y->recent) return x->recent < y->recent ? -1 : 1;
    return by_depth(b, a);
}

static uint32_t parent_of(const struct ssd_scan *s, const struct place *p)
{
    uint32_t i = slots_find(s->slots, &slots_at(s->slots, p->slot)->meta.parent);
    bool right = i != SLOT_NONE && slots_at(s->slots, i)->meta.depth + 1 == p->depth;
    return right ? i : SLOT_NONE;
}

/* From the first blocks on, so that a block finds its parent gone if it was an orphan. */
static uint32_t drop_orphans(struct ssd_scan *s, struct place *places, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (places[i].depth == 0 || parent_of(s, &places[i]) != SLOT_NONE) {
            places[kept++] = places[i];
            continue;
        }
        s->found->orphans++;
        slots_release(s->slots, places[i].slot);
        ssd_wipe_add(s->wipe, places[i].slot, NAME_GROUPS);
    }
    return kept;
}

int ssd_scan_order(struct ssd_scan *s, struct err *err)
{
    uint32_t n = 0, capacity = slots_capacity(s->slots), used = slots_used(s->slots);
    if (used == 0) return 0;
    struct place *places = malloc(used * sizeof *places);
    if (!places) return err_set(err, -ENOMEM, "no memory to order the SSD's blocks");

    for (uint32_t i = 0; i < capacity; i++) {
        const struct slot *slot = slots_at(s->slots, i);
        if (slot->state == SLOT_READY)
            places[n++] = (struct place){0, slot->meta.depth, i};
    }
    qsort(places, n, sizeof *places, by_depth);
    n = drop_orphans(s, places, n);

    for (uint32_t i = n; i-- > 0;) {  // the deepest first
        uint64_t recent = s->recent[places[i].slot];
        uint32_t parent = places[i].depth ? parent_of(s, &places[i]) : SLOT_NONE;
        if (parent != SLOT_NONE && s->recent[parent] < recent)
            s->recent[parent] = recent;
        places[i].recent = recent;
    }
    qsort(places, n, sizeof *places, by_age);
    for (uint32_t i = 0; i < n; i++) slots_touch(s->slots, places[i].slot);
    s->found->blocks = n;
    free(places);
    return 0;
}

// ---- reading ---------------------------------------------------------------------------

struct reader {
    struct ssd_scan *scan;
    const struct ssd_file *file;
    struct ssd_queue *queue;
    struct ssd_run *runs;       // (depth)
    struct disk_header *pages;  // (depth), one for each run
    uint32_t next_slot;
};

static bool begin(struct reader *x, struct ssd_run *r)
{
    if (x->next_slot == x->file->capacity) return false;
    struct disk_header *page = &x->pages[r - x->runs];
    *r = (struct ssd_run){
        .segment = {{page, DISK_PAGE}},
        .n_segments = 1,
        .at = disk_slot_at(x->file->slot_bytes, x->next_slot),
        .total = DISK_PAGE,
        .piece = x->next_slot++,
        .op.fd = x->file->fd,
    };
    ssd_run_aim(r);
    ssd_push(x->queue, &r->op);
    return true;
}

/* A slot beyond the file's end is absent; one that cannot be read is damaged. */
static void end(struct reader *x, struct ssd_run *r)
{
    if (r->res == 0)
        ssd_scan_take(x->scan, r->piece, &x->pages[r - x->runs]);
    else if (r->op.res != 0)
        damaged(x->scan, r->piece);
}

static void read_all(struct reader *x, uint32_t depth)
{
    uint32_t in_flight = 0;
    while (in_flight < depth && begin(x, &x->runs[in_flight])) in_flight++;
    ssd_kick(x->queue);
    while (in_flight > 0) {
        struct ssd_op *op = ssd_pop(x->queue, true);
        for (; op; op = ssd_pop(x->queue, false)) {
            struct ssd_run *r = ssd_run_of(op);
            if (!ssd_run_advance(r)) {
                ssd_push(x->queue, op);
                continue;
            }
            end(x, r);
            if (!begin(x, r)) in_flight--;
        }
        ssd_kick(x->queue);
    }
}

int ssd_scan_file(struct ssd_scan *s, const struct ssd_file *f, struct ssd_queue *q,
                  uint32_t depth, struct err *err)
{
    struct reader x = {
        .scan = s,
        .file = f,
        .queue = q,
        .runs = calloc(depth, sizeof *x.runs),
        .pages = aligned_alloc(DISK_PAGE, depth * sizeof *x.pages),
    };
    int rc = x.runs && x.pages
                 ? ssd_scan_open(s, err)
                 : err_set(err, -ENOMEM, "no memory to read the SSD's headers");
    if (rc == 0) {
        read_all(&x, depth);
        rc = ssd_scan_order(s, err);
        ssd_scan_close(s);
    }
    free(x.runs);
    free(x.pages);
    return rc;
}
