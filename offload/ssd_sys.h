/* ssd_sys.h - what the SSD tier asks of the system, as a table: tests put failures here.
 *
 * Every function returns 0 or a count of bytes, or -errno.
 * Threads  read and write from any, the others from the owner of the tier.
 */
#ifndef OFFLOAD_SSD_SYS_H
#define OFFLOAD_SSD_SYS_H

#include "kernels/base.h"

#include <sys/types.h>
#include <sys/uio.h>

struct ssd_sys {
    int (*open)(const struct ssd_sys *sys, int dir, const char *name, int flags);
    int (*reserve)(const struct ssd_sys *sys, int fd, uint64_t bytes);  // on the device
    int (*punch)(const struct ssd_sys *sys, int fd, uint64_t at,
                 uint64_t bytes);  // out of the file, which keeps its length
    ssize_t (*read)(const struct ssd_sys *sys, int fd, const struct iovec *v, int n,
                    uint64_t at);
    ssize_t (*write)(const struct ssd_sys *sys, int fd, const struct iovec *v, int n,
                     uint64_t at);
    int (*ring)(const struct ssd_sys *sys);  // may io_uring be used?
    int (*pin)(const struct ssd_sys *sys);   // may it keep this memory pinned?
    /* What a ring's request brought; what it returns is taken for it. */
    ssize_t (*landed)(const struct ssd_sys *sys, bool write, ssize_t res);
};

extern const struct ssd_sys ssd_sys_real;

#endif
