/* test_normalize.c - NFC as the reference makes it, in linear time. */
#include "kernels/utf8.h"
#include "tests/files.h"
#include "tokenizer/normalize.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect(const char *s, size_t n, const char *want, size_t n_want)
{
    struct normalized x = {0};
    assert_int_equal(normalize_nfc(&x, s, n, NULL, 0, 0), 0);
    if (x.n != n_want || (n_want && memcmp(x.text, want, n_want) != 0)) {
        fail_msg("\"%.*s\" became \"%.*s\", not \"%.*s\"", (int)n, s, (int)x.n, x.text,
                 (int)n_want, want);
    }
    normalized_free(&x);
}

/* The hexadecimal code points of a line, in UTF-8, from number `from` up to `to`. */
static size_t code_points(const char *line, int from, int to, char *out)
{
    size_t n = 0;
    int used;
    unsigned c;
    for (int i = 0; i < to && sscanf(line, "%x%n", &c, &used) == 1; i++, line += used) {
        if (i >= from) n += utf8_encode((int32_t)c, out + n);
    }
    return n;
}

/* Each line: the first `n_from` code points become the others. */
static void check_file(const char *path, int n_from, unsigned least)
{
    char *text = files_read(path, NULL), *next;
    unsigned checked = 0;
    for (char *line = strtok_r(text, "\n", &next); line;
         line = strtok_r(NULL, "\n", &next)) {
        if (line[0] == '#') continue;
        char from[64], to[64];
        size_t n = code_points(line, 0, n_from, from);
        size_t n_to = code_points(line, n_from, 16, to);
        expect(from, n, to, n_to);
        expect(to, n_to, to, n_to);
        checked++;
    }
    assert_true(checked > least);
    free(text);
}

static void single_code_points_become_those_of_the_reference(void **state)
{
    (void)state;
    check_file("tests/golden/tokenizers/nfc_singletons.txt", 1, 1000);
}

static void pairs_compose_as_in_the_reference(void **state)
{
    (void)state;
    check_file("tests/golden/tokenizers/nfc_pairs.txt", 2, 900);
}

#define TEXT(s) s, sizeof s - 1

static void marks_are_ordered_and_hangul_composes(void **state)
{
    (void)state;
    expect(TEXT("plain"), TEXT("plain"));
    expect(TEXT(""), TEXT(""));
    expect(TEXT("ae\xcc\x81z"), TEXT("a\xc3\xa9z"));
    expect(TEXT("q\xcc\x87\xcc\xa3"), TEXT("q\xcc\xa3\xcc\x87"));
    expect(TEXT("\xcc\x81\x61"), TEXT("\xcc\x81\x61"));
    expect(TEXT("\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab"), TEXT("\xed\x95\x9c"));
    expect(TEXT("\xed\x95\x98\xe1\x86\xab"), TEXT("\xed\x95\x9c"));
}

/* Marks in the worst order: sorting them by swapping neighbours takes minutes. */
static void a_megabyte_of_marks_is_ordered(void **state)
{
    (void)state;
    size_t pairs = (size_t)1 << 18, n = 4 * pairs;
    char *s = malloc(n);
    assert_non_null(s);
    for (size_t i = 0; i < pairs; i++) memcpy(s + 4 * i, "\xcc\x8d\xcc\xa9", 4);
    struct normalized x = {0};
    assert_int_equal(normalize_nfc(&x, s, n, NULL, 0, 0), 0);
    assert_int_equal(x.n, n);
    for (size_t i = 0; i < n; i += 2) {
        assert_memory_equal(x.text + i, i < n / 2 ? "\xcc\xa9" : "\xcc\x8d", 2);
    }
    normalized_free(&x);
    free(s);
}

static void what_a_plain_byte_becomes_is_plain(void **state)
{
    (void)state;
    static const char s[] = "abe\xcc\x81yz";  // a b e+acute y z
    static const struct {
        struct text_span plain, want;
    } cases[] = {
        {{0, 1}, {0, 1}}, {{1, 2}, {1, 2}}, {{2, 3}, {2, 4}}, {{4, 5}, {2, 4}},
        {{5, 6}, {4, 5}}, {{0, 7}, {0, 6}}, {{1, 4}, {1, 4}}, {{6, 7}, {5, 6}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct normalized x = {0};
        struct text_span plain = {cases[i].plain.from + 100, cases[i].plain.to + 100};
        assert_int_equal(normalize_nfc(&x, s, sizeof s - 1, &plain, 1, 100), 0);
        assert_int_equal(x.n, 6);
        assert_int_equal(x.n_plain, 1);
        assert_int_equal(x.plain[0].from, cases[i].want.from);
        assert_int_equal(x.plain[0].to, cases[i].want.to);
        normalized_free(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_code_points_become_those_of_the_reference),
        cmocka_unit_test(pairs_compose_as_in_the_reference),
        cmocka_unit_test(marks_are_ordered_and_hangul_composes),
        cmocka_unit_test(a_megabyte_of_marks_is_ordered),
        cmocka_unit_test(what_a_plain_byte_becomes_is_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
