/* fake_ssd.h - an SSD tier that is a piece of memory, with a table of names, which delays, fails
 * and damages as it is told. */
#ifndef TESTS_OFFLOAD_FAKE_SSD_H
#define TESTS_OFFLOAD_FAKE_SSD_H

#include "offload/tier.h"
#include "tests/offload/blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define PAGE       192  // bytes of a block
#define FAKE_NAMES 32

struct fake_ssd {
    struct tier base;
    unsigned char *bytes;
    struct kept_name *names;  // (FAKE_NAMES) the table beside the blocks
    struct tier_io *flying[64];
    uint32_t wait[64];  // polls until it lands
    uint32_t n_flying, depth;
    uint64_t seed;
    uint32_t max_wait;
    uint64_t calls, fail_at,
        fail_until;   // starts and landings in [fail_at, fail_until)
    int broken;       // nothing lands whole: the -errno
    uint32_t damage;  // of 1000 loads
};

static inline bool fake_fails(struct fake_ssd *s)
{
    uint64_t n = ++s->calls;
    return n >= s->fail_at && n < s->fail_until;
}

static inline int fake_start(struct tier *t, struct tier_io *io)
{
    struct fake_ssd *s = CONTAINER_OF(t, struct fake_ssd, base);
    if (s->n_flying == s->depth || fake_fails(s)) return -EAGAIN;
    s->wait[s->n_flying] = s->max_wait ? (uint32_t)(mix64(&s->seed) % s->max_wait) : 0;
    s->flying[s->n_flying++] = io;
    return 0;
}

static inline struct tier_io *fake_finish(struct tier *t)
{
    struct fake_ssd *s = CONTAINER_OF(t, struct fake_ssd, base);
    for (uint32_t i = 0; i < s->n_flying; i++) {
        if (s->wait[i] > 0) {
            s->wait[i]--;
            continue;
        }
        struct tier_io *io = s->flying[i];
        s->flying[i] = s->flying[--s->n_flying];
        s->wait[i] = s->wait[s->n_flying];
        unsigned char *slot = s->bytes + (size_t)io->slot * PAGE;
        if (io->dir == TIER_STORE) {
            memcpy(slot, io->buf, PAGE);
        } else {
            memcpy(io->buf, slot, PAGE);
        }
        io->res = 0;
        if (io->dir == TIER_LOAD && mix64(&s->seed) % 1000 < s->damage) {
            memset(io->buf, 0xdd, PAGE);
            io->res = -EBADMSG;
        }
        if (fake_fails(s) || s->broken) {
            memset(io->dir == TIER_LOAD ? io->buf : slot, 0xcc, PAGE);
            io->res = s->broken ? s->broken : -EIO;
        }
        return io;
    }
    return NULL;
}

static inline void fake_forget(struct tier *t, uint32_t slot, uint32_t group)
{
    struct fake_ssd *s = CONTAINER_OF(t, struct fake_ssd, base);
    if (group < NAME_GROUPS) memset(s->bytes + (size_t)slot * PAGE, 0, PAGE);
}

static inline void fake_put_name(struct tier *t, uint32_t i,
                                 const struct kept_name *name)
{
    struct fake_ssd *s = CONTAINER_OF(t, struct fake_ssd, base);
    assert_true(i < FAKE_NAMES);
    s->names[i] = name ? *name : (struct kept_name){0};
}

static inline void fake_name_at(const struct tier *t, uint32_t i, struct kept_name *out)
{
    *out = CONTAINER_OF(t, const struct fake_ssd, base)->names[i];
}

static inline uint32_t fake_close(struct tier *t)
{
    struct fake_ssd *s = CONTAINER_OF(t, struct fake_ssd, base);
    free(s->bytes);
    free(s->names);
    free(s);
    return 0;
}

static const struct tier_medium fake_medium = {
    .name = "ssd",
    .start = fake_start,
    .finish = fake_finish,
    .forget = fake_forget,
    .put_name = fake_put_name,
    .name_at = fake_name_at,
    .close = fake_close,
};

static inline struct fake_ssd *fake_ssd_open(uint32_t capacity)
{
    struct fake_ssd *s = calloc(1, sizeof *s);
    struct err err;
    assert_non_null(s);
    s->base.medium = &fake_medium;
    s->base.block_bytes = PAGE;
    s->base.health.writable = true;
    s->bytes = calloc(capacity, PAGE);
    s->names = calloc(FAKE_NAMES, sizeof *s->names);
    s->base.max_names = FAKE_NAMES;
    s->depth = ARRAY_LEN(s->flying);
    assert_int_equal(slots_open(&s->base.slots, capacity, &err), 0);
    return s;
}

#endif
