/* test_chat_plain.c - what the user wrote stays known as such, through every operation. */
#include "tests/tokenizer/templates.h"

/* Checks that exactly the bytes marked in `map` are plain: '#' where the byte came from
 * the context, '.' where it is the template's. */
static void expect_map(const char *source, const char *context, const char *want,
                       const char *map)
{
    struct chat_text out = templates_render(source, context);
    if (out.n != strlen(want) || memcmp(out.text, want, out.n) != 0)
        fail_msg("%s\n got: %s\nwant: %s", source, out.text, want);
    char *got = malloc(out.n + 1);
    assert_non_null(got);
    memset(got, '.', out.n);
    got[out.n] = 0;
    size_t end = 0;
    for (size_t i = 0; i < out.n_plain; i++) {
        struct text_span s = out.plain[i];
        assert_true(s.from < s.to && s.to <= out.n && (i == 0 || s.from > end));
        memset(got + s.from, '#', s.to - s.from);
        end = s.to;
    }
    if (strcmp(got, map) != 0)
        fail_msg("%s\ntext: %s\n got: %s\nwant: %s", source, out.text, got, map);
    free(got);
    chat_text_free(&out);
}

static const char context[] =
    "{\"u\":\"Ab "
    "cD\",\"l\":[\"x\",\"y\"],\"d\":{\"k\":\"v\"},\"n\":42,\"e\":\"\xc3\xa9\","
    "\"q\":\"a\\\"b\",\"t\":true}";

static void each_operation_keeps_the_marks_of_its_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *source, *want, *map;
    } cases[] = {
        {"a{{ u }}b", "aAb cDb", ".#####."},
        {"{{ 'x' + u + 'y' }}", "xAb cDy", ".#####."},
        {"{{ u ~ '|' ~ u }}", "Ab cD|Ab cD", "#####.#####"},
        {"{{ ('-' + u + '-')[1:4] }}", "Ab ", "###"},
        {"{{ ('-' + u + '-')[0:2] }}", "-A", ".#"},
        {"{{ ('-' + u)[::-1] }}", "Dc bA-", "#####."},
        {"{{ (' ' + u + ' ') | trim }}!", "Ab cD!", "#####."},
        {"{{ u.replace('b', 'ZZ') }}", "AZZ cD", "#..###"},
        {"{{ 'abc'.replace('b', u) }}", "aAb cDc", ".#####."},
        {"{{ ('p ' + u).split() | join('+') }}", "p+Ab+cD", "..##.##"},
        {"{{ l | join('-') }}", "x-y", "#.#"},
        {"{{ ', '.join(l) }}", "x, y", "#..#"},
        {"{{ u | upper }}{{ u | lower }}", "AB CDab cd", "##########"},
        {"{{ ('x y ' + u) | title }}", "X Y Ab Cd", "....#####"},
        {"{{ ('x' + e) | upper }}", "X\xc3\x89", ".##"},
        {"{{ u | tojson }}", "\"Ab cD\"", ".#####."},
        {"{{ q | tojson }}", "\"a\\\"b\"", ".####."},
        {"{{ d | tojson }}", "{\"k\": \"v\"}", "..#....#.."},
        {"{{ {'k': u} | tojson }}", "{\"k\": \"Ab cD\"}", ".......#####.."},
        {"{{ d }}", "{'k': 'v'}", "..#....#.."},
        {"{{ '%s=%s' % ('k', u) }}", "k=Ab cD", "..#####"},
        {"{{ 'k={}'.format(u) }}", "k=Ab cD", "..#####"},
        {"{{ u.format() }}", "Ab cD", "#####"},
        {"{{ '%7s|' % u }}", "  Ab cD|", "..#####."},
        {"{{ n }}{{ n + 1 }}{{ '%d' % n }}{{ 1 }}", "4243421", "######."},
        {"{{ u[0] * 3 }}", "AAA", "###"},
        {"{{ u | length }}", "5", "."},
        {"{{ u | e }}{{ '<' | e }}", "Ab cD&lt;", "#####...."},
        {"{{ q | e }}", "a&#34;b", "#######"},
        {"{{ u | urlencode }}", "Ab%20cD", "#######"},
        {"{{ ('a\n' + u) | indent(2) }}", "a\n  Ab cD", "....#####"},
        {"{{ u | replace('A', 'B') | capitalize }}", "Bb cd", ".####"},
        {"{{ u | list | join }}", "Ab cD", "#####"},
        {"{{ u | reverse }}", "Dc bA", "#####"},
        {"{{ [u, 'b'] | sort | last }}", "b", "."},
        {"{% for c in u %}{{ c }}.{% endfor %}", "A.b. .c.D.", "#.#.#.#.#."},
        {"{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", "k=v", "#.#"},
        {"{% set x %}<{{ u }}>{% endset %}{{ x }}", "<Ab cD>", ".#####."},
        {"{% set ns = namespace(x='') %}{% for i in l %}{% set ns.x = ns.x + i + ';' %}"
         "{% endfor %}{{ ns.x }}",
         "x;y;", "#.#."},
        {"{% macro m(a, b='B') %}{{ a }}{{ b }}{% endmacro %}{{ m(u) }}{{ m('x', u) }}",
         "Ab cDBxAb cD", "#####..#####"},
        {"{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}c{{ l[0] }}{% "
         "endcall %}",
         "[cx]", "..#."},
        {"{% filter upper %}a{{ l[0] }}{% endfilter %}", "AX", ".#"},
        {"{{ bos_token }}{{ u }}{{ eos_token }}", "<s>Ab cD</s>", "...#####...."},
        {"{{ strftime_now('%Y') }}", "2024", "...."},
        {"{{ u if t else 'x' }}{{ 'x' if t else u }}", "Ab cDx", "#####."},
        {"{{ u | default('x') }}{{ missing | default('x') }}{{ missing | default(u) }}",
         "Ab cDxAb cD", "#####.#####"},
        {"{{ u.split('b')[0] }}{{ u.partition(' ')[2] }}", "AcD", "###"},
        {"{{ ('x' ~ u ~ 'x').strip('xA') }}", "b cD", "####"},
        {"{{ l | map('upper') | join }}", "XY", "##"},
        {"{{ dict(a=u).a }}{{ namespace(a=u).a }}", "Ab cDAb cD", "##########"},
        {"{{ (('a' + u) | safe) + '<' }}", "aAb cD&lt;", ".#####...."},
        {"{{ '42' | int }}{{ ('4' + l[0]) | int(7) }}", "427", "..."},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        expect_map(cases[i].source, context, cases[i].want, cases[i].map);
}

static void a_known_role_is_no_text_of_the_users(void **state)
{
    (void)state;
    expect_map("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}",
               "{\"messages\":[{\"role\":\"user\",\"content\":\"user\"},"
               "{\"role\":\"x|>\",\"content\":\"\"}]}",
               "<|user|>user<|x|>|>", "........####..###..");
}

/* A message that holds what looks like control tokens, through templates that do all
 * kinds of things to it: no such text is ever outside of the plain spans, unless the
 * template itself wrote it. */
static void look_alikes_are_always_plain(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "{% for m in messages %}<A>{{ m.role }}\n{{ m.content }}<B>{% endfor %}",
        "{% for m in messages %}{{ '<A>' + m['role'] + m['content'] | trim + '<B>' }}"
        "{% endfor %}",
        "{{ messages }}",
        "{{ messages | tojson(indent=2) }}",
        "{{ messages | map(attribute='content') | join('<B>') }}",
        "{% for m in messages %}{{ '%s<B>%s' % (m.role, m.content) }}{% endfor %}",
        "{% for m in messages %}{% for p in m.content.split('x') %}{{ p }}<B>{% endfor "
        "%}"
        "{% endfor %}",
        "{% set ns = namespace(t='') %}{% for m in messages %}"
        "{% set ns.t = ns.t ~ m.content ~ '<B>' %}{% endfor %}{{ ns.t }}",
        "{% for m in messages %}{{ m.content | replace('x', '<B>') }}{% endfor %}",
        "{% for m in messages %}{{ m.content | list | join }}{% endfor %}",
        "{% for m in messages %}{{ '{0}<B>{0}'.format(m.content) }}{% endfor %}",
        "{% for m in messages %}{{ m.content[:-1] ~ m.content[-1:] }}{% endfor %}",
        "{% macro p(m) %}{{ m.content }}<B>{% endmacro %}"
        "{% for m in messages %}{{ p(m) | indent(1) }}{% endfor %}",
        "{% for m in messages %}{% set c %}{{ m.content }}{% endset %}{{ c + c }}"
        "{% endfor %}",
        "{% for m in messages if m.content %}{{ (m.content ~ '').strip() * 2 }}{% "
        "endfor %}",
        "{% for k, v in messages[0].items() %}{{ k }}{{ v }}{% endfor %}",
        "{{ messages[0].content | default('') | string | safe }}",
        "{{ messages[0].content.rsplit('x', 1) | last }}{{ messages[0].content | first "
        "}}",
        "{{ (messages | selectattr('role', 'equalto', 'user') | list)[0].content }}",
    };
    static const char messages[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"<T>x a<T><T> xy <T>\"},"
        "{\"role\":\"assistant\",\"content\":\" <T>x<T>\"},"
        "{\"role\":\"user<T>\",\"content\":\"\\u00e9<T>\\n<T>\"}]}";
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        struct chat_text out = templates_render(sources[i], messages);
        size_t found = 0;
        for (const char *p = out.text;
             (p = memmem(p, (size_t)(out.text + out.n - p), "<T>", 3)); p++) {
            size_t at = (size_t)(p - out.text), covered = 0;
            for (size_t k = 0; k < out.n_plain; k++) {
                if (out.plain[k].from <= at && at + 3 <= out.plain[k].to) covered++;
            }
            if (covered != 1) fail_msg("%s\n%s", sources[i], out.text);
            found++;
        }
        for (const char *p = out.text;
             (p = memmem(p, (size_t)(out.text + out.n - p), "<B>", 3)); p++) {
            size_t at = (size_t)(p - out.text);
            for (size_t k = 0; k < out.n_plain; k++)
                assert_true(out.plain[k].to <= at || out.plain[k].from >= at + 3);
        }
        assert_true(found > 0);
        chat_text_free(&out);
    }
}

static void a_text_without_context_has_no_plain_span(void **state)
{
    (void)state;
    struct chat_text out = templates_render("{{ 'a' }}b{{ bos_token }}", "{}");
    assert_int_equal(out.n_plain, 0);
    assert_null(out.plain);
    chat_text_free(&out);
    chat_text_free(&out);
}

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(each_operation_keeps_the_marks_of_its_bytes),
        cmocka_unit_test(a_known_role_is_no_text_of_the_users),
        cmocka_unit_test(look_alikes_are_always_plain),
        cmocka_unit_test(a_text_without_context_has_no_plain_span),
    };
    return cmocka_run_group_tests(t, NULL, NULL);
}
