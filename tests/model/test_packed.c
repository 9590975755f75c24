/* test_packed.c - the packed form beside a model: taken where it is right, and where it is
 * not, all is as without it. */
#include "model/packed.h"
#include "tests/allocs.h"
#include "tests/files.h"
#include "tests/model/fixture.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define TIED   "tests/golden/models/tiny-smollm2"
#define UNTIED "tests/golden/models/tiny-llama2"
#define ROWS   24

struct world {
    char *dir;
    enum weight_format format;
    const char *name;  // of the packed file
    struct backend *b;
    struct model_config c;
};

static struct world world_of(const char *model, enum weight_format format)
{
    struct world w = {.dir = files_temp_dir(),
                      .format = format,
                      .name = format == WEIGHT_Q8 ? "dormouse-q8.packed"
                                                  : "dormouse-auto.packed"};
    files_copy(model, "config.json", w.dir);
    files_copy(model, "model.safetensors", w.dir);
    struct backend_options o = {.threads = 2, .limits = {ROWS, 1, 8, 128, 32, 4096}};
    assert_int_equal(backend_open(&w.b, "cpu", &o, NULL), 0);
    assert_int_equal(model_config_load(&w.c, w.dir, NULL), 0);
    return w;
}

static struct world world_open(enum weight_format format)
{
    return world_of(TIED, format);
}

static void world_close(struct world *w)
{
    backend_close(w->b);
    files_remove_dir(w->dir);
}

static char *path_of(const struct world *w)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/%s", w->dir, w->name);
    return path;
}

static void load(struct world *w, struct weights *out, bool cached)
{
    struct tensor_set *set;
    struct err err = {{0}};
    struct weights_options o = {.format = w->format,
                                .packed_dir = cached ? w->dir : NULL};
    assert_int_equal(safetensors_open_dir(&set, w->dir, &err), 0);
    if (weights_load(out, w->b, &w->c, set, &o, &err)) fail_msg("%s", err.msg);
    safetensors_close(set);
}

static void same_matrix(const struct matrix *a, const struct matrix *b)
{
    assert_int_equal(a->bytes, b->bytes);
    assert_memory_equal(a->data, b->data, a->bytes);
}

/* Load through the packed form: the message says `says`, and the weights are those that
 * are loaded without. */
static void expect(struct world *w, const char *says)
{
    struct weights with, without;
    load(w, &without, false);
    load(w, &with, true);
    assert_string_equal(without.packed, "");
    if (!strstr(with.packed, says)) fail_msg("\"%s\" not: %s", with.packed, says);
    same_matrix(&with.embed, &without.embed);
    for (uint32_t i = 0; i < with.layers; i++) {
        same_matrix(&with.layer[i].qkv, &without.layer[i].qkv);
        same_matrix(&with.layer[i].o, &without.layer[i].o);
        same_matrix(&with.layer[i].gate_up, &without.layer[i].gate_up);
        same_matrix(&with.layer[i].down, &without.layer[i].down);
    }
    if (without.head.data) same_matrix(&with.head, &without.head);
    assert_int_equal(with.bytes, without.bytes);
    weights_close(&with);
    weights_close(&without);
}

static void the_second_load_takes_what_the_first_has_written(void **state)
{
    (void)state;
    static const enum weight_format formats[] = {WEIGHT_OWN, WEIGHT_Q8};
    for (size_t f = 0; f < ARRAY_LEN(formats); f++) {
        struct world w = world_open(formats[f]);
        expect(&w, "is not there, so the weights were packed; it is written");
        expect(&w, "packed weights from");
        expect(&w, "packed weights from");
        world_close(&w);
    }
}

static void a_damaged_file_is_ignored_and_written_again(void **state)
{
    (void)state;
    struct world w = world_open(WEIGHT_Q8);
    expect(&w, "is not there");
    size_t n;
    char *good = files_read(path_of(&w), &n);
    uint64_t matrices;
    memcpy(&matrices, good + 64, sizeof matrices);
    assert_true(matrices > 1);
    size_t table_sum = 72 + 16 * matrices;
    // In the tag, the key, the count, the first entry's sum, the last one's size and sum,
    // the sum of all these, and in matrices.
    const size_t places[] = {
        3,         40,   64,         80,   table_sum - 16, table_sum - 1,
        table_sum, 4096, 4096 + 100, n / 2};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        good[places[i]] ^= 0x10;
        files_write(w.dir, w.name, good, n);
        good[places[i]] ^= 0x10;
        expect(&w, "so the weights were packed; it is written");
        expect(&w, "packed weights from");
    }
    const size_t lengths[] = {0, 10, 72, 500, 4096, n / 2, n - 4096, n - 1};
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        files_write(w.dir, w.name, good, lengths[i]);
        expect(&w, "so the weights were packed; it is written");
        expect(&w, "packed weights from");
    }
    free(good);
    world_close(&w);
}

static void a_byte_that_belongs_to_nothing_is_damage_too(void **state)
{
    (void)state;
    struct world w = world_open(WEIGHT_Q8);
    expect(&w, "is not there");
    size_t n;
    char *good = files_read(path_of(&w), &n);
    char *more = calloc(1, n + 4096);
    uint64_t matrices, first;
    memcpy(&matrices, good + 64, sizeof matrices);
    memcpy(&first, good + 72, sizeof first);
    size_t table_end = 72 + 16 * matrices + 8, first_end = 4096 + first;
    assert_true(table_end < 4096 && first_end % 4096 != 0);
    const size_t places[] = {table_end, 4095, first_end, ALIGN_UP(first_end, 4096) - 1};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        good[places[i]] = 1;
        files_write(w.dir, w.name, good, n);
        good[places[i]] = 0;
        expect(&w, "is damaged, so the weights were packed; it is written");
    }
    memcpy(more, good, n);
    for (size_t length = n + 1; length <= n + 4096; length += 4095) {
        files_write(w.dir, w.name, more, length);
        expect(&w, "is damaged, so the weights were packed; it is written");
    }
    expect(&w, "packed weights from");
    free(good);
    free(more);
    world_close(&w);
}

static unsigned long allocations_of_a_load(struct world *w, bool cached)
{
    struct weights loaded;
    unsigned long before = allocs_so_far();
    load(w, &loaded, cached);
    unsigned long n = allocs_so_far() - before;
    weights_close(&loaded);
    return n;
}

/* Some for the file, none for a matrix. */
static void without_a_file_no_memory_is_taken_twice(void **state)
{
    (void)state;
    struct world w = world_open(WEIGHT_OWN);
    unsigned long without = allocations_of_a_load(&w, false);
    assert_true(allocations_of_a_load(&w, true) - without < 4 * w.c.layers);
    world_close(&w);
}

static void a_file_of_other_weights_is_ignored_and_written_again(void **state)
{
    (void)state;
    struct world a = world_open(WEIGHT_Q8), b = world_open(WEIGHT_Q8);
    expect(&a, "is not there");
    expect(&b, "is not there");
    files_copy(a.dir, a.name, b.dir);
    expect(&b,
           "is of other or changed weights, or in another layout, so the weights were "
           "packed; it is written");
    expect(&b, "packed weights from");

    // The same bytes, written anew: it cannot be known that they are.
    files_copy(TIED, "model.safetensors", b.dir);
    expect(&b, "is of other or changed weights");
    expect(&b, "packed weights from");
    world_close(&a);
    world_close(&b);
}

static void a_file_of_another_configuration_is_ignored_and_written_again(void **state)
{
    (void)state;
    struct world w = world_of(UNTIED, WEIGHT_Q8);
    assert_false(w.c.tied);
    expect(&w, "is not there");
    w.c.tied = true;  // the head is one matrix less; all others are the same
    expect(&w,
           "is of other or changed weights, or in another layout, so the weights were "
           "packed; it is written");
    expect(&w, "packed weights from");
    w.c.tied = false;
    expect(&w, "is of other or changed weights");
    world_close(&w);
}

static void a_folder_that_cannot_be_written_to_is_fine(void **state)
{
    (void)state;
    struct world w = world_open(WEIGHT_OWN);
    char blocked[4300];
    snprintf(blocked, sizeof blocked, "%s.new", path_of(&w));
    assert_int_equal(mkdir(blocked, 0700), 0);
    expect(&w, "is not there, so the weights were packed; it cannot be written (");
    assert_int_equal(access(path_of(&w), F_OK), -1);
    rmdir(blocked);
    expect(&w, "it is written");
    world_close(&w);
}

static void what_a_killed_writer_left_is_in_nobodys_way(void **state)
{
    (void)state;
    struct world w = world_open(WEIGHT_Q8);
    files_write(w.dir, "dormouse-q8.packed.new", "half", 4);
    expect(&w, "it is written");
    expect(&w, "packed weights from");
    char left[4300];
    snprintf(left, sizeof left, "%s.new", path_of(&w));
    assert_int_equal(access(left, F_OK), -1);
    world_close(&w);
}

static void what_a_killed_writer_left_goes_though_nothing_is_to_be_written(void **state)
{
    (void)state;
    static const char *const names[] = {"dormouse-q8.packed.new",
                                        "dormouse-bf16.packed.new"};
    struct world w = world_open(WEIGHT_Q8);
    char path[4300];
    expect(&w, "it is written");
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        files_write(w.dir, names[i], "half", 4);
    expect(&w, "packed weights from");
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", w.dir, names[i]);
        assert_int_equal(access(path, F_OK), -1);
    }
    world_close(&w);
}

static void what_another_process_is_writing_stays_its_own(void **state)
{
    (void)state;
    struct world w = world_open(WEIGHT_Q8);
    char path[4300];
    snprintf(path, sizeof path, "%s.new", path_of(&w));
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(write(fd, "half", 4), 4);
    expect(&w,
           "it is not written, because another process holds dormouse-q8.packed.new");
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 4);
    close(fd);
    expect(&w, "it is written");
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_load_takes_what_the_first_has_written),
        cmocka_unit_test(a_damaged_file_is_ignored_and_written_again),
        cmocka_unit_test(a_byte_that_belongs_to_nothing_is_damage_too),
        cmocka_unit_test(without_a_file_no_memory_is_taken_twice),
        cmocka_unit_test(a_file_of_other_weights_is_ignored_and_written_again),
        cmocka_unit_test(a_file_of_another_configuration_is_ignored_and_written_again),
        cmocka_unit_test(a_folder_that_cannot_be_written_to_is_fine),
        cmocka_unit_test(what_a_killed_writer_left_is_in_nobodys_way),
        cmocka_unit_test(
            what_a_killed_writer_left_goes_though_nothing_is_to_be_written),
        cmocka_unit_test(what_another_process_is_writing_stays_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
