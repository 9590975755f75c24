/* file_map.c - mmap of regular files. */
#include "model/file_map.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(struct err *err, const char *path, int errnum)
{
    return err_set(err, -errnum, "%s: cannot be read: %s", path, strerror(errnum));
}

static int map_descriptor(struct file_map *out, int fd, const char *path,
                          struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0) return fail(err, path, errno);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "%s: is not a regular file", path);
    if (st.st_size == 0) {
        *out = (struct file_map){"", 0};  // mmap takes no empty range
        return 0;
    }
    size_t size = (size_t)st.st_size;
    void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) return fail(err, path, errno);
    *out = (struct file_map){p, size};
    return 0;
}

int file_map_open(struct file_map *out, const char *path, struct err *err)
{
    // O_NONBLOCK: opening a pipe must not wait for somebody to write into it.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return fail(err, path, errno);
    int rc = map_descriptor(out, fd, path, err);
    close(fd);
    return rc;
}

void file_map_close(struct file_map *m)
{
    if (m->size > 0) munmap((void *)(uintptr_t)m->data, m->size);
    *m = (struct file_map){0};
}

void file_map_release_pages(const struct file_map *m)
{
    if (m->size > 0) (void)madvise((void *)(uintptr_t)m->data, m->size, MADV_DONTNEED);
}

char *file_path(const char *dir, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}
