#include "model/packed.h"

#include "kernels/checksum.h"
#include "kernels/crypto.h"
#include "model/content_hash.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TAG     "dormouse packed 1"
#define PAGE    ((uint64_t)4096)
#define MOST    65536u  // matrices: no configuration has so many layers
#define AT_ONCE ((size_t)1 << 30)
#define NEW     ".new"  // behind the name while it is being written

struct entry {
    uint64_t bytes, sum;
};

struct head {
    char tag[32];
    struct crypto_hash key;
    uint64_t n;
};

struct packed {
    char path[4096];
    struct crypto_hash key;
    int fd;  // -1: there is no file to read from
    struct entry *entry;
    uint32_t n, read;
    uint64_t at;  // where the next matrix begins
    char result[512];
};

/* Little-endian hosts only are built for: numbers are written as they are. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the format is little-endian");

static uint64_t head_bytes(uint64_t n)
{
    return sizeof(struct head) + n * sizeof(struct entry) + sizeof(uint64_t);
}

static uint64_t whole_pages(uint64_t bytes)
{
    return ALIGN_UP(bytes, PAGE);
}

static int transfer(int fd, void *p, size_t n, uint64_t at, bool write)
{
    for (size_t done = 0; done < n;) {
        size_t left = n - done < AT_ONCE ? n - done : AT_ONCE;
        ssize_t got = write ? pwrite(fd, (char *)p + done, left, (off_t)(at + done))
                            : pread(fd, (char *)p + done, left, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -errno;
        if (got == 0) return -ENODATA;
        done += (size_t)got;
    }
    return 0;
}

/* ---- key ---- */

static void add_text(struct crypto_state *s, const char *text)
{
    crypto_add_field(s, text, strlen(text));
}

static void add_file(struct crypto_state *s, const char *dir, const char *name)
{
    char path[4096];
    struct stat st = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (stat(path, &st)) st = (struct stat){0};
    crypto_add_u64(s, (uint64_t)st.st_size);
    crypto_add_u64(s, (uint64_t)st.st_mtim.tv_sec);
    crypto_add_u64(s, (uint64_t)st.st_mtim.tv_nsec);
    crypto_add_u64(s, (uint64_t)st.st_ctim.tv_sec);
    crypto_add_u64(s, (uint64_t)st.st_ctim.tv_nsec);
}

static void make_key(struct crypto_hash *out, const char *layout, const char *dir,
                     enum weight_format format, const struct tensor_set *set,
                     uint32_t n_matrices)
{
    struct crypto_state s;
    crypto_begin(&s, NULL);
    add_text(&s, TAG);
    add_text(&s, layout);
    add_text(&s, weight_format_name(format));
    crypto_add_u64(&s, n_matrices);
    for (uint32_t i = 0; i < safetensors_count(set); i++) {
        const struct tensor *t = safetensors_at(set, i);
        content_hash_add_kind(&s, t);
        add_file(&s, dir, t->file);
    }
    crypto_end(&s, out);
}

/* ---- files ---- */

static void path_of(char *path, size_t cap, const char *dir, enum weight_format format,
                    const char *end)
{
    snprintf(path, cap, "%s/dormouse-%s.packed%s", dir, weight_format_name(format),
             end);
}

/* Hold the file for this process alone.  -EBUSY: another one does, or has renamed it since
 * it was opened. */
static int hold(int fd, const char *path)
{
    struct stat mine, there;
    if (flock(fd, LOCK_EX | LOCK_NB)) return errno == EWOULDBLOCK ? -EBUSY : -errno;
    if (fstat(fd, &mine)) return -errno;
    if (!S_ISREG(mine.st_mode)) return -EINVAL;
    bool same = stat(path, &there) == 0 && mine.st_ino == there.st_ino &&
                mine.st_dev == there.st_dev;
    return same ? 0 : -EBUSY;
}

/* What a process that was killed had begun to write, in whatever format: this start may
 * have nothing to write, or another name for it. */
static void remove_left(const char *dir)
{
    for (int f = WEIGHT_OWN; f <= WEIGHT_Q4; f++) {
        char path[4096];
        path_of(path, sizeof path, dir, (enum weight_format)f, NEW);
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0) continue;
        if (hold(fd, path) == 0) unlink(path);
        close(fd);
    }
}

/* ---- reading ---- */

static void give_up(struct packed *p, const char *why)
{
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    snprintf(p->result, sizeof p->result, "%.300s %s, so the weights were packed",
             p->path, why);
}

/* Are there zeros from `from` on to the end of its page? */
static bool padding_holds(const struct packed *p, uint64_t from)
{
    static const char zeros[PAGE];
    char there[PAGE];
    size_t n = (size_t)(whole_pages(from) - from);
    return n == 0 || (transfer(p->fd, there, n, from, false) == 0 &&
                      memcmp(there, zeros, n) == 0);
}

/* Does the file end where the last of its matrices does? */
static bool size_holds(const struct packed *p)
{
    struct stat st;
    uint64_t end = p->at;
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->entry[i].bytes > INT64_MAX) return false;
        if (__builtin_add_overflow(end, whole_pages(p->entry[i].bytes), &end))
            return false;
    }
    return fstat(p->fd, &st) == 0 && (uint64_t)st.st_size == end;
}

static bool read_table(struct packed *p, const struct head *h)
{
    size_t bytes = (size_t)head_bytes(h->n);
    char *all = malloc(bytes);
    p->entry = calloc((size_t)h->n, sizeof *p->entry);
    bool good = false;
    if (all && p->entry && transfer(p->fd, all, bytes, 0, false) == 0) {
        uint64_t sum;
        memcpy(&sum, all + bytes - sizeof sum, sizeof sum);
        good = sum == checksum_xxh3(all, bytes - sizeof sum);
        memcpy(p->entry, all + sizeof *h, (size_t)h->n * sizeof *p->entry);
    }
    free(all);
    p->n = (uint32_t)h->n;
    p->at = whole_pages(bytes);
    return good && size_holds(p) && padding_holds(p, bytes);
}

static void read_head(struct packed *p)
{
    static const struct head tag = {.tag = TAG};
    struct head h;
    p->fd = open(p->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (p->fd < 0) {
        give_up(p, errno == ENOENT ? "is not there" : "cannot be opened");
    } else if (transfer(p->fd, &h, sizeof h, 0, false) != 0 ||
               memcmp(h.tag, tag.tag, sizeof h.tag) != 0) {
        give_up(p, "is no file of packed weights");
    } else if (memcmp(&h.key, &p->key, sizeof h.key) != 0) {
        give_up(p, "is of other or changed weights, or in another layout");
    } else if (h.n == 0 || h.n > MOST || !read_table(p, &h)) {
        give_up(p, "is damaged");
    }
}

void packed_open(struct packed **out, const struct backend *b, const char *dir,
                 enum weight_format format, const struct tensor_set *set,
                 uint32_t n_matrices)
{
    *out = NULL;
    const char *layout = backend_matrix_layout(b);
    struct packed *p = layout && crypto_open(NULL) == 0 ? calloc(1, sizeof *p) : NULL;
    if (!p) return;
    p->fd = -1;
    make_key(&p->key, layout, dir, format, set, n_matrices);
    path_of(p->path, sizeof p->path, dir, format, "");
    remove_left(dir);
    read_head(p);
    *out = p;
}

void packed_close(struct packed *p)
{
    if (!p) return;
    if (p->fd >= 0) close(p->fd);
    free(p->entry);
    free(p);
}

bool packed_readable(const struct packed *p)
{
    return p->fd >= 0;
}

bool packed_read(struct packed *p, uint32_t i, const struct matrix *m)
{
    if (!packed_readable(p)) return false;
    if (i != p->read || i >= p->n || p->entry[i].bytes != m->bytes ||
        transfer(p->fd, m->data, m->bytes, p->at, false) != 0 ||
        checksum_xxh3(m->data, m->bytes) != p->entry[i].sum ||
        !padding_holds(p, p->at + m->bytes)) {
        give_up(p, "is damaged");
        return false;
    }
    p->at += whole_pages(m->bytes);
    p->read++;
    return true;
}

/* ---- writing ---- */

static int write_head(const struct packed *p, int fd, const struct matrix *const *m,
                      uint32_t n)
{
    size_t bytes = (size_t)head_bytes(n);
    char *all = calloc(1, bytes);
    if (!all) return -ENOMEM;
    struct head h = {.tag = TAG, .key = p->key, .n = n};
    memcpy(all, &h, sizeof h);
    for (uint32_t i = 0; i < n; i++) {
        struct entry e = {m[i]->bytes, checksum_xxh3(m[i]->data, m[i]->bytes)};
        memcpy(all + sizeof h + i * sizeof e, &e, sizeof e);
    }
    uint64_t sum = checksum_xxh3(all, bytes - sizeof sum);
    memcpy(all + bytes - sizeof sum, &sum, sizeof sum);
    int rc = transfer(fd, all, bytes, 0, true);
    free(all);
    return rc;
}

static int write_all(const struct packed *p, int fd, const struct matrix *const *m,
                     uint32_t n)
{
    uint64_t at = whole_pages(head_bytes(n)), end = at;
    for (uint32_t i = 0; i < n; i++) end += whole_pages(m[i]->bytes);
    // All room first: a full disk is found before its last byte is taken.
    int rc = posix_fallocate(fd, 0, (off_t)end);
    if (rc == 0 || rc == EOPNOTSUPP || rc == EINVAL)
        rc = ftruncate(fd, (off_t)end) ? errno : 0;
    rc = -rc;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        rc = transfer(fd, m[i]->data, m[i]->bytes, at, true);
        at += whole_pages(m[i]->bytes);
    }
    return rc ? rc : write_head(p, fd, m, n);
}

/* The new file's descriptor, held by this process alone. */
static int open_new(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (fd < 0) return -errno;
    int rc = hold(fd, path);
    if (rc == 0 && ftruncate(fd, 0)) rc = -errno;
    if (rc == 0) return fd;
    close(fd);
    return rc;
}

void packed_write(struct packed *p, const struct matrix *const *m, uint32_t n)
{
    if (p->fd >= 0 && p->read == n && p->n == n) {
        snprintf(p->result, sizeof p->result, "packed weights from %.300s", p->path);
        return;
    }
    char new[sizeof p->path + sizeof NEW];
    snprintf(new, sizeof new, "%s" NEW, p->path);
    int fd = open_new(new), rc = fd < 0 ? fd : write_all(p, fd, m, n);
    if (rc == 0 && rename(new, p->path)) rc = -errno;
    if (rc && fd >= 0) unlink(new);
    if (fd >= 0) close(fd);
    size_t at = strlen(p->result);
    if (rc == -EBUSY)
        snprintf(p->result + at, sizeof p->result - at,
                 "; it is not written, because another process holds %s at present",
                 strrchr(new, '/') + 1);
    else if (rc)
        snprintf(p->result + at, sizeof p->result - at, "; it cannot be written (%s)",
                 strerror(-rc));
    else
        snprintf(p->result + at, sizeof p->result - at,
                 "; it is written for the next start");
}

const char *packed_result(const struct packed *p)
{
    return p->result;
}
