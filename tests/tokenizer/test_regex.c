/* test_regex.c - classes of the reference engine, and bounded work. */
#include "kernels/utf8.h"
#include "tests/files.h"
#include "tokenizer/regex.h"
#include "tokenizer/regex_classes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CODE_POINTS 0x110000

static struct regex *open_pattern(const char *pattern, bool literal)
{
    struct regex *r = NULL;
    struct err err;
    if (regex_open(&r, pattern, strlen(pattern), literal, &err) < 0) {
        fail_msg("%s: %s", pattern, err.msg);
    }
    return r;
}

/* One line of the golden: a class, the number of its code points and their ranges. */
static void check_class(char *line)
{
    static bool member[CODE_POINTS];
    char *next, *name = strtok_r(line, " ", &next);
    memset(member, 0, sizeof member);
    strtok_r(NULL, " ", &next);
    for (char *range; (range = strtok_r(NULL, " ", &next));) {
        unsigned from, to;
        if (sscanf(range, "%x-%x", &from, &to) < 2) to = from;
        for (unsigned c = from; c <= to && c < CODE_POINTS; c++) member[c] = true;
    }
    struct regex *r = open_pattern(name, false);
    struct regex_run *run;
    struct err err;
    assert_int_equal(regex_run_open(&run, UINT64_MAX), 0);
    for (int32_t c = 0; c < CODE_POINTS; c++) {
        char s[4], seen[4];
        size_t from, to, n = utf8_encode(c, s);
        if (c >= 0xd800 && c <= 0xdfff) continue;
        regex_put_stand_ins(s, n, seen);
        assert_int_equal(regex_needs_stand_in(s, n), memcmp(s, seen, n) != 0);
        if (regex_find(r, run, seen, n, 0, &from, &to, &err) != member[c]) {
            fail_msg("U+%04X and %s", (unsigned)c, name);
        }
    }
    regex_run_close(run);
    regex_close(r);
}

static void classes_hold_the_code_points_of_the_reference(void **state)
{
    (void)state;
    char *text = files_read("tests/golden/tokenizers/unicode_classes.txt", NULL), *next;
    unsigned checked = 0;
    for (char *line = strtok_r(text, "\n", &next); line;
         line = strtok_r(NULL, "\n", &next)) {
        if (line[0] != '\\') continue;  // a comment, or Digits
        check_class(line);
        checked++;
    }
    assert_int_equal(checked, 11);
    free(text);
}

static void matches_are_found_where_they_are(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text;
        bool literal;
        size_t from;
        int found;
        size_t at, to;
    } cases[] = {
        {"b+", "abbc", false, 0, 1, 1, 3},
        {"b+", "abbc", false, 3, 0, 0, 0},
        {"(?<=a)b", "ab", false, 1, 1, 1, 2},
        {"^b", "a\nb", false, 0, 1, 2, 3},
        {"a$", "a\r\na\n", false, 0, 1, 3, 4},
        {"x*", "abc", false, 3, 1, 3, 3},
        {"a.", "a.xa.", true, 1, 1, 3, 5},
        {"(?i:'s)", "'\xc5\xbf", false, 0, 1, 0, 3},
        {"(?i:k)", "\xe2\x84\xaa", false, 0, 1, 0, 3},
    };
    struct regex_run *run;
    struct err err;
    assert_int_equal(regex_run_open(&run, 100000), 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct regex *r = open_pattern(cases[i].pattern, cases[i].literal);
        size_t at = 0, to = 0;
        assert_int_equal(regex_find(r, run, cases[i].text, strlen(cases[i].text),
                                    cases[i].from, &at, &to, &err),
                         cases[i].found);
        assert_int_equal(at, cases[i].at);
        assert_int_equal(to, cases[i].to);
        regex_close(r);
    }
    regex_run_close(run);
}

static void the_budget_is_shared_by_all_searches_of_a_run(void **state)
{
    (void)state;
    struct regex *r = open_pattern("a(?=a*b)|a", false);
    struct regex_run *run;
    struct err err = {0};
    char text[1000];
    memset(text, 'a', sizeof text);
    assert_int_equal(regex_run_open(&run, 10000), 0);
    size_t at = 0, to = 0;
    int rc = 1, found = 0;
    for (; rc == 1 && to < sizeof text; found++) {
        rc = regex_find(r, run, text, sizeof text, to, &at, &to, &err);
    }
    assert_int_equal(rc, -E2BIG);
    assert_in_range(found, 3, 12);
    assert_int_equal(regex_find(r, run, text, sizeof text, 0, &at, &to, &err), -E2BIG);
    regex_run_close(run);
    regex_close(r);
}

/* Groups that repeat need memory for each turn; where the JIT has not enough of it the
 * interpreter finds the same. */
static void deep_backtracking_costs_no_stack(void **state)
{
    (void)state;
    size_t n = 200000, at = 9, to = 0;
    char *text = malloc(n);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) text[i] = "ab"[i % 2];
    struct regex *r = open_pattern("(?:a|b|ab)+$", false);
    struct regex_run *run;
    struct err err = {0};
    assert_int_equal(regex_run_open(&run, UINT64_MAX), 0);
    assert_int_equal(regex_find(r, run, text, n, 0, &at, &to, &err), 1);
    assert_int_equal(at, 0);
    assert_int_equal(to, n);
    regex_run_close(run);
    regex_close(r);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_hold_the_code_points_of_the_reference),
        cmocka_unit_test(matches_are_found_where_they_are),
        cmocka_unit_test(the_budget_is_shared_by_all_searches_of_a_run),
        cmocka_unit_test(deep_backtracking_costs_no_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
