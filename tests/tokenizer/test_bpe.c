/* test_bpe.c - the heap joins what the plain rule joins, and in time. */
#include "tests/random.h"
#include "tokenizer/bpe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LETTERS  4
#define MAX_IDS  64
#define MAX_WORD 40

struct rules {
    struct bpe table;
    uint32_t left[MAX_IDS], right[MAX_IDS];  // of the merge whose result is this id
    uint32_t n_ids;
};

/* Random merges over a few letters, each pair once; the rank is the order. */
static void make_rules(struct rules *r, uint64_t *seed)
{
    uint32_t merges = random_below(seed, MAX_IDS - LETTERS);
    r->n_ids = LETTERS;
    assert_int_equal(bpe_init(&r->table, merges), 0);
    for (uint32_t m = 0; m < merges; m++) {
        uint32_t a = random_below(seed, r->n_ids), b = random_below(seed, r->n_ids);
        bool known = false;
        for (uint32_t i = LETTERS; i < r->n_ids; i++) {
            known |= r->left[i] == a && r->right[i] == b;
        }
        if (known) continue;
        r->left[r->n_ids] = a;
        r->right[r->n_ids] = b;
        bpe_add(&r->table, a, b, r->n_ids, r->n_ids);
        r->n_ids++;
    }
}

/* The rule itself: look for the lowest rank, leftmost, and start again. */
static size_t join_plainly(const struct rules *r, uint32_t *ids, size_t n)
{
    for (;;) {
        size_t at = 0;
        uint32_t best = r->n_ids;
        for (size_t i = 0; i + 1 < n; i++) {
            for (uint32_t m = LETTERS; m < best; m++) {
                if (r->left[m] != ids[i] || r->right[m] != ids[i + 1]) continue;
                best = m;
                at = i;
            }
        }
        if (best == r->n_ids) return n;
        ids[at] = best;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static void the_lowest_rank_is_joined_first_and_the_leftmost_of_equals(void **state)
{
    (void)state;
    struct bpe_scratch s = {0};
    uint64_t seed = 7;
    for (int round = 0; round < 3000; round++) {
        struct rules r;
        uint32_t want[MAX_WORD];
        make_rules(&r, &seed);
        size_t n = 1 + random_below(&seed, MAX_WORD);
        assert_int_equal(bpe_scratch_reserve(&s, n), 0);
        for (size_t i = 0; i < n; i++) {
            want[i] = random_below(&seed, LETTERS);
            s.symbol[i].id = (int32_t)want[i];
        }
        assert_int_equal(bpe_join(&r.table, &s, n), 0);
        size_t n_want = join_plainly(&r, want, n), k = 0;
        for (int32_t i = 0; i >= 0; i = s.symbol[i].next) {
            assert_true(k < n_want);
            assert_int_equal(s.symbol[i].id, want[k++]);
        }
        assert_int_equal(k, n_want);
        bpe_free(&r.table);
    }
    bpe_scratch_free(&s);
}

struct given {
    int32_t id[4 * MAX_WORD];
    size_t n;
};

static int take_id(void *to, int32_t id)
{
    struct given *g = to;
    assert_true(g->n < ARRAY_LEN(g->id));
    g->id[g->n++] = id;
    return 0;
}

static void windows_give_what_the_whole_word_becomes(void **state)
{
    (void)state;
    struct bpe_scratch s = {0};
    uint64_t seed = 11;
    int32_t byte_id[256];
    for (int i = 0; i < 256; i++) byte_id[i] = i % LETTERS;
    int done = 0, rounds = 1500;
    for (int round = 0; round < rounds; round++) {
        struct rules r;
        struct given g = {.n = 0};
        char word[4 * MAX_WORD];
        uint32_t want[4 * MAX_WORD];
        make_rules(&r, &seed);
        size_t n = 1 + random_below(&seed, 4 * MAX_WORD);
        size_t window = 4 + random_below(&seed, MAX_WORD);
        for (size_t i = 0; i < n; i++) {
            want[i] = random_below(&seed, LETTERS);
            word[i] = (char)want[i];
        }
        int rc = bpe_join_windows(&r.table, &s, byte_id, word, n, window, take_id, &g);
        size_t n_want = join_plainly(&r, want, n);
        bpe_free(&r.table);
        assert_in_range(rc, 0, 1);
        if (rc == 1) continue;
        done++;
        assert_int_equal(g.n, n_want);
        for (size_t i = 0; i < g.n; i++) assert_int_equal(g.id[i], want[i]);
    }
    assert_true(done > rounds / 2);
    bpe_scratch_free(&s);
}

static int refuse_id(void *to, int32_t id)
{
    (void)to, (void)id;
    return -EOVERFLOW;
}

static void who_takes_the_tokens_may_end_it(void **state)
{
    (void)state;
    struct bpe b;
    struct bpe_scratch s = {0};
    const int32_t byte_id[256] = {0};
    assert_int_equal(bpe_init(&b, 0), 0);
    assert_int_equal(
        bpe_join_windows(&b, &s, byte_id, "abcdefgh", 8, 4, refuse_id, NULL),
        -EOVERFLOW);
    bpe_scratch_free(&s);
    bpe_free(&b);
}

static void a_pair_given_again_takes_the_new_rank(void **state)
{
    (void)state;
    struct bpe b;
    struct bpe_scratch s = {0};
    assert_int_equal(bpe_init(&b, 3), 0);
    bpe_add(&b, 0, 1, 0, 10);
    bpe_add(&b, 1, 2, 1, 11);
    bpe_add(&b, 0, 1, 2, 12);
    assert_int_equal(bpe_scratch_reserve(&s, 3), 0);
    for (int i = 0; i < 3; i++) s.symbol[i].id = i;
    assert_int_equal(bpe_join(&b, &s, 3), 0);
    assert_int_equal(s.symbol[0].id, 0);
    assert_int_equal(s.symbol[s.symbol[0].next].id, 11);
    bpe_scratch_free(&s);
    bpe_free(&b);
}

/* aa, aaaa, ...: the quadratic ways of doing this would take hours. */
static void a_million_symbols_of_one_kind_are_joined(void **state)
{
    (void)state;
    size_t n = (size_t)1 << 20;
    struct bpe b;
    struct bpe_scratch s = {0};
    assert_int_equal(bpe_init(&b, 20), 0);
    for (uint32_t k = 0; k < 20; k++) bpe_add(&b, k, k, k, k + 1);
    assert_int_equal(bpe_scratch_reserve(&s, n), 0);
    for (size_t i = 0; i < n; i++) s.symbol[i].id = 0;
    assert_int_equal(bpe_join(&b, &s, n), 0);
    assert_int_equal(s.symbol[0].id, 20);
    assert_int_equal(s.symbol[0].next, -1);
    bpe_scratch_free(&s);
    bpe_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lowest_rank_is_joined_first_and_the_leftmost_of_equals),
        cmocka_unit_test(windows_give_what_the_whole_word_becomes),
        cmocka_unit_test(who_takes_the_tokens_may_end_it),
        cmocka_unit_test(a_pair_given_again_takes_the_new_rank),
        cmocka_unit_test(a_million_symbols_of_one_kind_are_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
