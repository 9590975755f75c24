/* tier_fixture.h - tiers for tests, and one block moved at a time. */
#ifndef TESTS_OFFLOAD_TIER_FIXTURE_H
#define TESTS_OFFLOAD_TIER_FIXTURE_H

#include "offload/disk_format.h"
#include "offload/ssd_sys.h"
#include "offload/tier.h"
#include "tests/offload/blocks.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define BLOCK_BYTES  5000  // the last page is not full
#define BUFFER_BYTES 8192
#define SLOT_BYTES   (DISK_PAGE + BUFFER_BYTES)
#define DEPTH        16

struct tier_kind {
    const char *name, *base;  // base: where the SSD's folder is made; NULL: RAM
    bool no_uring, no_direct;
    bool bounced;     // as if every buffer were a device's
    bool registered;  // buffers of world_buffer()
};

struct world {
    struct copyq *copies;
    struct copyq_ops blind;
    struct tier *tier;
    struct tier_ssd_found found;
    struct tier_ssd_options ssd;
    char dir[64];
    struct err err;
};

static inline void *take_buffer(size_t n)
{
    void *p = aligned_alloc(TIER_ALIGN, ALIGN_UP(n, TIER_ALIGN));
    assert_non_null(p);
    memset(p, 0, ALIGN_UP(n, TIER_ALIGN));
    return p;
}

static inline void remove_dir(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlink(path) < 0)
            rmdir(path);
    }
    closedir(d);
    rmdir(dir);
}

static inline void world_ssd(struct world *w, const char *base, uint32_t capacity)
{
    memset(w, 0, sizeof *w);
    snprintf(w->dir, sizeof w->dir, "%s/dormouse-ssd-XXXXXX", base);
    if (!mkdtemp(w->dir)) fail_msg("no folder can be made in %s", base);
    w->ssd = (struct tier_ssd_options){
        .dir = w->dir,
        .block_bytes = BLOCK_BYTES,
        .bytes = disk_slot_at(SLOT_BYTES, capacity),
        .fingerprint = {{1, 2, 3}},
        .depth = DEPTH,
    };
}

static inline void world_start(struct world *w)
{
    if (tier_ssd_open(&w->tier, &w->found, &w->ssd, &w->err) < 0)
        fail_msg("%s", w->err.msg);
}

static inline void expect_refused(struct world *w, int rc, const char *text)
{
    struct tier *t = NULL;
    assert_int_equal(tier_ssd_open(&t, &w->found, &w->ssd, &w->err), rc);
    assert_null(t);
    if (!strstr(w->err.msg, text)) fail_msg("\"%s\" does not say %s", w->err.msg, text);
}

/* And tier_ssd_check() has seen it coming. */
static inline void expect_foreseen(struct world *w, int rc, const char *text)
{
    struct err err = {""};
    assert_int_equal(tier_ssd_check(&w->found, &w->ssd, &err), rc);
    bool inside = w->found.tier_only;
    expect_refused(w, rc, text);
    assert_string_equal(err.msg, w->err.msg);
    assert_int_equal(inside, w->found.tier_only);
}

static inline void in_dir(const struct world *w, const char *name, char path[128])
{
    snprintf(path, 128, "%s/%s", w->dir, name);
}

static inline void world_stop(struct world *w)
{
    tier_close(w->tier);
    w->tier = NULL;
}

static inline void world_restart(struct world *w)
{
    world_stop(w);
    world_start(w);
}

static inline bool cannot_be_read(struct copyq *q, const void *p)
{
    (void)q;
    (void)p;
    return false;
}

static inline void world_bounce(struct world *w)
{
    assert_int_equal(copyq_cpu_open(&w->copies, &w->err), 0);
    w->blind = *w->copies->ops;
    w->blind.readable = cannot_be_read;
    w->copies->ops = &w->blind;
    assert_int_equal(tier_bounce(w->tier, w->copies, DEPTH, &w->err), 0);
}

static inline void world_open(struct world *w, const struct tier_kind *k,
                              uint32_t capacity)
{
    if (k->base) {
        world_ssd(w, k->base, capacity);
        w->ssd.no_uring = k->no_uring;
        w->ssd.no_direct = k->no_direct;
        world_start(w);
        if (k->bounced) world_bounce(w);
        return;
    }
    memset(w, 0, sizeof *w);
    assert_int_equal(copyq_cpu_open(&w->copies, &w->err), 0);
    struct tier_ram_options o = {BLOCK_BYTES, capacity, w->copies, 0};
    assert_int_equal(tier_ram_open(&w->tier, &o, &w->err), 0);
}

static inline void world_close(struct world *w)
{
    tier_close(w->tier);
    copyq_close(w->copies);
    if (w->dir[0]) remove_dir(w->dir);
}

static inline void world_register(struct world *w, void *p, size_t n)
{
    int rc = tier_register(w->tier, p, n);
    if (rc < 0) print_message("buffers are not registered: %s\n", strerror(-rc));
    assert_true(rc == 0 || rc == -ENOMEM);  // locked memory may be limited
}

/* Memory for a test's buffers, registered where the kind of tier says so. */
static inline void *world_buffer(struct world *w, const struct tier_kind *k, size_t n)
{
    void *p = take_buffer(n);
    if (k->registered) world_register(w, p, n);
    return p;
}

static inline struct tier_io *reap_one(struct tier *t, uint64_t now)
{
    struct tier_io *done = NULL;
    while (tier_reap(t, &done, 1, now) == 0) usleep(20);
    return done;
}

static inline void end_wipes(struct tier *t, uint64_t now)
{
    struct tier_io *none;
    for (; t->wipes.left; usleep(20)) assert_int_equal(tier_reap(t, &none, 1, now), 0);
}

static inline int move(struct tier *t, enum tier_dir dir, const struct block_meta *m,
                       void *buf, uint64_t now)
{
    struct tier_io io = {.meta = *m, .dir = dir, .buf = buf};
    int rc = tier_submit(t, &io, now);
    if (rc == -EAGAIN && t->wipes.left) {  // the slot it was given is being wiped
        end_wipes(t, now);
        rc = tier_submit(t, &io, now);
    }
    if (rc < 0) return rc;
    tier_flush(t);
    assert_ptr_equal(reap_one(t, now), &io);
    assert_true(slots_check(t->slots));
    return io.res;
}

static inline int store(struct tier *t, uint32_t conversation, uint32_t depth)
{
    _Alignas(TIER_ALIGN) unsigned char buf[BUFFER_BYTES] = {0};
    struct block_meta m = block_meta_of(conversation, depth);
    block_fill(buf, BLOCK_BYTES, &m);
    return move(t, TIER_STORE, &m, buf, 1);
}

/* -EPROTO: it came back, and is another's. */
static inline int load(struct tier *t, uint32_t conversation, uint32_t depth)
{
    _Alignas(TIER_ALIGN) unsigned char buf[BUFFER_BYTES];
    memset(buf, 0xaa, sizeof buf);
    struct block_meta m = block_meta_of(conversation, depth);
    int rc = move(t, TIER_LOAD, &m, buf, 1);
    if (rc == 0 && !block_holds(buf, BLOCK_BYTES, &m)) return -EPROTO;
    return rc;
}

static inline bool finds(const struct tier *t, const struct block_meta *m)
{
    return slots_match(t->slots, m) != SLOT_NONE;
}

static inline bool has(const struct tier *t, uint32_t conversation, uint32_t depth)
{
    struct block_meta m = block_meta_of(conversation, depth);
    return finds(t, &m);
}

/* What would make room for another block; of one tenant, or of all with NULL. */
static inline bool coldest(const struct tier *t, const uint64_t *tenant,
                           struct block_meta *out)
{
    uint32_t i = slots_coldest(t->slots, tenant);
    if (i != SLOT_NONE) *out = slots_at(t->slots, i)->meta;
    return i != SLOT_NONE;
}

#endif
