/* What comes back at once: answers and logprobs, from events that the test pushes. */
#include "tests/server/api_shared.h"

#include <locale.h>

/* ---- whole answers ---- */

static struct json *whole(struct api_call *c)
{
    struct bytes out = {0};
    struct api_error e;
    assert_int_equal(read_on(c, &out, &e), API_DONE);
    char *text = strndup(out.data, out.n);  // the document borrows it
    struct json *j = json_of(text, out.n);
    assert_int_equal(strlen(text), out.n);
    bytes_free(&out);
    return j;
}

static void close_whole(struct json *j)
{
    size_t n;
    char *text = (char *)json_raw(json_root(j), &n);
    json_close(j);
    free(text);
}

static void a_chat_answer_has_openais_shape(void **state)
{
    (void)state;
    struct api_call *c = prepare(&f, API_CHAT, BODY(",\"n\":2"));
    push_token(c, 0, 1, id_of("B"), "B");
    push_token(c, 0, 0, id_of("A"), "A\n\"\x01");
    push_finish(c, 0, 1, FINISH_STOP, "", 2);
    push_finish(c, 0, 0, FINISH_LENGTH, "!", 5);
    struct json *j = whole(c);
    assert_json(j, "object", "\"chat.completion\"");
    assert_json(j, "choices/0",
                "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
                "\"A\\n\\\"\\u0001!\",\"refusal\":null},\"logprobs\":null,"
                "\"finish_reason\":\"length\"}");
    assert_json(j, "choices/1/message/content", "\"B\"");
    assert_json(j, "choices/1/finish_reason", "\"stop\"");
    assert_json(j, "usage/completion_tokens", "7");
    close_whole(j);
    char line[256];
    api_call_summary(c, line, sizeof line);
    assert_non_null(strstr(line, "outcome=length"));
    assert_non_null(strstr(line, "completion=7"));
    api_call_free(c);
}

static void a_nul_that_a_model_generates_is_not_the_end_of_the_text(void **state)
{
    (void)state;
    struct api_call *c = prepare(&f, API_CHAT, BODY(""));
    struct event ev = {.kind = EVENT_TOKEN, .text = "a\0b", .text_n = 3};
    request_push(request_of(c, 0), &ev);
    push_finish(c, 0, 0, FINISH_STOP, "", 2);
    struct json *j = whole(c);
    assert_json(j, "choices/0/message/content", "\"a\\u0000b\"");
    close_whole(j);
    api_call_free(c);
}

/* ---- logprobs ---- */

static void a_part_of_a_character_is_told_by_its_byte(void **state)
{
    (void)state;
    static const unsigned char emoji[] = {240, 159, 152, 128};
    struct api_call *c =
        prepare(&f, API_CHAT, BODY(",\"logprobs\":true,\"top_logprobs\":1"));
    for (size_t i = 0; i < 4; i++) {
        int32_t id = -1;
        for (int32_t k = 0; k < 512 && id < 0; k++) {
            size_t n;
            const char *s = tokenizer_bytes(f.tokenizer, k, &n);
            if (s && n == 1 && (unsigned char)*s == emoji[i]) id = k;
        }
        push_token(c, 0, 0, id, i == 3 ? "\xf0\x9f\x98\x80" : "");
    }
    push_finish(c, 0, 0, FINISH_LENGTH, "", 4);
    struct json *j = whole(c);
    for (int i = 0; i < 4; i++) {
        char path[64], bytes[16];
        snprintf(path, sizeof path, "choices/0/logprobs/content/%d/bytes", i);
        snprintf(bytes, sizeof bytes, "[%u]", emoji[i]);
        assert_json(j, path, bytes);
        snprintf(path, sizeof path, "choices/0/logprobs/content/%d/token", i);
        assert_json(j, path, "\"\xef\xbf\xbd\"");
    }
    assert_json(j, "choices/0/message/content", "\"\xf0\x9f\x98\x80\"");
    assert_json(j, "choices/0/logprobs/content/0/logprob", "-0.500000000");
    assert_json(j, "choices/0/logprobs/content/0/top_logprobs/0/bytes", "[240]");
    close_whole(j);
    api_call_free(c);
}

static void every_logprob_is_a_finite_number_in_any_locale(void **state)
{
    (void)state;
    setlocale(LC_ALL, "de_DE.UTF-8");
    static const float odd[] = {-1e30f, 1e30f, 0, -0.0f, -9999, -1e-12f, -123.456789f};
    static const char *const wanted[] = {
        "-9999.000000000", "9999.000000000", "0.000000000",   "0.000000000",
        "-9999.000000000", "0.000000000",    "-123.456787109"};
    struct bytes out = {0};
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        bytes_clear(&out);
        api_json_real(&out, odd[i]);
        assert_string_equal(out.data, wanted[i]);
    }
    bytes_clear(&out);
    api_json_real(&out, (float)strtod("-inf", NULL));
    assert_string_equal(out.data, "-9999.000000000");
    bytes_clear(&out);
    api_json_real(&out, (float)strtod("nan", NULL));
    json_close(json_of(out.data, out.n));
    bytes_free(&out);
    setlocale(LC_ALL, "C");
}

/* The end token comes with the last event. */
static void push_end_token(struct api_call *c)
{
    struct event e = {.kind = EVENT_FINISH,
                      .reason = FINISH_STOP,
                      .has_logprob = true,
                      .sample = {.id = 516, .logprob = -0.25f},
                      .text = "B",
                      .text_n = 1,
                      .completion_tokens = 2};
    request_push(request_of(c, 0), &e);
}

static void a_completions_arrays_have_the_end_token_and_a_chats_do_not(void **state)
{
    (void)state;
    struct api_call *c = prepare(&f, API_CHAT, BODY(",\"logprobs\":true"));
    push_token(c, 0, 0, id_of("A"), "A");
    push_end_token(c);
    struct json *j = whole(c);
    assert_json(j, "choices/0/message/content", "\"AB\"");
    assert_int_equal(json_count(json_at(json_root(j), "choices/0/logprobs/content")),
                     1);
    close_whole(j);
    api_call_free(c);

    c = prepare(&f, API_COMPLETION, "{\"prompt\":\"x\",\"logprobs\":0}");
    push_token(c, 0, 0, id_of("A"), "A");
    push_end_token(c);
    j = whole(c);
    assert_json(j, "choices/0/text", "\"AB\"");
    assert_json(j, "choices/0/logprobs",
                "{\"tokens\":[\"A\",\"<|eot_id|>\"],\"token_logprobs\":[-0.500000000,"
                "-0.250000000],\"top_logprobs\":[{\"A\":-0.500000000},{\"<|eot_id|>\":"
                "-0.250000000}],\"text_offset\":[0,1]}");
    close_whole(j);
    api_call_free(c);
}

static void a_token_without_text_yet_streams_its_logprob(void **state)
{
    (void)state;
    struct api_call *c =
        prepare(&f, API_CHAT, BODY(",\"logprobs\":true,\"stream\":true"));
    struct bytes out = {0};
    struct api_error e;
    push_token(c, 0, 0, id_of("A"), "");
    push_token(c, 0, 0, id_of("B"), "AB");
    push_finish(c, 0, 0, FINISH_LENGTH, "", 2);
    assert_int_equal(read_on(c, &out, &e), API_DONE);
    for (int i = 1; i < 3; i++) {
        struct json *j = frame_of(&out, i);
        assert_json(j, "choices/0/delta/content", i == 1 ? "\"\"" : "\"AB\"");
        assert_json(j, "choices/0/logprobs/content/0/token",
                    i == 1 ? "\"A\"" : "\"B\"");
        assert_int_equal(
            json_count(json_at(json_root(j), "choices/0/logprobs/content")), 1);
        json_close(j);
    }
    bytes_free(&out);
    api_call_free(c);
}

static void push_prompt_tokens(struct api_call *c)
{
    const struct request *r = request_of(c, 0);
    for (uint32_t i = 0; i < r->n_ids; i++) {
        struct event ev = {.kind = EVENT_PROMPT_TOKEN,
                           .has_logprob = i > 0,
                           .sample = {.id = r->ids[i], .logprob = -1.5f}};
        request_push(request_of(c, 0), &ev);
    }
}

static void an_echo_tells_the_prompt_and_its_logprobs(void **state)
{
    (void)state;
    struct api_call *c = prepare(&f, API_COMPLETION,
                                 "{\"prompt\":\"xyz\",\"echo\":true,\"logprobs\":1,"
                                 "\"max_tokens\":1}");
    const struct request *r = request_of(c, 0);
    assert_true(r->prompt_logprobs);
    uint32_t n = r->n_ids;
    push_prompt_tokens(c);
    push_end_token(c);
    struct json *j = whole(c);
    struct json_value l = json_at(json_root(j), "choices/0/logprobs");
    assert_json(j, "choices/0/text", "\"xyzB\"");
    assert_int_equal(json_count(json_get(l, "tokens")), n + 1);
    assert_int_equal(json_count(json_get(l, "token_logprobs")), n + 1);
    assert_int_equal(json_count(json_get(l, "top_logprobs")), n + 1);
    assert_int_equal(json_count(json_get(l, "text_offset")), n + 1);
    assert_json(j, "choices/0/logprobs/token_logprobs/0", "null");
    assert_json(j, "choices/0/logprobs/token_logprobs/1", "-1.500000000");
    assert_json(j, "choices/0/logprobs/text_offset/1", "0");
    assert_json(j, "choices/0/logprobs/text_offset/2", "1");
    assert_json(j, "choices/0/logprobs/tokens/1", "\"x\"");
    close_whole(j);
    api_call_free(c);
}

static void an_echo_shows_half_a_character_as_such(void **state)
{
    (void)state;
    int32_t half = -1;
    for (int32_t k = 0; k < 512 && half < 0; k++) {
        size_t n;
        const char *s = tokenizer_bytes(f.tokenizer, k, &n);
        if (s && n == 1 && (unsigned char)*s == 0xf0) half = k;
    }
    for (int logprobs = 0; logprobs < 2; logprobs++) {
        char body[128];
        snprintf(body, sizeof body, "{\"prompt\":[87,%d],\"echo\":true%s}", half,
                 logprobs ? ",\"logprobs\":0" : "");
        struct api_call *c = prepare(&f, API_COMPLETION, body);
        if (logprobs) push_prompt_tokens(c);
        push_token(c, 0, 0, id_of("A"), "A");
        push_finish(c, 0, 0, FINISH_LENGTH, "", 1);
        struct json *j = whole(c);
        assert_json(j, "choices/0/text",
                    "\"x\xef\xbf\xbd"
                    "A\"");
        if (logprobs) {
            assert_json(j, "choices/0/logprobs/tokens",
                        "[\"x\",\"bytes:\\\\xf0\",\"A\"]");
            assert_json(j, "choices/0/logprobs/text_offset", "[0,1,2]");
        }
        close_whole(j);
        api_call_free(c);
    }
}

static void an_echo_may_ask_for_no_token_at_all(void **state)
{
    (void)state;
    struct api_call *c = prepare(&f, API_COMPLETION,
                                 "{\"prompt\":[87,88],\"echo\":true,\"max_tokens\":0}");
    assert_int_equal(request_of(c, 0)->max_tokens, 0);
    push_finish(c, 0, 0, FINISH_LENGTH, "", 0);
    struct json *j = whole(c);
    assert_json(j, "choices/0/text", "\"xy\"");
    assert_json(j, "choices/0/finish_reason", "\"length\"");
    assert_json(j, "usage/completion_tokens", "0");
    close_whole(j);
    api_call_free(c);
}

static void models_are_told_and_found(void **state)
{
    (void)state;
    struct bytes out = {0};
    struct api_error e;
    api_models_json(&f.api, &out);
    assert_string_equal(
        out.data, "{\"object\":\"list\",\"data\":[{\"id\":\"tiny-rand\",\"object\":"
                  "\"model\",\"created\":1700000000,\"owned_by\":\"dormouse\","
                  "\"max_model_len\":131072}]}");
    bytes_clear(&out);
    assert_int_equal(api_model_json(&f.api, "tiny-rand", &out, &e), 0);
    assert_int_equal(api_model_json(&f.api, "other", &out, &e), -ENOENT);
    assert_int_equal(e.status, 404);
    assert_string_equal(e.code, "model_not_found");
    bytes_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_answer_has_openais_shape),
        cmocka_unit_test(a_nul_that_a_model_generates_is_not_the_end_of_the_text),
        cmocka_unit_test(a_part_of_a_character_is_told_by_its_byte),
        cmocka_unit_test(every_logprob_is_a_finite_number_in_any_locale),
        cmocka_unit_test(a_completions_arrays_have_the_end_token_and_a_chats_do_not),
        cmocka_unit_test(a_token_without_text_yet_streams_its_logprob),
        cmocka_unit_test(an_echo_tells_the_prompt_and_its_logprobs),
        cmocka_unit_test(an_echo_shows_half_a_character_as_such),
        cmocka_unit_test(an_echo_may_ask_for_no_token_at_all),
        cmocka_unit_test(models_are_told_and_found),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
