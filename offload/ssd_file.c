/* ssd_file.c - opening the file of slots.
 *
 * The blocks are cached data, so that a file that is not ours in size or geometry is brought
 * into shape, and what is wrong with it costs the tier only.
 */
#include "offload/ssd_file.h"

#include "offload/disk_format.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define NAME_BLOCKS "blocks"

struct opening {
    struct ssd_file *f;
    struct tier_ssd_found *found;
    const struct tier_ssd_options *o;
    struct err *err;
    uint64_t bytes;           // the file is to have
    struct disk_super *page;  // aligned
};

static bool only_looks(const struct opening *x)
{
    return x->f->folder.look;
}

static int check_options(struct opening *x)
{
    const struct tier_ssd_options *o = x->o;
    if (!o->dir || !o->dir[0])
        return err_set(x->err, -EINVAL, "the SSD tier has no folder");
    if (o->block_bytes == 0 || o->block_bytes > INT32_MAX)
        return err_set(x->err, -EINVAL,
                       "blocks of %zu bytes cannot be kept on an SSD; expected 1 to %d",
                       o->block_bytes, INT32_MAX);
    if (o->depth == 0 || o->depth > TIER_SSD_DEPTH)
        return err_set(x->err, -EINVAL,
                       "a depth of %u transfers in flight is not possible on an SSD; "
                       "expected 1 to %d",
                       o->depth, TIER_SSD_DEPTH);
    uint64_t slot_bytes = disk_slot_bytes(o->block_bytes);
    if (o->bytes < DISK_PAGE + slot_bytes || o->bytes > INT64_MAX)
        return err_set(
            x->err, -EINVAL,
            "an SSD tier of %llu bytes holds no block of %zu bytes; expected "
            "at least %llu",
            (unsigned long long)o->bytes, o->block_bytes,
            (unsigned long long)(DISK_PAGE + slot_bytes));
    uint64_t capacity = (o->bytes - DISK_PAGE) / slot_bytes;
    if (capacity > UINT32_MAX / 4) capacity = UINT32_MAX / 4;
    x->f->slot_bytes = slot_bytes;
    x->f->capacity = (uint32_t)capacity;
    x->bytes = disk_slot_at(slot_bytes, capacity);
    return 0;
}

static void note_buffered(struct opening *x, int rc)
{
    x->f->direct = false;
    ssd_note(x->found,
             "%s refuses direct I/O (%s), so the SSD tier goes through the page cache.",
             x->o->dir, strerror(-rc));
}

static int open_blocks(struct opening *x)
{
    int rc = -EINVAL;
    if (x->f->direct)
        rc = ssd_folder_file(&x->f->folder, NAME_BLOCKS, O_DIRECT, &x->f->fd);
    if (rc < 0 && x->f->fd < 0) {
        bool wanted = x->f->direct;
        int why = rc;
        rc = ssd_folder_file(&x->f->folder, NAME_BLOCKS, 0, &x->f->fd);
        if (rc == 0 && wanted) note_buffered(x, why);
    }
    return rc < 0 ? ssd_folder_refuse(&x->f->folder, NAME_BLOCKS, rc, x->err) : 0;
}

/* One page at the file's start, 0 where it is not there.  Some file systems refuse direct
 * I/O only now. */
static ssize_t super_io(struct opening *x, bool write)
{
    struct iovec v = {x->page, DISK_PAGE};
    ssize_t (*io)(const struct ssd_sys *, int, const struct iovec *, int, uint64_t) =
        write ? x->f->folder.sys->write : x->f->folder.sys->read;
    ssize_t n = -EINTR;
    for (int i = 0; i < 8 && (n == -EINTR || n == -EAGAIN); i++)
        n = io(x->f->folder.sys, x->f->fd, &v, 1, 0);
    if (n != -EINVAL || !x->f->direct) return n;
    int flags = fcntl(x->f->fd, F_GETFL);
    if (flags < 0 || fcntl(x->f->fd, F_SETFL, flags & ~O_DIRECT) < 0) return -errno;
    note_buffered(x, -EINVAL);
    return io(x->f->folder.sys, x->f->fd, &v, 1, 0);
}

static int look_at_super(struct opening *x, enum disk_verdict *v)
{
    const char *dir = x->o->dir;
    ssize_t n = super_io(x, false);
    if (n < 0)
        return err_set(x->err, (int)n, "%s/%s cannot be read: %s", dir, NAME_BLOCKS,
                       strerror((int)-n));
    *v = n == 0           ? DISK_EMPTY
         : n != DISK_PAGE ? DISK_DAMAGED
                          : disk_super_read(x->page, x->o->block_bytes);
    if (*v == DISK_DAMAGED)
        ssd_note(x->found, "The first page of %s/%s was damaged and is written anew.",
                 dir, NAME_BLOCKS);
    if (*v != DISK_FOREIGN) return 0;
    ssd_note(
        x->found,
        "%s/%s held blocks of another size or version, not %zu bytes of version %d, "
        "and is made anew.",
        dir, NAME_BLOCKS, x->o->block_bytes, DISK_VERSION);
    if (!only_looks(x) && ftruncate(x->f->fd, 0) < 0)
        return err_set(x->err, -errno, "%s/%s cannot be cut: %s", dir, NAME_BLOCKS,
                       strerror(errno));
    return 0;
}

/* For what the file, which has so many bytes on its device, still needs. */
static bool has_room(const struct opening *x, uint64_t has, const struct statvfs *fs)
{
    uint64_t needs = x->bytes > has ? x->bytes - has : 0;
    return needs <= (uint64_t)fs->f_bavail * fs->f_frsize;
}

static void note_unreserved(struct opening *x, uint64_t has, int rc)
{
    ssd_note(
        x->found,
        "Only %llu of the SSD tier's %llu KiB are reserved on %s (%s), so the rest may "
        "turn out not to be there.",
        (unsigned long long)(has >> 10), (unsigned long long)(x->bytes >> 10),
        x->o->dir, strerror(-rc));
}

/* All of it on the device from now on, so that no store is too much; where that is not to
 * be had, stores may fail one by one instead.  Asked for only where it seems to fit: an
 * attempt that fails half-way would leave the others on this file system nothing. */
static int reserve(struct opening *x)
{
    const struct ssd_sys *sys = x->f->folder.sys;
    struct stat st;
    struct statvfs fs;
    int rc = 0;
    if (fstat(x->f->fd, &st) < 0 || fstatvfs(x->f->fd, &fs) < 0) goto fail;
    bool cut = (uint64_t)st.st_size > x->bytes && !only_looks(x);
    if (cut && ftruncate(x->f->fd, (off_t)x->bytes) < 0) goto fail;

    uint64_t has = (uint64_t)st.st_blocks * 512;
    if (!has_room(x, has, &fs))
        rc = -ENOSPC;
    else if (!only_looks(x))
        rc = sys->reserve(sys, x->f->fd, x->bytes);
    if (rc == 0) return 0;
    note_unreserved(x, has, rc);
    // Without its full length, too, reads beyond the end are just absent blocks.
    if ((uint64_t)st.st_size < x->bytes && !only_looks(x))
        (void)!ftruncate(x->f->fd, (off_t)x->bytes);
    return 0;

fail:
    return err_set(x->err, -errno, "%s/%s cannot be given its size: %s", x->o->dir,
                   NAME_BLOCKS, strerror(errno));
}

static int bring_into_shape(struct opening *x)
{
    enum disk_verdict v = DISK_EMPTY;
    int rc = look_at_super(x, &v);
    if (rc == 0) rc = reserve(x);
    if (rc < 0 || v == DISK_OURS || only_looks(x)) return rc;

    disk_super_make(x->page, x->o->block_bytes);
    ssize_t n = super_io(x, true);
    if (n != DISK_PAGE)
        ssd_note(x->found, "%s/%s cannot be written at present: %s.", x->o->dir,
                 NAME_BLOCKS, n < 0 ? strerror((int)-n) : "no room");
    return 0;
}

static int open_inside(struct opening *x)
{
    int rc = open_blocks(x);
    if (rc < 0) return rc;
    x->page = aligned_alloc(DISK_PAGE, DISK_PAGE);
    if (!x->page) return err_set(x->err, -ENOMEM, "no memory for a page");
    rc = bring_into_shape(x);
    free(x->page);
    return rc;
}

int ssd_file_open(struct ssd_file *f, struct tier_ssd_found *found,
                  const struct tier_ssd_options *o, bool look, struct err *err)
{
    const struct ssd_sys *sys = o->sys ? o->sys : &ssd_sys_real;
    *f = (struct ssd_file){
        .folder = {.dir = -1, .lock = -1}, .fd = -1, .direct = !o->no_direct};
    struct opening x = {.f = f, .found = found, .o = o, .err = err};
    int rc = check_options(&x);
    if (rc == 0)
        rc = ssd_folder_open(&f->folder, found, o->dir, NAME_BLOCKS, sys, look, err);
    if (rc == 0) {
        rc = open_inside(&x);
        found->tier_only = rc < 0 && rc != -ENOMEM;
    }
    found->direct = f->direct;
    if (rc < 0) ssd_file_close(f);
    return rc;
}

int ssd_file_punch(const struct ssd_file *f, uint32_t slot)
{
    const struct ssd_sys *sys = f->folder.sys;
    return sys->punch(sys, f->fd, disk_slot_at(f->slot_bytes, slot), f->slot_bytes);
}

bool ssd_file_lasts(const struct ssd_file *f)
{
    struct stat st;
    return fstat(f->fd, &st) < 0 || st.st_nlink > 0;
}

void ssd_file_close(struct ssd_file *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    ssd_folder_close(&f->folder);
}
