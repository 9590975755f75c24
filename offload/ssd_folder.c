#include "offload/ssd_folder.h"

#include "offload/disk_format.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_LOCK  "lock"
#define NAME_FOUND "lost+found"  // a file system's own

struct opening {
    struct ssd_folder *f;
    struct tier_ssd_found *found;
    struct err *err;
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

// ---- errors ----------------------------------------------------------------------------

/* A folder, or a file system, that is there and cannot be written now (one that was
 * remounted after an error, one of another user) may be so again.  What can be no folder, or
 * is another's, is the operator's to mend. */
static bool costs_the_tier_only(int rc)
{
    return rc == -EACCES || rc == -EROFS || rc == -EIO || tier_lacks_room(rc);
}

static int no_folder(struct opening *x, const char *what, int rc)
{
    x->found->tier_only = costs_the_tier_only(rc);
    return err_set(x->err, rc, "the SSD tier's folder %s cannot be %s: %s", x->f->path,
                   what, strerror(-rc));
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

int ssd_folder_refuse(const struct ssd_folder *f, const char *name, int rc,
                      struct err *err)
{
    struct stat st;
    if (fstatat(f->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "%s/%s is %s; expected a regular file", f->path,
                       name, kind_of(st.st_mode));
    return err_set(err, rc, "%s/%s cannot be opened: %s", f->path, name, strerror(-rc));
}

// ---- the folder ------------------------------------------------------------------------

static int make_dir(struct opening *x)
{
    x->f->made.dir = mkdir(x->f->path, 0700) == 0;
    return x->f->made.dir || errno == EEXIST ? 0 : no_folder(x, "made", -errno);
}

static int open_dir(struct opening *x)
{
    struct stat st;
    x->f->dir = open(x->f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
    if (x->f->dir < 0) return no_folder(x, "opened", -errno);
    if (fstat(x->f->dir, &st) < 0) return no_folder(x, "read", -errno);
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return err_set(
            x->err, -EPERM,
            "the SSD tier's folder %s may be written by other users; expected "
            "mode 0700",
            x->f->path);
    return 0;
}

// ---- files in it -----------------------------------------------------------------------

static bool is_there(const struct ssd_folder *f, const char *name)
{
    struct stat st;
    return fstatat(f->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static int open_file(struct ssd_folder *f, const char *name, int flags, int *out)
{
    flags |= O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = f->sys->open(f->sys, f->dir, name, flags);
    if (fd < 0) return fd;
    *out = fd;
    struct stat st;
    if (fstat(fd, &st) < 0) return -errno;
    return S_ISREG(st.st_mode) ? 0 : -EINVAL;
}

/* Once it is known for ours: nobody else is to read it. */
static int close_to_others(const struct ssd_folder *f, int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0) return -errno;
    if ((st.st_mode & 077) && !f->look && fchmod(fd, 0600) < 0) return -errno;
    return 0;
}

/* An attempt that fails may have made it, too. */
int ssd_folder_file(struct ssd_folder *f, const char *name, int flags, int *out)
{
    bool there = is_there(f, name);
    int rc = open_file(f, name, flags, out);
    if (rc == 0) rc = close_to_others(f, *out);
    if (there || !is_there(f, name)) return rc;
    for (int i = 0; i < SSD_FOLDER_FILES; i++) {
        if (f->made.file[i]) continue;
        f->made.file[i] = name;
        break;
    }
    return rc;
}

// ---- the lock --------------------------------------------------------------------------

/* Whatever the reason, the folder itself is there, unless it is one of the system's that has
 * none but its own names. */
static int no_lock(struct opening *x, bool there, int rc)
{
    if (!there) (void)!no_folder(x, "written", rc);
    x->found->tier_only = there || rc != -ENOENT;
    return there ? ssd_folder_refuse(x->f, NAME_LOCK, rc, x->err) : rc;
}

static int lock_once(struct opening *x)
{
    struct ssd_folder *f = x->f;
    bool there = is_there(f, NAME_LOCK);
    int rc = open_file(f, NAME_LOCK, 0, &f->lock);
    if (rc < 0) return no_lock(x, there, rc);
    f->made.lock = !there;
    if (flock(f->lock, LOCK_EX | LOCK_NB) == 0) return 0;
    f->made.lock = false;
    if (errno == EWOULDBLOCK)
        return err_set(
            x->err, -EBUSY,
            "the SSD tier's folder %s is in use by another process; expected "
            "one of its own for each",
            f->path);
    x->found->tier_only = true;
    return err_set(x->err, -errno, "%s/%s cannot be locked: %s", f->path, NAME_LOCK,
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

// ---- what else lies there --------------------------------------------------------------

/* What is no regular file is left alone later, with a word. */
static bool begins_as(const struct ssd_folder *f, const char *name,
                      bool (*likely)(const void *, size_t))
{
    union {
        struct disk_super blocks;
        struct disk_name names[DISK_NAMES];
    } page;
    struct stat st;
    if (fstatat(f->dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        return true;
    int fd = openat(f->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, &page, sizeof page);
    close(fd);
    return n >= 0 && likely(&page, (size_t)n);
}

/* Beside a lock that was there before, empty and of a mode as ours is, it is ours, whatever has
 * become of it. */
static bool is_ours(const struct ssd_folder *f, const char *name,
                    bool (*likely)(const void *, size_t))
{
    struct stat st;
    bool locked = !f->made.lock && fstat(f->lock, &st) == 0 && st.st_size == 0 &&
                  (st.st_mode & ALLPERMS) == (S_IRUSR | S_IWUSR);
    return locked || begins_as(f, name, likely);
}

/* Names may be there without blocks, where these have been deleted. */
static bool is_foreign(const struct ssd_folder *f, const char *name)
{
    if (strcmp(name, SSD_FOLDER_NAMES) == 0)
        return !is_ours(f, name, disk_names_likely);
    return name[0] != '.' && strcmp(name, NAME_LOCK) && strcmp(name, NAME_FOUND);
}

static bool has_blocks(const struct ssd_folder *f, const char *blocks)
{
    return is_there(f, blocks) && is_ours(f, blocks, disk_blocks_likely) &&
           is_ours(f, SSD_FOLDER_NAMES, disk_names_likely);
}

/* Our files stay out of a folder that is somebody else's, such as / or /dev: one that holds
 * other things and no blocks of ours.  The lock is held. */
static int refuse_foreign(struct opening *x, const char *blocks)
{
    struct ssd_folder *f = x->f;
    if (has_blocks(f, blocks)) return 0;
    int fd = openat(f->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        int rc = no_folder(x, "read", -errno);
        if (fd >= 0) close(fd);
        return rc;
    }
    const struct dirent *entry;
    while ((entry = readdir(dir)) && !is_foreign(f, entry->d_name)) continue;
    bool foreign = entry != NULL;
    closedir(dir);
    if (!foreign) return 0;
    if (f->made.lock) unlinkat(f->dir, NAME_LOCK, 0);
    f->made.lock = false;
    return err_set(
        x->err, -ENOTEMPTY,
        "the SSD tier's folder %s holds other things than the tier's; expected "
        "one of its own, which is made where it is not there",
        f->path);
}

// ---- open and close --------------------------------------------------------------------

int ssd_folder_open(struct ssd_folder *f, struct tier_ssd_found *found,
                    const char *path, const char *blocks, const struct ssd_sys *sys,
                    bool look, struct err *err)
{
    *f = (struct ssd_folder){
        .path = path, .sys = sys, .look = look, .dir = -1, .lock = -1};
    struct opening x = {f, found, err};
    int rc = make_dir(&x);
    if (rc == 0) rc = open_dir(&x);
    if (rc == 0) rc = take_lock(&x);
    if (rc == 0) rc = refuse_foreign(&x, blocks);
    if (rc) return rc;
    rc = close_to_others(f, f->lock);
    return rc ? no_lock(&x, true, rc) : 0;
}

void ssd_folder_close(struct ssd_folder *f)
{
    for (int i = 0; f->look && i < SSD_FOLDER_FILES; i++)
        if (f->made.file[i]) unlinkat(f->dir, f->made.file[i], 0);
    if (f->look && f->made.lock) unlinkat(f->dir, NAME_LOCK, 0);
    if (f->lock >= 0) close(f->lock);
    if (f->dir >= 0) close(f->dir);
    if (f->look && f->made.dir) rmdir(f->path);
    *f = (struct ssd_folder){.dir = -1, .lock = -1};
}
