/* What is RAM's alone; the rest of it is proven with every other tier. */
#include "tests/offload/tier_fixture.h"

/* A copy queue over another, whose arena can be seen and whose copies can fail. */
struct seen_copyq {
    struct copyq base;
    struct copyq *real;
    unsigned char *arena;
    bool no_memory;
    size_t most;  // bytes of memory that there are; 0: as many as are asked for
    int poll;
};

static struct seen_copyq *seen_of(struct copyq *q)
{
    return CONTAINER_OF(q, struct seen_copyq, base);
}

static int seen_push(struct copyq *q, void *dst, const void *src, size_t n,
                     uint64_t *out)
{
    return copyq_push(seen_of(q)->real, dst, src, n, out);
}

static int seen_poll(struct copyq *q, uint64_t ticket)
{
    int rc = copyq_poll(seen_of(q)->real, ticket);
    return seen_of(q)->poll ? seen_of(q)->poll : rc;
}

static void *seen_alloc(struct copyq *q, size_t n)
{
    struct seen_copyq *s = seen_of(q);
    if (s->no_memory) return NULL;
    return s->arena = copyq_host_alloc(s->real, n);
}

static void *seen_alloc_most(struct copyq *q, size_t n, size_t *got)
{
    struct seen_copyq *s = seen_of(q);
    *got = s->most && s->most < n ? s->most : n;
    return seen_alloc(q, *got);
}

static void seen_free(struct copyq *q, void *p)
{
    copyq_host_free(seen_of(q)->real, p);
}

static const struct copyq_ops seen_ops = {.push = seen_push,
                                          .poll = seen_poll,
                                          .host_alloc = seen_alloc,
                                          .host_alloc_most = seen_alloc_most,
                                          .host_free = seen_free};

static struct seen_copyq open_seen(void)
{
    struct seen_copyq s = {.base.ops = &seen_ops};
    assert_int_equal(copyq_cpu_open(&s.real, NULL), 0);
    return s;
}

static void erased_bytes_are_gone_and_dropped_ones_are_not_copied(void **state)
{
    (void)state;
    struct seen_copyq s = open_seen();
    struct tier_ram_options o = {BLOCK_BYTES, 2, &s.base, 0};
    struct tier *t;
    assert_int_equal(tier_ram_open(&t, &o, NULL), 0);
    assert_int_equal(store(t, 1, 0), 0);
    assert_int_equal(store(t, 2, 0), 0);
    struct block_meta m = block_meta_of(1, 0), n = block_meta_of(2, 0);
    size_t stride = ALIGN_UP(BLOCK_BYTES, 64);
    assert_true(block_holds(s.arena, BLOCK_BYTES, &m));
    assert_int_equal(tier_erase(t, &m.id, 0), 0);
    for (size_t i = 0; i < stride; i++) assert_int_equal(s.arena[i], 0);
    assert_true(block_holds(s.arena + stride, BLOCK_BYTES, &n));
    tier_close(t);
    copyq_close(s.real);
}

static void a_copy_that_fails_costs_its_block(void **state)
{
    (void)state;
    struct seen_copyq s = open_seen();
    struct tier_ram_options o = {BLOCK_BYTES, 2, &s.base, 0};
    struct tier *t;
    assert_int_equal(tier_ram_open(&t, &o, NULL), 0);
    assert_int_equal(store(t, 1, 0), 0);
    s.poll = -EIO;
    assert_int_equal(load(t, 1, 0), -EIO);
    assert_int_equal(store(t, 2, 0), -EIO);
    assert_int_equal(store(t, 2, 0), -EROFS);
    assert_int_equal(slots_used(t->slots), 0);
    tier_close(t);
    copyq_close(s.real);
}

static void what_cannot_be_had_is_refused_with_its_numbers(void **state)
{
    (void)state;
    struct seen_copyq s = open_seen();
    struct tier *t = NULL;
    struct err err;
    struct tier_ram_options o = {0, 2, &s.base, 0};
    assert_int_equal(tier_ram_open(&t, &o, &err), -EINVAL);
    assert_string_equal(err.msg, "blocks of 0 bytes cannot be kept in RAM");
    o.block_bytes = SIZE_MAX / 4, o.capacity = 100;
    assert_int_equal(tier_ram_open(&t, &o, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "are more than memory can hold"));
    o.block_bytes = 4096, o.capacity = 0;
    assert_int_equal(tier_ram_open(&t, &o, &err), -EINVAL);
    o.capacity = 1024, s.no_memory = true;
    assert_int_equal(tier_ram_open(&t, &o, &err), -ENOMEM);
    assert_string_equal(err.msg, "cannot take 4 MiB of host memory for KV blocks");
    assert_null(t);
    tier_close(NULL);
    copyq_close(s.real);
}

static void where_there_is_less_memory_the_tier_is_smaller(void **state)
{
    (void)state;
    struct seen_copyq s = open_seen();
    struct tier *t = NULL;
    struct err err;
    struct tier_ram_options o = {4096, 8, &s.base, 0};
    s.most = 3 * 4096 + 100;
    assert_int_equal(tier_ram_open(&t, &o, &err), 0);
    assert_int_equal(slots_capacity(t->slots), 3);
    tier_close(t);
    s.most = 4095;
    assert_int_equal(tier_ram_open(&t, &o, &err), -ENOMEM);
    copyq_close(s.real);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(erased_bytes_are_gone_and_dropped_ones_are_not_copied),
        cmocka_unit_test(a_copy_that_fails_costs_its_block),
        cmocka_unit_test(what_cannot_be_had_is_refused_with_its_numbers),
        cmocka_unit_test(where_there_is_less_memory_the_tier_is_smaller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
