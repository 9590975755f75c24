/* test_safetensors_dir.c - one file or shards: each tensor from where the index says. */
#include "model/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/model/tiny_rand.h"

#define DOWN "model.layers.0.mlp.down_proj.weight"

#define FIRST  "model-00001-of-00002.safetensors"
#define SECOND "model-00002-of-00002.safetensors"
#define INDEX  "model.safetensors.index.json"

/* Where the index places tensor i of the file; NULL: nowhere. */
typedef const char *(*placing)(const struct tiny_rand *r, size_t i);

static const char *well_placed(const struct tiny_rand *r, size_t i)
{
    (void)r;
    return i < 10 ? FIRST : SECOND;
}

static void write_index(const char *dir, const struct tiny_rand *r, placing place)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    assert_non_null(f);
    fprintf(f, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (size_t i = 0, written = 0; i < TINY_RAND_N; i++) {
        const char *file = place(r, i);
        if (file)
            fprintf(f, "%s\"%s\":\"%s\"", written++ ? "," : "", r->t[i].name, file);
    }
    fprintf(f, "}}");
    fclose(f);
    files_write(dir, INDEX, text, n);
    free(text);
}

static char *two_shards(const struct tiny_rand *r, placing place)
{
    char *dir = files_temp_dir();
    files_write_safetensors(dir, FIRST, r->t, 10);
    files_write_safetensors(dir, SECOND, r->t + 10, TINY_RAND_N - 10);
    write_index(dir, r, place);
    return dir;
}

static void same_tensors(const struct tensor_set *s, const struct tiny_rand *r)
{
    assert_int_equal(safetensors_count(s), TINY_RAND_N);
    for (size_t i = 0; i < TINY_RAND_N; i++) {
        const struct tensor *t = safetensors_find(s, r->t[i].name);
        assert_non_null(t);
        assert_int_equal(t->bytes, r->t[i].bytes);
        assert_memory_equal(t->data, r->t[i].data, t->bytes);
    }
}

static void refuse_dir(char *dir, const char *why)
{
    struct tensor_set *s = NULL;
    struct err err = {0};
    if (safetensors_open_dir(&s, dir, &err) == 0) fail_msg("accepted: %s", why);
    if (!strstr(err.msg, why)) fail_msg("\"%s\" does not say %s", err.msg, why);
    assert_non_null(strstr(err.msg, dir));
    files_remove_dir(dir);
}

static void a_single_file_is_mapped(void **state)
{
    (void)state;
    struct tiny_rand r;
    tiny_rand_open(&r);
    struct tensor_set *s = NULL;
    assert_int_equal(safetensors_open_dir(&s, TINY_RAND, NULL), 0);
    same_tensors(s, &r);
    assert_string_equal(safetensors_at(s, 0)->file, "model.safetensors");
    safetensors_release_pages(s);
    same_tensors(s, &r);
    safetensors_close(s);
    tiny_rand_close(&r);
}

static void shards_give_the_tensors_of_the_whole_file(void **state)
{
    (void)state;
    struct tiny_rand r;
    tiny_rand_open(&r);
    char *dir = two_shards(&r, well_placed);
    struct tensor_set *s = NULL;
    assert_int_equal(safetensors_open_dir(&s, dir, NULL), 0);
    same_tensors(s, &r);
    assert_string_equal(safetensors_find(s, "lm_head.weight")->file, SECOND);
    assert_string_equal(safetensors_find(s, DOWN)->file, FIRST);
    safetensors_close(s);
    files_remove_dir(dir);
    tiny_rand_close(&r);
}

static void a_missing_shard_is_named(void **state)
{
    (void)state;
    struct tiny_rand r;
    tiny_rand_open(&r);
    char *dir = two_shards(&r, well_placed), path[256];
    snprintf(path, sizeof path, "%s/" SECOND, dir);
    assert_int_equal(unlink(path), 0);
    refuse_dir(dir, "in " SECOND ", which is missing");
    tiny_rand_close(&r);
}

static const char *head_in_first(const struct tiny_rand *r, size_t i)
{
    return strcmp(r->t[i].name, "lm_head.weight") == 0 ? FIRST : well_placed(r, i);
}

static void a_tensor_placed_where_it_is_not_is_named(void **state)
{
    (void)state;
    struct tiny_rand r;
    tiny_rand_open(&r);
    refuse_dir(two_shards(&r, head_in_first),
               "tensor lm_head.weight is placed in " FIRST ", which does not hold it");
    tiny_rand_close(&r);
}

static const char *up_forgotten(const struct tiny_rand *r, size_t i)
{
    return strstr(r->t[i].name, "layers.1.mlp.up_proj") ? NULL : well_placed(r, i);
}

static void a_tensor_that_the_index_forgets_is_missing(void **state)
{
    (void)state;
    struct tiny_rand r;
    tiny_rand_open(&r);
    char *dir = two_shards(&r, up_forgotten);
    struct tensor_set *s = NULL;
    assert_int_equal(safetensors_open_dir(&s, dir, NULL), 0);
    assert_int_equal(safetensors_count(s), TINY_RAND_N - 1);
    struct err err = {0};
    assert_null(safetensors_expect(s, "model.layers.1.mlp.up_proj.weight", 2,
                                   (uint64_t[]){128, 64}, &err));
    assert_non_null(
        strstr(err.msg, INDEX ": tensor model.layers.1.mlp.up_proj.weight is missing"));
    safetensors_close(s);
    files_remove_dir(dir);
    tiny_rand_close(&r);
}

static const char *outside(const struct tiny_rand *r, size_t i)
{
    return i == 20 ? "../common/" SECOND : well_placed(r, i);
}

static const char *absolute(const struct tiny_rand *r, size_t i)
{
    return i == 20 ? "/etc/hostname" : well_placed(r, i);
}

static const char *parent_itself(const struct tiny_rand *r, size_t i)
{
    return i == 20 ? ".." : well_placed(r, i);
}

static const char *empty_name(const struct tiny_rand *r, size_t i)
{
    return i == 20 ? "" : well_placed(r, i);
}

static void a_path_that_leaves_the_directory_is_refused(void **state)
{
    (void)state;
    struct tiny_rand r;
    tiny_rand_open(&r);
    static const placing bad[] = {outside, absolute, parent_itself, empty_name};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        refuse_dir(two_shards(&r, bad[i]),
                   "is not the name of a file in the same directory");
    tiny_rand_close(&r);
}

static void stale_tensors_and_stray_files_are_ignored(void **state)
{
    (void)state;
    struct tiny_rand r;
    tiny_rand_open(&r);
    char *dir = two_shards(&r, well_placed);
    // The second shard gains a zeroed copy of a tensor that the first one owns, and a
    // zeroed model.safetensors lies beside them.
    static const uint8_t zeros[66560];
    struct files_tensor stale[TINY_RAND_N];
    memcpy(stale, r.t, sizeof stale);
    for (size_t i = 0; i < TINY_RAND_N; i++) stale[i].data = zeros;
    files_write_safetensors(dir, "model.safetensors", stale, TINY_RAND_N);
    files_write_safetensors(dir, "consolidated.safetensors", stale, TINY_RAND_N);
    memcpy(stale + 10, r.t + 10, (TINY_RAND_N - 10) * sizeof stale[0]);
    files_write_safetensors(dir, SECOND, stale + 9, TINY_RAND_N - 9);

    struct tensor_set *s = NULL;
    assert_int_equal(safetensors_open_dir(&s, dir, NULL), 0);
    same_tensors(s, &r);
    safetensors_close(s);
    files_remove_dir(dir);
    tiny_rand_close(&r);
}

static void a_directory_without_weights_is_refused(void **state)
{
    (void)state;
    refuse_dir(files_temp_dir(), "holds neither " INDEX " nor model.safetensors");

    char *dir = files_temp_dir(), path[256];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    refuse_dir(dir, "model.safetensors is not a regular file");

    static const char *const bad[] = {"", "{}", "[]", "{\"weight_map\":{}}",
                                      "{\"weight_map\":{\"a\":1}}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        dir = files_temp_dir();
        files_write(dir, INDEX, bad[i], strlen(bad[i]));
        refuse_dir(dir, INDEX);
    }
    dir = files_temp_dir();
    files_write(dir, "model.safetensors", "", 0);
    refuse_dir(dir, "too short");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_single_file_is_mapped),
        cmocka_unit_test(shards_give_the_tensors_of_the_whole_file),
        cmocka_unit_test(a_missing_shard_is_named),
        cmocka_unit_test(a_tensor_placed_where_it_is_not_is_named),
        cmocka_unit_test(a_tensor_that_the_index_forgets_is_missing),
        cmocka_unit_test(a_path_that_leaves_the_directory_is_refused),
        cmocka_unit_test(stale_tensors_and_stray_files_are_ignored),
        cmocka_unit_test(a_directory_without_weights_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
