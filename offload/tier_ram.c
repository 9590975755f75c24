/* tier_ram.c - the RAM tier: one arena of host memory, filled by a copy queue.
 *
 * On a GPU the arena is pinned and the copies run on their own stream, so that a
 * demotion costs the engine thread one enqueue.  On a CPU the same code runs over
 * the reference queue.  Slot n is arena[n * stride].
 */
#include "offload/tier.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SLOT_ALIGN 64  // a cache line: copies run at full speed, little is lost

struct tier_ram {
    struct tier base;
    struct copyq *copies;  // borrowed
    size_t stride;
    unsigned char *arena;     // owned; comes from copies, goes back to it
    struct tier_io *oldest;   // in flight, in the order started: the queue is
    struct tier_io **newest;  // in order, so only the oldest needs polling
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

    int rc = copyq_push(t->copies, store ? slot : io->buf, store ? io->buf : slot,
                        base->block_bytes, &io->ticket);
    if (rc < 0) return rc;

    io->next = NULL;
    *t->newest = io;
    t->newest = &io->next;
    return 0;
}

static struct tier_io *ram_finish(struct tier *base)
{
    struct tier_ram *t = ram_of(base);
    struct tier_io *io = t->oldest;
    if (!io) return NULL;

    int rc = copyq_poll(t->copies, io->ticket);
    if (rc == -EAGAIN) return NULL;

    t->oldest = io->next;
    if (!t->oldest) t->newest = &t->oldest;
    io->res = rc;
    return io;
}

static void ram_forget(struct tier *base, uint32_t slot, bool erase)
{
    struct tier_ram *t = ram_of(base);
    if (erase) memset(t->arena + slot * t->stride, 0, t->stride);
}

static void ram_close(struct tier *base)
{
    struct tier_ram *t = ram_of(base);
    assert(!t->oldest);
    if (t->arena) copyq_host_free(t->copies, t->arena);
    free(t);
}

static const struct tier_medium ram_medium = {
    .name = "ram",
    .start = ram_start,
    .finish = ram_finish,
    .forget = ram_forget,
    .close = ram_close,
};

int tier_ram_open(struct tier **out, const struct tier_ram_options *o, struct err *err)
{
    size_t bytes;
    if (o->block_bytes == 0 || o->block_bytes > SIZE_MAX / 2)
        return err_set(err, -EINVAL, "blocks of %zu bytes cannot be kept in RAM",
                       o->block_bytes);
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
    t->newest = &t->oldest;

    int rc = slots_open(&t->base.slots, o->capacity, err);
    if (rc < 0) goto fail;
    t->arena = copyq_host_alloc(o->copies, bytes);
    if (!t->arena) {
        rc = err_set(err, -ENOMEM, "cannot take %zu MiB of host memory for KV blocks",
                     bytes >> 20);
        goto fail;
    }
    *out = &t->base;
    return 0;

fail:
    tier_close(&t->base);
    return rc;
}
