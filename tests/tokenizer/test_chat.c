/* test_chat.c - prompts by the models' own templates, and where templates are found. */
#include "tests/files.h"
#include "tests/tokenizer/golden.h"
#include "tests/tokenizer/templates.h"

#include <dirent.h>
#include <unistd.h>

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
    bool same = text ? rc == 0 && out.n == n && memcmp(out.text, text, n) == 0
                     : rc == -EINVAL;
    if (!text && same && json_equals(json_get(result, "error"), "raise_exception"))
        same = strncmp(err.msg, "the chat template refuses: ", 27) == 0 &&
               strncmp(err.msg + 27, message, 300) == 0;
    if (!same)
        fprintf(stderr, "got %d %s %s\nwant %s\n", rc, out.text ? out.text : "", err.msg,
                text ? text : message);
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

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(the_templates_of_real_models_give_the_recorded_prompts),
    };
    return cmocka_run_group_tests(t, NULL, NULL);
}
