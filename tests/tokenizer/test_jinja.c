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

int main(void)
{
    const struct CMUnitTest t[] = {
        cmocka_unit_test(every_feature_gives_what_jinja_gives),
    };
    return cmocka_run_group_tests(t, NULL, NULL);
}
