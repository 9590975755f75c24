/* tier_ram.c - the RAM tier: one arena of host memory, filled by a copy queue.
 *
 * On a GPU the arena is pinned and the copies run on their own stream, so that a
 * demotion costs the engine thread one enqueue.  On a CPU the same code runs over
 * the reference queue.  Slot n is arena[n * stride].  What can be loaded is whole, as its
 * store has landed: nothing is left to be checked, and it may be used slice by slice.
 */
#include "offload/tier.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_ALIGN 64  // a cache line: copies run at full speed, little is lost

/* In flight, in the order started: copies of one direction finish in it, so only the oldest
 * needs polling. */
struct line {
    struct tier_io *oldest, **newest;
};

struct tier_ram {
    struct tier base;
    struct copyq *copies;  // borrowed
    size_t stride;
    uint32_t slices;       // of a block
    unsigned char *arena;  // owned; comes from copies, goes back to it
    struct line lines[2];  // by direction
};

static struct tier_ram *ram_of(struct tier *base)
{
    return CONTAINER_OF(base, struct tier_ram, base);
}

static int ram_start(struct tier *base, struct tier_io *io)
{
    struct tier_ram *t = ram_of(base);
    void *slot = t->arena + io->slot * t->stride;
    bool store = io->dir == TIER_STORE;

    int rc;
    if (!store && io->sliced)
        rc = copyq_push_sliced(t->copies, io->buf, slot, base->block_bytes, t->slices,
                               &io->ticket);
    else
        rc = copyq_push(t->copies, store ? slot : io->buf, store ? io->buf : slot,
                        base->block_bytes, &io->ticket);
    if (rc < 0) return rc;

    struct line *l = &t->lines[io->dir];
    io->next = NULL;
    *l->newest = io;
    l->newest = &io->next;
    return 0;
}

static struct tier_io *finish_of(struct tier_ram *t, struct line *l)
{
    struct tier_io *io = l->oldest;
    if (!io) return NULL;

    int rc = copyq_poll(t->copies, io->ticket);
    if (rc == -EAGAIN) return NULL;

    l->oldest = io->next;
    if (!l->oldest) l->newest = &l->oldest;
    io->res = rc;
    return io;
}

static struct tier_io *ram_finish(struct tier *base)
{
    struct tier_ram *t = ram_of(base);
    struct tier_io *io = finish_of(t, &t->lines[TIER_LOAD]);
    return io ? io : finish_of(t, &t->lines[TIER_STORE]);
}

static void ram_flush(struct tier *base)
{
    copyq_flush(ram_of(base)->copies);
}

static bool ram_arriving(struct tier *base, const struct tier_io *io)
{
    return copyq_arriving(ram_of(base)->copies, io->ticket);
}

static bool ram_await(struct tier *base, const struct tier_io *io)
{
    return copyq_await(ram_of(base)->copies, io->ticket);
}

static void ram_forget(struct tier *base, uint32_t slot, uint32_t group)
{
    struct tier_ram *t = ram_of(base);
    if (group < NAME_GROUPS) memset(t->arena + slot * t->stride, 0, t->stride);
}

static uint32_t ram_close(struct tier *base)
{
    struct tier_ram *t = ram_of(base);
    assert(!t->lines[TIER_STORE].oldest && !t->lines[TIER_LOAD].oldest);
    if (t->arena) copyq_host_free(t->copies, t->arena);
    free(t);
    return 0;
}

static const struct tier_medium ram_medium = {
    .name = "ram",
    .start = ram_start,
    .finish = ram_finish,
    .flush = ram_flush,
    .arriving = ram_arriving,
    .await = ram_await,
    .forget = ram_forget,
    .close = ram_close,
};

int tier_ram_open(struct tier **out, const struct tier_ram_options *o, struct err *err)
{
    size_t bytes;
    if (o->block_bytes == 0 || o->block_bytes > SIZE_MAX / 2)
        return err_set(err, -EINVAL, "blocks of %zu bytes cannot be kept in RAM",
                       o->block_bytes);
    if (o->capacity == 0)
        return err_set(err, -EINVAL, "a RAM tier of no blocks cannot be opened");
    size_t stride = ALIGN_UP(o->block_bytes, SLOT_ALIGN);
    if (__builtin_mul_overflow(stride, o->capacity, &bytes))
        return err_set(err, -EINVAL,
                       "%u blocks of %zu bytes are more than memory can hold",
                       o->capacity, o->block_bytes);

    struct tier_ram *t = calloc(1, sizeof *t);
    if (!t) return err_set(err, -ENOMEM, "no memory for the RAM tier");
    t->base.medium = &ram_medium;
    t->base.block_bytes = o->block_bytes;
    t->base.health.writable = true;
    t->copies = o->copies;
    t->stride = stride;
    t->slices = o->slices;
    t->base.pieces = copyq_pieces(o->copies, o->slices);
    for (int i = 0; i < 2; i++) t->lines[i].newest = &t->lines[i].oldest;

    size_t got = 0;
    int rc = 0;
    t->arena = copyq_host_alloc_most(o->copies, bytes, &got);
    if (!t->arena || got < stride)
        rc = err_set(err, -ENOMEM, "cannot take %zu MiB of host memory for KV blocks",
                     bytes >> 20);
    if (rc == 0) rc = slots_open(&t->base.slots, (uint32_t)(got / stride), err);
    if (rc < 0) {
        tier_close(&t->base);
        return rc;
    }
    *out = &t->base;
    return 0;
}
