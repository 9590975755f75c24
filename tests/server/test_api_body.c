/* Bodies: what is taken, what is refused, and by which name. */
#include "tests/server/api_shared.h"

/* 200, or the status of the refusal. */
static int status_of(enum api_kind kind, const char *body, size_t n,
                     struct api_error *e)
{
    struct api_call *c = NULL;
    *e = (struct api_error){0};
    int rc = api_prepare(&f.api, kind, body, n, 0, &c, e);
    api_call_free(c);
    if (rc < 0) {
        struct bytes out = {0};
        assert_int_equal(rc, -EINVAL);
        assert_true(e->message[0]);
        api_error_json(e, &out);
        json_close(json_of(out.data, out.n));
        assert_true(out.n < 4096);
        bytes_free(&out);
    }
    return rc < 0 ? e->status : 200;
}

static void refuses(enum api_kind kind, const char *body, const char *param,
                    const char *in_message)
{
    struct api_error e;
    int status = status_of(kind, body, strlen(body), &e);
    if (status != 400) fail_msg("%d for %s: %s", status, body, e.message);
    assert_string_equal(e.type, "invalid_request_error");
    assert_string_equal(e.param, param);
    if (!strstr(e.message, in_message)) fail_msg("%s: %s", body, e.message);
}

static void accepts(enum api_kind kind, const char *body)
{
    struct api_error e;
    int status = status_of(kind, body, strlen(body), &e);
    if (status != 200) fail_msg("%d for %s: %s", status, body, e.message);
}

static void every_recorded_body_has_its_status(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        int status;
        const char *param;
    } cases[] = {
        {"string", 200, ""},
        {"parts", 200, ""},
        {"two_parts", 200, ""},
        {"image_part", 400, "messages[0].content[0].type"},
        {"with", 200, ""},
        {"without", 200, ""},
        {"false", 200, ""},
        {"bytes", 200, ""},
        {"minus_inf", 200, ""},
        {"max_tokens_0", 400, "max_tokens"},
        {"max_tokens_neg", 400, "max_tokens"},
        {"max_tokens_neg2", 400, "max_tokens"},
        {"max_tokens_1e8", 200, ""},
        {"max_tokens_2e31", 400, "max_tokens"},
        {"max_tokens_2e63", 400, "max_tokens"},
        {"max_tokens_1.5", 400, "max_tokens"},
        {"max_tokens_str", 400, "max_tokens"},
        {"max_tokens_true", 400, "max_tokens"},
        {"max_tokens_null", 200, ""},
        {"temperature_null", 200, ""},
        {"stream_str", 400, "stream"},
        {"stop_number", 400, "stop"},
        {"stop_empty", 400, "stop"},
        {"stop_empty_list", 200, ""},
        {"stop_null", 200, ""},
        {"top_p_str", 400, "top_p"},
        {"messages_obj", 400, "messages"},
        {"bias_oov", 400, "logit_bias"},
        {"bias_neg", 400, "logit_bias"},
        {"bias_word", 400, "logit_bias"},
        {"bias_hole", 400, "logit_bias"},
        {"bias_2e31", 400, "logit_bias"},
        {"bias_1e39", 400, "logit_bias"},
        {"stop_ids_oov", 400, "stop_token_ids"},
        {"cut_escape", 400, ""},
        {"pair", 200, ""},
        {"high", 400, ""},
        {"low", 400, ""},
        {"swapped", 400, ""},
        {"bad_hex", 400, ""},
        {"short", 400, ""},
        {"raw_bad_utf8", 400, ""},
        {"seed42", 200, ""},
        {"noseed", 200, ""},
        {"n3", 200, ""},
        {"n3_stream", 200, ""},
        {"n0", 400, "n"},
        {"n_neg", 400, "n"},
        {"n_big", 400, "n"},
        {"dup_top", 400, ""},
        {"dup_role", 400, ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char path[128];
        size_t n;
        struct api_error e;
        snprintf(path, sizeof path, BODIES "%s.json", cases[i].file);
        char *body = files_read(path, &n);
        f.api.o.model_name = strstr(body, "tiny-abc")     ? "tiny-abc"
                             : strstr(body, "tiny-emoji") ? "tiny-emoji"
                                                          : "tiny-rand";
        int status = status_of(API_CHAT, body, n, &e);
        if (status != cases[i].status) {
            fail_msg("%s: %d %s", cases[i].file, status, e.message);
        }
        assert_string_equal(e.param, cases[i].param);
        free(body);
    }
    f.api.o.model_name = "tiny-rand";
}

static void a_wrong_value_is_named_with_what_would_be_right(void **state)
{
    (void)state;
    refuses(API_CHAT, BODY(",\"max_tokens\":9223372036854775808"), "max_tokens",
            "max_tokens is 9223372036854775808, but must be an integer from 1 to");
    refuses(API_CHAT, BODY(",\"max_tokens\":256.0"), "max_tokens", "256.0");
    refuses(API_CHAT, BODY(",\"max_tokens\":1e2"), "max_tokens", "1e2");
    refuses(API_CHAT, BODY(",\"stream\":[]"), "stream", "an empty array");
    refuses(API_CHAT, BODY(",\"stream\":\"true\""), "stream", "true or false");
    refuses(API_CHAT, BODY(",\"temperature\":2.5"), "temperature", "from 0 to 2");
    refuses(API_CHAT, BODY(",\"temperature\":-1e-9"), "temperature", "from 0 to 2");
    refuses(API_CHAT, BODY(",\"temperature\":1e999"), "temperature", "1e999");
    refuses(API_CHAT, BODY(",\"top_p\":0"), "top_p", "above 0");
    refuses(API_CHAT, BODY(",\"top_p\":1.1"), "top_p", "above 0");
    refuses(API_CHAT, BODY(",\"top_k\":-2"), "top_k", "-1 for all");
    refuses(API_CHAT, BODY(",\"min_p\":1.5"), "min_p", "from 0 to 1");
    refuses(API_CHAT, BODY(",\"n\":9"), "n", "from 1 to 8");
    refuses(API_CHAT, BODY(",\"seed\":1.5"), "seed", "64 bits");
    refuses(API_CHAT, BODY(",\"seed\":18446744073709551616"), "seed", "64 bits");
    refuses(API_CHAT, BODY(",\"presence_penalty\":-2.1"), "presence_penalty",
            "-2 to 2");
    refuses(API_CHAT, BODY(",\"frequency_penalty\":3"), "frequency_penalty", "-2 to 2");
    refuses(API_CHAT, BODY(",\"logprobs\":1"), "logprobs", "true or false");
    refuses(API_CHAT, BODY(",\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs",
            "from 0 to 20");
    refuses(API_CHAT, BODY(",\"top_logprobs\":2"), "top_logprobs", "needs");
    refuses(API_CHAT, BODY(",\"stream_options\":{\"include_usage\":true}"),
            "stream_options", "stream");
    refuses(API_CHAT, BODY(",\"stream\":true,\"stream_options\":{\"include_usage\":1}"),
            "stream_options.include_usage", "true or false");
    refuses(API_CHAT, BODY(",\"max_tokens\":3,\"max_completion_tokens\":4"),
            "max_tokens", "differ");
    refuses(API_CHAT, BODY(",\"model\":5"), "model", "a string");
    refuses(API_CHAT, BODY(",\"user\":5"), "user", "a string");
    refuses(API_CHAT, "{}", "messages", "missing");
    refuses(API_CHAT, "{\"messages\":null}", "messages", "missing");
    refuses(API_COMPLETION, "{}", "prompt", "missing");
    refuses(API_CHAT, "{\"messages\":[]}", "messages",
            "messages is an empty array, but must be an array of at least one message");
    refuses(API_CHAT, BODY(",\"stop\":{}"), "stop", "stop is an empty object, but");
    refuses(API_CHAT, BODY(",\"tools\":[1]"), "tools", "leave it out or give []");
    refuses(API_CHAT, BODY(",\"tool_choice\":\"x\""), "tool_choice",
            "leave it out or give none or auto");
    refuses(API_CHAT, BODY(",\"audio\":{\"a\":1}"), "audio", "leave it out");
    refuses(API_CHAT, "[]", "", "an array");
    refuses(API_CHAT, "", "", "");
}

static void the_log_gets_no_message_that_text_went_into(void **state)
{
    (void)state;
    struct api_error e;
    assert_int_equal(api_fail(&e, 400, NULL, "n", "%s is %d", "secret", 3), -EINVAL);
    assert_string_equal(e.why, "");
    api_fail(&e, 400, NULL, NULL, "a part: %.*s", 3, "secret");
    assert_string_equal(e.why, "");
    api_fail(&e, 400, NULL, NULL, "%u of %zu (%02x), at most %llu %%", 7u, (size_t)8, 9,
             10ull);
    assert_string_equal(e.why, "7 of 8 (09), at most 10 %");

    const char *body = BODY(",\"n\":\"secret\"");
    assert_int_equal(status_of(API_CHAT, body, strlen(body), &e), 400);
    assert_non_null(strstr(e.message, "secret"));
    assert_string_equal(e.why, "must be an integer from 1 to 8");
}

static void a_long_wrong_value_is_cut_within_no_character(void **state)
{
    (void)state;
    struct bytes body = {0};
    struct api_error e;
    bytes_add_text(&body, "{" USER("x") ",\"stream\":\"a");
    for (int i = 0; i < 10000; i++) bytes_add_text(&body, "\xf0\x9f\x98\x80");
    bytes_add_text(&body, "\"}");
    assert_int_equal(status_of(API_CHAT, body.data, body.n, &e), 400);
    assert_true(strlen(e.message) < 200);
    assert_int_equal(utf8_valid_prefix(e.message, strlen(e.message)),
                     strlen(e.message));
    bytes_free(&body);
}

static void keys_of_logit_bias_are_ids_in_plain_decimal(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "-1",  "+65",   "065",       " 65",        "65 ",
        "6.5", "0x41",  "",          "AI",         "517",
        "520", "99999", "65\\u0000", "2147483648", "18446744073709551681"};
    char body[256];
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        snprintf(body, sizeof body, "{" USER("x") ",\"logit_bias\":{\"%s\":1}}",
                 bad[i]);
        refuses(API_CHAT, body, "logit_bias", bad[i]);
    }
    refuses(API_CHAT, BODY(",\"logit_bias\":{\"65\":100.5}"), "logit_bias",
            "logit_bias[65] is 100.5");
    refuses(API_CHAT, BODY(",\"logit_bias\":[]"), "logit_bias", "an object");

    struct api_call *c =
        prepare(&f, API_CHAT, BODY(",\"n\":2,\"logit_bias\":{\"0\":-100,\"516\":2.5}"));
    const struct sampling *s = &request_of(c, 0)->sampling;
    assert_int_equal(s->n_bias, 2);
    assert_int_equal(s->bias[0].id, 0);
    assert_true(s->bias[0].bias == -100 && s->bias[1].bias == 2.5f);
    assert_int_equal(s->bias[1].id, 516);
    api_call_free(c);
}

static void what_would_change_the_answer_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *name, *bad, *good;
    } cases[] = {
        {"tools", "[{\"type\":\"function\"}]", "[]"},
        {"tools", "5", "null"},
        {"tools", "{}", "[]"},
        {"tools", "\"all\"", "[]"},
        {"tool_choice", "\"required\"", "\"auto\""},
        {"tool_choice", "{\"type\":\"function\"}", "\"none\""},
        {"functions", "[{}]", "[]"},
        {"function_call", "{\"name\":\"f\"}", "\"none\""},
        {"response_format", "{\"type\":\"json_schema\"}", "{\"type\":\"text\"}"},
        {"modalities", "[\"text\",\"audio\"]", "[\"text\"]"},
        {"audio", "{\"voice\":\"a\"}", "null"},
        {"reasoning_effort", "\"high\"", "\"none\""},
        {"stop_token_ids", "[1]", "[]"},
        {"repetition_penalty", "1.1", "1.0"},
        {"min_tokens", "4", "0"},
        {"use_beam_search", "true", "false"},
        {"skip_special_tokens", "false", "true"},
        {"echo", "true", "false"},
        {"guided_json", "{}", "null"},
    };
    char body[256];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *name = cases[i].name;
        snprintf(body, sizeof body, "{" USER("x") ",\"%s\":%s}", name, cases[i].bad);
        refuses(API_CHAT, body, name, name);
        snprintf(body, sizeof body, "{" USER("x") ",\"%s\":%s}", name, cases[i].good);
        accepts(API_CHAT, body);
    }
    refuses(API_CHAT, BODY(",\"response_format\":{}"), "response_format.type",
            "nothing");
    refuses(API_COMPLETION, "{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix", "suffix");
    refuses(API_COMPLETION, "{\"prompt\":\"x\",\"best_of\":2}", "best_of", "equals n");
    accepts(API_COMPLETION, "{\"prompt\":\"x\",\"best_of\":2,\"n\":2}");
}

static void harmless_unknown_fields_are_ignored(void **state)
{
    (void)state;
    accepts(API_CHAT,
            BODY(",\"user\":\"u\",\"store\":false,\"metadata\":{\"a\":\"b\"},"
                 "\"prompt_cache_key\":\"k\",\"service_tier\":\"auto\",\"new\":[1,{}],"
                 "\"model\\u0000\":5"));
}

static void null_means_the_default_of_every_field(void **state)
{
    (void)state;
    struct api_call *c = prepare(
        &f, API_CHAT,
        BODY(",\"model\":null,\"stream\":null,\"stream_options\":null,\"max_tokens\":"
             "null,"
             "\"n\":null,\"temperature\":null,\"top_p\":null,\"top_k\":null,\"seed\":"
             "null,"
             "\"stop\":null,\"logprobs\":null,\"logit_bias\":null,\"tools\":null"));
    const struct request *r = request_of(c, 0);
    assert_false(api_call_streams(c));
    assert_int_equal(r->n_choices, 1);
    assert_true(r->sampling.temperature == 1 && r->sampling.top_p == 1);
    assert_int_equal(r->sampling.top_k, 0);
    assert_int_equal(r->max_tokens, CONTEXT - r->n_ids);
    assert_int_equal(r->n_stops, 0);
    api_call_free(c);
}

static void settings_reach_the_request_exactly(void **state)
{
    (void)state;
    struct api_call *c = prepare(
        &f, API_CHAT,
        BODY(",\"model\":\"tiny-rand\",\"stream\":true,\"max_completion_tokens\":7,"
             "\"n\":3,"
             "\"temperature\":0.5,\"top_p\":0.25,\"top_k\":40,\"min_p\":0.125,"
             "\"seed\":9007199254740993,\"stop\":[\"a\\u00e9\",\"\\n\"],\"logprobs\":"
             "true,"
             "\"top_logprobs\":20,\"presence_penalty\":-2,\"frequency_penalty\":1.5,"
             "\"ignore_eos\":true"));
    const struct request *r = request_of(c, 0);
    const struct sampling *s = &r->sampling;
    assert_true(api_call_streams(c));
    assert_int_equal(r->max_tokens, 7);
    assert_int_equal(r->n_choices, 3);
    assert_true(s->temperature == 0.5f && s->top_p == 0.25f && s->min_p == 0.125f);
    assert_true(s->presence_penalty == -2 && s->frequency_penalty == 1.5f);
    assert_int_equal(s->top_k, 40);
    assert_true(s->seed == 9007199254740993u);
    assert_true(s->logprobs && s->top_logprobs == 20);
    assert_int_equal(r->n_stops, 2);
    assert_string_equal(r->stop[0], "a\xc3\xa9");
    assert_int_equal(r->stop_n[0], 3);
    assert_string_equal(r->stop[1], "\n");
    assert_true(r->ignore_eos && !r->show_special && !r->prompt_logprobs);
    api_call_free(c);
}

static void a_top_p_too_small_for_a_float_is_still_above_zero(void **state)
{
    (void)state;
    struct api_call *c = prepare(&f, API_CHAT, BODY(",\"top_p\":1e-60"));
    assert_true(request_of(c, 0)->sampling.top_p > 0);
    api_call_free(c);
}

static void a_seed_may_be_any_64_bit_integer_and_is_random_without_one(void **state)
{
    (void)state;
    struct api_call *a = prepare(&f, API_CHAT, BODY(",\"seed\":-1"));
    struct api_call *b = prepare(&f, API_CHAT, BODY(",\"seed\":18446744073709551615"));
    assert_true(request_of(a, 0)->sampling.seed == UINT64_MAX);
    assert_true(request_of(b, 0)->sampling.seed == UINT64_MAX);
    api_call_free(a);
    api_call_free(b);
    a = prepare(&f, API_CHAT, BODY(""));
    b = prepare(&f, API_CHAT, BODY(""));
    assert_true(request_of(a, 0)->sampling.seed != request_of(b, 0)->sampling.seed);
    assert_string_not_equal(a->id, b->id);
    api_call_free(a);
    api_call_free(b);
}

static void stops_are_at_most_four_of_256_bytes(void **state)
{
    (void)state;
    char body[2048], stop[300];
    memset(stop, 's', sizeof stop);
    accepts(API_CHAT, BODY(",\"stop\":[\"a\",\"b\",\"c\",\"d\"]"));
    refuses(API_CHAT, BODY(",\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]"), "stop", "4");
    refuses(API_CHAT, BODY(",\"stop\":[\"a\",\"\"]"), "stop", "stop[1] has 0 bytes");
    refuses(API_CHAT, BODY(",\"stop\":[\"a\",5]"), "stop[1]", "a string");
    refuses(API_CHAT, BODY(",\"stop\":\"a\\u0000b\""), "stop", "NUL");
    snprintf(body, sizeof body, "{" USER("x") ",\"stop\":\"%.256s\"}", stop);
    accepts(API_CHAT, body);
    snprintf(body, sizeof body, "{" USER("x") ",\"stop\":\"%.257s\"}", stop);
    refuses(API_CHAT, body, "stop", "257 bytes");
}

static void another_model_is_not_found(void **state)
{
    (void)state;
    struct api_error e;
    const char *body = BODY(",\"model\":\"gpt-4o\"");
    assert_int_equal(status_of(API_CHAT, body, strlen(body), &e), 404);
    assert_string_equal(e.code, "model_not_found");
    assert_string_equal(e.param, "model");
    assert_non_null(strstr(e.message, "gpt-4o"));
}

/* `before` and `after` around n times `repeat`. */
static void many(struct bytes *out, const char *before, const char *repeat, int n,
                 const char *after)
{
    bytes_clear(out);
    bytes_add_text(out, before);
    for (int i = 0; i < n; i++) bytes_add_text(out, repeat);
    bytes_add_text(out, after);
}

static void deep_bodies_are_refused(void **state)
{
    (void)state;
    struct bytes b = {0};
    struct api_error e;
    static const char *const opens[] = {"[",
                                        "{\"\":", "{\"role\":\"user\",\"content\":["};
    for (size_t i = 0; i < ARRAY_LEN(opens); i++) {
        many(&b, "{" USER("x") ",\"metadata\":", opens[i], 200000, "");
        assert_int_equal(status_of(API_CHAT, b.data, b.n, &e), 400);
        assert_non_null(strstr(e.message, "64"));
    }
    bytes_free(&b);
}

static void a_hundred_thousand_keys_and_faults_cost_one_short_answer(void **state)
{
    (void)state;
    struct bytes b = {0};
    struct api_error e;
    bytes_add_text(&b, "{" USER("x"));
    for (int i = 0; i < 100000; i++) bytes_printf(&b, ",\"key%d\":%d", i, i);
    bytes_add_text(&b, "}");
    assert_int_equal(status_of(API_CHAT, b.data, b.n, &e), 200);

    many(&b, "{\"messages\":[", "{\"role\":\"king\",\"content\":5},", 10000, "{}]}");
    assert_int_equal(status_of(API_CHAT, b.data, b.n, &e), 400);
    assert_string_equal(e.param, "messages[0].role");
    bytes_free(&b);
}

static void an_error_of_control_characters_stays_under_four_kilobytes(void **state)
{
    (void)state;
    struct api_error e;
    struct bytes out = {0};
    char worst[600];
    memset(worst, 1, sizeof worst - 1);
    worst[sizeof worst - 1] = 0;
    api_fail(&e, 400, "invalid_value", worst, "%s", worst);
    api_error_json(&e, &out);
    assert_true(out.n < 4096);
    struct json *j = json_of(out.data, out.n);
    assert_json(j, "error/type", "\"invalid_request_error\"");
    json_close(j);

    bytes_clear(&out);
    api_fail(&e, 503, NULL, NULL, "full");
    api_error_json(&e, &out);
    assert_string_equal(out.data,
                        "{\"error\":{\"message\":\"full\",\"type\":\"server_error\","
                        "\"param\":null,\"code\":null}}");
    bytes_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_recorded_body_has_its_status),
        cmocka_unit_test(a_wrong_value_is_named_with_what_would_be_right),
        cmocka_unit_test(the_log_gets_no_message_that_text_went_into),
        cmocka_unit_test(a_long_wrong_value_is_cut_within_no_character),
        cmocka_unit_test(keys_of_logit_bias_are_ids_in_plain_decimal),
        cmocka_unit_test(what_would_change_the_answer_is_refused_by_name),
        cmocka_unit_test(harmless_unknown_fields_are_ignored),
        cmocka_unit_test(null_means_the_default_of_every_field),
        cmocka_unit_test(settings_reach_the_request_exactly),
        cmocka_unit_test(a_top_p_too_small_for_a_float_is_still_above_zero),
        cmocka_unit_test(a_seed_may_be_any_64_bit_integer_and_is_random_without_one),
        cmocka_unit_test(stops_are_at_most_four_of_256_bytes),
        cmocka_unit_test(another_model_is_not_found),
        cmocka_unit_test(deep_bodies_are_refused),
        cmocka_unit_test(a_hundred_thousand_keys_and_faults_cost_one_short_answer),
        cmocka_unit_test(an_error_of_control_characters_stays_under_four_kilobytes),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
