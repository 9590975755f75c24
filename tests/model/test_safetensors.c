/* test_safetensors.c - files that must be read, and files that must be refused. */
#include "model/safetensors.h"

#include "kernels/json.h"
#include "tests/allocs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/tiny_rand.h"

#define CORPUS "tests/golden/safetensors"
#define DOWN   "model.layers.0.mlp.down_proj.weight"

/* ---- the corpus ---- */

static void check_keys(struct tensor_set *s, struct json_value keys, const char *file)
{
    if (safetensors_count(s) != json_count(keys)) fail_msg("%s: wrong count", file);
    for (struct json_iter i = json_iter(keys); json_next(&i);) {
        char *name = json_string_dup(i.value, NULL);
        if (!safetensors_find(s, name)) fail_msg("%s: no tensor %s", file, name);
        free(name);
    }
}

static void check_corpus_file(struct json_value entry)
{
    char *file = json_string_dup(json_get(entry, "file"), NULL), path[256];
    snprintf(path, sizeof path, CORPUS "/%s", file);
    size_t n;
    char *data = files_read(path, &n);
    // A copy of the exact size, so that a sanitizer sees a read behind its end.
    char *exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, data, n);

    struct tensor_set *s = NULL;
    struct err err = {0};
    int rc = safetensors_parse(&s, exact, n, file, &err);
    struct json_value want = json_get(entry, "want");
    if (rc < 0 && json_equals(want, "accept")) fail_msg("%s", err.msg);
    if (rc == 0 && json_equals(want, "reject")) fail_msg("%s was accepted", file);
    if (rc < 0) assert_non_null(strstr(err.msg, file));
    if (rc == 0) check_keys(s, json_get(entry, "keys"), file);
    safetensors_close(s);
    free(exact);
    free(data);
    free(file);
}

static void the_corpus_is_accepted_and_refused_as_it_says(void **state)
{
    (void)state;
    size_t n;
    char *text = files_read(CORPUS "/expected.json", &n);
    struct json *j = NULL;
    assert_int_equal(json_open(&j, text, n, 8, NULL), 0);
    assert_int_equal(json_count(json_root(j)), 78);
    for (struct json_iter i = json_iter(json_root(j)); json_next(&i);)
        check_corpus_file(i.value);
    json_close(j);
    free(text);
}

static void every_prefix_of_a_file_is_refused(void **state)
{
    (void)state;
    size_t n;
    char *data = files_read(CORPUS "/ok-two-out-of-order.safetensors", &n);
    for (size_t cut = 0; cut < n; cut++) {
        struct tensor_set *s = NULL;
        assert_int_equal(safetensors_parse(&s, data, cut, "cut", NULL), -EINVAL);
        assert_null(s);
    }
    free(data);
}

/* ---- one damaged header of a model ---- */

static void refuse_file(const void *data, size_t n, const char *why)
{
    struct tensor_set *s = NULL;
    struct err err = {0};
    unsigned long before = allocs_so_far();
    if (safetensors_parse(&s, data, n, "m.safetensors", &err) == 0)
        fail_msg("accepted, where the message should say %s", why);
    if (!strstr(err.msg, why)) fail_msg("\"%s\" does not say %s", err.msg, why);
    assert_non_null(strstr(err.msg, "m.safetensors"));
    assert_true(allocs_so_far() - before < 100);
}

static void refuse_entry(const struct tiny_rand *r, const char *entry, const char *why)
{
    static const char good[] = "\"dtype\":\"BF16\",\"shape\":[64,128],\"data_offsets\":"
                               "[124160,140544]";
    size_t n;
    char *header = files_replace(r->header, good, entry);
    char *file = files_safetensors_raw(header, r->data, r->data_n, &n);
    char expected[256];
    snprintf(expected, sizeof expected, "tensor %s%s", DOWN, why);
    refuse_file(file, n, expected);
    free(file);
    free(header);
}

static void a_header_entry_that_lies_is_refused_with_its_name(void **state)
{
    (void)state;
    static const struct {
        const char *entry, *why;
    } cases[] = {
        {"\"dtype\":\"BF16\",\"shape\":[64,128],\"data_offsets\":[281206,1000281216]",
         ": data_offsets [281206, 1000281216] are no range within the file's 281216 "
         "bytes"},
        {"\"dtype\":\"BF16\",\"shape\":[64,128],\"data_offsets\":[20000,100]",
         ": data_offsets [20000, 100] are no range"},
        {"\"dtype\":\"BF16\",\"shape\":[64,128],\"data_offsets\":"
         "[18446744073709551552,18446744073709551615]",
         ": data_offsets [18446744073709551552, 18446744073709551615] are no range"},
        {"\"dtype\":\"BF16\",\"shape\":[64,128],\"data_offsets\":[-16,16]",
         ": data_offsets is not an array of two integers"},
        {"\"dtype\":\"BF16\",\"shape\":[64,128],\"data_offsets\":[0]",
         ": data_offsets is not an array of two integers"},
        {"\"dtype\":\"BF16\",\"shape\":[1000,1000],\"data_offsets\":[124160,140544]",
         " has 16384 bytes of data; its shape [1000, 1000] of type BF16 needs 2000000"},
        {"\"dtype\":\"BF16\",\"shape\":[8589934592,8589934592],\"data_offsets\":"
         "[124160,140544]",
         ": shape [8589934592, 8589934592] is larger than 2^64 bits"},
        {"\"dtype\":\"BF16\",\"shape\":[-64,-128],\"data_offsets\":[124160,140544]",
         ": size -64 in its shape is not an integer"},
        {"\"dtype\":\"F12\",\"shape\":[64,128],\"data_offsets\":[124160,140544]",
         ": dtype \"F12\" is unknown"},
        {"\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,64,128],\"data_offsets\":"
         "[124160,140544]",
         " has 9 dimensions; at most 8 fit"},
    };
    struct tiny_rand r;
    tiny_rand_open(&r);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refuse_entry(&r, cases[i].entry, cases[i].why);
    tiny_rand_close(&r);
}

static void two_tensors_cannot_share_bytes(void **state)
{
    (void)state;
    struct tiny_rand r;
    tiny_rand_open(&r);
    size_t n;
    char *header = files_replace(r.header, "\"data_offsets\":[107776,124160]",
                                 "\"data_offsets\":[91392,107776]");
    char *file = files_safetensors_raw(header, r.data, r.data_n, &n);
    refuse_file(file, n,
                "starts at byte 91392 of the data, where 107776 is the end of");
    free(file);
    free(header);
    tiny_rand_close(&r);
}

static void a_tensor_named_twice_is_refused_by_name(void **state)
{
    (void)state;
    struct tiny_rand r;
    tiny_rand_open(&r);
    size_t n;
    char *header = files_replace(r.header, "\"data_offsets\":[214656,281216]}",
                                 "\"data_offsets\":[214656,281216]},\"" DOWN
                                 "\":{\"dtype\":\"BF16\",\"shape\":[64,128],"
                                 "\"data_offsets\":[0,16384]}");
    char *file = files_safetensors_raw(header, r.data, r.data_n, &n);
    refuse_file(file, n, "duplicate key \"" DOWN "\"");
    free(file);
    free(header);
    tiny_rand_close(&r);
}

static void a_header_length_that_lies_is_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {(uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 4,
                                       100000001, 281217};
    struct tiny_rand r;
    tiny_rand_open(&r);
    size_t n;
    char *file = files_safetensors_raw("", r.data, r.data_n, &n);
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        memcpy(file, &lengths[i], 8);
        refuse_file(file, n, "does not fit the file's 281224 bytes");
    }
    free(file);
    tiny_rand_close(&r);
}

static void what_is_no_header_is_refused(void **state)
{
    (void)state;
    struct tiny_rand r;
    tiny_rand_open(&r);
    size_t n;
    char *file = files_safetensors_raw("notjson!", r.data, r.data_n, &n);
    refuse_file(file, n, "does not start with '{'");
    free(file);

    char *deep = malloc(200001);
    assert_non_null(deep);
    memset(deep, '[', 200000);
    deep[200000] = '\0';
    memcpy(deep, "{\"a\":", 5);
    file = files_safetensors_raw(deep, r.data, r.data_n, &n);
    refuse_file(file, n, "nesting deeper than 128");
    free(file);
    free(deep);

    char *longer = malloc(r.data_n + 4096);
    assert_non_null(longer);
    memset(longer, 0, r.data_n + 4096);
    file = files_safetensors_raw(r.header, longer, r.data_n + 4096, &n);
    refuse_file(file, n, "its tensors take 281216 of its 285312 bytes of data");
    free(file);
    free(longer);
    tiny_rand_close(&r);
}

/* ---- what a caller expects of a tensor ---- */

static void expect_refused(const struct tensor_set *s, const char *name, uint64_t rows,
                           uint64_t cols, const char *why)
{
    struct err err = {0};
    assert_null(safetensors_expect(s, name, 2, (uint64_t[]){rows, cols}, &err));
    if (!strstr(err.msg, why)) fail_msg("\"%s\" does not say %s", err.msg, why);
}

static void a_tensor_of_another_type_or_shape_is_not_handed_out(void **state)
{
    (void)state;
    static const uint8_t zeros[64];
    static const struct files_tensor tensors[] = {{"w", "F16", "[4,2]", zeros, 16},
                                                  {"i", "I16", "[4,2]", zeros, 16}};
    size_t n;
    char *file = files_safetensors(tensors, 2, &n);
    struct tensor_set *s = NULL;
    assert_int_equal(safetensors_parse(&s, file, n, "m", NULL), 0);

    const struct tensor *t = safetensors_expect(s, "w", 2, (uint64_t[]){4, 2}, NULL);
    assert_non_null(t);
    assert_int_equal(t->dtype, DTYPE_F16);
    assert_ptr_equal(t->data, file + n - 32);
    expect_refused(s, "w", 2, 4, "m: tensor w has shape [4, 2]; expected [2, 4]");
    expect_refused(s, "i", 4, 2, "m: tensor i has type I16; expected F32, F16 or BF16");
    expect_refused(s, "x", 4, 2, "m: tensor x is missing; expected shape [4, 2]");
    assert_null(safetensors_expect(s, "w", 1, (uint64_t[]){4}, NULL));
    safetensors_close(s);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_corpus_is_accepted_and_refused_as_it_says),
        cmocka_unit_test(every_prefix_of_a_file_is_refused),
        cmocka_unit_test(a_header_entry_that_lies_is_refused_with_its_name),
        cmocka_unit_test(two_tensors_cannot_share_bytes),
        cmocka_unit_test(a_tensor_named_twice_is_refused_by_name),
        cmocka_unit_test(a_header_length_that_lies_is_refused),
        cmocka_unit_test(what_is_no_header_is_refused),
        cmocka_unit_test(a_tensor_of_another_type_or_shape_is_not_handed_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
