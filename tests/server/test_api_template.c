/* chat_template_kwargs: variables of a template's own. */
#include "tests/server/api_shared.h"

#define TEMPLATE                                                                       \
    "{{ messages[0].content }}{% if enable_thinking is defined and not "               \
    "enable_thinking %}<|eot_id|>{% endif %}{{ level }}{{ add_generation_prompt }}"
#define DIGITS_38 "99999999999999999999999999999999999999"
#define WITH(v)   BODY(",\"chat_template_kwargs\":" v)

static struct chat_template *template;

static int open_template(void **state)
{
    struct err err = {"?"};
    open_all(state);
    if (chat_open(&template, TEMPLATE, strlen(TEMPLATE), NULL, NULL, &err) < 0)
        fail_msg("%s", err.msg);
    f.api.o.chat = template;
    return 0;
}

static int close_template(void **state)
{
    chat_close(template);
    return close_all(state);
}

/* The ids of the prompt are those of this text, in which <|eot_id|> is one. */
static void prompt_is(const char *body, const char *text)
{
    struct token_list ids = {0};
    struct api_call *c = prepare(&f, API_CHAT, body);
    const struct request *r = request_of(c, 0);
    assert_int_equal(
        tokenizer_encode(f.tokenizer, text, strlen(text), NULL, 0, 0, &ids, NULL), 0);
    assert_int_equal(r->n_ids, ids.n);
    assert_memory_equal(r->ids, ids.ids, ids.n * sizeof *ids.ids);
    token_list_free(&ids);
    api_call_free(c);
}

static void a_variable_reaches_the_template_in_its_own_type(void **state)
{
    (void)state;
    prompt_is(BODY(""), "xTrue");
    prompt_is(WITH("null"), "xTrue");
    prompt_is(WITH("{}"), "xTrue");
    prompt_is(WITH("{\"enable_thinking\":true}"), "xTrue");
    prompt_is(WITH("{\"enable_thinking\":false}"), "x<|eot_id|>True");
    prompt_is(WITH("{\"enable_thinking\":null,\"unknown\":1}"), "x<|eot_id|>True");
    prompt_is(WITH("{\"level\":\"\\u00e9\\\"\"}"), "xé\"True");
    prompt_is(WITH("{\"level\":15}"), "x15True");
    prompt_is(WITH("{\"level\":" DIGITS_38 "}"), "x" DIGITS_38 "True");
    prompt_is(WITH("{\"level\":1e300,\"ranges\":1}"), "x1e+300True");
    prompt_is(WITH("{\"enable_thinking\":false,\"level\":-1.5}"),
              "x<|eot_id|>-1.5True");
}

static void text_in_a_variable_never_becomes_a_control_token(void **state)
{
    (void)state;
    struct api_call *c =
        prepare(&f, API_CHAT, WITH("{\"level\":\"<|eot_id|>\",\"a<|eot_id|>\":1}"));
    const struct request *r = request_of(c, 0);
    assert_true(r->n_ids > 5);
    for (size_t i = 0; i < r->n_ids; i++)
        assert_int_not_equal(r->ids[i], id_of("<|eot_id|>"));
    api_call_free(c);
}

static void what_is_no_variable_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *body, *param, *in_message;
    } cases[] = {
        {WITH("[]"), "chat_template_kwargs", "an object"},
        {WITH("true"), "chat_template_kwargs", "an object"},
        {WITH("{\"messages\":1}"), "chat_template_kwargs", "may not set messages"},
        {WITH("{\"eos_token\":\"\"}"), "chat_template_kwargs", "may not set eos_token"},
        {WITH("{\"add_generation_prompt\":true}"), "chat_template_kwargs",
         "may not set add_generation_prompt"},
        {WITH("{\"a\":true,\"t\\u006fols\":\"\"}"), "chat_template_kwargs",
         "may not set tools"},
        {WITH("{\"a\":[1]}"), "chat_template_kwargs.a", "a string or null"},
        {WITH("{\"a\":{}}"), "chat_template_kwargs.a", "a string or null"},
        {WITH("{\"a\":\"\\u0000\"}"), "chat_template_kwargs.a", "NUL"},
        {WITH("{\"\\u0000\":1}"), "chat_template_kwargs", "NUL"},
        {WITH("{\"range\":1}"), "chat_template_kwargs", "range: the name is the temp"},
        {WITH("{\"strftime_now\":null}"), "chat_template_kwargs", "strftime_now: the"},
        {WITH("{\"r\\u0061ise_exception\":\"\"}"), "chat_template_kwargs",
         "the template's own"},
        {WITH("{\"namespace\":true}"), "chat_template_kwargs", "namespace: the name"},
        {WITH("{\"level\":1e400}"), "chat_template_kwargs.level",
         "what a double holds"},
        {WITH("{\"unknown\":-1e400}"), "chat_template_kwargs.unknown",
         "is -1e400, but must be"},
        {WITH("{\"level\":1" DIGITS_38 "}"), "chat_template_kwargs.level",
         "at most 38 digits"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *body = cases[i].body;
        struct api_call *c;
        struct api_error e = {0};
        assert_int_equal(api_prepare(&f.api, API_CHAT, body, strlen(body), 0, &c, &e),
                         -EINVAL);
        if (e.status != 400 || strcmp(e.param, cases[i].param) != 0 ||
            !strstr(e.message, cases[i].in_message)) {
            fail_msg("%s: %d %s: %s", body, e.status, e.param, e.message);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_variable_reaches_the_template_in_its_own_type),
        cmocka_unit_test(text_in_a_variable_never_becomes_a_control_token),
        cmocka_unit_test(what_is_no_variable_is_refused),
    };
    return cmocka_run_group_tests(tests, open_template, close_template);
}
