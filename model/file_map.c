/* file_map.c - mmap of regular files. */
#include "model/file_map.h"

#include "kernels/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int map_descriptor(struct file_map *out, int fd, const char *path,
                          struct err *err)
{
    struct stat st;
    void *p = MAP_FAILED;
    bool known = fstat(fd, &st) == 0;
    if (known && st.st_size == 0) {
        *out = (struct file_map){"", 0};  // mmap takes no empty range
        return 0;
    }
    if (known) p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return err_set(err, -errno, "%s cannot be read: %s", path, strerror(errno));
    *out = (struct file_map){p, (size_t)st.st_size};
    return 0;
}

int file_map_open(struct file_map *out, const char *path, struct err *err)
{
    int fd;
    int rc = file_open(&fd, path, err);
    if (rc < 0) return rc;
    rc = map_descriptor(out, fd, path, err);
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
