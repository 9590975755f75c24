/* ssd_file.c - opening the folder without trusting what lies in it.
 *
 * Nothing is followed or waited for: a link, a pipe, a socket or a folder in place of a
 * file is refused by its name.  The blocks are cached data, so that a file that is not
 * ours in size or geometry is brought into shape; the folder is the operator's.  So an error
 * of the folder, of the options, or another process there is the operator's to mend; one
 * of what lies inside is marked as such.
 */
#include "offload/ssd_file.h"

#include "offload/disk_format.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define NAME_LOCK   "lock"
#define NAME_BLOCKS "blocks"

/* Where it is a look, what was made is taken away again. */
struct opening {
    struct ssd_file *f;
    struct tier_ssd_found *found;
    const struct tier_ssd_options *o;
    const struct ssd_sys *sys;
    struct err *err;
    uint64_t bytes;           // the file is to have
    struct disk_super *page;  // aligned
    bool look;
    struct {
        bool dir, lock;
    } made;
};

void ssd_note(struct tier_ssd_found *found, const char *fmt, ...)
{
    size_t n = strlen(found->note);
    if (n > 0 && n + 1 < sizeof found->note) {
        found->note[n++] = ' ';
        found->note[n] = '\0';
    }
    va_list args;
    va_start(args, fmt);
    vsnprintf(found->note + n, sizeof found->note - n, fmt, args);
    va_end(args);
}

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISLNK(mode)  ? "a symbolic link"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISREG(mode)  ? "a regular file"
                            : "a device";
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

static int make_dir(struct opening *x)
{
    x->made.dir = mkdir(x->o->dir, 0700) == 0;
    if (x->made.dir || errno == EEXIST) return 0;
    return err_set(x->err, -errno, "the SSD tier's folder %s cannot be made: %s",
                   x->o->dir, strerror(errno));
}

static int no_writing(struct opening *x, int rc)
{
    return err_set(x->err, rc, "the SSD tier's folder %s cannot be written: %s",
                   x->o->dir, strerror(-rc));
}

static int open_dir(struct opening *x)
{
    const char *dir = x->o->dir;
    x->f->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    if (x->f->dir < 0)
        return err_set(x->err, -errno, "the SSD tier's folder %s cannot be opened: %s",
                       dir, strerror(errno));
    struct stat st;
    if (fstat(x->f->dir, &st) < 0)
        return err_set(x->err, -errno, "the SSD tier's folder %s cannot be read: %s",
                       dir, strerror(errno));
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return err_set(
            x->err, -EPERM,
            "the SSD tier's folder %s may be written by other users; expected "
            "mode 0700",
            dir);
    return faccessat(x->f->dir, ".", W_OK | X_OK, AT_EACCESS) ? no_writing(x, -errno)
                                                              : 0;
}

static int refuse(struct opening *x, const char *name, int rc)
{
    struct stat st;
    if (fstatat(x->f->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode))
        return err_set(x->err, -EINVAL, "%s/%s is %s; expected a regular file",
                       x->o->dir, name, kind_of(st.st_mode));
    return err_set(x->err, rc, "%s/%s cannot be opened: %s", x->o->dir, name,
                   strerror(-rc));
}

/* A regular file of ours in the folder, made where it is missing. */
static int open_file(struct opening *x, const char *name, int flags, int *out)
{
    flags |= O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = x->sys->open(x->sys, x->f->dir, name, flags);
    if (fd < 0) return fd;
    *out = fd;
    struct stat st;
    if (fstat(fd, &st) < 0) return -errno;
    if (!S_ISREG(st.st_mode)) return -EINVAL;
    if ((st.st_mode & 077) && !x->look && fchmod(fd, 0600) < 0) return -errno;
    return 0;
}

/* No room and a device that fails may be over tomorrow, and the server serves without; in
 * a folder that takes no file at all there will never be a tier. */
static int no_lock(struct opening *x, bool there, int rc)
{
    x->found->inside = there || rc == -ENOSPC || rc == -EDQUOT || rc == -EIO;
    return x->found->inside ? refuse(x, NAME_LOCK, rc) : no_writing(x, rc);
}

static int lock_once(struct opening *x)
{
    struct stat st;
    bool there = fstatat(x->f->dir, NAME_LOCK, &st, AT_SYMLINK_NOFOLLOW) == 0;
    int rc = open_file(x, NAME_LOCK, 0, &x->f->lock);
    if (rc < 0) return no_lock(x, there, rc);
    x->made.lock = !there;
    if (flock(x->f->lock, LOCK_EX | LOCK_NB) == 0) return 0;
    x->made.lock = false;
    if (errno == EWOULDBLOCK)
        return err_set(
            x->err, -EBUSY,
            "the SSD tier's folder %s is in use by another process; expected "
            "one of its own for each",
            x->o->dir);
    x->found->inside = true;
    return err_set(x->err, -errno, "%s/%s cannot be locked: %s", x->o->dir, NAME_LOCK,
                   strerror(errno));
}

/* Whoever only looked takes the lock's file away while it holds it: one that has no name any
 * more is none to hold, and another is made.  Some file systems count no names at all. */
static int take_lock(struct opening *x)
{
    for (int tries = 0;; tries++) {
        struct stat st;
        int rc = lock_once(x);
        if (rc < 0 || tries == 4) return rc;
        if (fstat(x->f->lock, &st) == 0 && st.st_nlink > 0) return 0;
        close(x->f->lock);
        x->f->lock = -1;
    }
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
    if (x->f->direct) rc = open_file(x, NAME_BLOCKS, O_DIRECT, &x->f->fd);
    if (rc < 0 && x->f->fd < 0) {
        bool wanted = x->f->direct;
        int why = rc;
        rc = open_file(x, NAME_BLOCKS, 0, &x->f->fd);
        if (rc == 0 && wanted) note_buffered(x, why);
    }
    return rc < 0 ? refuse(x, NAME_BLOCKS, rc) : 0;
}

/* One page at the file's start, 0 where it is not there.  Some file systems refuse direct
 * I/O only now. */
static ssize_t super_io(struct opening *x, bool write)
{
    struct iovec v = {x->page, DISK_PAGE};
    ssize_t (*io)(const struct ssd_sys *, int, const struct iovec *, int, uint64_t) =
        write ? x->sys->write : x->sys->read;
    ssize_t n = -EINTR;
    for (int i = 0; i < 8 && (n == -EINTR || n == -EAGAIN); i++)
        n = io(x->sys, x->f->fd, &v, 1, 0);
    if (n != -EINVAL || !x->f->direct) return n;
    int flags = fcntl(x->f->fd, F_GETFL);
    if (flags < 0 || fcntl(x->f->fd, F_SETFL, flags & ~O_DIRECT) < 0) return -errno;
    note_buffered(x, -EINVAL);
    return io(x->sys, x->f->fd, &v, 1, 0);
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
    if (ftruncate(x->f->fd, 0) < 0)
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
        "Only %llu of the SSD tier's %llu MiB are reserved on %s (%s), so the rest may "
        "turn out not to be there.",
        (unsigned long long)(has >> 20), (unsigned long long)(x->bytes >> 20),
        x->o->dir, strerror(-rc));
}

/* All of it on the device from now on, so that no store is too much; where that is not to
 * be had, stores may fail one by one instead.  Asked for only where it seems to fit: an
 * attempt that fails half-way would leave the others on this file system nothing. */
static int reserve(struct opening *x)
{
    struct stat st;
    struct statvfs fs;
    if (fstat(x->f->fd, &st) < 0 || fstatvfs(x->f->fd, &fs) < 0) goto fail;
    if ((uint64_t)st.st_size > x->bytes && ftruncate(x->f->fd, (off_t)x->bytes) < 0)
        goto fail;

    uint64_t has = (uint64_t)st.st_blocks * 512;
    int rc =
        has_room(x, has, &fs) ? x->sys->reserve(x->sys, x->f->fd, x->bytes) : -ENOSPC;
    if (rc == 0) return 0;
    note_unreserved(x, has, rc);
    // Without its full length, too, reads beyond the end are just absent blocks.
    if ((uint64_t)st.st_size < x->bytes) (void)!ftruncate(x->f->fd, (off_t)x->bytes);
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
    if (rc < 0 || v == DISK_OURS) return rc;

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

/* What the operator has to mend is found here. */
static int open_folder(struct opening *x)
{
    int rc = check_options(x);
    if (rc == 0) rc = make_dir(x);
    if (rc == 0) rc = open_dir(x);
    if (rc == 0) rc = take_lock(x);
    return rc;
}

int ssd_file_open(struct ssd_file *f, struct tier_ssd_found *found,
                  const struct tier_ssd_options *o, const struct ssd_sys *sys,
                  struct err *err)
{
    *f = (struct ssd_file){-1, -1, -1, .direct = !o->no_direct};
    struct opening x = {.f = f, .found = found, .o = o, .sys = sys, .err = err};
    int rc = open_folder(&x);
    if (rc == 0) {
        rc = open_inside(&x);
        found->inside = rc < 0 && rc != -ENOMEM;
    }
    found->direct = f->direct;
    if (rc < 0) ssd_file_close(f);
    return rc;
}

int ssd_file_punch(const struct ssd_file *f, uint32_t slot)
{
    off_t at = (off_t)disk_slot_at(f->slot_bytes, slot), n = (off_t)f->slot_bytes;
    return fallocate(f->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, n) ? -errno
                                                                               : 0;
}

bool ssd_file_lasts(const struct ssd_file *f)
{
    struct stat st;
    return fstat(f->fd, &st) < 0 || st.st_nlink > 0;
}

void ssd_file_close(struct ssd_file *f)
{
    if (f->fd >= 0) close(f->fd);
    if (f->lock >= 0) close(f->lock);
    if (f->dir >= 0) close(f->dir);
    f->fd = f->lock = f->dir = -1;
}

// ---- looking --------------------------------------------------------------------------

/* Bytes that the file of blocks has on its device; 0 where it is not there yet. */
static int look_at_blocks(struct opening *x, uint64_t *has)
{
    struct stat st;
    *has = 0;
    if (fstatat(x->f->dir, NAME_BLOCKS, &st, AT_SYMLINK_NOFOLLOW) < 0) return 0;
    int rc = faccessat(x->f->dir, NAME_BLOCKS, R_OK | W_OK, AT_EACCESS) ? -errno : 0;
    x->found->inside = rc < 0 || !S_ISREG(st.st_mode);
    if (x->found->inside) return refuse(x, NAME_BLOCKS, rc);
    *has = (uint64_t)st.st_blocks * 512;
    return 0;
}

int tier_ssd_check(struct tier_ssd_found *found, const struct tier_ssd_options *o,
                   struct err *err)
{
    struct ssd_file f = {-1, -1, -1, .direct = false};
    struct opening x = {.f = &f,
                        .found = found,
                        .o = o,
                        .sys = o->sys ? o->sys : &ssd_sys_real,
                        .err = err,
                        .look = true};
    struct statvfs fs;
    uint64_t has;
    *found = (struct tier_ssd_found){0};
    int rc = open_folder(&x);
    if (rc == 0) rc = look_at_blocks(&x, &has);
    if (rc == 0 && fstatvfs(f.dir, &fs) == 0 && !has_room(&x, has, &fs))
        note_unreserved(&x, has, -ENOSPC);
    if (x.made.lock) unlinkat(f.dir, NAME_LOCK, 0);
    ssd_file_close(&f);
    if (x.made.dir) rmdir(o->dir);
    return rc;
}
