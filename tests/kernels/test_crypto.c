/* test_crypto.c - BLAKE2b by the vectors of others, and the tools beside it. */
#include "kernels/crypto.h"
#include "tests/hex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct crypto_hash hash(const uint8_t *key, const void *data, size_t n)
{
    struct crypto_hash h;
    crypto_hash(&h, key, data, n);
    return h;
}

/* From an independent implementation: b2sum -l 256, Python's hashlib. */
static void blake2b_gives_its_known_values(void **state)
{
    (void)state;
    uint8_t key[CRYPTO_KEY_BYTES];
    for (unsigned i = 0; i < sizeof key; i++) key[i] = (uint8_t)i;
    assert_hex(hash(NULL, "", 0).bytes,
               "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
    assert_hex(hash(NULL, NULL, 0).bytes,
               "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
    assert_hex(hash(NULL, "abc", 3).bytes,
               "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
    assert_hex(hash(key, "", 0).bytes,
               "4e51e7a913fc80137da52880fecca175bf81e117d5c68126dc2774033517ea0d");
    assert_hex(hash(key, "abc", 3).bytes,
               "d63a32d3e44738d7907f964316c241adaba0abfeabc32349677578a15a203f7f");
}

/* selftest_seq() of RFC 7693, appendix E. */
static void sequence(uint8_t *out, uint32_t n, uint32_t seed)
{
    uint32_t a = 0xDEAD4BAD * seed, b = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t t = a + b;
        a = b;
        b = t;
        out[i] = (uint8_t)(t >> 24);
    }
}

static void the_self_test_of_rfc_7693_passes_at_this_length(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {0, 3, 128, 129, 255, 1024};
    uint8_t in[1024], key[CRYPTO_KEY_BYTES];
    sequence(key, sizeof key, sizeof key);
    struct crypto_state all;
    struct crypto_hash h;
    crypto_begin(&all, NULL);
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        sequence(in, lengths[i], lengths[i]);
        h = hash(NULL, in, lengths[i]);
        crypto_add(&all, h.bytes, sizeof h.bytes);
        h = hash(key, in, lengths[i]);
        crypto_add(&all, h.bytes, sizeof h.bytes);
    }
    crypto_end(&all, &h);
    assert_hex(h.bytes,
               "0e7fcfd0480d6f3567c2b83fb286726669708471d0d8820c18a8d46b92d66d4e");
}

static void a_hash_does_not_depend_on_how_its_input_was_cut(void **state)
{
    (void)state;
    uint8_t in[600];
    sequence(in, sizeof in, 7);
    struct crypto_hash whole = hash(in, in, sizeof in), h;
    for (size_t first = 0; first <= sizeof in; first++) {
        struct crypto_state s, copy;
        crypto_begin(&s, in);
        crypto_add(&s, in, first);
        copy = s;  // a plain value: what is added to one is not in the other
        crypto_add(&s, "more", 4);
        crypto_end(&s, &h);
        assert_memory_not_equal(h.bytes, whole.bytes, sizeof h.bytes);
        crypto_add(&copy, in + first, sizeof in - first);
        crypto_end(&copy, &h);
        assert_memory_equal(h.bytes, whole.bytes, sizeof h.bytes);
    }
}

static void numbers_are_added_little_endian(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {4,    3, 2, 0xf1, 8, 7, 6, 5, 4, 3,   2,
                                    0xe1, 2, 0, 0,    0, 0, 0, 0, 0, 'h', 'i'};
    struct crypto_state s;
    struct crypto_hash h;
    crypto_begin(&s, NULL);
    crypto_add_u32(&s, 0xf1020304);
    crypto_add_u64(&s, 0xe102030405060708);
    crypto_add_field(&s, "hi", 2);
    crypto_end(&s, &h);
    struct crypto_hash expected = hash(NULL, bytes, sizeof bytes);
    assert_memory_equal(h.bytes, expected.bytes, sizeof h.bytes);
}

static void only_equal_bytes_are_equal(void **state)
{
    (void)state;
    uint8_t a[64], b[64];
    sequence(a, sizeof a, 3);
    memcpy(b, a, sizeof b);
    assert_true(crypto_equal(a, b, sizeof a));
    assert_true(crypto_equal(a, b, 0));
    for (size_t bit = 0; bit < 8 * sizeof a; bit++) {
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(crypto_equal(a, b, sizeof a));
        assert_true(crypto_equal(a, b, bit / 8));
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void what_is_wiped_is_zero_and_a_hash_that_ended_leaves_nothing(void **state)
{
    (void)state;
    static const uint8_t zeros[sizeof(struct crypto_state)];
    struct crypto_state s;
    memset(&s, 0xa5, sizeof s);
    crypto_wipe(&s, sizeof s);
    assert_memory_equal(&s, zeros, sizeof s);

    struct crypto_hash h;
    crypto_begin(&s, (const uint8_t *)"a key of thirty-two bytes, secret");
    crypto_add(&s, "a secret", 8);
    assert_memory_not_equal(&s, zeros, sizeof s);
    crypto_end(&s, &h);
    assert_memory_equal(&s, zeros, sizeof s);
}

static void random_bytes_differ_and_stay_within_their_length(void **state)
{
    (void)state;
    uint8_t a[40] = {0}, b[40] = {0};
    crypto_random(a, 32);
    crypto_random(b, 32);
    assert_memory_not_equal(a, b, 32);
    for (size_t i = 32; i < sizeof a; i++) assert_int_equal(a[i], 0);
}

static int open_twice(void **state)
{
    (void)state;
    struct err err = {{0}};
    return crypto_open(&err) || crypto_open(&err) || err.msg[0];
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blake2b_gives_its_known_values),
        cmocka_unit_test(the_self_test_of_rfc_7693_passes_at_this_length),
        cmocka_unit_test(a_hash_does_not_depend_on_how_its_input_was_cut),
        cmocka_unit_test(numbers_are_added_little_endian),
        cmocka_unit_test(only_equal_bytes_are_equal),
        cmocka_unit_test(what_is_wiped_is_zero_and_a_hash_that_ended_leaves_nothing),
        cmocka_unit_test(random_bytes_differ_and_stay_within_their_length),
    };
    return cmocka_run_group_tests(tests, open_twice, NULL);
}
