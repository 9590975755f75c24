/* test_content_hash.c - what tensors are decides their hash, and where they lie does not. */
#include "model/content_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/hex.h"
#include "tests/model/tiny_rand.h"

#define TINY_RAND_HASH                                                                 \
    "3a522ef99e45901578474d0274cf9babef76bac34ac075bb4cb269229a65e0ee"
#define LARGE ((2u << 20) + 10)

static struct hex hash_set(const struct tensor_set *s, uint32_t threads)
{
    struct crypto_hash h;
    struct err err;
    if (content_hash_tensors(&h, s, threads, &err) < 0) fail_msg("%s", err.msg);
    return hex_of(h.bytes);
}

static struct hex hash_file(const void *file, size_t n, uint32_t threads)
{
    struct tensor_set *s;
    struct err err;
    if (safetensors_parse(&s, file, n, "T", &err) < 0) fail_msg("%s", err.msg);
    struct hex h = hash_set(s, threads);
    safetensors_close(s);
    return h;
}

static struct hex hash_tensors(const struct files_tensor *t, size_t count)
{
    size_t n;
    char *file = files_safetensors(t, count, &n);
    struct hex h = hash_file(file, n, 2);
    free(file);
    return h;
}

static struct hex hash_dir(const char *dir)
{
    struct tensor_set *s;
    struct err err;
    if (safetensors_open_dir(&s, dir, &err) < 0) fail_msg("%s", err.msg);
    struct hex h = hash_set(s, 2);
    safetensors_close(s);
    return h;
}

static uint8_t *large(void)
{
    uint8_t *p = malloc(LARGE);
    assert_non_null(p);
    for (uint64_t i = 0; i < LARGE; i++) p[i] = (uint8_t)(i * i >> 7);
    return p;
}

/* Computed apart, from the construction in the header.  A change here makes every stored
 * block unreachable. */
static void the_construction_is_the_one_that_stands_on_disks(void **state)
{
    (void)state;
    uint8_t small[12], *b = large();
    char shape[32];
    for (uint8_t i = 0; i < sizeof small; i++) small[i] = i;
    snprintf(shape, sizeof shape, "[%u]", LARGE);
    const struct files_tensor t[] = {{"b", "I8", shape, b, LARGE},
                                     {"c", "BF16", "[0,2]", "", 0},
                                     {"a", "F32", "[1,3]", small, sizeof small}};
    assert_string_equal(
        hash_tensors(t, 3).text,
        "368b66f8e50f0a97dc06b8642396cc7e302c59ef4c847ab292e990821741fe00");
    assert_string_equal(
        hash_file("\2\0\0\0\0\0\0\0{}", 10, 1).text,
        "ddbe87aa1ffa5da64af47ae3b67f62f5832ee750eb912e1453b400bfbcb982ac");
    assert_string_equal(hash_dir(TINY_RAND).text, TINY_RAND_HASH);
    free(b);
}

static void the_number_of_threads_does_not_matter(void **state)
{
    (void)state;
    uint8_t *b = large();
    char shape[32];
    snprintf(shape, sizeof shape, "[%u]", LARGE);
    const struct files_tensor t[] = {{"a", "I8", shape, b, LARGE},
                                     {"b", "I8", "[9]", b, 9},
                                     {"c", "I8", shape, b, LARGE}};
    size_t n;
    char *file = files_safetensors(t, 3, &n);
    struct hex one = hash_file(file, n, 1);
    for (uint32_t threads = 2; threads < 12; threads += 3)
        assert_string_equal(hash_file(file, n, threads).text, one.text);
    free(file);
    free(b);
}

static void the_order_in_the_file_does_not_matter(void **state)
{
    (void)state;
    struct tiny_rand r;
    tiny_rand_open(&r);
    struct files_tensor turned[TINY_RAND_N];
    for (size_t by = 0; by < TINY_RAND_N; by++) {
        for (size_t i = 0; i < TINY_RAND_N; i++)
            turned[i] = r.t[(by + i * 2) % TINY_RAND_N];
        assert_string_equal(hash_tensors(turned, TINY_RAND_N).text, TINY_RAND_HASH);
    }
    tiny_rand_close(&r);
}

static void sharding_does_not_matter(void **state)
{
    (void)state;
    struct tiny_rand r;
    tiny_rand_open(&r);
    for (size_t cut = 1; cut < TINY_RAND_N; cut += 6) {
        char *dir = files_temp_dir(), *index;
        size_t n;
        FILE *f = open_memstream(&index, &n);
        assert_non_null(f);
        fprintf(f, "{\"weight_map\":{");
        for (size_t i = 0; i < TINY_RAND_N; i++)
            fprintf(f, "%s\"%s\":\"%s\"", i ? "," : "", r.t[i].name,
                    i < cut ? "one" : "two");
        fprintf(f, "}}");
        fclose(f);
        files_write_safetensors(dir, "one", r.t, cut);
        files_write_safetensors(dir, "two", r.t + cut, TINY_RAND_N - cut);
        files_write(dir, "model.safetensors.index.json", index, n);
        assert_string_equal(hash_dir(dir).text, TINY_RAND_HASH);
        files_remove_dir(dir);
        free(index);
    }
    tiny_rand_close(&r);
}

static void metadata_does_not_matter(void **state)
{
    (void)state;
    size_t n, m;
    char *a = files_safetensors_raw("{\"w\":{\"dtype\":\"I8\",\"shape\":[2],"
                                    "\"data_offsets\":[0,2]}}",
                                    "xy", 2, &n);
    char *b = files_safetensors_raw("{\"__metadata__\":{\"format\":\"pt\"},"
                                    "\"w\":{\"dtype\":\"I8\",\"shape\":[2],"
                                    "\"data_offsets\":[0,2]}}",
                                    "xy", 2, &m);
    assert_string_equal(hash_file(a, n, 1).text, hash_file(b, m, 1).text);
    free(a);
    free(b);
}

static void name_type_shape_number_and_bytes_each_matter(void **state)
{
    (void)state;
    static const struct files_tensor sets[][2] = {
        {{"a", "F16", "[2,3]", "abcdefghijkl", 12}, {"b", "I8", "[2]", "xy", 2}},
        {{"A", "F16", "[2,3]", "abcdefghijkl", 12}, {"b", "I8", "[2]", "xy", 2}},
        {{"a", "BF16", "[2,3]", "abcdefghijkl", 12}, {"b", "I8", "[2]", "xy", 2}},
        {{"a", "F16", "[3,2]", "abcdefghijkl", 12}, {"b", "I8", "[2]", "xy", 2}},
        {{"a", "F16", "[6]", "abcdefghijkl", 12}, {"b", "I8", "[2]", "xy", 2}},
        {{"a", "F16", "[1,2,3]", "abcdefghijkl", 12}, {"b", "I8", "[2]", "xy", 2}},
        {{"a", "F16", "[2,3]", "abcdefghijkL", 12}, {"b", "I8", "[2]", "xy", 2}},
        {{"a", "F16", "[2,3]", "abcdefghijkl", 12}, {"b", "I8", "[2]", "yx", 2}},
        {{"a", "F16", "[2,3]", "abcdefghijkl", 12}, {"b", "U8", "[2]", "xy", 2}},
        {{"a", "I8", "[2]", "xy", 2}, {"b", "F16", "[2,3]", "abcdefghijkl", 12}},
        {{"a", "F16", "[0,3]", "", 0}, {"b", "I8", "[2]", "xy", 2}},
        {{"a", "F16", "[3,0]", "", 0}, {"b", "I8", "[2]", "xy", 2}},
    };
    struct hex seen[ARRAY_LEN(sets) + 1];
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) seen[i] = hash_tensors(sets[i], 2);
    seen[ARRAY_LEN(sets)] = hash_tensors(sets[0], 1);  // one tensor fewer
    for (size_t i = 0; i < ARRAY_LEN(seen); i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(seen[i].text, seen[k].text) == 0)
                fail_msg("set %zu is not told from set %zu", i, k);
}

static void a_flipped_bit_at_any_place_of_a_large_tensor_matters(void **state)
{
    (void)state;
    static const size_t places[] = {0,       (1 << 20) - 1, 1 << 20,
                                    2 << 20, LARGE - 1,     777777};
    uint8_t *b = large();
    char shape[32];
    snprintf(shape, sizeof shape, "[%u]", LARGE);
    const struct files_tensor t = {"w", "I8", shape, b, LARGE};
    struct hex whole = hash_tensors(&t, 1);
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        b[places[i]] ^= 0x10;
        assert_string_not_equal(hash_tensors(&t, 1).text, whole.text);
        b[places[i]] ^= 0x10;
    }
    assert_string_equal(hash_tensors(&t, 1).text, whole.text);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_construction_is_the_one_that_stands_on_disks),
        cmocka_unit_test(the_number_of_threads_does_not_matter),
        cmocka_unit_test(the_order_in_the_file_does_not_matter),
        cmocka_unit_test(sharding_does_not_matter),
        cmocka_unit_test(metadata_does_not_matter),
        cmocka_unit_test(name_type_shape_number_and_bytes_each_matter),
        cmocka_unit_test(a_flipped_bit_at_any_place_of_a_large_tensor_matters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
