#include "kernels/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int file_open(int *fd, const char *path, struct err *err)
{
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0)
        return err_set(err, -errno, "%s cannot be opened: %s", path, strerror(errno));
    struct stat st;
    int rc = 0;
    if (fstat(opened, &st) < 0)
        rc = err_set(err, -errno, "%s cannot be read: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = err_set(err, -EINVAL, "%s is not a regular file", path);
    if (rc < 0)
        close(opened);
    else
        *fd = opened;
    return rc;
}

/* Until the end of the file or of the buffer. */
static int read_until(int fd, char *buf, size_t cap, size_t *n)
{
    for (*n = 0; *n < cap;) {
        ssize_t got = read(fd, buf + *n, cap - *n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -errno;
        if (got == 0) break;
        *n += (size_t)got;
    }
    return 0;
}

int file_read(int fd, const char *path, size_t most, char **out, size_t *out_n,
              struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_set(err, -errno, "%s cannot be read: %s", path, strerror(errno));
    if ((uint64_t)st.st_size > most)
        return err_set(err, -EFBIG, "%s has %llu bytes; at most %zu are read", path,
                       (unsigned long long)st.st_size, most);
    size_t size = (size_t)st.st_size, n;
    char *data = malloc(size + 1);
    if (!data) return err_set(err, -ENOMEM, "no memory to read %s", path);

    int rc = read_until(fd, data, size + 1, &n);
    if (rc < 0)
        err_set(err, rc, "%s cannot be read: %s", path, strerror(-rc));
    else if (n > size)
        rc = err_set(err, -EBUSY, "%s grew while it was read", path);
    if (rc < 0) {
        free(data);
        return rc;
    }
    data[n] = '\0';
    *out = data;
    *out_n = n;
    return 0;
}

int file_load(const char *path, size_t most, char **out, size_t *out_n, struct err *err)
{
    int fd = -1;
    int rc = file_open(&fd, path, err);
    if (rc < 0) return rc;
    rc = file_read(fd, path, most, out, out_n, err);
    close(fd);
    return rc;
}
