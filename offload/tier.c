/* tier.c - the bookkeeping that every tier shares.  Media only move bytes. */
#include "offload/tier.h"

#include <assert.h>
#include <stdlib.h>

uint32_t tier_close(struct tier *t)
{
    if (!t) return 0;
    assert(t->in_flight == 0);
    struct slots *slots = t->slots;
    uint32_t left = t->medium->close(t);
    slots_close(slots);
    return left;
}

bool tier_lasts(const struct tier *t)
{
    return t->medium->lasts && t->medium->lasts(t);
}

void tier_put_name(struct tier *t, uint32_t i, const struct kept_name *name)
{
    if (i < t->max_names) t->medium->put_name(t, i, name);
}

void tier_name_at(const struct tier *t, uint32_t i, struct kept_name *out)
{
    *out = (struct kept_name){0};
    if (i < t->max_names) t->medium->name_at(t, i, out);
}

size_t tier_buffer_bytes(const struct tier *t)
{
    return ALIGN_UP(t->block_bytes, TIER_ALIGN);
}

int tier_register(struct tier *t, void *base, size_t bytes)
{
    return t->medium->reg ? t->medium->reg(t, base, bytes) : -EOPNOTSUPP;
}

// ---- health --------------------------------------------------------------------------

static void look_at_clock(struct tier *t, uint64_t now)
{
    if (!t->health.writable && now >= t->health.retry_at) t->health.writable = true;
    if (now >= t->wipes.at) t->wipes.at = 0;
    if (now >= t->naming.at) t->naming.at = 0;
}

static void rest(struct tier_chore *c, uint64_t now)
{
    if (c->failed) c->at = now + TIER_REST_NS;
    c->failed = false;
}

/* At the end of whatever may have found out that a piece of a chore has failed. */
static void rest_from_chores(struct tier *t, uint64_t now)
{
    rest(&t->wipes, now);
    rest(&t->naming, now);
}

/* Stores that were in flight together fail together and count once: the first ends the
 * writable state, the others find it ended. */
static void store_failed(struct tier *t, int why, uint64_t now)
{
    struct tier_health *h = &t->health;
    h->full |= tier_lacks_room(why);
    if (!h->writable) return;
    h->pause = h->pause ? 2 * h->pause : TIER_PAUSE_MIN_NS;
    if (h->pause > TIER_PAUSE_MAX_NS) h->pause = TIER_PAUSE_MAX_NS;
    h->writable = false;
    h->paused_for = why;
    h->retry_at = now + h->pause;
}

void tier_try_again(struct tier *t)
{
    if (!t->health.writable) t->health.retry_at = 0;
}

static void store_succeeded(struct tier *t, const struct tier_io *io)
{
    if (t->health.writable) t->health.pause = 0;
    if (io->needs_room) t->health.full = false;
}

// ---- transfers -----------------------------------------------------------------------

static int prepare(struct tier *t, struct tier_io *io)
{
    if (io->dir == TIER_LOAD) {
        io->slot = slots_match(t->slots, &io->meta);
        if (io->slot == SLOT_NONE) return -ENOENT;
        slots_pin(t->slots, io->slot);
        return 0;
    }
    if (!t->health.writable) return -EROFS;
    if (slots_find(t->slots, &io->meta.id) != SLOT_NONE) return -EEXIST;
    io->slot = slots_claim(t->slots, &io->meta);
    if (io->slot == SLOT_NONE) return -ENOSPC;
    io->needs_room = t->roomy == 0;
    t->roomy -= !io->needs_room;
    slots_follow(t->slots, io->slot);
    return 0;
}

int tier_submit(struct tier *t, struct tier_io *io, uint64_t now)
{
    look_at_clock(t, now);
    int rc = prepare(t, io);
    if (rc < 0) return rc;

    io->res = 0;
    rc = t->medium->start(t, io);
    if (rc == 0) {
        t->in_flight++;
        t->loading += io->dir == TIER_LOAD;
    } else if (io->dir == TIER_STORE) {
        slots_release(t->slots, io->slot);
        t->roomy += !io->needs_room;
    } else {
        slots_unpin(t->slots, io->slot);
    }
    rest_from_chores(t, now);
    return rc;
}

void tier_flush(struct tier *t)
{
    if (t->medium->flush) t->medium->flush(t);
}

bool tier_arriving(struct tier *t, const struct tier_io *io)
{
    return t->medium->arriving && t->medium->arriving(t, io);
}

bool tier_await(struct tier *t, const struct tier_io *io)
{
    return t->medium->await && t->medium->await(t, io);
}

static void forget(struct tier *t, uint32_t slot, uint32_t group)
{
    if (t->medium->forget) t->medium->forget(t, slot, group);
}

static void settle_store(struct tier *t, const struct tier_io *io, uint64_t now)
{
    if (io->res == 0) {
        slots_commit(t->slots, io->slot);
        t->stored++;
        t->bytes_in += t->block_bytes;
        store_succeeded(t, io);
        return;
    }
    // The slot itself may be what is broken, so all others come before it.
    slots_release_last(t->slots, io->slot);
    forget(t, io->slot, NAME_GROUPS);
    if (io->res != -ENODEV)
        store_failed(t, io->res, now);  // that is the source's fault
}

static void settle_load(struct tier *t, const struct tier_io *io)
{
    const struct slot *slot = slots_at(t->slots, io->slot);
    slots_unpin(t->slots, io->slot);
    if (io->res == 0) {
        t->loaded++;
        t->bytes_out += t->block_bytes;
    } else if (slot->state == SLOT_READY && io->res != -ENODEV) {
        slots_doom(t->slots, io->slot);
        t->dropped_bad++;
    }
    // Another load of it may still be on its way; the last one takes the block along.
    if (slot->state == SLOT_LEAVING && slot->pins == 0) {
        slots_release_last(t->slots, io->slot);
        forget(t, io->slot, NAME_GROUPS);
    }
}

size_t tier_reap(struct tier *t, struct tier_io **done, size_t cap, uint64_t now)
{
    look_at_clock(t, now);
    size_t n = 0;
    for (struct tier_io *io; n < cap && (io = t->medium->finish(t)); done[n++] = io) {
        assert(io->res <= 0);
        t->in_flight--;
        t->loading -= io->dir == TIER_LOAD;
        if (io->res < 0) {
            t->failed++;
            t->health.last_error = io->res;
        }
        if (io->dir == TIER_STORE) {
            settle_store(t, io, now);
        } else {
            settle_load(t, io);
        }
    }
    rest_from_chores(t, now);
    return n;
}

// ---- blocks --------------------------------------------------------------------------

static int leave(struct tier *t, const struct block_id *id, uint32_t group)
{
    uint32_t i = slots_find(t->slots, id);
    if (i == SLOT_NONE) return -ENOENT;
    const struct slot *slot = slots_at(t->slots, i);
    if (slot->state != SLOT_READY || slot->pins) return -EBUSY;
    if (group < NAME_GROUPS && !t->health.full) {
        slots_release_last(t->slots, i);
    } else {
        slots_release(t->slots, i);
        t->roomy++;
    }
    forget(t, i, group);
    if (tier_waits_for_room(t)) t->health.retry_at = 0;  // this slot has its room
    return 0;
}

int tier_drop(struct tier *t, const struct block_id *id)
{
    return leave(t, id, NAME_GROUPS);
}

int tier_erase(struct tier *t, const struct block_id *id, uint32_t group)
{
    assert(group < NAME_GROUPS);
    return leave(t, id, group);
}
