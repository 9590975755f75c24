#include "offload/ssd_names.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES ((size_t)1 << 20)    // at a time
#define MOST_BYTES ((uint64_t)1 << 32)  // that are looked through

enum {
    LISTED = 1,  // to be written: in the ring, or as soon as it flies no more
    FLYING = 2,
    LANDED = 4,  // the file may have something of it
};

struct ssd_name_page {
    uint8_t state;
    uint64_t owed, flying;  // groups: since the latest write began; until it has ended
};

// ---- what is owed ----------------------------------------------------------------------

static void settle(struct ssd_names *n, uint64_t groups)
{
    for (; groups; groups &= groups - 1) n->owed[__builtin_ctzll(groups)]--;
}

static void owe(struct ssd_names *n, struct ssd_name_page *p, const struct kept_name *x)
{
    uint32_t group = name_group(x->tenant, x->name);
    uint64_t bit = UINT64_C(1) << group;
    if (p->owed & bit || !(p->state & (LANDED | FLYING))) return;
    p->owed |= bit;
    n->owed[group]++;
}

// ---- pages -----------------------------------------------------------------------------

static void push(struct ssd_names *n, uint32_t page)
{
    n->ring[(n->first + n->n++) % n->n_pages] = page;
}

static void list(struct ssd_names *n, uint32_t page)
{
    uint8_t *state = &n->page[page].state;
    if (!(*state & (LISTED | FLYING))) push(n, page);
    *state |= LISTED;
}

void ssd_names_put(struct ssd_names *n, uint32_t i, const struct kept_name *name)
{
    assert(i < n->max);
    static const struct kept_name none;
    struct disk_name *e = &n->table[i], next;
    struct kept_name was;
    disk_name_make(&next, name ? name : &none, &n->fingerprint);
    if (memcmp(e, &next, sizeof next) == 0) return;
    if (disk_name_read(e, &n->fingerprint, &was) == DISK_OURS &&
        (was.tenant != next.tenant || strcmp(was.name, next.name) != 0))
        owe(n, &n->page[i / DISK_NAMES], &was);
    *e = next;
    list(n, i / DISK_NAMES);
}

void ssd_names_get(const struct ssd_names *n, uint32_t i, struct kept_name *out)
{
    assert(i < n->max);
    (void)disk_name_read(&n->table[i], &n->fingerprint, out);
}

bool ssd_names_next(struct ssd_names *n, void *copy, uint32_t *page)
{
    if (n->n == 0) return false;
    *page = n->ring[n->first];
    n->first = (n->first + 1) % n->n_pages;
    n->n--;
    n->flying++;
    struct ssd_name_page *p = &n->page[*page];
    p->state = (uint8_t)((p->state & ~LISTED) | FLYING);
    p->flying = p->owed;
    p->owed = 0;
    memcpy(copy, &n->table[(size_t)*page * DISK_NAMES], DISK_PAGE);
    return true;
}

static void land(struct ssd_names *n, struct ssd_name_page *p, bool well)
{
    n->flying--;
    p->state &= (uint8_t)~FLYING;
    if (well) p->state |= LANDED;
    // Both groups' names are gone, or still owed, once.
    settle(n, well ? p->flying : p->flying & p->owed);
    if (!well) p->owed |= p->flying;
    p->flying = 0;
}

/* Where the device has no room for a page that it never had, nothing of it is there. */
void ssd_names_done(struct ssd_names *n, uint32_t page, int res, bool some)
{
    struct ssd_name_page *p = &n->page[page];
    assert(p->state & FLYING);
    land(n, p, res == 0);
    if (res == 0) {
        if (p->state & LISTED) push(n, page);
        return;
    }
    if (some || !tier_lacks_room(res)) p->state |= LANDED;
    if (!(p->state & LANDED)) {
        settle(n, p->owed);
        p->owed = 0;
    }
    p->state |= LISTED;
    push(n, page);
}

bool ssd_names_give_up(struct ssd_names *n, uint32_t page)
{
    struct ssd_name_page *p = &n->page[page];
    land(n, p, false);
    p->state &= (uint8_t)~LISTED;
    bool gone = p->owed == 0 ||
                n->sys->punch(n->sys, n->fd, ssd_names_at(page), DISK_PAGE) == 0;
    settle(n, p->owed);
    p->owed = 0;
    return gone;
}

// ---- what the file has -----------------------------------------------------------------

static ssize_t read_into(const struct ssd_names *n, void *to, uint64_t at, size_t bytes)
{
    struct iovec v = {to, ALIGN_UP(bytes, DISK_PAGE)};
    ssize_t got = -EINTR;
    for (int i = 0; i < 8 && (got == -EINTR || got == -EAGAIN); i++)
        got = n->sys->read(n->sys, n->fd, &v, 1, at);
    return got;
}

/* So many pages are as the file has them. */
static size_t read_pages(const struct ssd_names *n, size_t at, size_t bytes, int *rc)
{
    ssize_t got = read_into(n, (char *)n->table + at, at, bytes);
    if (got >= (ssize_t)bytes) return ALIGN_UP(bytes, DISK_PAGE) / DISK_PAGE;
    if (got >= DISK_PAGE) return (size_t)got / DISK_PAGE;
    *rc = got < 0 ? (int)got : -EIO;
    return 0;
}

static bool is_empty(const struct ssd_names *n, size_t page)
{
    const char *p = (const char *)n->table + page * DISK_PAGE;
    return p[0] == 0 && memcmp(p, p + 1, DISK_PAGE - 1) == 0;
}

/* A page that cannot be read is written anew. */
static int read_table(struct ssd_names *n, uint64_t has)
{
    int rc = 0;
    if (has > ssd_names_at(n->n_pages)) has = ssd_names_at(n->n_pages);
    for (size_t page = 0, at; (at = page * DISK_PAGE) < has;) {
        size_t bytes = has - at < READ_BYTES ? has - at : READ_BYTES;
        size_t good = read_pages(n, at, bytes, &rc);
        if (good == 0) {
            memset((char *)n->table + at, 0, DISK_PAGE);
            list(n, (uint32_t)page);
        }
        for (size_t end = page + (good ? good : 1); page < end; page++)
            if (!good || !is_empty(n, page)) n->page[page].state |= LANDED;
    }
    return rc;
}

static void clear(struct ssd_names *n, uint32_t i)
{
    static const struct disk_name none;
    if (memcmp(&n->table[i], &none, sizeof none) == 0) return;
    n->table[i] = none;
    list(n, i / DISK_NAMES);
}

/* What is no entry goes from the file too. */
static uint32_t clear_damaged(struct ssd_names *n)
{
    uint32_t damaged = 0;
    struct kept_name name;
    for (uint32_t i = 0; i < n->max; i++) {
        if (disk_name_read(&n->table[i], &n->fingerprint, &name) != DISK_DAMAGED)
            continue;
        clear(n, i);
        damaged++;
    }
    return damaged;
}

// ---- where it was longer ---------------------------------------------------------------

/* How much an entry is to stay: what is empty goes first, then another fingerprint's. */
static uint64_t worth(const struct ssd_names *n, const struct disk_name *e)
{
    struct kept_name name;
    switch (disk_name_read(e, &n->fingerprint, &name)) {
    case DISK_OURS:
        return name.sequence < UINT64_MAX - 2 ? name.sequence + 2 : UINT64_MAX;
    case DISK_FOREIGN: return 1;
    default: return 0;
    }
}

struct place {
    uint64_t worth;
    uint32_t at;  // in the table
};

/* The heap's first is worth the least: put it where it belongs. */
static void sink(struct place *heap, uint32_t n, uint32_t i)
{
    struct place x = heap[i];
    for (uint64_t k; (k = 2 * (uint64_t)i + 1) < n; i = (uint32_t)k) {
        if (k + 1 < n && heap[k + 1].worth < heap[k].worth) k++;
        if (heap[k].worth >= x.worth) break;
        heap[i] = heap[k];
    }
    heap[i] = x;
}

static void take_over(struct ssd_names *n, struct place *heap,
                      const struct disk_name *e)
{
    uint64_t w = worth(n, e);
    if (w <= heap->worth) return;
    n->table[heap->at] = *e;
    list(n, heap->at / DISK_NAMES);
    heap->worth = w;
    sink(heap, n->max, 0);
}

/* Of the entries behind those that there are to be, the ones used later stay; e: room to read
 * them. */
static int take_rest(struct ssd_names *n, uint64_t has, struct place *heap,
                     struct disk_name *e)
{
    for (uint32_t i = 0; i < n->max; i++)
        heap[i] = (struct place){worth(n, &n->table[i]), i};
    for (uint32_t i = n->max / 2; i-- > 0;) sink(heap, n->max, i);
    uint64_t at = (uint64_t)n->max * sizeof *e;
    while (at + sizeof *e <= has) {
        size_t first = at % DISK_PAGE / sizeof *e;
        ssize_t got = read_into(n, e, at - first * sizeof *e, READ_BYTES);
        if (got < 0) return (int)got;
        size_t end = (size_t)got / sizeof *e;
        if (end <= first) return -EIO;
        for (size_t k = first; k < end; k++) take_over(n, heap, &e[k]);
        at += (end - first) * sizeof *e;
    }
    return 0;
}

/* Best before the file is cut, or a kill loses what was taken over. */
static void write_listed(struct ssd_names *n)
{
    for (uint32_t i = 0; i < n->n_pages; i++) {
        struct iovec v = {&n->table[(size_t)i * DISK_NAMES], DISK_PAGE};
        if (!(n->page[i].state & LISTED)) continue;
        n->page[i].state |= LANDED;
        (void)!n->sys->write(n->sys, n->fd, &v, 1, ssd_names_at(i));
    }
}

/* The limit was lowered.  The last page, too, has no more entries than there are to be, or
 * who raises it again finds names that were deleted since. */
static int read_rest(struct ssd_names *n, uint64_t has)
{
    if (has <= (uint64_t)n->max * sizeof *n->table) return 0;
    struct place *heap = calloc(n->max, sizeof *heap);
    struct disk_name *e = aligned_alloc(DISK_PAGE, READ_BYTES);
    int rc = heap && e ? take_rest(n, has < MOST_BYTES ? has : MOST_BYTES, heap, e)
                       : -ENOMEM;
    free(heap);
    free(e);
    for (uint32_t i = n->max; i < n->n_pages * DISK_NAMES; i++) clear(n, i);
    write_listed(n);
    return rc;
}

// ---- opening ---------------------------------------------------------------------------

static int take_memory(struct ssd_names *n, struct err *err)
{
    size_t bytes = ssd_names_at(n->n_pages);
    n->table = aligned_alloc(DISK_PAGE, bytes);
    n->page = calloc(n->n_pages, sizeof *n->page);
    n->ring = calloc(n->n_pages, sizeof *n->ring);
    if (!n->table || !n->page || !n->ring)
        return err_set(err, -ENOMEM, "no memory for the names of %u conversations",
                       n->max);
    memset(n->table, 0, bytes);
    return 0;
}

static bool is_file(const struct ssd_folder *d)
{
    struct stat st;
    return fstatat(d->dir, SSD_FOLDER_NAMES, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISREG(st.st_mode);
}

/* A file that may not be opened goes: what is deleted now would be found as soon as it may
 * be opened again. */
static int open_file(struct ssd_names *n, struct ssd_file *f,
                     struct tier_ssd_found *found, struct err *why)
{
    struct ssd_folder *d = &f->folder;
    int flags = f->direct ? O_DIRECT : 0;
    int rc = ssd_folder_file(d, SSD_FOLDER_NAMES, flags, &n->fd);
    if ((rc == -EACCES || rc == -EPERM) && is_file(d) &&
        (d->look ? faccessat(d->dir, ".", W_OK, AT_EACCESS) == 0
                 : unlinkat(d->dir, SSD_FOLDER_NAMES, 0) == 0)) {
        ssd_note(found,
                 "%s/%s cannot be opened (%s) and is made anew, so names of "
                 "conversations are lost.",
                 d->path, SSD_FOLDER_NAMES, strerror(-rc));
        if (d->look) return 0;
        if (n->fd >= 0) close(n->fd);
        n->fd = -1;
        rc = ssd_folder_file(d, SSD_FOLDER_NAMES, flags, &n->fd);
    }
    return rc < 0 ? ssd_folder_refuse(d, SSD_FOLDER_NAMES, rc, why) : 0;
}

/* As long as all entries are: what is behind them cannot be anybody's. */
static int give_size(const struct ssd_names *n, uint64_t has)
{
    uint64_t bytes = ssd_names_at(n->n_pages);
    if (has != bytes && ftruncate(n->fd, (off_t)bytes) < 0) return -errno;
    (void)!n->sys->reserve(n->sys, n->fd, bytes);  // or a write fails, and is told
    return 0;
}

static int read_file(struct ssd_names *n, const struct ssd_folder *d,
                     struct tier_ssd_found *found, struct err *why)
{
    struct stat st = {0};
    int rc = fstat(n->fd, &st) < 0 ? -errno : 0;
    uint64_t has = (uint64_t)st.st_size;
    int unread = read_table(n, has);
    uint32_t damaged = clear_damaged(n);
    int rest = read_rest(n, has);
    if (unread == 0) unread = rest;
    if (rc == 0) rc = give_size(n, has);
    if (rc < 0)
        return err_set(why, rc, "%s/%s cannot be given its size: %s", d->path,
                       SSD_FOLDER_NAMES, strerror(-rc));
    if (unread < 0)
        ssd_note(found,
                 "%s/%s cannot all be read (%s), so names of conversations are lost.",
                 d->path, SSD_FOLDER_NAMES, strerror(-unread));
    if (damaged)
        ssd_note(found, "%u names of conversations in %s/%s were damaged and are lost.",
                 damaged, d->path, SSD_FOLDER_NAMES);
    return 0;
}

int ssd_names_open(struct ssd_names *n, struct ssd_file *f,
                   struct tier_ssd_found *found, uint32_t max,
                   const struct crypto_hash *fingerprint, uint32_t *owed,
                   struct err *err)
{
    *n = (struct ssd_names){
        .fd = -1,
        .max = max,
        .n_pages = max / DISK_NAMES + (max % DISK_NAMES > 0),
        .fingerprint = *fingerprint,
        .sys = f->folder.sys,
        .owed = owed,
    };
    struct err why;
    if (max == 0) return 0;
    int rc = open_file(n, f, found, &why);
    if (rc == 0 && !f->folder.look) {
        rc = take_memory(n, err);
        if (rc < 0) return rc;
        rc = read_file(n, &f->folder, found, &why);
    }
    if (rc == 0) return 0;
    // What is deleted meanwhile would be found in it.
    if (n->fd >= 0 && !f->folder.look) (void)!ftruncate(n->fd, 0);
    ssd_note(found, "%s, so no names of conversations are kept.", why.msg);
    ssd_names_close(n);
    return 0;
}

void ssd_names_close(struct ssd_names *n)
{
    if (n->fd >= 0) close(n->fd);
    free(n->table);
    free(n->page);
    free(n->ring);
    *n = (struct ssd_names){.fd = -1};
}
