/* tier_bounce.c - between a tier whose medium needs the CPU's memory and device memory.
 *
 *     store: device --copy--> bounce buffer --medium--> slot
 *     load:  slot --medium--> bounce buffer --copy--> device
 *
 * It puts itself in the medium's place.  What lies in the CPU's memory passes through.
 */
#include "offload/tier.h"

#include <assert.h>
#include <stdlib.h>

enum leg {
    FREE,
    TO_BOUNCE,   // being copied from the device
    TO_MEDIUM,   // copied; the medium was busy
    IN_MEDIUM,   // is the medium's
    TO_DEVICE,   // being copied to the device
    TO_COPYING,  // loaded; the copy queue was busy
    ENDED,       // with res
};

struct bounced {
    enum leg leg;
    struct tier_io *io;
    void *buf;        // the caller's
    uint64_t ticket;  // of the copy
};

struct bounce {
    struct tier_medium medium;  // what the tier has now
    const struct tier_medium *inner;
    struct copyq *copies;  // borrowed
    size_t stride;
    char *buffers;            // (depth, stride)
    struct bounced *entries;  // (depth)
    uint32_t depth, busy;
};

static void *buffer_of(const struct bounce *b, const struct bounced *e)
{
    return b->buffers + (size_t)(e - b->entries) * b->stride;
}

/* The entry whose buffer the medium has; NULL: it has the caller's own. */
static struct bounced *entry_of(struct bounce *b, const struct tier_io *io)
{
    for (uint32_t i = 0; i < b->depth && b->busy > 0; i++)
        if (b->entries[i].leg == IN_MEDIUM && b->entries[i].io == io)
            return &b->entries[i];
    return NULL;
}

static void end(struct bounced *e, int res)
{
    e->io->res = res;
    e->leg = ENDED;
}

static void give_to_medium(struct tier *t, struct bounce *b, struct bounced *e)
{
    e->io->buf = buffer_of(b, e);
    int rc = b->inner->start(t, e->io);
    e->leg = rc == 0 ? IN_MEDIUM : TO_MEDIUM;
    if (rc < 0 && rc != -EAGAIN) end(e, rc);
}

static void give_to_device(struct tier *t, struct bounce *b, struct bounced *e)
{
    int rc = copyq_push(b->copies, e->buf, buffer_of(b, e), t->block_bytes, &e->ticket);
    e->leg = rc == 0 ? TO_DEVICE : TO_COPYING;
    if (rc < 0 && rc != -EAGAIN) end(e, rc);
}

static struct bounced *take(struct bounce *b, struct tier_io *io)
{
    for (uint32_t i = 0; i < b->depth; i++) {
        struct bounced *e = &b->entries[i];
        if (e->leg != FREE) continue;
        *e = (struct bounced){.io = io, .buf = io->buf};
        b->busy++;
        return e;
    }
    return NULL;
}

static void give(struct bounce *b, struct bounced *e)
{
    e->io->buf = e->buf;
    e->leg = FREE;
    b->busy--;
}

static int bounce_start(struct tier *t, struct tier_io *io)
{
    struct bounce *b = t->bounce;
    if (copyq_readable(b->copies, io->buf)) return b->inner->start(t, io);
    struct bounced *e = take(b, io);
    if (!e) return -EAGAIN;
    int rc;
    if (io->dir == TIER_STORE) {
        rc = copyq_push(b->copies, buffer_of(b, e), e->buf, t->block_bytes, &e->ticket);
        e->leg = TO_BOUNCE;
    } else {
        io->buf = buffer_of(b, e);
        rc = b->inner->start(t, io);
        e->leg = IN_MEDIUM;
    }
    if (rc < 0) give(b, e);
    return rc;
}

/* One entry forward, as far as it goes by itself. */
static void advance(struct tier *t, struct bounce *b, struct bounced *e)
{
    int rc;
    switch (e->leg) {
    case TO_BOUNCE:
        rc = copyq_poll(b->copies, e->ticket);
        if (rc == 0) give_to_medium(t, b, e);
        if (rc < 0 && rc != -EAGAIN) end(e, rc);
        break;
    case TO_MEDIUM: give_to_medium(t, b, e); break;
    case TO_COPYING: give_to_device(t, b, e); break;
    case TO_DEVICE:
        rc = copyq_poll(b->copies, e->ticket);
        if (rc != -EAGAIN) end(e, rc);
        break;
    case FREE:
    case IN_MEDIUM:
    case ENDED: break;
    }
}

static struct tier_io *ended(struct bounce *b)
{
    for (uint32_t i = 0; i < b->depth; i++) {
        struct bounced *e = &b->entries[i];
        if (e->leg != ENDED) continue;
        struct tier_io *io = e->io;
        give(b, e);
        return io;
    }
    return NULL;
}

static void advance_all(struct tier *t, struct bounce *b)
{
    bool given = false;
    for (uint32_t i = 0; i < b->depth && b->busy > 0; i++) {
        struct bounced *e = &b->entries[i];
        bool before = e->leg == TO_BOUNCE || e->leg == TO_MEDIUM;
        advance(t, b, e);
        given |= before && e->leg == IN_MEDIUM;
    }
    if (given && b->inner->flush) b->inner->flush(t);
}

static struct tier_io *bounce_finish(struct tier *t)
{
    struct bounce *b = t->bounce;
    if (b->busy > 0) advance_all(t, b);
    for (struct tier_io *io; (io = b->inner->finish(t)) != NULL;) {
        struct bounced *e = entry_of(b, io);
        if (!e) return io;
        if (io->dir == TIER_LOAD && io->res == 0)
            give_to_device(t, b, e);
        else
            end(e, io->res);
    }
    if (b->busy == 0) return NULL;
    copyq_flush(b->copies);
    return ended(b);
}

static void bounce_flush(struct tier *t)
{
    struct bounce *b = t->bounce;
    copyq_flush(b->copies);
    if (b->inner->flush) b->inner->flush(t);
}

static void bounce_forget(struct tier *t, uint32_t slot, uint32_t group)
{
    struct bounce *b = t->bounce;
    if (b->inner->forget) b->inner->forget(t, slot, group);
}

static void bounce_put_name(struct tier *t, uint32_t i, const struct kept_name *name)
{
    t->bounce->inner->put_name(t, i, name);  // max_names is 0 where there is none
}

static void bounce_name_at(const struct tier *t, uint32_t i, struct kept_name *out)
{
    t->bounce->inner->name_at(t, i, out);
}

static int bounce_register(struct tier *t, void *base, size_t bytes)
{
    const struct bounce *b = t->bounce;
    return b->inner->reg ? b->inner->reg(t, base, bytes) : -EOPNOTSUPP;
}

static void bounce_free(struct bounce *b)
{
    if (b->buffers) copyq_host_free(b->copies, b->buffers);
    free(b->entries);
    free(b);
}

static bool bounce_lasts(const struct tier *t)
{
    const struct tier_medium *inner = t->bounce->inner;
    return inner->lasts && inner->lasts(t);
}

static uint32_t bounce_close(struct tier *t)
{
    struct bounce *b = t->bounce;
    assert(b->busy == 0);
    uint32_t left = b->inner->close(t);
    bounce_free(b);
    return left;
}

int tier_bounce(struct tier *t, struct copyq *copies, uint32_t depth, struct err *err)
{
    struct bounce *b = calloc(1, sizeof *b);
    size_t bytes = 0;
    if (b) {
        b->copies = copies;
        b->depth = depth;
        b->stride = tier_buffer_bytes(t);
        b->entries = calloc(depth, sizeof *b->entries);
        if (!__builtin_mul_overflow(depth, b->stride, &bytes))
            b->buffers = copyq_host_alloc(copies, bytes);
    }
    if (!b || !b->entries || !b->buffers) {
        if (b) bounce_free(b);
        return err_set(err, -ENOMEM,
                       "no memory for %u buffers of %zu bytes between the device and "
                       "the %s tier",
                       depth, tier_buffer_bytes(t), t->medium->name);
    }
    (void)!tier_register(t, b->buffers, bytes);  // or transfers do without
    b->inner = t->medium;
    b->medium = (struct tier_medium){
        .name = t->medium->name,
        .start = bounce_start,
        .finish = bounce_finish,
        .flush = bounce_flush,
        .reg = bounce_register,
        .forget = bounce_forget,
        .put_name = bounce_put_name,
        .name_at = bounce_name_at,
        .lasts = bounce_lasts,
        .close = bounce_close,
    };
    t->medium = &b->medium;
    t->bounce = b;
    return 0;
}
