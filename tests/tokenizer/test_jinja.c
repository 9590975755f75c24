/* test_jinja.c - the template language: against Jinja itself, and where it stops. */
#include "tests/files.h"
#include "tests/tokenizer/golden.h"
#include "tests/tokenizer/templates.h"
#include "tokenizer/jinja.h"

/* ---- against Jinja 3.1 -------------------------------------------------------- */

struct outcome {
    const char *kind;  // "text", "syntax", or the kind of the fault
    struct jinja_output text;
    struct jinja_fault fault;
    struct err err;
};

static void run_case(struct outcome *o, const char *source, size_t n,
                     struct json_value context)
{
    struct jinja *t = NULL;
    *o = (struct outcome){.kind = "text"};
    if (jinja_compile(&t, source, n, &o->err) != 0) {
        o->kind = "syntax";
        return;
    }
    struct jinja_input in = {
        .context = context, .context_size = 1000, .now = TEMPLATES_NOW};
    if (jinja_render(t, &in, &o->text, &o->fault) != 0) o->kind = o->fault.kind;
    jinja_free(t);
}

/* Is the outcome what the case says: the text, or an error of that kind? */
static bool right(const struct outcome *o, struct json_value c)
{
    struct json_value text = json_get(c, "text"), error = json_get(c, "error");
    size_t n;
    bool same;
    if (json_exists(text)) {
        char *want = json_string_dup(text, &n);
        same = strcmp(o->kind, "text") == 0 && n == o->text.n &&
               memcmp(want, o->text.text, n) == 0;
        free(want);
        return same;
    }
    if (!json_equals(error, o->kind)) return false;
    return !json_equals(error, "raise_exception") ||
           json_equals(json_get(c, "message"), o->fault.message);
}

static void every_feature_gives_what_jinja_gives(void **state)
{
    (void)state;
    struct golden g = golden_open("tests/golden/jinja_micro.json");
    unsigned wrong = 0, cases = 0;
    for (struct json_iter i = json_iter(json_get(g.root, "cases")); json_next(&i);) {
        size_t n;
        char *source = json_string_dup(json_get(i.value, "template"), &n);
        struct outcome o;
        run_case(&o, source, n, json_get(g.root, "context"));
        cases++;
        if (!right(&o, i.value)) {
            size_t raw;
            const char *want = json_raw(i.value, &raw);
            fprintf(stderr, "%.*s\n  got %s: %s%s%s\n", (int)raw, want, o.kind,
                    o.text.text ? o.text.text : "", o.fault.message, o.err.msg);
            wrong++;
        }
        jinja_output_free(&o.text);
        free(source);
    }
    golden_close(&g);
    assert_int_equal(wrong, 0);
    assert_true(cases > 160);
}

/* What the golden file does not ask; the texts are Jinja 3.1's. */
static void finer_points_are_as_in_jinja(void **state)
{
    (void)state;
    static const struct {
        const char *source, *want;
    } cases[] = {
        {"{% for x in [1] %}{% break %}{% else %}E{% endfor %}", "E"},
        {"{% for x in [] %}{% else %}{% set y = 1 %}{% endfor %}{{ y }}", ""},
        {"{% for x in [1,2,3] if x > 1 %}{{ x }}{{ loop.length }}{{ loop.last }} "
         "{% endfor %}",
         "22False 32True "},
        {"{% for x in [[1,[2]],[3,[]]] recursive %}{{ x[0] }}{{ loop.depth }}"
         "{% if x[1] %}({{ loop([[x[1][0],[]]]) }}){% endif %}{% endfor %}",
         "11(22)31"},
        {"{% macro m() %}{{ kwargs }}{% endmacro %}{% call m() %}{% endcall %}",
         "{'caller': <Macro anonymous>}"},
        {"{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'a': 2}) }}",
         "12"},
        {"{% macro m() %}{{ caller(3) }}{% endmacro %}"
         "{% call(x) m() %}{{ x }}{% endcall %}",
         "3"},
        {"{% with a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{% endwith "
         "%}",
         "21"},
        {"{% if false %}{% elif true %}x{% else %}y{% endif %}", "x"},
        {"{{ ' x y  '.split(none, 1) }}", "['x', 'y  ']"},
        {"{{ '%7s|%-4d|%05.1f' % ('ab', 3, 2.25) }}", "     ab|3   |002.2"},
        {"{{ '{:>4}{:,}{:.1%}'.format('a', 12345, 0.5) }}", "   a12,34550.0%"},
        {"{{ ('<a>' | e) + '<' }} {{ '<' ~ ('a' | safe) }}", "&lt;a&gt;&lt; <a"},
        {"{{ range(5, 0, -2) }} {{ range(3)[1] }} {{ 2 in range(3) }}",
         "range(5, 0, -2) 1 True"},
        {"{{ [3, 1] | sort(attribute='x') }} {{ none | map('upper') | list }}",
         "[3, 1] []"},
        {"{{ 1.25 | round(1) }} {{ 2.5 | round }} {{ 7 | round }} {{ -7.5 // 2 }}",
         "1.2 2.0 7 -4.0"},
        {"{{ 'a' in missing }}{{ missing is iterable }}{{ not missing }}",
         "FalseTrueTrue"},
        {"{{ [1, 2] < [1, 3] }}{{ 'a' < 'b' < 'c' }}{{ {'a': 1} == {'a': 1.0} }}",
         "TrueTrueTrue"},
        {"{{ '\xc3\xa9x'[0] }}{{ '\xc3\xa9x'[::-1] }}{{ 'x\xc3\xa9y'.find('y') }}",
         "\xc3\xa9x\xc3\xa9"
         "2"},
        {"{% raw -%} {{ a }} {%- endraw %}|{#- x -#} y", "{{ a }}|y"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        templates_expect(cases[i].source, "{}", cases[i].want);
}

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(every_feature_gives_what_jinja_gives),
        cmocka_unit_test(finer_points_are_as_in_jinja),
    };
    return cmocka_run_group_tests(t, NULL, NULL);
}
