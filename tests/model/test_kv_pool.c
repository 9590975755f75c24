#include "model/kv_pool.h"
#include "tests/allocs.h"
#include "tests/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TABLES 6
#define CAP    8

static const struct kv_shape SHAPE = {2, 3, 4, DTYPE_F32};

static struct kv_pool open_pool(uint32_t n_blocks)
{
    struct backend_options o = {.threads = 1, .limits = {16, 4, 64, 64, 16, 64}};
    struct backend *b = NULL;
    struct kv_pool p;
    struct err err = {{0}};
    assert_int_equal(backend_open(&b, "cpu", &o, &err), 0);
    assert_int_equal(kv_pool_open(&p, b, &SHAPE, n_blocks, &err), 0);
    assert_true(kv_pool_check(&p));
    return p;
}

static void close_pool(struct kv_pool *p)
{
    struct backend *b = p->backend;
    kv_pool_close(p);
    backend_close(b);
}

static unsigned char *bytes_of(const struct kv_pool *p, uint32_t block)
{
    return (unsigned char *)p->mem.base + block * kv_block_bytes(&SHAPE);
}

static void every_block_is_given_once_and_comes_back(void **state)
{
    (void)state;
    struct kv_pool p = open_pool(5);
    bool seen[5] = {false};
    for (int i = 0; i < 5; i++) {
        uint32_t block = kv_pool_take(&p);
        assert_true(block < 5 && !seen[block]);
        seen[block] = true;
        assert_true(kv_pool_check(&p));
    }
    assert_int_equal(kv_pool_take(&p), KV_NO_BLOCK);
    for (uint32_t i = 0; i < 5; i++) kv_pool_unref(&p, i);
    assert_int_equal(p.n_free, 5);
    assert_true(kv_pool_check(&p));
    close_pool(&p);
}

static void a_block_returns_when_its_last_holder_leaves(void **state)
{
    (void)state;
    struct kv_pool p = open_pool(2);
    uint32_t block = kv_pool_take(&p);
    kv_pool_ref(&p, block);
    kv_pool_unref(&p, block);
    assert_int_equal(p.n_free, 1);
    kv_pool_unref(&p, block);
    assert_int_equal(p.n_free, 2);
    assert_true(kv_pool_check(&p));
    close_pool(&p);
}

static void a_broken_pool_is_noticed(void **state)
{
    (void)state;
    struct kv_pool p = open_pool(4);
    uint32_t block = kv_pool_take(&p);
    p.refs[block] = 0;  // neither held nor listed
    assert_false(kv_pool_check(&p));
    p.refs[block] = 1;
    assert_true(kv_pool_check(&p));
    p.refs[p.free_head] = 1;  // held and listed
    assert_false(kv_pool_check(&p));
    p.refs[p.free_head] = 0;
    p.next_free[p.free_head] = p.free_head;  // a circle
    assert_false(kv_pool_check(&p));
    close_pool(&p);
}

static void extending_takes_just_the_blocks_that_are_missing(void **state)
{
    (void)state;
    struct kv_pool p = open_pool(8);
    uint32_t blocks[CAP];
    struct kv_table t = {blocks, 0, CAP};
    const struct {
        uint32_t from, to, after;
    } step[] = {{0, 0, 0},   {0, 1, 1},   {1, 16, 1}, {16, 17, 2},
                {17, 48, 3}, {48, 49, 4}, {20, 30, 4}};
    for (size_t i = 0; i < ARRAY_LEN(step); i++) {
        assert_int_equal(kv_table_extend(&p, &t, step[i].from, step[i].to), 0);
        assert_int_equal(t.n_blocks, step[i].after);
        assert_int_equal(p.n_free, 8 - step[i].after);
    }
    kv_table_release(&p, &t);
    assert_int_equal(p.n_free, 8);
    close_pool(&p);
}

static void trimming_gives_up_just_the_blocks_beyond_the_tokens(void **state)
{
    (void)state;
    struct kv_pool p = open_pool(10);
    for (uint32_t tokens = 0; tokens <= 5 * KV_BLOCK_TOKENS; tokens++) {
        uint32_t blocks[CAP], left = kv_blocks_for(tokens);
        struct kv_table t = {.blocks = blocks, .cap = CAP};
        assert_int_equal(kv_table_extend(&p, &t, 0, 4 * KV_BLOCK_TOKENS), 0);
        if (left > 4) left = 4;
        uint32_t first = blocks[0];
        kv_table_trim(&p, &t, tokens);
        assert_int_equal(t.n_blocks, left);
        assert_int_equal(p.n_free, 10 - left);
        assert_true(left == 0 || (blocks[0] == first && p.refs[first] == 1));
        assert_true(kv_pool_check(&p));
        kv_table_release(&p, &t);
    }
    close_pool(&p);
}

static void what_cannot_be_had_in_full_is_not_begun(void **state)
{
    (void)state;
    struct kv_pool p = open_pool(3);
    uint32_t blocks[CAP], other[CAP];
    struct kv_table t = {blocks, 0, 4}, u = {other, 0, CAP};
    assert_int_equal(kv_table_extend(&p, &t, 0, 20), 0);
    assert_int_equal(kv_table_extend(&p, &t, 20, 65), -E2BIG);
    assert_int_equal(kv_table_extend(&p, &t, 20, 64), -ENOSPC);
    assert_true(t.n_blocks == 2 && p.n_free == 1);

    kv_table_fork(&p, &u, &t, 20);  // writing on needs a copy and a new block: 2 of 1
    assert_int_equal(kv_table_extend(&p, &u, 20, 33), -ENOSPC);
    assert_true(u.n_blocks == 2 && u.blocks[1] == t.blocks[1] && p.n_free == 1);
    assert_int_equal(kv_table_extend(&p, &u, 20, 32), 0);
    assert_true(u.blocks[0] == t.blocks[0] && u.blocks[1] != t.blocks[1]);
    assert_true(kv_pool_check(&p));
    close_pool(&p);
}

static void a_fork_writes_into_a_copy_and_leaves_the_original(void **state)
{
    (void)state;
    struct kv_pool p = open_pool(6);
    size_t n = kv_block_bytes(&SHAPE);
    uint32_t a_blocks[CAP], b_blocks[CAP];
    struct kv_table a = {a_blocks, 0, CAP}, b = {b_blocks, 0, CAP};
    assert_int_equal(kv_table_extend(&p, &a, 0, 40), 0);
    for (uint32_t i = 0; i < 3; i++) memset(bytes_of(&p, a.blocks[i]), 10 + (int)i, n);

    kv_table_fork(&p, &b, &a, 20);
    assert_int_equal(b.n_blocks, 2);
    assert_int_equal(p.n_free, 3);
    assert_int_equal(kv_table_extend(&p, &b, 20, 21), 0);
    assert_int_equal(p.n_free, 2);
    assert_int_equal(b.blocks[0], a.blocks[0]);
    assert_int_not_equal(b.blocks[1], a.blocks[1]);
    assert_memory_equal(bytes_of(&p, b.blocks[1]), bytes_of(&p, a.blocks[1]), n);

    kv_table_release(&p, &b);
    assert_int_equal(kv_table_extend(&p, &a, 20, 40), 0);
    assert_int_equal(p.n_free, 3);  // the only holder once more
    kv_table_release(&p, &a);
    assert_int_equal(p.n_free, 6);
    close_pool(&p);
}

/* ---- random sequences of all operations ---- */

static void assert_counts_are_the_tables(const struct kv_pool *p,
                                         const struct kv_table *tables)
{
    uint32_t refs[64] = {0};
    for (int i = 0; i < TABLES; i++) {
        for (uint32_t k = 0; k < tables[i].n_blocks; k++) refs[tables[i].blocks[k]]++;
    }
    assert_memory_equal(refs, p->refs, p->mem.n_blocks * sizeof *refs);
    assert_true(kv_pool_check(p));
}

/* Blocks that the table lacks for [from, to), and those of them that others read too. */
static uint32_t missing(const struct kv_pool *p, const struct kv_table *t,
                        uint32_t from, uint32_t to)
{
    uint32_t n = 0;
    for (uint32_t i = from / KV_BLOCK_TOKENS; from < to && i * KV_BLOCK_TOKENS < to;
         i++)
        n += i >= t->n_blocks || p->refs[t->blocks[i]] > 1;
    return n;
}

static void any_sequence_of_calls_keeps_the_invariants(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        struct kv_pool p = open_pool(20);
        uint32_t rng = seed, blocks[TABLES][CAP];
        struct kv_table t[TABLES];
        for (int i = 0; i < TABLES; i++) t[i] = (struct kv_table){blocks[i], 0, CAP};

        unsigned long before = allocs_so_far();
        for (int n = 0; n < 2000; n++) {
            struct kv_table *a = &t[random_next(&rng) % TABLES],
                            *b = &t[random_next(&rng) % TABLES];
            uint32_t held = a->n_blocks * KV_BLOCK_TOKENS;
            switch (random_next(&rng) % 4) {
            case 0:
            case 1: {
                uint32_t from = random_next(&rng) % (held + 1),
                         to = from + random_next(&rng) % 40;
                uint32_t need = missing(&p, a, from, to), had = p.n_free;
                int rc = kv_table_extend(&p, a, from, to);
                assert_true(rc == 0 || rc == -ENOSPC || rc == -E2BIG);
                assert_int_equal(had - p.n_free, rc == 0 ? need : 0);
                for (uint32_t i = from; i < to && rc == 0; i++)
                    assert_int_equal(p.refs[a->blocks[i / KV_BLOCK_TOKENS]], 1);
                break;
            }
            case 2:
                if (b->n_blocks == 0 && a != b)
                    kv_table_fork(&p, b, a, random_next(&rng) % (held + 1));
                break;
            default:
                if (random_next(&rng) % 3 == 0) kv_table_release(&p, a);
            }
            assert_counts_are_the_tables(&p, t);
        }
        assert_int_equal(allocs_so_far() - before, 0);
        for (int i = 0; i < TABLES; i++) kv_table_release(&p, &t[i]);
        assert_int_equal(p.n_free, 20);
        close_pool(&p);
    }
}

static void an_impossible_pool_is_explained(void **state)
{
    (void)state;
    struct kv_pool p = open_pool(1), none = {0};
    struct err err = {{0}};
    assert_int_equal(kv_pool_open(&none, p.backend, &SHAPE, 0, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "0 blocks"));
    struct kv_shape vast = {UINT32_MAX, UINT32_MAX, UINT32_MAX, DTYPE_F32};
    assert_int_equal(kv_pool_open(&none, p.backend, &vast, 9, &err), -ENOMEM);
    kv_pool_close(&none);
    close_pool(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_given_once_and_comes_back),
        cmocka_unit_test(a_block_returns_when_its_last_holder_leaves),
        cmocka_unit_test(a_broken_pool_is_noticed),
        cmocka_unit_test(extending_takes_just_the_blocks_that_are_missing),
        cmocka_unit_test(trimming_gives_up_just_the_blocks_beyond_the_tokens),
        cmocka_unit_test(what_cannot_be_had_in_full_is_not_begun),
        cmocka_unit_test(a_fork_writes_into_a_copy_and_leaves_the_original),
        cmocka_unit_test(any_sequence_of_calls_keeps_the_invariants),
        cmocka_unit_test(an_impossible_pool_is_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
