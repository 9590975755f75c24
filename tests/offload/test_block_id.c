/* test_block_id.c - equal ids mean equal prefixes, under one fingerprint, for one salt. */
#include "offload/block_id.h"
#include "tests/hex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define BLOCKS 4
#define TOKENS (BLOCKS * KV_BLOCK_TOKENS)

static struct crypto_hash fingerprint(void)
{
    struct crypto_hash f;
    for (unsigned i = 0; i < sizeof f.bytes; i++) f.bytes[i] = (uint8_t)i;
    return f;
}

static struct block_key key_of(const void *salt, size_t n)
{
    struct crypto_hash f = fingerprint();
    struct block_key key;
    block_key_derive(&key, &f, salt, n);
    return key;
}

static void chain(struct block_meta out[BLOCKS], const struct block_key *key,
                  const int32_t tokens[TOKENS])
{
    for (unsigned i = 0; i < BLOCKS; i++)
        block_meta_next(&out[i], i ? &out[i - 1] : NULL, key,
                        tokens + i * KV_BLOCK_TOKENS, 5);
}

static void some_tokens(int32_t tokens[TOKENS])
{
    for (int32_t i = 0; i < TOKENS; i++) tokens[i] = i * 977 % 49152;
}

/* Computed apart, from the formulas in the header.  A change here makes every block on
 * every disk unreachable: raise FINGERPRINT_LAYOUT with it. */
static void names_are_those_that_stand_on_disks(void **state)
{
    (void)state;
    struct block_key key = key_of("salt", 4);
    assert_hex(key.bytes,
               "4468b5cd502aad0864d526ffdc40d6dba754e52e205b923631330a9c3d88d7f0");

    int32_t first[KV_BLOCK_TOKENS], second[KV_BLOCK_TOKENS];
    for (int32_t i = 0; i < KV_BLOCK_TOKENS; i++) {
        first[i] = i * i - 3;  // some negative
        second[i] = 100000 + i;
    }
    struct block_meta a, b;
    block_meta_next(&a, NULL, &key, first, 1);
    block_meta_next(&b, &a, &key, second, 1);
    assert_hex(a.id.bytes,
               "e6771e1af2f70ff94747e77e54c37269c350d794ad7e74205190de1e8bea29ce");
    assert_hex(b.id.bytes,
               "bb1c4ebe37d68dc52124eb7d12caeb38ce527c165082d6b149678f24ebb0fd85");
}

static void tenants_keep_their_numbers(void **state)
{
    (void)state;
    assert_true(block_tenant("default") == 0x6cdaf41dc2a5bac2);
    assert_true(block_tenant("alice") == 0xc6d96ea38549b84d);
    assert_true(block_tenant("") == 0x70eb05846ad7d8db);
    assert_true(block_tenant("alic") != block_tenant("alice"));
}

static void everything_known_of_a_block_is_filled_in(void **state)
{
    (void)state;
    static const struct block_id none;
    struct block_key key = key_of("a", 1);
    struct block_meta m[BLOCKS];
    int32_t tokens[TOKENS];
    some_tokens(tokens);
    memset(m, 0xee, sizeof m);
    chain(m, &key, tokens);
    for (unsigned i = 0; i < BLOCKS; i++) {
        assert_int_equal(m[i].depth, i);
        assert_true(block_id_equal(&m[i].parent, i ? &m[i - 1].id : &none));
        assert_memory_equal(m[i].tokens, tokens + i * KV_BLOCK_TOKENS,
                            sizeof m[i].tokens);
        assert_true(m[i].tenant == 5);
    }
}

static void equal_prefixes_have_equal_ids(void **state)
{
    (void)state;
    struct block_key key = key_of("a", 1), again = key_of("a", 1);
    struct block_meta m[BLOCKS], n[BLOCKS];
    int32_t tokens[TOKENS];
    some_tokens(tokens);
    chain(m, &key, tokens);
    chain(n, &again, tokens);
    for (unsigned i = 0; i < BLOCKS; i++) assert_true(block_meta_equal(&m[i], &n[i]));
}

static void one_other_token_changes_every_id_from_there_on_and_none_before(void **state)
{
    (void)state;
    struct block_key key = key_of("a", 1);
    struct block_meta m[BLOCKS], n[BLOCKS];
    int32_t tokens[TOKENS];
    some_tokens(tokens);
    chain(m, &key, tokens);
    for (unsigned t = 0; t < TOKENS; t++) {
        for (unsigned bit = 0; bit < 32; bit++) {
            tokens[t] ^= (int32_t)(1u << bit);
            chain(n, &key, tokens);
            for (unsigned i = 0; i < BLOCKS; i++)
                assert_true(block_id_equal(&m[i].id, &n[i].id) ==
                            (i < t / KV_BLOCK_TOKENS));
            tokens[t] ^= (int32_t)(1u << bit);
        }
    }
}

static void the_same_tokens_at_another_depth_have_another_id(void **state)
{
    (void)state;
    struct block_key key = key_of("a", 1);
    struct block_meta m[BLOCKS];
    int32_t tokens[TOKENS] = {0};
    chain(m, &key, tokens);
    for (unsigned i = 0; i < BLOCKS; i++)
        for (unsigned k = 0; k < i; k++)
            assert_false(block_id_equal(&m[i].id, &m[k].id));
}

static void no_block_is_met_under_another_fingerprint(void **state)
{
    (void)state;
    struct crypto_hash f = fingerprint();
    struct block_key key = key_of("a", 1), other;
    struct block_meta m[BLOCKS], n[BLOCKS];
    int32_t tokens[TOKENS];
    some_tokens(tokens);
    chain(m, &key, tokens);
    for (size_t bit = 0; bit < 8 * sizeof f.bytes; bit++) {
        f.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        block_key_derive(&other, &f, "a", 1);
        chain(n, &other, tokens);
        for (unsigned i = 0; i < BLOCKS; i++)
            assert_false(block_id_equal(&m[i].id, &n[i].id));
        f.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void no_block_is_met_with_another_salt(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n;
    } salts[] = {{"", 0}, {"a", 1}, {"b", 1}, {"aa", 2}, {"a\0", 2}, {"\0a", 2}};
    struct block_meta m[ARRAY_LEN(salts)][BLOCKS];
    int32_t tokens[TOKENS];
    some_tokens(tokens);
    for (size_t s = 0; s < ARRAY_LEN(salts); s++) {
        struct block_key key = key_of(salts[s].text, salts[s].n);
        chain(m[s], &key, tokens);
        for (size_t before = 0; before < s; before++)
            for (unsigned i = 0; i < BLOCKS; i++)
                assert_false(block_id_equal(&m[s][i].id, &m[before][i].id));
    }
    struct crypto_hash f = fingerprint();
    struct block_key none, empty = key_of("", 0);
    block_key_derive(&none, &f, NULL, 0);
    assert_memory_equal(none.bytes, empty.bytes, sizeof none.bytes);
}

/* A quota is not part of a name: a group that shares blocks shares them by its key. */
static void the_tenant_that_a_block_counts_for_is_not_in_its_id(void **state)
{
    (void)state;
    struct block_key key = key_of("a", 1);
    struct block_meta a, b;
    int32_t tokens[TOKENS];
    some_tokens(tokens);
    block_meta_next(&a, NULL, &key, tokens, 1);
    block_meta_next(&b, NULL, &key, tokens, 2);
    assert_true(block_id_equal(&a.id, &b.id));
    assert_false(block_meta_equal(&a, &b));
}

static void a_walk_may_advance_in_place(void **state)
{
    (void)state;
    struct block_key key = key_of("a", 1);
    struct block_meta m[BLOCKS], walk;
    int32_t tokens[TOKENS];
    some_tokens(tokens);
    chain(m, &key, tokens);
    for (unsigned i = 0; i < BLOCKS; i++) {
        block_meta_next(&walk, i ? &walk : NULL, &key, tokens + i * KV_BLOCK_TOKENS, 5);
        assert_true(block_meta_equal(&walk, &m[i]));
    }
    block_meta_next(&walk, NULL, &key, m[0].tokens, 5);
    block_meta_next(&walk, NULL, &key, walk.tokens, 5);
    assert_true(block_meta_equal(&walk, &m[0]));
}

static int open_crypto(void **state)
{
    (void)state;
    return crypto_open(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_those_that_stand_on_disks),
        cmocka_unit_test(tenants_keep_their_numbers),
        cmocka_unit_test(everything_known_of_a_block_is_filled_in),
        cmocka_unit_test(equal_prefixes_have_equal_ids),
        cmocka_unit_test(
            one_other_token_changes_every_id_from_there_on_and_none_before),
        cmocka_unit_test(the_same_tokens_at_another_depth_have_another_id),
        cmocka_unit_test(no_block_is_met_under_another_fingerprint),
        cmocka_unit_test(no_block_is_met_with_another_salt),
        cmocka_unit_test(the_tenant_that_a_block_counts_for_is_not_in_its_id),
        cmocka_unit_test(a_walk_may_advance_in_place),
    };
    return cmocka_run_group_tests(tests, open_crypto, NULL);
}
