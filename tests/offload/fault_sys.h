/* fault_sys.h - the system, with failures put in: as the SSD tier's threads and its ring
 * both see them.
 *
 * Transfers are counted from 1, those of the ring as they land.  Those in [from, until)
 * of the chosen direction fail with `code`, or where that is 0 are short: half of what
 * was asked, or with `bytes` that many.
 */
#ifndef TESTS_OFFLOAD_FAULT_SYS_H
#define TESTS_OFFLOAD_FAULT_SYS_H

#include "offload/ssd_sys.h"

#include <fcntl.h>
#include <pthread.h>

struct fault_sys {
    struct ssd_sys sys;
    pthread_mutex_t lock;            // workers may still be wiping when a test goes on
    int open_direct, reserve, ring;  // 0, or -errno
    int pin;                         // the same, of all but the first pins_well
    int pins_well;
    int direct_io;  // 0, or -errno of transfers before any succeeds
    bool on_read, on_write;
    uint64_t from, until;
    int code;
    ssize_t bytes;
    uint64_t calls, hits;
};

static inline const struct fault_sys *fault_sys_of(const struct ssd_sys *sys)
{
    return CONTAINER_OF((struct ssd_sys *)(uintptr_t)sys, struct fault_sys, sys);
}

static inline ssize_t fault_choose(struct fault_sys *f, bool write, ssize_t res)
{
    if (write ? !f->on_write : !f->on_read) return res;
    uint64_t n = ++f->calls;
    if (n < f->from || n >= f->until || res < 0) return res;
    f->hits++;
    if (f->code) return f->code;
    return f->bytes ? (f->bytes < res ? f->bytes : res) : res / 2;
}

static inline ssize_t fault_apply(const struct ssd_sys *sys, bool write, ssize_t res)
{
    struct fault_sys *f = (struct fault_sys *)(uintptr_t)fault_sys_of(sys);
    pthread_mutex_lock(&f->lock);
    res = fault_choose(f, write, res);
    pthread_mutex_unlock(&f->lock);
    return res;
}

static inline int fault_open(const struct ssd_sys *sys, int dir, const char *name,
                             int flags)
{
    const struct fault_sys *f = fault_sys_of(sys);
    if ((flags & O_DIRECT) && f->open_direct) return f->open_direct;
    return ssd_sys_real.open(sys, dir, name, flags);
}

static inline int fault_reserve(const struct ssd_sys *sys, int fd, uint64_t bytes)
{
    const struct fault_sys *f = fault_sys_of(sys);
    return f->reserve ? f->reserve : ssd_sys_real.reserve(sys, fd, bytes);
}

static inline ssize_t fault_read(const struct ssd_sys *sys, int fd,
                                 const struct iovec *v, int n, uint64_t at)
{
    const struct fault_sys *f = fault_sys_of(sys);
    if (f->direct_io && (fcntl(fd, F_GETFL) & O_DIRECT)) return f->direct_io;
    return fault_apply(sys, false, ssd_sys_real.read(sys, fd, v, n, at));
}

static inline ssize_t fault_write(const struct ssd_sys *sys, int fd,
                                  const struct iovec *v, int n, uint64_t at)
{
    return fault_apply(sys, true, ssd_sys_real.write(sys, fd, v, n, at));
}

static inline int fault_ring(const struct ssd_sys *sys)
{
    return fault_sys_of(sys)->ring;
}

static inline int fault_pin(const struct ssd_sys *sys)
{
    struct fault_sys *f = (struct fault_sys *)(uintptr_t)fault_sys_of(sys);
    return f->pins_well-- > 0 ? 0 : f->pin;
}

static inline void fault_sys_init(struct fault_sys *f)
{
    *f = (struct fault_sys){.lock = PTHREAD_MUTEX_INITIALIZER};
    f->sys = (struct ssd_sys){
        .open = fault_open,
        .reserve = fault_reserve,
        .punch = ssd_sys_real.punch,
        .read = fault_read,
        .write = fault_write,
        .ring = fault_ring,
        .pin = fault_pin,
        .landed = fault_apply,
    };
}

/* From now on; returns how many the setting before has hit. */
static inline uint64_t fault_sys_set(struct fault_sys *f, bool on_read, bool on_write,
                                     uint64_t from, uint64_t until, int code,
                                     ssize_t bytes)
{
    pthread_mutex_lock(&f->lock);
    uint64_t hits = f->hits;
    f->on_read = on_read, f->on_write = on_write;
    f->from = from, f->until = until;
    f->code = code, f->bytes = bytes;
    f->calls = f->hits = 0;
    pthread_mutex_unlock(&f->lock);
    return hits;
}

#endif
