/* test_chat.c - prompts by the models' own templates, and where templates are found. */
#include "tests/files.h"
#include "tests/tokenizer/golden.h"
#include "tests/tokenizer/templates.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>

/* ---- real templates ----------------------------------------------------------- */

static struct json_value context_of(struct json_value cases, struct json_value name)
{
    size_t n;
    char *wanted = json_string_dup(name, &n);
    struct json_value found = {0};
    for (struct json_iter i = json_iter(cases); json_next(&i);) {
        if (json_equals(json_get(i.value, "name"), wanted))
            found = json_get(i.value, "context");
    }
    free(wanted);
    return found;
}

/* One message list through one template: the recorded text, or an error where one is
 * recorded, with the template's own words where it refuses. */
static bool one_result(const struct chat_template *t, struct json_value result,
                       struct json_value context)
{
    struct chat_text out = {0};
    struct err err = {{0}};
    size_t n_raw, n = 0;
    const char *raw = json_raw(context, &n_raw);
    int rc = chat_render(t, raw, n_raw, TEMPLATES_NOW, &out, &err);
    char *text = json_string_dup(json_get(result, "text"), &n);
    char *message = json_string_dup(json_get(result, "message"), &n_raw);
    bool same =
        text ? rc == 0 && out.n == n && memcmp(out.text, text, n) == 0 : rc == -EINVAL;
    if (!text && same && json_equals(json_get(result, "error"), "raise_exception"))
        same = strncmp(err.msg, "the chat template refuses: ", 27) == 0 &&
               strncmp(err.msg + 27, message, 300) == 0;
    if (!same)
        fprintf(stderr, "got %d %s %s\nwant %s\n", rc, out.text ? out.text : "",
                err.msg, text ? text : message);
    chat_text_free(&out);
    free(text);
    free(message);
    return same;
}

/* Every context through one template; how many came out wrong. */
static unsigned one_template(const char *path, struct json_value cases)
{
    struct golden g = golden_open(path);
    struct chat_template *t = NULL;
    struct err err;
    size_t n;
    unsigned wrong = 0;
    char *source = json_string_dup(json_get(g.root, "source"), &n);
    char *bos = json_string_dup(json_get(g.root, "bos_token"), &n);
    char *eos = json_string_dup(json_get(g.root, "eos_token"), &n);
    if (!source) {  // beside it, in the folder of sources
        char *name = json_string_dup(json_get(g.root, "template"), &n), file[1024];
        snprintf(file, sizeof file, "%s/../templates-src/%s",
                 getenv("DORMOUSE_TEMPLATE_GOLDENS"), name);
        source = files_read(file, &n);
        free(name);
    }
    if (chat_open(&t, source, n, bos, eos, &err) != 0) {
        fprintf(stderr, "%s: %s\n", path, err.msg);
        wrong++;
    }
    for (struct json_iter i = json_iter(json_get(g.root, "results"));
         t && json_next(&i);) {
        struct json_value name = json_get(i.value, "case");
        if (one_result(t, i.value, context_of(cases, name))) continue;
        size_t raw;
        const char *label = json_raw(name, &raw);
        fprintf(stderr, "%s, case %.*s\n", path, (int)raw, label);
        wrong++;
    }
    chat_close(t);
    free(source);
    free(bos);
    free(eos);
    golden_close(&g);
    return wrong;
}

static void the_templates_of_real_models_give_the_recorded_prompts(void **state)
{
    (void)state;
    const char *dir = getenv("DORMOUSE_TEMPLATE_GOLDENS");
    DIR *d = dir && *dir ? opendir(dir) : NULL;
    if (!d) {
        print_message("skipped: DORMOUSE_TEMPLATE_GOLDENS names no folder\n");
        skip();
    }
    char path[1024];
    snprintf(path, sizeof path, "%s/cases.json", dir);
    struct golden cases = golden_open(path);
    unsigned wrong = 0, templates = 0;
    for (struct dirent *e; (e = readdir(d));) {
        const char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".json") != 0 || strcmp(e->d_name, "cases.json") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        wrong += one_template(path, cases.root);
        templates++;
    }
    closedir(d);
    golden_close(&cases);
    assert_int_equal(wrong, 0);
    assert_true(templates > 0);
}

/* ---- templates of our own ----------------------------------------------------- */

#define TURN  "{\"role\":\"user\",\"content\":\"hello\"}"
#define BRIEF "{\"role\":\"system\",\"content\":\"Be brief.\"}"

static void blocks_on_lines_of_their_own_leave_no_lines(void **state)
{
    (void)state;
    templates_expect("{{ bos_token }}\n"
                     "{% for message in messages %}\n"
                     "    {% if message['role'] == 'user' %}\n"
                     "<u>\n"
                     "{{ message['content'] }}</u>\n"
                     "    {% else %}\n"
                     "<{{ message['role'] }}>\n"
                     "{{ message['content'] }}</>\n"
                     "    {% endif %}\n"
                     "{% endfor %}\n"
                     "{% if add_generation_prompt %}\n"
                     "<a>\n"
                     "\n"
                     "{% endif %}\n",
                     "{\"messages\":[" BRIEF "," TURN
                     "],\"add_generation_prompt\":true}",
                     "<s>\n<system>\nBe brief.</>\n<u>\nhello</u>\n<a>\n\n");
}

static void a_refusal_carries_the_templates_own_words(void **state)
{
    (void)state;
    templates_refuse(
        "{{ raise_exception('Roles must alternate: ' ~ messages[0].role) }}",
        "{\"messages\":[" TURN "]}", -EINVAL,
        "the chat template refuses: Roles must alternate: user");
    templates_refuse("a\n{{ messages[0].content + 1 }}", "{\"messages\":[" TURN "]}",
                     -EINVAL, "TypeError on line 2");
    templates_refuse("{{ nothing.here }}", "{}", -EINVAL, "'nothing' is undefined");
    templates_refuse("{{ messages[0].x.y }}", "{\"messages\":[" TURN "]}", -EINVAL,
                     "'dict object' has no attribute 'x'");
}

static void what_is_not_supported_is_refused_by_name_and_line(void **state)
{
    (void)state;
    static const struct {
        const char *source, *why;
    } cases[] = {
        {"\n{{ x | rot13 }}", "line 2: there is no filter named 'rot13'"},
        {"{{ x is tasty }}", "line 1: there is no test named 'tasty'"},
        {"{{ l | map('rot13') }}", "no filter named 'rot13'"},
        {"{{ l | selectattr('a', 'tasty') }}", "no test named 'tasty'"},
        {"a\nb\n{% include 'x' %}", "line 3: the tag 'include' is not supported"},
        {"{% import 'x' as y %}", "the tag 'import'"},
        {"{% extends 'x' %}", "the tag 'extends'"},
        {"{% block x %}{% endblock %}", "the tag 'block'"},
        {"{% do x %}", "the tag 'do'"},
        {"{{ lipsum() }}", "the function 'lipsum' is not supported"},
        {"{{ cycler(1) }}", "the function 'cycler'"},
        {"{% if x %}", "has no 'elif else endif'"},
        {"{% endfor %}", "a stray 'endfor'"},
        {"{{ 1 + }}", "unexpected end of the print statement"},
        {"{{ x", "has no '}}'"},
        {"{% break %}", "'break' outside of a loop"},
        {"{{ '\\ud800' }}", "an escape that is no character"},
        {"{{ f(a=1, 2) }}", "a positional argument after a named one"},
        {"{# x", "a comment has no end"},
        {"{{ (1] }}", "unexpected ']'"},
        {"{{ 1 ? 2 }}", "unexpected character '?'"},
        {"\xff", "UTF-8"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        templates_refuse(cases[i].source, "{}", -EINVAL, cases[i].why);
    templates_expect("{{ x.rot13 is defined }}", "{\"x\":{}}", "False");
}

static void the_context_is_one_strict_json_object(void **state)
{
    (void)state;
    templates_refuse("", "", -EINVAL, "");
    templates_refuse("", "[]", -EINVAL, "it must be an object");
    templates_refuse("", "{\"a\":1,\"a\":2}", -EINVAL, "");
    templates_refuse("", "{\"a\":\"\\ud800\"}", -EINVAL, "");
    templates_refuse("", "{} x", -EINVAL, "");
    struct chat_text out =
        templates_render("{{ a }}|{{ a | length }}", "{\"a\":\"x\\u0000y\"}");
    assert_int_equal(out.n, 5);
    assert_memory_equal(out.text, "x\0y|3", 6);
    chat_text_free(&out);
}

static void an_error_leaves_the_result_untouched(void **state)
{
    (void)state;
    struct chat_text out = {.n = 7};
    struct err err;
    assert_int_equal(templates_try("{{ a.b }}", "{}", &out, &err), -EINVAL);
    assert_int_equal(out.n, 7);
    assert_null(out.text);
}

/* ---- where templates are found ------------------------------------------------ */

static struct chat_template *open_dir(const char *dir, int want, const char *why)
{
    struct chat_template *t = NULL;
    struct err err = {{0}};
    int rc = chat_open_dir(&t, dir, &err);
    if (rc != want || !strstr(err.msg, why)) fail_msg("got %d %s", rc, err.msg);
    return t;
}

static void expect_dir(const char *dir, const char *context, const char *want)
{
    struct chat_template *t = open_dir(dir, 0, "");
    struct chat_text out = {0};
    struct err err;
    assert_int_equal(chat_render(t, context, strlen(context), 0, &out, &err), 0);
    assert_string_equal(out.text, want);
    chat_text_free(&out);
    chat_close(t);
}

static void config(const char *dir, const char *json)
{
    files_write(dir, "tokenizer_config.json", json, strlen(json));
}

static void a_template_file_wins_over_the_configuration(void **state)
{
    (void)state;
    char *dir = files_temp_dir();
    open_dir(dir, -ENOENT, "no chat template");
    config(dir, "{\"eos_token\":\"</s>\"}");
    open_dir(dir, -ENOENT, "no chat template");
    config(dir, "{\"chat_template\":null}");
    open_dir(dir, -ENOENT, "no chat template");
    config(dir, "{\"chat_template\":\"old {{ bos_token }}\",\"bos_token\":\"<s>\"}");
    expect_dir(dir, "{}", "old <s>");
    files_write(dir, "chat_template.jinja", "new {{ bos_token }}\n", 20);
    expect_dir(dir, "{}", "new <s>");
    struct chat_template *t = open_dir(dir, 0, "");
    assert_non_null(strstr(chat_source_name(t), "chat_template.jinja"));
    assert_string_equal(chat_eos_token(t), "");
    chat_close(t);
    config(dir, "{\"bos_token\":{\"content\":\"<b>\",\"special\":true},"
                "\"eos_token\":{\"content\":\"<e>\"}}");
    expect_dir(dir, "{}", "new <b>");
    config(dir, "{\"bos_token\":null}");
    expect_dir(dir, "{}", "new ");
    config(dir, "{\"bos_token\":5}");
    open_dir(dir, -EINVAL, "bos_token is a number; it must be a string");
    config(dir, "{\"bos_token\":\"a\\u0000b\"}");
    open_dir(dir, -EINVAL, "NUL");
    config(dir, "{");
    open_dir(dir, -EINVAL, "tokenizer_config.json");
    files_remove_dir(dir);
}

static void a_pipe_is_refused_and_not_waited_for(void **state)
{
    (void)state;
    char path[256], *dir = files_temp_dir();
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    open_dir(dir, -EINVAL, "not a regular file");
    files_remove_dir(dir);
}

static void of_named_templates_the_default_serves_unless_tools_are_given(void **state)
{
    (void)state;
    char *dir = files_temp_dir();
    config(dir,
           "{\"chat_template\":["
           "{\"name\":\"rag\",\"template\":\"{% rag %}\"},"
           "{\"name\":\"default\",\"template\":\"plain\"},"
           "{\"name\":\"tool_use\",\"template\":\"tools {{ tools | length }}\"}]}");
    expect_dir(dir, "{}", "plain");
    expect_dir(dir, "{\"tools\":null}", "plain");
    expect_dir(dir, "{\"tools\":[{}]}", "tools 1");
    config(dir, "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"x\"}]}");
    open_dir(dir, -ENOENT, "no template \"default\"");
    config(dir, "{\"chat_template\":[{\"name\":\"default\"}]}");
    open_dir(dir, -EINVAL, "nothing");
    config(dir, "{\"chat_template\":7}");
    open_dir(dir, -EINVAL, "a number");
    config(dir, "{\"chat_template\":\"\\n{% rag %}\"}");
    open_dir(dir, -EINVAL, "line 2: the tag 'rag' is not supported");
    files_remove_dir(dir);
}

/* ---- size and threads --------------------------------------------------------- */

#define LOOP                                                                           \
    "{% set ns = namespace(t='') %}{% for m in messages %}"                            \
    "{% set ns.t = ns.t + '<' + m.role + '>' + m.content | trim %}{% endfor %}{{ "     \
    "ns.t }}"

/* `n` messages of about 1 KiB; free it. */
static char *conversation(size_t n)
{
    char *s = malloc(n * 1100 + 100), *at = s;
    assert_non_null(s);
    at += sprintf(at, "{\"messages\":[");
    for (size_t i = 0; i < n; i++) {
        at += sprintf(at, "%s{\"role\":\"user\",\"content\":\"", i ? "," : "");
        memset(at, 'a' + (int)(i % 26), 1000);
        at += 1000;
        at += sprintf(at, " \"}");
    }
    sprintf(at, "]}");
    return s;
}

static void a_long_conversation_is_well_within_the_limits(void **state)
{
    (void)state;
    char *s = conversation(4000);
    struct chat_text out = templates_render(LOOP, s);
    assert_int_equal(out.n, 4000 * 1006);
    assert_int_equal(out.n_plain, 4000);
    chat_text_free(&out);
    free(s);
}

struct worker {
    const struct chat_template *t;
    const char *context;
    size_t wrong;
};

static void *render_often(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < 50; i++) {
        struct chat_text out = {0};
        struct err err;
        int rc = chat_render(w->t, w->context, strlen(w->context), 0, &out, &err);
        w->wrong += rc != 0 || out.n != 20 * 1006;
        chat_text_free(&out);
    }
    return NULL;
}

static void threads_render_one_template_at_once(void **state)
{
    (void)state;
    struct chat_template *t = NULL;
    struct err err;
    char *s = conversation(20);
    pthread_t threads[4];
    struct worker workers[4];
    assert_int_equal(chat_open(&t, LOOP, strlen(LOOP), NULL, NULL, &err), 0);
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){t, s, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &workers[i]),
                         0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
    }
    chat_close(t);
    free(s);
}

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(the_templates_of_real_models_give_the_recorded_prompts),
        cmocka_unit_test(blocks_on_lines_of_their_own_leave_no_lines),
        cmocka_unit_test(a_refusal_carries_the_templates_own_words),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name_and_line),
        cmocka_unit_test(the_context_is_one_strict_json_object),
        cmocka_unit_test(an_error_leaves_the_result_untouched),
        cmocka_unit_test(a_template_file_wins_over_the_configuration),
        cmocka_unit_test(a_pipe_is_refused_and_not_waited_for),
        cmocka_unit_test(of_named_templates_the_default_serves_unless_tools_are_given),
        cmocka_unit_test(a_long_conversation_is_well_within_the_limits),
        cmocka_unit_test(threads_render_one_template_at_once),
    };
    return cmocka_run_group_tests(t, NULL, NULL);
}
