/* ssd_chores.c - what the SSD tier does beside its transfers: slots whose block is gone are
 * wiped, and pages of the table of names written.
 *
 * Both have runs of their own, so that they neither hold up transfers nor wait for them.  A
 * piece that failed is done again after a rest.
 */
#include "offload/ssd_state.h"

/* A slot that is owed is left to the store that has it. */
void ssd_count_chores(struct tier_ssd *t)
{
    struct tier *b = &t->base;
    b->wipes.left = t->wipe.n + t->wiping;
    b->naming.left = ssd_names_left(&t->names);
    if (b->wipes.left == 0 && t->wipe.erasing == 0) b->wipes.error = 0;
    if (b->naming.left == 0) b->naming.error = 0;
}

static bool may_begin(const struct tier_chore *c)
{
    return c->at == 0 && !c->failed;
}

// ---- wipes -----------------------------------------------------------------------------

static void push_wipes(struct tier_ssd *t)
{
    uint32_t slot;
    bool whole;
    while (may_begin(&t->base.wipes) && t->wiping < SSD_WIPES &&
           ssd_wipe_next(&t->wipe, &slot, &whole)) {
        uint64_t at = disk_slot_at(t->file.slot_bytes, slot);
        struct ssd_run *r = ssd_take_run(t, SSD_RUN_WIPE, t->file.fd, at);
        r->op.write = true;
        r->piece = slot;
        while (r->n_segments < ARRAY_LEN(r->segment))
            r->segment[r->n_segments++] = (struct iovec){t->zeros, SSD_WIPE_BYTES};
        r->total = whole ? t->file.slot_bytes : DISK_PAGE;
        t->wiping++;
        ssd_push_run(t, r);
    }
}

/* At the close the room in the file of one that failed is given up, and with it what no
 * restart is to find.  For a header alone that the device has no room for, nothing is there:
 * no store has got so far.  (A file system that copies what it overwrites may have no room
 * for others; then a restart finds a block that was pushed out.) */
void ssd_end_wipe(struct tier_ssd *t, struct ssd_run *r)
{
    int res = r->total == DISK_PAGE && tier_lacks_room(r->res) ? 0 : r->res;
    if (res < 0 && t->closing) res = ssd_file_punch(&t->file, r->piece);
    if (res < 0) t->base.wipes.error = res;
    if (res == 0 || t->closing) {
        ssd_wipe_done(&t->wipe, r->piece);
        t->left += res < 0;
    } else {
        ssd_wipe_again(&t->wipe, r->piece);
        t->base.wipes.failed = true;
    }
    t->wiping--;
    ssd_give_run(t, r);
    ssd_push_chores(t);
}

void ssd_forget(struct tier *base, uint32_t slot, uint32_t group)
{
    struct tier_ssd *t = ssd_of(base);
    ssd_wipe_add(&t->wipe, slot, group);
    ssd_count_chores(t);
}

// ---- names -----------------------------------------------------------------------------

static void push_names(struct tier_ssd *t)
{
    uint32_t page;
    while (may_begin(&t->base.naming) && t->naming < SSD_NAMINGS &&
           ssd_names_next(&t->names, t->copies[t->naming], &page)) {
        struct ssd_run *r =
            ssd_take_run(t, SSD_RUN_NAMES, t->names.fd, ssd_names_at(page));
        r->op.write = true;
        r->piece = page;
        r->segment[r->n_segments++] = (struct iovec){t->copies[t->naming], DISK_PAGE};
        r->total = DISK_PAGE;
        t->naming++;
        ssd_push_run(t, r);
    }
}

static void give_copy(struct tier_ssd *t, void *copy)
{
    t->copies[--t->naming] = copy;
}

void ssd_end_naming(struct tier_ssd *t, struct ssd_run *r)
{
    if (r->res < 0) t->base.naming.error = r->res;
    if (r->res < 0 && t->closing) {
        t->left += !ssd_names_give_up(&t->names, r->piece);
    } else {
        ssd_names_done(&t->names, r->piece, r->res, r->some);
        if (r->res < 0) t->base.naming.failed = true;
    }
    give_copy(t, r->segment[0].iov_base);
    ssd_give_run(t, r);
    ssd_push_chores(t);
}

void ssd_put_name(struct tier *base, uint32_t i, const struct kept_name *name)
{
    struct tier_ssd *t = ssd_of(base);
    ssd_names_put(&t->names, i, name);
    ssd_count_chores(t);
}

void ssd_name_at(const struct tier *base, uint32_t i, struct kept_name *out)
{
    ssd_names_get(&CONTAINER_OF(base, const struct tier_ssd, base)->names, i, out);
}

// ---- both ------------------------------------------------------------------------------

void ssd_push_chores(struct tier_ssd *t)
{
    push_wipes(t);
    push_names(t);
    ssd_count_chores(t);
}

void ssd_finish_chores(struct tier_ssd *t)
{
    t->closing = true;
    t->base.wipes.at = t->base.naming.at = 0;
    t->base.wipes.failed = t->base.naming.failed = false;
    ssd_push_chores(t);
    while (t->wiping + t->naming > 0) {
        ssd_kick(t->queue);
        struct ssd_op *op = ssd_pop(t->queue, true);
        if (!op) return;
        ssd_go_on(t, op);
    }
}
