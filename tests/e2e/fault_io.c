/* fault_io.c - for LD_PRELOAD: reads and writes of the SSD's file fail as a test says.
 *
 *     cc -shared -fPIC -o fault_io.so fault_io.c -ldl
 *
 * The file that FAULT_IO names holds "SERIAL KIND FROM COUNT" and is read at every call, so
 * that a test changes it under a running server.  KIND is eio or shortr for preadv; enospc,
 * eiow or shortw for pwritev; else none.  Of `names` writes fail where it is names.  Calls of that direction are numbered from 0 since
 * SERIAL changed; those in [FROM, FROM + COUNT) fail, and each adds a byte to FAULT_IO.hits.
 * Only files named `blocks`, or `names`, are touched.  A ring's transfers do not come by here. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST 64  // segments of one call

typedef ssize_t (*vector_io)(int fd, const struct iovec *v, int n, off_t at);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long serial, calls;  // guarded by it

static bool is_file(int fd, const char *name)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path), tail = (ssize_t)strlen(name);
    return n > tail && memcmp(path + n - tail, name, (size_t)tail) == 0;
}

static void count_hit(const char *control)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.hits", control);
    FILE *f = fopen(path, "a");
    if (!f) return;
    fputc('x', f);
    fclose(f);
}

/* Is this call to fail, and how? */
static bool choose(int fd, bool write, char kind[16])
{
    const char *control = getenv("FAULT_IO");
    long asked, from, count;
    bool names = is_file(fd, "/names");
    FILE *f = control && (names || is_file(fd, "/blocks")) ? fopen(control, "r") : NULL;
    if (!f) return false;
    int read = fscanf(f, "%ld %15s %ld %ld", &asked, kind, &from, &count);
    fclose(f);
    if (read != 4 || !strcmp(kind, "none") || names != !strcmp(kind, "names"))
        return false;
    bool of_read = !strcmp(kind, "eio") || !strcmp(kind, "shortr");
    if (of_read == write) return false;

    pthread_mutex_lock(&lock);
    if (asked != serial) calls = 0;
    serial = asked;
    long i = calls++;
    pthread_mutex_unlock(&lock);
    if (i < from || i - from >= count) return false;
    count_hit(control);
    return true;
}

/* The first half of what was asked, and nothing beyond it. */
static ssize_t half(vector_io real, int fd, const struct iovec *v, int n, off_t at)
{
    struct iovec part[MOST];
    size_t left = 0;
    for (int i = 0; i < n; i++) left += v[i].iov_len;
    left /= 2;
    int k = 0;
    for (; k < n && k < MOST && left > 0; k++) {
        part[k] = v[k];
        if (part[k].iov_len > left) part[k].iov_len = left;
        left -= part[k].iov_len;
    }
    return real(fd, part, k, at);
}

static ssize_t transfer(const char *name, bool write, int fd, const struct iovec *v,
                        int n, off_t at)
{
    vector_io real;
    void *symbol = dlsym(RTLD_NEXT, name);
    memcpy(&real, &symbol, sizeof real);
    char kind[16];
    if (!choose(fd, write, kind)) return real(fd, v, n, at);
    if (!strncmp(kind, "short", 5)) return half(real, fd, v, n, at);
    errno = strcmp(kind, "enospc") ? EIO : ENOSPC;
    return -1;
}

ssize_t preadv(int fd, const struct iovec *v, int n, off_t at)
{
    return transfer("preadv", false, fd, v, n, at);
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at)
{
    return transfer("pwritev", true, fd, v, n, at);
}
