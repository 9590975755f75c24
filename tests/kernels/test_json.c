/* test_json.c - what is JSON and what is not, and that reading it gives it back. */
#include "kernels/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

static struct json *open_text(const char *text)
{
    struct json *j = NULL;
    struct err err = {0};
    if (json_open(&j, text, strlen(text), 64, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return j;
}

static void refuse_bytes(const char *text, size_t n, const char *why)
{
    struct err err = {0};
    if (json_check(text, n, 64, &err) != -EINVAL) fail_msg("%s was accepted", text);
    if (!strstr(err.msg, why))
        fail_msg("%s: \"%s\" does not say %s", text, err.msg, why);
    struct json *j = NULL;
    assert_int_equal(json_open(&j, text, n, 64, NULL), -EINVAL);
    assert_null(j);
}

static void refuse(const char *text, const char *why)
{
    refuse_bytes(text, strlen(text), why);
}

static char *repeat(const char *piece, size_t times)
{
    size_t size = strlen(piece);
    char *s = malloc(size * times + 1);
    assert_non_null(s);
    for (size_t i = 0; i < times; i++) memcpy(s + i * size, piece, size);
    s[size * times] = '\0';
    return s;
}

static void every_kind_of_value_is_accepted_at_the_top(void **state)
{
    (void)state;
    static const char *const good[] = {
        "0",        "-0",      "10",       "1.5",     "-1.5e+10",
        "1E-2",     "0e0",     "true",     "false",   "null",
        "\"\"",     "[]",      "{}",       " [ ] ",   "[1,2]",
        "{\"\":1}", "\n1\t\r", "\"\x7f\"", "[[],{}]", "\"\\/\\b\\f\"",
    };
    for (size_t i = 0; i < ARRAY_LEN(good); i++) json_close(open_text(good[i]));
}

static void broken_grammar_is_refused_where_it_breaks(void **state)
{
    (void)state;
    refuse("", "byte 0: expected a value");
    refuse("  ", "byte 2: expected a value");
    refuse("[1,]", "byte 3: expected a value");
    refuse("{\"a\":1,}", "byte 7: expected a key");
    refuse("{a:1}", "byte 1: expected a key");
    refuse("{\"a\" 1}", "byte 5: expected ':'");
    refuse("{\"a\":}", "byte 5: expected a value");
    refuse("[1 2]", "byte 3: expected ',' or ']'");
    refuse("{\"a\":1]", "byte 6: expected ',' or '}'");
    refuse("[1}", "byte 2: expected ',' or ']'");
    refuse("[", "byte 1: expected a value");
    refuse("{\"a\":[1", "byte 7: expected ',' or ']'");
    refuse("1 2", "byte 2: something follows");
    refuse("[]]", "byte 2: something follows");
    refuse("'a'", "expected a value");
    refuse("nul", "expected a value");
    refuse("True", "expected a value");
    refuse("NaN", "expected a value");
    refuse("// c\n1", "expected a value");
    refuse("\xEF\xBB\xBF{}", "byte 0: expected a value");
    refuse("truex", "byte 4: something follows");
    refuse_bytes("[1]\0", 4, "byte 3: something follows");
    refuse_bytes("[1,\0", 4, "byte 3: expected a value");
}

static void numbers_follow_the_grammar(void **state)
{
    (void)state;
    static const char *const bad[] = {"01", "-",   "-01", "1.", "1.e5",
                                      "1e", "1e+", "-a",  "00", "1.-2"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) refuse(bad[i], "bad number");
    refuse("+1", "expected a value");
    refuse(".5", "expected a value");
    refuse("0x10", "something follows");
}

static void strings_hold_well_formed_unicode_only(void **state)
{
    (void)state;
    json_close(open_text(
        "\"\xC2\x80\xE0\xA0\x80\xED\x9F\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF\""));
    static const char *const bad[] = {
        "\"\x80\"",
        "\"\xC0\xAF\"",
        "\"\xC1\x80\"",
        "\"\xE0\x9F\xBF\"",
        "\"\xED\xA0\x80\"",
        "\"\xF0\x8F\xBF\xBF\"",
        "\"\xF4\x90\x80\x80\"",
        "\"\xF5\x80\x80\x80\"",
        "\"\xFF\"",
        "\"\xC2\"",
        "\"\xE2\x82\"",
        "\"\xF0\x9F\x98\"",
        "\"\xE2\x82",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) refuse(bad[i], "byte 1: invalid UTF-8");
    refuse("\"\n\"", "byte 1: control character");
    refuse("\"\x1f\"", "control character");
    refuse_bytes("\"\0\"", 3, "control character");
    refuse("\"abc", "byte 0: string without an end");
    refuse("\"abc\\\"", "string without an end");
    refuse("\"\\", "byte 1: bad escape");
    refuse("\"\\x\"", "bad escape");
    refuse("\"\\u12\"", "bad \\u escape");
    refuse("\"\\u12g4\"", "bad \\u escape");
    refuse("\"\\u", "bad \\u escape");
}

static void half_a_surrogate_pair_is_refused(void **state)
{
    (void)state;
    refuse("\"\\ud83d\"", "byte 1: lone surrogate");
    refuse("\"\\ude00\"", "lone surrogate");
    refuse("\"\\ude00\\ud83d\"", "lone surrogate");
    refuse("\"\\ud83d\\ud83d\"", "lone surrogate");
    refuse("\"\\ud83dx\"", "lone surrogate");
    refuse("\"\\ud83d\\u00", "lone surrogate");
    refuse("\"\\ud83d\\n\"", "lone surrogate");
    json_close(open_text("\"\\ud83d\\ude00\""));
}

static void a_key_may_stand_once_in_an_object_however_it_is_written(void **state)
{
    (void)state;
    refuse("{\"a\":1,\"a\":1}", "byte 7: duplicate key");
    refuse("{\"a\":1,\"b\":2,\"\\u0061\":3}", "byte 13: duplicate key");
    refuse("{\"\":1,\"\":2}", "duplicate key");
    refuse("[{\"x\":{\"k\":1,\"j\":2,\"k\":3}}]", "byte 19: duplicate key");
    refuse("{\"\\ud83d\\ude00\":1,\"\xF0\x9F\x98\x80\":2}", "duplicate key");
    refuse("{\"a\":{\"b\":1},\"a\":0}", "byte 13: duplicate key");
    json_close(
        open_text("{\"a\":{\"a\":[{\"a\":1},{\"a\":1}]},\"A\":1,\"aa\":1,\"\":1}"));
    json_close(open_text("{\"a\\u0000\":1,\"a\":2,\"a\\u0000b\":3}"));
}

static void a_hundred_thousand_keys_are_told_apart(void **state)
{
    (void)state;
    enum { N = 100000 };
    char *text = malloc(N * 20 + 40);
    assert_non_null(text);
    size_t n = 0;
    for (int i = 0; i < N; i++)
        n += (size_t)sprintf(text + n, "%c\"key%d\":%d", i ? ',' : '{', i, i);
    size_t open = n;
    n += (size_t)sprintf(text + n, "}");
    assert_int_equal(json_check(text, n, 1, NULL), 0);

    n = open + (size_t)sprintf(text + open, ",\"key\\u00357\":0}");
    struct err err = {0};
    assert_int_equal(json_check(text, n, 1, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "duplicate key"));
    free(text);
}

static void nesting_stops_at_the_limit(void **state)
{
    (void)state;
    for (uint32_t depth = 1; depth < 70; depth++) {
        char *open = repeat("[", depth), *close = repeat("]", depth);
        char text[160];
        int n = snprintf(text, sizeof text, "%s%s", open, close);
        int rc = json_check(text, (size_t)n, 64, NULL);
        assert_int_equal(rc, depth <= 64 ? 0 : -EINVAL);
        free(open);
        free(close);
    }
    refuse("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
           "byte 64: nesting deeper than 64");
    assert_int_equal(json_check("[]", 2, 0, NULL), -EINVAL);
    assert_int_equal(json_check("1", 1, 0, NULL), 0);
}

static void values_and_keys_stop_at_the_limit(void **state)
{
    (void)state;
    static const char text[] = "{\"a\":[1,\"b\",{}],\"c\":null}";  // eight of them
    struct json *j = NULL;
    struct err err = {0};
    size_t n = sizeof text - 1;
    assert_int_equal(json_open_bounded(&j, text, n, 8, 8, &err), 0);
    assert_int_equal(json_count(json_root(j)), 2);
    json_close(j);
    for (size_t most = 0; most < 8; most++) {
        assert_int_equal(json_open_bounded(&j, text, n, 8, most, &err), -E2BIG);
        char right[64];
        snprintf(right, sizeof right, "more than %zu JSON values and keys", most);
        assert_string_equal(err.msg, right);
    }
}

static void two_hundred_thousand_levels_cost_no_stack(void **state)
{
    (void)state;
    // The limit counts from where the stack is now; a recursion of this depth needs more.
    struct rlimit old, small = {256 << 10, 256 << 10};
    assert_int_equal(getrlimit(RLIMIT_STACK, &old), 0);
    small.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_STACK, &small), 0);
    static const char *const pieces[] = {"[", "{\"a\":", "[{\"a\":"};
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
        char *text = repeat(pieces[i], 200000);
        size_t n = strlen(text);
        assert_int_equal(json_check(text, n, JSON_MAX_DEPTH, NULL), -EINVAL);
        assert_int_equal(json_check(text, n, UINT32_MAX, NULL), -EINVAL);
        free(text);
    }
    assert_int_equal(setrlimit(RLIMIT_STACK, &old), 0);
}

static void members_are_found_and_counted(void **state)
{
    (void)state;
    struct json *j =
        open_text("{\"a\":{\"x\":[1,[2,3],{}]},\"b\\n\":null,\"c\":\"v\"}");
    struct json_value root = json_root(j), a = json_get(root, "a"),
                      x = json_get(a, "x");
    assert_true(json_is(root, JSON_OBJECT));
    assert_int_equal(json_count(root), 3);
    assert_int_equal(json_count(a), 1);
    assert_int_equal(json_count(x), 3);
    assert_true(json_is(json_get(root, "b\n"), JSON_NULL));
    assert_true(json_equals(json_get(root, "c"), "v"));
    assert_false(json_exists(json_get(root, "x")));
    assert_false(json_exists(json_get(x, "a")));
    assert_false(json_exists(json_get(json_get(root, "none"), "deeper")));
    assert_int_equal(json_count(json_get(root, "c")), 0);
    assert_string_equal(json_type_name(json_get(root, "none")), "nothing");
    assert_string_equal(json_type_name(x), "an array");
    json_close(j);
}

static void iteration_gives_elements_in_document_order(void **state)
{
    (void)state;
    struct json *j = open_text("[[1,[2]],{\"k\":{\"d\":[]},\"l\":5},\"s\",7]");
    static const char *const want[] = {"[1,[2]]", "{\"k\":{\"d\":[]},\"l\":5}", "\"s\"",
                                       "7"};
    uint32_t n = 0;
    for (struct json_iter i = json_iter(json_root(j)); json_next(&i); n++) {
        size_t size;
        const char *raw = json_raw(i.value, &size);
        assert_int_equal(size, strlen(want[n]));
        assert_memory_equal(raw, want[n], size);
        assert_false(json_exists(i.key));
        if (n != 1) continue;
        struct json_iter m = json_iter(i.value);
        assert_true(json_next(&m) && json_equals(m.key, "k") &&
                    json_count(m.value) == 1);
        assert_true(json_next(&m) && json_equals(m.key, "l"));
        assert_false(json_next(&m));
    }
    assert_int_equal(n, 4);
    json_close(j);
}

static void strings_come_back_unescaped(void **state)
{
    (void)state;
    struct json *j =
        open_text("[\"a\\\"\\\\\\/"
                  "\\b\\f\\n\\r\\t\\u00e9\\u20ac\\ud83d\\ude00\",\"x\\u0000y\",5]");
    struct json_iter i = json_iter(json_root(j));
    static const char want[] = "a\"\\/\b\f\n\r\t\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
    char buf[64];
    size_t n;
    assert_true(json_next(&i));
    assert_int_equal(json_string_size(i.value), sizeof want - 1);
    assert_int_equal(json_string(i.value, buf, sizeof want, &n), 0);
    assert_int_equal(n, sizeof want - 1);
    assert_memory_equal(buf, want, sizeof want);
    assert_int_equal(json_string(i.value, buf, sizeof want - 1, &n), -ENOSPC);
    assert_true(json_equals(i.value, want));
    assert_false(json_equals(i.value, "a"));
    assert_false(
        json_equals(i.value, "a\"\\/\b\f\n\r\t\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z"));

    assert_true(json_next(&i));
    char *dup = json_string_dup(i.value, &n);
    assert_int_equal(n, 3);
    assert_memory_equal(dup, "x\0y", 4);
    assert_false(json_equals(i.value, "x"));
    free(dup);

    assert_true(json_next(&i));
    assert_null(json_string_dup(i.value, NULL));
    assert_int_equal(json_string(i.value, buf, sizeof buf, &n), -EINVAL);
    json_close(j);
}

static void integers_are_exact_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool u, i;
        uint64_t u64;
        int64_t i64;
    } cases[] = {
        {"0", true, true, 0, 0},
        {"-0", false, true, 0, 0},
        {"18446744073709551615", true, false, UINT64_MAX, 0},
        {"18446744073709551616", false, false, 0, 0},
        {"9223372036854775807", true, true, INT64_MAX, INT64_MAX},
        {"9223372036854775808", true, false, (uint64_t)1 << 63, 0},
        {"-9223372036854775808", false, true, 0, INT64_MIN},
        {"-9223372036854775809", false, false, 0, 0},
        {"1.0", false, false, 0, 0},
        {"1e3", false, false, 0, 0},
        {"\"1\"", false, false, 0, 0},
        {"true", false, false, 0, 0},
    };
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        struct json *j = open_text(cases[k].text);
        uint64_t u = 99;
        int64_t i = 99;
        assert_int_equal(json_u64(json_root(j), &u), cases[k].u);
        assert_int_equal(json_i64(json_root(j), &i), cases[k].i);
        assert_true(u == (cases[k].u ? cases[k].u64 : 99));
        assert_true(i == (cases[k].i ? cases[k].i64 : 99));
        json_close(j);
    }
}

static void doubles_and_booleans_are_read(void **state)
{
    (void)state;
    struct json *j = open_text("[1e-06,-2.5,1e999,true,false,1e-999]");
    double d = 0;
    bool b = false;
    struct json_iter i = json_iter(json_root(j));
    assert_true(json_next(&i) && json_double(i.value, &d) && d == 1e-6);
    assert_true(json_next(&i) && json_double(i.value, &d) && d == -2.5);
    assert_true(json_next(&i) && !json_double(i.value, &d));
    assert_true(json_next(&i) && json_bool(i.value, &b) && b);
    assert_true(json_next(&i) && json_bool(i.value, &b) && !b);
    assert_false(json_double(i.value, &d));
    assert_true(json_next(&i) && json_double(i.value, &d) && d == 0);
    assert_false(json_bool(i.value, &b));
    json_close(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_value_is_accepted_at_the_top),
        cmocka_unit_test(broken_grammar_is_refused_where_it_breaks),
        cmocka_unit_test(numbers_follow_the_grammar),
        cmocka_unit_test(strings_hold_well_formed_unicode_only),
        cmocka_unit_test(half_a_surrogate_pair_is_refused),
        cmocka_unit_test(a_key_may_stand_once_in_an_object_however_it_is_written),
        cmocka_unit_test(a_hundred_thousand_keys_are_told_apart),
        cmocka_unit_test(nesting_stops_at_the_limit),
        cmocka_unit_test(values_and_keys_stop_at_the_limit),
        cmocka_unit_test(two_hundred_thousand_levels_cost_no_stack),
        cmocka_unit_test(members_are_found_and_counted),
        cmocka_unit_test(iteration_gives_elements_in_document_order),
        cmocka_unit_test(strings_come_back_unescaped),
        cmocka_unit_test(integers_are_exact_or_refused),
        cmocka_unit_test(doubles_and_booleans_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
