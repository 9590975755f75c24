/* names_fixture.h - an SSD tier with a table of names, for tests. */
#ifndef TESTS_OFFLOAD_NAMES_FIXTURE_H
#define TESTS_OFFLOAD_NAMES_FIXTURE_H

#include "tests/offload/tier_fixture.h"

#define NAMES 40  // the last page is not full

static inline struct kept_name name_of(const char *name, uint32_t tenant)
{
    struct kept_name n = {.tenant = tenant,
                          .last = block_name(tenant, 3),
                          .depth = 3,
                          .tokens = 70,
                          .sequence = 5};
    strcpy(n.name, name);
    return n;
}

static inline void put(struct world *w, uint32_t i, const char *name)
{
    struct kept_name n = name_of(name, i);
    tier_put_name(w->tier, i, name[0] ? &n : NULL);
}

static inline struct kept_name found_at(const struct world *w, uint32_t i)
{
    struct kept_name n;
    tier_name_at(w->tier, i, &n);
    return n;
}

static inline void expect_name(const struct world *w, uint32_t i, const char *name)
{
    struct kept_name n = found_at(w, i);
    assert_string_equal(n.name, name);
}

static inline void reap_none(struct world *w, uint64_t now)
{
    struct tier_io *none;
    assert_int_equal(tier_reap(w->tier, &none, 1, now), 0);
}

static inline void write_all(struct world *w)
{
    for (; w->tier->naming.left; usleep(20)) reap_none(w, 1);
}

static inline bool is_names(int fd)
{
    char link[40], path[300] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    return n > 6 && strcmp(path + n - 6, "/names") == 0;
}

static inline void open_world(struct world *w)
{
    world_ssd(w, "/tmp", 4);
    w->ssd.max_names = NAMES;
    world_start(w);
}

#endif
