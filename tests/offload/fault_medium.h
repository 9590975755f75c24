/* fault_medium.h - a medium over another that fails just one of its calls.
 *
 * Calls are counted from 1: each start, and each transfer that finish gives back.  The
 * chosen start answers -EAGAIN, the chosen transfer comes back with `code`.
 */
#ifndef TESTS_OFFLOAD_FAULT_MEDIUM_H
#define TESTS_OFFLOAD_FAULT_MEDIUM_H

#include "offload/tier.h"

struct fault_medium {
    struct tier_medium medium;
    const struct tier_medium *real;
    uint64_t calls, fail_at, fail_until;  // those in [fail_at, fail_until)
    int code;
    uint64_t failed;
};

static inline bool fault_hits(struct fault_medium *f)
{
    uint64_t n = ++f->calls;
    bool hit = n >= f->fail_at && n < f->fail_until;
    f->failed += hit;
    return hit;
}

static inline struct fault_medium *fault_of(struct tier *t)
{
    return CONTAINER_OF((struct tier_medium *)(uintptr_t)t->medium, struct fault_medium,
                        medium);
}

static inline int fault_start(struct tier *t, struct tier_io *io)
{
    struct fault_medium *f = fault_of(t);
    return fault_hits(f) ? -EAGAIN : f->real->start(t, io);
}

static inline struct tier_io *fault_finish(struct tier *t)
{
    struct fault_medium *f = fault_of(t);
    struct tier_io *io = f->real->finish(t);
    if (io && fault_hits(f)) io->res = f->code;
    return io;
}

/* From now on calls fail_at and those after it, `n` in all, fail. */
static inline void fault_install(struct fault_medium *f, struct tier *t,
                                 uint64_t fail_at, uint64_t n, int code)
{
    *f = (struct fault_medium){
        .medium = *t->medium,
        .real = t->medium,
        .fail_at = fail_at,
        .fail_until = fail_at + n,
        .code = code,
    };
    f->medium.start = fault_start;
    f->medium.finish = fault_finish;
    t->medium = &f->medium;
}

static inline void fault_remove(struct fault_medium *f, struct tier *t)
{
    t->medium = f->real;
}

#endif
