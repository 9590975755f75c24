#include "offload/ssd_run.h"

#include "offload/disk_format.h"

#define TRIES 8

void ssd_run_aim(struct ssd_run *r)
{
    uint64_t cycle = 0;
    for (unsigned i = 0; i < r->n_segments; i++) cycle += r->segment[i].iov_len;
    uint64_t skip = r->done % cycle, left = r->total - r->done;

    r->op.n_iov = 0;
    for (unsigned i = 0; i < r->n_segments && left > 0; i++) {
        struct iovec v = r->segment[i];
        if (skip >= v.iov_len) {
            skip -= v.iov_len;
            continue;
        }
        v.iov_base = (char *)v.iov_base + skip;
        v.iov_len -= skip;
        if (v.iov_len > left) v.iov_len = left;
        left -= v.iov_len;
        skip = 0;
        r->iov[r->op.n_iov++] = v;
    }
    r->op.iov = r->iov;
    r->op.at = r->at + r->done;
}

static bool ended(struct ssd_run *r, int res)
{
    r->res = res;
    return true;
}

bool ssd_run_advance(struct ssd_run *r)
{
    ssize_t n = r->op.res;
    int nothing = r->op.write ? -EIO : -EBADMSG;  // what no bytes mean
    if (n == 0) return ended(r, nothing);
    if (n < 0 && n != -EINTR && n != -EAGAIN) return ended(r, (int)n);
    if (n > 0) {
        uint64_t before = r->done;
        r->some = true;
        r->done += (uint64_t)n;
        if (r->done >= r->total) {
            r->done = r->total;
            return ended(r, 0);
        }
        r->done = r->done / DISK_PAGE * DISK_PAGE;
        if (r->done > before) r->tries = 0;
    }
    if (++r->tries > TRIES) return ended(r, n < 0 ? -EIO : nothing);
    ssd_run_aim(r);
    return false;
}
