#include "offload/ssd_sys.h"

#include <fcntl.h>
#include <unistd.h>

static ssize_t or_errno(ssize_t rc)
{
    return rc < 0 ? -errno : rc;
}

static int real_open(const struct ssd_sys *sys, int dir, const char *name, int flags)
{
    (void)sys;
    return (int)or_errno(openat(dir, name, flags, 0600));
}

static int real_reserve(const struct ssd_sys *sys, int fd, uint64_t bytes)
{
    (void)sys;
    int rc;
    do {
        rc = (int)or_errno(fallocate(fd, 0, 0, (off_t)bytes));
    } while (rc == -EINTR);
    return rc;
}

static int real_punch(const struct ssd_sys *sys, int fd, uint64_t at, uint64_t bytes)
{
    (void)sys;
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return (int)or_errno(fallocate(fd, mode, (off_t)at, (off_t)bytes));
}

static ssize_t real_read(const struct ssd_sys *sys, int fd, const struct iovec *v,
                         int n, uint64_t at)
{
    (void)sys;
    return or_errno(preadv(fd, v, n, (off_t)at));
}

static ssize_t real_write(const struct ssd_sys *sys, int fd, const struct iovec *v,
                          int n, uint64_t at)
{
    (void)sys;
    return or_errno(pwritev(fd, v, n, (off_t)at));
}

static int real_ring(const struct ssd_sys *sys)
{
    (void)sys;
    return 0;
}

static int real_pin(const struct ssd_sys *sys)
{
    (void)sys;
    return 0;
}

static ssize_t real_landed(const struct ssd_sys *sys, bool write, ssize_t res)
{
    (void)sys;
    (void)write;
    return res;
}

const struct ssd_sys ssd_sys_real = {
    .open = real_open,
    .reserve = real_reserve,
    .punch = real_punch,
    .read = real_read,
    .write = real_write,
    .ring = real_ring,
    .pin = real_pin,
    .landed = real_landed,
};
