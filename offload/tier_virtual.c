/* tier_virtual.c - see tier_virtual.h. */
#include "offload/tier_virtual.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* Transfers of one direction, in the order they were started and will end. */
struct channel {
    struct tier_io *oldest, **newest;
    uint64_t until;  // it is busy
    uint64_t block_ns;
};

struct tier_virtual {
    struct tier base;
    struct tier_medium medium;
    const uint64_t *now;  // borrowed
    uint64_t latency;
    uint32_t in_flight, depth;
    struct channel channel[2];  // by enum tier_dir
};

static struct tier_virtual *virtual_of(struct tier *base)
{
    return CONTAINER_OF(base, struct tier_virtual, base);
}

static int virtual_start(struct tier *base, struct tier_io *io)
{
    struct tier_virtual *t = virtual_of(base);
    if (t->in_flight == t->depth) return -EAGAIN;
    t->in_flight++;
    struct channel *c = &t->channel[io->dir];
    if (c->until < *t->now) c->until = *t->now;
    c->until += c->block_ns;
    io->ticket = c->until + t->latency;
    io->next = NULL;
    *c->newest = io;
    c->newest = &io->next;
    return 0;
}

static struct tier_io *virtual_finish(struct tier *base)
{
    struct tier_virtual *t = virtual_of(base);
    for (size_t i = 0; i < ARRAY_LEN(t->channel); i++) {
        struct channel *c = &t->channel[i];
        struct tier_io *io = c->oldest;
        if (!io || io->ticket > *t->now) continue;
        c->oldest = io->next;
        if (!c->oldest) c->newest = &c->oldest;
        t->in_flight--;
        return io;
    }
    return NULL;
}

static uint32_t virtual_close(struct tier *base)
{
    struct tier_virtual *t = virtual_of(base);
    assert(t->in_flight == 0);
    free(t);
    return 0;
}

uint64_t tier_virtual_next(const struct tier *base)
{
    const struct tier_virtual *t =
        CONTAINER_OF((struct tier *)base, struct tier_virtual, base);
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < ARRAY_LEN(t->channel); i++) {
        const struct tier_io *io = t->channel[i].oldest;
        if (io && io->ticket < next) next = io->ticket;
    }
    return next;
}

int tier_virtual_open(struct tier **out, const struct tier_virtual_options *o,
                      struct err *err)
{
    if (!(o->read > 0) || !(o->write > 0) || o->depth == 0)
        return err_set(err, -EINVAL,
                       "the %s tier needs a bandwidth and a depth greater than 0",
                       o->name);
    struct tier_virtual *t = calloc(1, sizeof *t);
    if (!t) return err_set(err, -ENOMEM, "there is no memory for the %s tier", o->name);
    t->medium = (struct tier_medium){.name = o->name,
                                     .start = virtual_start,
                                     .finish = virtual_finish,
                                     .close = virtual_close};
    t->base.medium = &t->medium;
    t->base.block_bytes = o->block_bytes;
    t->base.health.writable = true;
    t->now = o->now;
    t->latency = o->latency;
    t->depth = o->depth;
    for (size_t i = 0; i < ARRAY_LEN(t->channel); i++) {
        struct channel *c = &t->channel[i];
        double rate = i == TIER_LOAD ? o->read : o->write;
        c->block_ns = (uint64_t)ceil((double)o->block_bytes / rate * 1e9);
        c->newest = &c->oldest;
    }
    int rc = slots_open(&t->base.slots, o->capacity, err);
    if (rc)
        tier_close(&t->base);
    else
        *out = &t->base;
    return rc;
}
