/* test_jinja_limits.c - hostile templates end with an error, soon and on a small stack. */
#include "tests/tokenizer/templates.h"

#include <pthread.h>

#define STACK ((size_t)256 << 10)

/* Every test runs in a thread with as little stack as a server may give. */
struct job {
    void (*run)(void);
};

static void *run_job(void *arg)
{
    ((struct job *)arg)->run();
    return NULL;
}

static void on_small_stack(void (*run)(void))
{
    pthread_attr_t attr;
    pthread_t thread;
    struct job job = {run};
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attr, run_job, &job), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
}

/* cmocka's assertions jump, which they cannot out of another thread: results are kept
 * and looked at afterwards. */
static struct {
    int rc;
    struct err err;
    const char *source, *context;
} kept;

static void render_kept(void)
{
    struct chat_text out = {0};
    kept.err = (struct err){{0}};
    kept.rc = templates_try(kept.source, kept.context, &out, &kept.err);
    chat_text_free(&out);
}

static void stopped(const char *source, const char *context, int rc)
{
    kept.source = source;
    kept.context = context;
    on_small_stack(render_kept);
    if (kept.rc != rc)
        fail_msg("%.300s\n got %d %s\nwant %d", source, kept.rc, kept.err.msg, rc);
}

/* `before` n times, `middle`, `after` n times; free it. */
static char *nested(const char *before, const char *middle, const char *after, size_t n)
{
    size_t a = strlen(before), b = strlen(after), m = strlen(middle);
    char *s = malloc(n * (a + b) + m + 1), *at = s;
    assert_non_null(s);
    for (size_t i = 0; i < n; i++, at += a) memcpy(at, before, a);
    memcpy(at, middle, m);
    at += m;
    for (size_t i = 0; i < n; i++, at += b) memcpy(at, after, b);
    *at = 0;
    return s;
}

static void nesting(const char *before, const char *middle, const char *after, size_t n,
                    int rc)
{
    char *s = nested(before, middle, after, n);
    stopped(s, "{\"x\":1}", rc);
    free(s);
}

static void source_may_nest_a_little_but_not_without_end(void **state)
{
    (void)state;
    static const struct {
        const char *before, *middle, *after;
    } ways[] = {{"{% if x %}", "a", "{% endif %}"},
                {"{% for i in [1] %}", "a", "{% endfor %}"},
                {"{% macro m() %}", "a", "{% endmacro %}"},
                {"{% set y %}", "a", "{% endset %}"},
                {"{% filter upper %}", "a", "{% endfilter %}"},
                {"{% with %}", "a", "{% endwith %}"}};
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        nesting(ways[i].before, ways[i].middle, ways[i].after, 20, 0);
        nesting(ways[i].before, ways[i].middle, ways[i].after, 10000, -EINVAL);
    }
    static const struct {
        const char *before, *after;
    } inner[] = {{"(", ")"},
                 {"[", "]"},
                 {"not ", ""},
                 {"-", ""},
                 {"{'a':", "}"},
                 {"x[", "]"},
                 {"range(", ")"},
                 {"", ".a"},
                 {"", "|string"},
                 {"", "[0]"},
                 {"", "()"},
                 {"x if x else ", ""},
                 {"x is eq [", "]"},
                 {"", "[1:]"},
                 {"x|default(", ")"},
                 {"1 + (2 * (", "))"},
                 {"1 if x else (", ")"}};
    for (size_t i = 0; i < ARRAY_LEN(inner); i++) {
        char *e = nested(inner[i].before, "x", inner[i].after, 10000);
        char *s = nested("{{ ", e, " }}", 1);
        stopped(s, "{\"x\":1}", -EINVAL);
        free(s);
        free(e);
    }
}

static void long_sums_are_not_deep(void **state)
{
    (void)state;
    char *e = nested("1 + ", "1", "", 20000);
    char *s = nested("{{ ", e, " }}", 1);
    stopped(s, "{}", 0);
    free(s);
    free(e);
    e = nested("'a' ~ ", "1", " and 1", 20000);
    s = nested("{{ ", e, " }}", 1);
    stopped(s, "{}", 0);
    free(s);
    free(e);
}

static void the_context_may_not_nest_without_end(void **state)
{
    (void)state;
    char *deep = nested("[", "1", "]", 60), *s = nested("{\"x\":", deep, "}", 1);
    stopped("{{ x }}{{ x|tojson }}{{ x == [x] }}{{ x < x }}", s, 0);
    free(deep);
    free(s);
    deep = nested("[", "1", "]", 100000);
    s = nested("{\"x\":", deep, "}", 1);
    stopped("{{ x }}", s, -EINVAL);
    free(deep);
    free(s);
}

static void values_may_not_nest_without_end(void **state)
{
    (void)state;
    stopped("{% set n = namespace(x=[]) %}{% for i in range(99999) %}"
            "{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
            "{}", -E2BIG);
    stopped("{% set n = namespace(x=[], y=[]) %}{% for i in range(9999) %}"
            "{% set n.x = [n.x] %}{% set n.y = [n.y] %}{% endfor %}{{ n.x == n.y }}",
            "{}", -E2BIG);
    stopped("{% set n = namespace(x=[], y=[]) %}{% for i in range(9999) %}"
            "{% set n.x = [n.x] %}{% set n.y = [n.y] %}{% endfor %}{{ n.x < n.y }}",
            "{}", -E2BIG);
    stopped("{% set n = namespace(x=[]) %}{% for i in range(9999) %}"
            "{% set n.x = {'a': n.x} %}{% endfor %}{{ n.x | tojson }}",
            "{}", -E2BIG);
    stopped("{% set n = namespace() %}{% set n.x = n %}{{ n }}", "{}", -E2BIG);
}

static void recursion_ends(void **state)
{
    (void)state;
    stopped("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{}", -E2BIG);
    stopped("{% macro m(x) %}{% if x %}{% for i in [1] %}{{ (m(x) ~ 'a') | trim }}"
            "{% endfor %}{% endif %}{% endmacro %}{{ m(1) }}",
            "{}", -E2BIG);
    stopped("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}"
            "{% call m() %}x{% endcall %}",
            "{}", -E2BIG);
    stopped(
        "{% macro m() %}{{ caller }}{% call m() %}{{ m() }}{% endcall %}{% endmacro %}"
        "{% call m() %}x{% endcall %}",
        "{}", -E2BIG);
    stopped("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "{}", -E2BIG);
    stopped(
        "{% macro m(n) %}{% set a %}{% filter upper %}{{ [[[m(n)]]] }}{% endfilter %}"
        "{% endset %}{{ a }}{% endmacro %}{{ m(1) }}",
        "{}", -E2BIG);
    stopped("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
            "{% endmacro %}{{ f(30) }}",
            "{}", -E2BIG);
}

static void loops_end(void **state)
{
    (void)state;
    stopped("{% for i in range(1000000000000) %}x{% endfor %}", "{}", -EINVAL);
    stopped("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
            "{% endfor %}",
            "{}", -E2BIG);
    stopped(
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}"
        "{% endfor %}",
        "{}", -E2BIG);
    stopped("{{ ([1] * 10000000000) }}", "{}", -E2BIG);
    stopped("{% set n = namespace(x=[1]) %}{% for i in range(99) %}"
            "{% set n.x = n.x + n.x %}{% endfor %}",
            "{}", -E2BIG);
}

static void text_does_not_grow_without_end(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "{{ 'a' * 1000000000000 }}",
        "{{ 1000000000000000000000 * 'ab' }}",
        "{% set n = namespace(x='ab') %}{% for i in range(999) %}"
        "{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(999) %}"
        "{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(999) %}"
        "{% set n.x = n.x | replace('a', 'aa') | replace('b', 'bb') %}{% endfor %}",
        "{% set n = namespace(x='<') %}{% for i in range(9999) %}"
        "{% set n.x = n.x | string | e ~ '&&' %}{% endfor %}{% for i in range(9999) %}"
        "{{ n.x }}{% endfor %}",
        "{% set n = namespace(x='\"') %}{% for i in range(99) %}"
        "{% set n.x = n.x | tojson %}{% endfor %}",
        "{{ '%99999d' % 1 * 999 }}",
        "{% for i in range(99999) %}{{ '{:>99999}'.format(1) }}{% endfor %}",
        "{{ 'a' | indent(1000000000, true) }}",
        "{% set x = 'ab' * 1000000 %}{% for i in range(99999) %}{{ x[::-1] }}{% endfor "
        "%}",
        "{% set x = 'ab' * 1000000 %}{% for i in range(99999) %}{% if 'c' in x %}{% "
        "endif %}"
        "{% endfor %}",
        "{% set x = 'ab' * 1000000 %}{% for i in range(99999) %}{% set y = "
        "x.split('c') %}"
        "{% endfor %}",
        "{% set x = 'ab' * 1000000 %}{% for i in range(99999) %}{% set y = "
        "x.rfind('ac') %}"
        "{% endfor %}",
        "{% set x = ' ' * 1000000 %}{% for i in range(99999) %}{% set y = x | trim %}"
        "{% endfor %}",
        "{% set x = 'ab' * 1000000 %}{% for i in range(99999) %}{% if x == x ~ '' %}"
        "{% endif %}{% endfor %}",
        "{% set x = 'é' * 1000000 %}{% for i in range(99999) %}{{ x[999999] }}{% "
        "endfor %}",
        "{% set x = ['b'] * 90000 %}{% for i in range(99999) %}{% if 'c' in x %}{% "
        "endif %}"
        "{% endfor %}",
        "{% set x = ['b'] * 90000 %}{% for i in range(99999) %}{% set y = x | sort %}"
        "{% endfor %}",
    };
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) stopped(sources[i], "{}", -E2BIG);
}

static void numbers_stay_within_their_width(void **state)
{
    (void)state;
    stopped("{{ 2 ** 126 }} {{ -(2 ** 126) - 1 }}", "{}", 0);
    stopped("{{ 2 ** 127 }}", "{}", -EINVAL);
    stopped("{{ 10 ** 20 * 10 ** 20 }}", "{}", -EINVAL);
    stopped("{{ 2 ** 126 + 2 ** 126 }}", "{}", -EINVAL);
    stopped("{{ -(2 ** 126) - 2 ** 126 - 1 }}", "{}", -EINVAL);
    stopped("{{ 9 ** 9 ** 9 ** 9 }}", "{}", -EINVAL);
    stopped("{{ 999999999999999999999999999999999999999999 }}", "{}", -EINVAL);
    stopped("{{ 2.0 ** 10000 }}", "{}", -EINVAL);
    stopped("{{ 1 // 0 }}", "{}", -EINVAL);
    stopped("{{ 1 % 0 }}", "{}", -EINVAL);
    stopped("{{ 1.5 // 0 }}", "{}", -EINVAL);
    stopped("{{ 1e308 * 10 | int }}", "{}", 0);
    stopped("{{ (1e308 * 10) | int }}", "{}", 0);
    stopped("{{ 1e30 | int }}", "{}", 0);
    stopped("{{ x }}", "{\"x\": 1000000000000000000000000000000}", 0);
    stopped("{{ x }}", "{\"x\": 1000000000000000000000000000000000000000000}", -EINVAL);
    stopped("{{ 'abc'[:10 ** 30] }}{{ [1][-(10 ** 30)] }}{{ 'abc'[::10 ** 30] }}", "{}",
            0);
    stopped("{{ range(10 ** 30, 10 ** 30 + 2) }}", "{}", -EINVAL);
}

int main(void)
{
#if WATCHED_THREAD
    print_message(
        "skipped: one thread at a time has no race, and this takes a minute\n");
    return 0;
#endif
    const struct CMUnitTest t[] = {
        cmocka_unit_test(source_may_nest_a_little_but_not_without_end),
        cmocka_unit_test(long_sums_are_not_deep),
        cmocka_unit_test(the_context_may_not_nest_without_end),
        cmocka_unit_test(values_may_not_nest_without_end),
        cmocka_unit_test(recursion_ends),
        cmocka_unit_test(loops_end),
        cmocka_unit_test(text_does_not_grow_without_end),
        cmocka_unit_test(numbers_stay_within_their_width),
    };
    return cmocka_run_group_tests(t, NULL, NULL);
}
