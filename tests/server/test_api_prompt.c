/* From messages and prompts to token ids. */
#include "tests/server/api_shared.h"

static void refuses(enum api_kind kind, const char *body, const char *param,
                    const char *in_message)
{
    struct api_call *c;
    struct api_error e = {0};
    assert_int_equal(api_prepare(&f.api, kind, body, strlen(body), 0, &c, &e), -EINVAL);
    if (e.status != 400 || strcmp(e.param, param) != 0 ||
        !strstr(e.message, in_message)) {
        fail_msg("%s: %d %s: %s", body, e.status, e.param, e.message);
    }
}

static void assert_ids(struct api_call *c, uint32_t part, const int32_t *ids, size_t n)
{
    const struct request *r = request_of(c, part);
    assert_int_equal(r->n_ids, n);
    if (n > 0) assert_memory_equal(r->ids, ids, n * sizeof *ids);
}

/* The ids of a recorded body, a chat for tiny-rand. */
static struct api_call *prepare_file(const char *name)
{
    size_t n;
    char path[128];
    snprintf(path, sizeof path, BODIES "%s.json", name);
    char *body = files_read(path, &n);
    struct api_call *c = prepare(&f, API_CHAT, body);
    free(body);
    return c;
}

/* ---- chat ---- */

static void context_is(const char *messages, const char *wanted)
{
    struct json *j = json_of(messages, strlen(messages));
    const struct api_body body = {.messages = json_root(j),
                                  .add_generation_prompt = true};
    struct bytes out = {0};
    struct api_error e = {0};
    if (api_chat_context(&body, &out, &e) < 0) fail_msg("%s", e.message);
    assert_string_equal(out.data, wanted);
    json_close(json_of(out.data, out.n));
    bytes_free(&out);
    json_close(j);
}

static void a_message_reaches_the_template_with_its_role_first(void **state)
{
    (void)state;
    context_is(
        "[{\"content\":\"a\\n\\u00e9\\\"\",\"name\":\"n\",\"role\":\"user\"},"
        "{\"role\":\"developer\",\"content\":\"d\"}]",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\n\\u00e9\\\"\",\"name\":"
        "\"n\"},{\"role\":\"system\",\"content\":\"d\"}],"
        "\"add_generation_prompt\":true}");
    context_is(
        "[{\"role\":\"tool\",\"content\":\"\",\"tool_call_id\":\"c\"},"
        "{\"role\":\"assistant\",\"content\":\"x\",\"refusal\":null,\"tool_calls\":[],"
        "\"audio\":null,\"annotations\":[]}]",
        "{\"messages\":[{\"role\":\"tool\",\"content\":\"\",\"tool_call_id\":\"c\"},"
        "{\"role\":\"assistant\",\"content\":\"x\"}],"
        "\"add_generation_prompt\":true}");
}

static void text_parts_join_with_nothing_between_them(void **state)
{
    (void)state;
    context_is("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
               "{\"text\":\"b\\t\",\"type\":\"text\",\"cache_control\":{}}]}]",
               "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\\t\"}],"
               "\"add_generation_prompt\":true}");
    struct api_call *whole = prepare_file("string");
    const struct request *r = request_of(whole, 0);
    static const char *const same[] = {"parts", "two_parts"};
    for (size_t i = 0; i < ARRAY_LEN(same); i++) {
        struct api_call *c = prepare_file(same[i]);
        assert_ids(c, 0, r->ids, r->n_ids);
        api_call_free(c);
    }
    api_call_free(whole);
}

static void what_a_template_would_not_show_is_refused_by_its_place(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *param, *in_message;
    } cases[] = {
        {"{}", "messages", "an empty object"},
        {"[]", "messages", "at least one"},
        {"\"x\"", "messages", "\"x\""},
        {"[1]", "messages[0]", "1"},
        {"[{}]", "messages[0].role", "nothing"},
        {"[{\"role\":\"user\"}]", "messages[0].content", "nothing"},
        {"[{\"role\":\"user\",\"content\":null}]", "messages[0].content", "null"},
        {"[{\"role\":\"user\",\"content\":5}]", "messages[0].content", "5"},
        {"[{\"role\":\"user\",\"content\":[]}]", "messages[0].content", "one or more"},
        {"[{\"role\":\"user\",\"content\":[\"x\"]}]", "messages[0].content[0]",
         "an object"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]",
         "messages[0].content[0].text", "nothing"},
        {"[{\"role\":\"king\",\"content\":\"x\"}]", "messages[0].role", "\"king\""},
        {"[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]", "messages[0].content",
         "NUL"},
        {"[{\"role\":\"user\",\"content\":\"a\\\\u0000b\"},{\"role\":\"user\","
         "\"content\":"
         "[{\"type\":\"text\",\"text\":\"\\u0000\"}]}]",
         "messages[1].content[0].text", "NUL"},
        {"[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\"}]}]",
         "messages[0]", "messages[0].tool_calls"},
        {"[{\"role\":\"assistant\",\"content\":\"\",\"refusal\":\"no\"}]",
         "messages[0]", "refusal"},
        {"[{\"role\":\"user\",\"content\":\"x\",\"name\":5}]", "messages[0].name", "5"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char body[512];
        snprintf(body, sizeof body, "{\"messages\":%s}", cases[i].messages);
        refuses(API_CHAT, body, cases[i].param, cases[i].in_message);
    }
}

static void a_users_text_never_becomes_a_control_token(void **state)
{
    (void)state;
    size_t n, raw_n;
    char *text = files_read("tests/golden/cases/control_tokens.json", &n);
    struct json *j = json_of(text, n);
    for (struct json_iter i = json_iter(json_root(j)); json_next(&i);) {
        int32_t ids[256];
        size_t n_ids = 0;
        struct json_value list = json_get(i.value, "safe_prompt_ids");
        for (struct json_iter k = json_iter(list); json_next(&k);) {
            uint64_t id;
            assert_true(json_u64(k.value, &id) && n_ids < ARRAY_LEN(ids));
            ids[n_ids++] = (int32_t)id;
        }
        const char *raw = json_raw(json_get(i.value, "messages"), &raw_n);
        struct bytes body = {0};
        bytes_printf(&body, "{\"messages\":%.*s}", (int)raw_n, raw);
        struct api_call *c = prepare(&f, API_CHAT, body.data);
        assert_ids(c, 0, ids, n_ids);
        api_call_free(c);
        bytes_free(&body);
    }
    json_close(j);
    free(text);
}

static void without_a_generation_prompt_the_turn_stays_closed(void **state)
{
    (void)state;
    struct api_call *with = prepare(&f, API_CHAT, BODY(""));
    struct api_call *without =
        prepare(&f, API_CHAT, BODY(",\"add_generation_prompt\":false"));
    const struct request *w = request_of(with, 0), *wo = request_of(without, 0);
    assert_true(wo->n_ids < w->n_ids);
    assert_memory_equal(w->ids, wo->ids, wo->n_ids * sizeof *w->ids);
    assert_int_equal(wo->ids[wo->n_ids - 1], 516);
    api_call_free(with);
    api_call_free(without);
}

static void a_template_is_found_wherever_the_model_keeps_it(void **state)
{
    (void)state;
    static const char *const places[] = {"jinja_file", "both", "named_list"};
    const char *body = "{\"messages\":[{\"role\":\"user\",\"content\":"
                       "\"the cat sat on the mat\"}]}";
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        char dir[128];
        struct fixture g;
        snprintf(dir, sizeof dir, "tests/golden/cases/template_places/%s", places[i]);
        fixture_open_template(&g, dir);
        struct api_call *c = prepare(&g, API_CHAT, body);
        assert_int_equal(request_of(c, 0)->n_ids, 16);
        api_call_free(c);
        fixture_close(&g);
    }
}

static void a_model_without_a_template_completes_but_does_not_chat(void **state)
{
    (void)state;
    f.api.o.chat = NULL;
    refuses(API_CHAT, BODY(""), "messages", "/v1/completions");
    api_call_free(prepare(&f, API_COMPLETION, "{\"prompt\":\"x\"}"));
    f.api.o.chat = f.chat;
}

/* ---- sizes ---- */

static void a_prompt_leaves_room_for_one_token_or_is_too_long(void **state)
{
    (void)state;
    static const struct {
        size_t prompt;
        uint32_t max_tokens;  // 0: refused
    } cases[] = {{240, 16}, {255, 1}, {256, 0}, {257, 0}};
    f.api.capacity = 256;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct bytes body = {0};
        bytes_add_text(&body, "{\"max_tokens\":64,\"prompt\":[1");
        for (size_t k = 1; k < cases[i].prompt; k++) bytes_add_text(&body, ",1");
        bytes_add_text(&body, "]}");
        struct api_call *c = NULL;
        struct api_error e = {0};
        int rc = api_prepare(&f.api, API_COMPLETION, body.data, body.n, 0, &c, &e);
        if (cases[i].max_tokens) {
            assert_int_equal(rc, 0);
            assert_int_equal(request_of(c, 0)->max_tokens, cases[i].max_tokens);
        } else {
            char size[32];
            snprintf(size, sizeof size, "%zu tokens", cases[i].prompt);
            assert_int_equal(e.status, 400);
            assert_string_equal(e.code, "context_length_exceeded");
            assert_non_null(strstr(e.message, "256 tokens"));
            assert_non_null(strstr(e.message, size));
        }
        api_call_free(c);
        bytes_free(&body);
    }
    f.api.capacity = CONTEXT;
}

static void max_tokens_default_to_what_the_context_holds_or_was_configured(void **state)
{
    (void)state;
    struct api_call *c = prepare(&f, API_CHAT, BODY(",\"max_tokens\":100000000"));
    assert_int_equal(request_of(c, 0)->max_tokens, CONTEXT - request_of(c, 0)->n_ids);
    api_call_free(c);
    f.api.o.default_max_tokens = 99;
    c = prepare(&f, API_CHAT, BODY(""));
    assert_int_equal(request_of(c, 0)->max_tokens, 99);
    api_call_free(c);
    f.api.o.default_max_tokens = 0;
    c = prepare(&f, API_COMPLETION, "{\"prompt\":\"x\"}");
    assert_int_equal(request_of(c, 0)->max_tokens, 16);
    api_call_free(c);
}

/* ---- completions ---- */

static void a_prompt_is_text_or_ids_one_or_several(void **state)
{
    (void)state;
    const int32_t x[] = {512, 87}, hello[] = {1, 2, 3};
    struct api_call *c = prepare(&f, API_COMPLETION, "{\"prompt\":\"x\"}");
    assert_ids(c, 0, x, 2);  // BOS first
    api_call_free(c);
    c = prepare(&f, API_COMPLETION, "{\"prompt\":\"x\",\"add_special_tokens\":false}");
    assert_ids(c, 0, x + 1, 1);
    api_call_free(c);
    c = prepare(&f, API_COMPLETION, "{\"prompt\":[1,2,3]}");
    assert_ids(c, 0, hello, 3);
    assert_int_equal(c->n_parts, 1);
    api_call_free(c);
    c = prepare(&f, API_COMPLETION, "{\"prompt\":[\"x\",\"\",\"x\"],\"n\":2}");
    assert_int_equal(c->n_parts, 3);
    assert_int_equal(c->n_choices, 6);
    assert_ids(c, 1, x, 1);
    assert_ids(c, 2, x, 2);
    api_call_free(c);
    c = prepare(&f, API_COMPLETION, "{\"prompt\":[[1],[1,2,3]]}");
    assert_ids(c, 0, hello, 1);
    assert_ids(c, 1, hello, 3);
    api_call_free(c);
}

static void a_bad_prompt_is_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {{"[]", "prompt"},
                                         {"[[]]", "prompt[0]"},
                                         {"{}", "prompt"},
                                         {"5", "prompt"},
                                         {"[1,\"a\"]", "prompt[1]"},
                                         {"[[1],2]", "prompt[1]"},
                                         {"[\"a\",1]", "prompt[1]"},
                                         {"[[1],[]]", "prompt[1]"},
                                         {"[[[1]]]", "prompt[0]"},
                                         {"[-1]", "prompt[0]"},
                                         {"[517]", "prompt[0]"},
                                         {"[520]", "prompt[0]"},
                                         {"[1.5]", "prompt[0]"},
                                         {"[true]", "prompt"},
                                         {"[[1,1099511627776]]", "prompt[0][1]"},
                                         {"\"a\\u0000\"", "prompt"}};
    char body[128];
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        snprintf(body, sizeof body, "{\"prompt\":%s}", bad[i][0]);
        refuses(API_COMPLETION, body, bad[i][1], "");
    }
    refuses(API_COMPLETION, "{\"prompt\":\"\",\"add_special_tokens\":false}", "prompt",
            "no tokens");
    refuses(API_COMPLETION, "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":3}", "prompt", "8");
    refuses(API_COMPLETION, "{\"prompt\":\"x\",\"max_tokens\":0}", "max_tokens",
            "echo");
}

static void
control_tokens_in_a_prompt_are_text_unless_the_server_says_else(void **state)
{
    (void)state;
    const int32_t control[] = {512, 516};
    const char *body = "{\"prompt\":\"<|eot_id|>\"}";
    struct api_call *c = prepare(&f, API_COMPLETION, body);
    assert_true(request_of(c, 0)->n_ids > 2);
    assert_false(request_of(c, 0)->show_special);
    api_call_free(c);
    f.api.o.completions_special = true;
    c = prepare(&f, API_COMPLETION, body);
    assert_ids(c, 0, control, 2);
    assert_true(request_of(c, 0)->show_special);
    api_call_free(c);
    f.api.o.completions_special = false;
}

static void a_text_that_is_too_much_work_is_the_clients_and_memory_is_ours(void **state)
{
    (void)state;
    const struct err why = {"this is why"};
    const struct {
        int rc, status;
    } cases[] = {{-E2BIG, 400}, {-EINVAL, 400}, {-ENOMEM, 500}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct api_error e;
        assert_int_equal(api_prompt_failed(&f.api, &e, "prompt", cases[i].rc, &why),
                         -EINVAL);
        assert_int_equal(e.status, cases[i].status);
        assert_string_equal(e.param, "prompt");
        assert_string_equal(e.message, why.msg);
    }
}

/* The answer to a chat of `n` messages that say `times` times `words`. */
static struct api_error refused_chat(uint32_t n, const char *words, size_t times)
{
    struct bytes body = {0};
    struct api_call *c = NULL;
    struct api_error e = {0};
    bytes_add_text(&body, "{\"messages\":[");
    for (uint32_t i = 0; i < n; i++) {
        bytes_printf(&body, "%s{\"role\":\"user\",\"content\":\"", i ? "," : "");
        for (size_t k = 0; k < times; k++) bytes_add_text(&body, words);
        bytes_add_text(&body, "\"}");
    }
    bytes_add_text(&body, "]}");
    assert_int_equal(api_prepare(&f.api, API_CHAT, body.data, body.n, 0, &c, &e),
                     -EINVAL);
    assert_int_equal(e.status, 400);
    assert_string_equal(e.code, "context_length_exceeded");
    assert_non_null(strstr(e.message, "at most 64 tokens fit"));
    bytes_free(&body);
    return e;
}

static void a_chat_that_can_never_fit_is_not_rendered(void **state)
{
    (void)state;
    size_t longest = 0;
    for (uint32_t i = 0; i < tokenizer_size(f.tokenizer); i++) {
        size_t n;
        if (tokenizer_bytes(f.tokenizer, (int32_t)i, &n) && n > longest) longest = n;
    }
    assert_int_equal(tokenizer_most_bytes(f.tokenizer), longest);
    f.api.capacity = 64;
    const struct {
        uint32_t n;
        const char *words;
        size_t times;
        const char *said;
    } cases[] = {
        {1, "x", 64 * longest, "more than 128 tokens"},
        {1, "x", 64 * longest + 1, "(1, together "},
        {1, "\\u0078", 64 * longest, "more than 128 tokens"},
        {1, "\\nx", 64 * longest + 1, "(1, together "},
        {63, "", 0, "tokens"},
        {64, "", 0, "(64, together 0 bytes)"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct api_error e = refused_chat(cases[i].n, cases[i].words, cases[i].times);
        const char *at = strstr(e.message, "but");
        if (!at || !strstr(at, cases[i].said)) fail_msg("%zu: %s", i, e.message);
    }
    f.api.capacity = CONTEXT;
}

static int status_of(enum api_kind kind, const struct bytes *body, struct api_error *e)
{
    struct api_call *c = NULL;
    *e = (struct api_error){0};
    int rc = api_prepare(&f.api, kind, body->data, body->n, 0, &c, e);
    api_call_free(c);
    return rc < 0 ? e->status : 200;
}

/* A body that begins with a message, then n times `piece`. */
static struct bytes body_of(const char *begin, const char *piece, size_t n,
                            const char *end)
{
    struct bytes out = {0};
    bytes_add_text(&out, begin);
    for (size_t i = 0; i < n; i++) bytes_add_text(&out, piece);
    bytes_add_text(&out, end);
    return out;
}

static void a_body_of_more_values_than_any_prompt_takes_is_refused(void **state)
{
    (void)state;
    static const char *const begins[] = {"{" USER("x") ",\"metadata\":[0",
                                         "{\"prompt\":[0", "{" USER("x") ",\"x\":[0"};
    for (size_t i = 0; i < ARRAY_LEN(begins); i++) {
        struct bytes body = body_of(begins[i], ",0", 8 << 20, "]}");
        struct api_error e;
        enum api_kind kind = i == 1 ? API_COMPLETION : API_CHAT;
        assert_int_equal(status_of(kind, &body, &e), 400);
        assert_string_equal(e.code, "context_length_exceeded");
        assert_non_null(strstr(e.message, "JSON values and keys"));
        bytes_free(&body);
    }
}

static void a_large_body_of_text_or_of_ten_thousand_messages_is_taken(void **state)
{
    (void)state;
    struct api_error e;
    struct bytes text = body_of("{" USER("x") ",\"metadata\":{\"x\":\"",
                                "0123456789abcdef", 1 << 20, "\"}}");
    assert_int_equal(status_of(API_CHAT, &text, &e), 200);
    bytes_free(&text);
    struct bytes chat = body_of(
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}",
        ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"y\"}]}",
        9999, "]}");
    assert_int_equal(status_of(API_CHAT, &chat, &e), 200);
    bytes_free(&chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_of_more_values_than_any_prompt_takes_is_refused),
        cmocka_unit_test(a_large_body_of_text_or_of_ten_thousand_messages_is_taken),
        cmocka_unit_test(a_message_reaches_the_template_with_its_role_first),
        cmocka_unit_test(text_parts_join_with_nothing_between_them),
        cmocka_unit_test(what_a_template_would_not_show_is_refused_by_its_place),
        cmocka_unit_test(a_users_text_never_becomes_a_control_token),
        cmocka_unit_test(without_a_generation_prompt_the_turn_stays_closed),
        cmocka_unit_test(a_template_is_found_wherever_the_model_keeps_it),
        cmocka_unit_test(a_model_without_a_template_completes_but_does_not_chat),
        cmocka_unit_test(a_prompt_leaves_room_for_one_token_or_is_too_long),
        cmocka_unit_test(a_chat_that_can_never_fit_is_not_rendered),
        cmocka_unit_test(
            max_tokens_default_to_what_the_context_holds_or_was_configured),
        cmocka_unit_test(a_prompt_is_text_or_ids_one_or_several),
        cmocka_unit_test(a_bad_prompt_is_refused),
        cmocka_unit_test(
            control_tokens_in_a_prompt_are_text_unless_the_server_says_else),
        cmocka_unit_test(
            a_text_that_is_too_much_work_is_the_clients_and_memory_is_ours),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
