/* Calls that a real engine answers: from a body to the answer's bytes. */
#include "tests/server/api_server.h"

#define HELLO      "{" USER("hello") ",\"temperature\":0,\"max_tokens\":12"
#define HELLO_TEXT "J padword468R padword466 sayedefeve t t t t"

/* What /metrics tells of an outcome. */
static int outcomes(const struct server *s, const char *name)
{
    struct bytes out = {0};
    char label[64];
    snprintf(label, sizeof label, "outcome=\"%s\"} ", name);
    metrics_render(s->w.metrics, &out);
    const char *at = strstr(out.data, label);
    int n = at ? atoi(at + strlen(label)) : -1;
    bytes_free(&out);
    return n;
}

static void a_stream_joins_to_the_whole_answer_for_every_choice(void **state)
{
    (void)state;
    struct server s;
    server_open(&s, &(struct world_options){.model = "tiny-rand"});
    struct bytes whole = ask(&s, API_CHAT, 0, HELLO ",\"n\":3}", NULL);
    struct json *j = json_of(whole.data, whole.n);
    assert_json(j, "choices/0/message/content", "\"" HELLO_TEXT "\"");
    assert_json(j, "choices/2/message/content", "\"" HELLO_TEXT "\"");
    assert_json(j, "usage/prompt_tokens", "12");
    assert_json(j, "usage/completion_tokens", "36");
    assert_json(j, "usage/total_tokens", "48");
    assert_json(j, "usage/prompt_tokens_details", "{\"cached_tokens\":0}");
    json_close(j);

    struct bytes stream = ask(&s, API_CHAT, 0, HELLO ",\"n\":3,\"stream\":true}", NULL);
    char text[3][256] = {{0}};
    for (int i = 0; (j = frame_of(&stream, i)); i++) {
        char piece[64] = "";
        uint64_t index;
        struct json_value choice = json_at(json_root(j), "choices/0");
        assert_true(json_u64(json_get(choice, "index"), &index) && index < 3);
        struct json_value content = json_at(choice, "delta/content");
        if (json_exists(content)) {
            assert_int_equal(json_string(content, piece, sizeof piece, NULL), 0);
        }
        strcat(text[index], piece);
        json_close(j);
    }
    for (int i = 0; i < 3; i++) assert_string_equal(text[i], HELLO_TEXT);
    assert_int_equal(outcomes(&s, "length"), 2);
    assert_int_equal(metrics_counter(s.w.metrics, COUNTER_PROMPT_TOKENS), 24);
    assert_int_equal(metrics_counter(s.w.metrics, COUNTER_GENERATION_TOKENS), 72);
    bytes_free(&whole);
    bytes_free(&stream);
    server_close(&s);
}

/* The arrays have as many entries as usage tells tokens, also with an end token. */
static void an_echo_scores_every_token_and_the_end(void **state)
{
    (void)state;
    struct server s;
    server_open(&s, &(struct world_options){.model = "tiny-rand"});
    static const char *const bodies[] = {
        "{\"prompt\":\"the cat sat\",\"echo\":true,\"logprobs\":2,\"temperature\":0,"
        "\"max_tokens\":0}",
        "{\"prompt\":\"the cat sat\",\"echo\":true,\"logprobs\":2,\"temperature\":0,"
        "\"max_tokens\":1}",
        "{\"prompt\":\"the cat sat\",\"echo\":true,\"logprobs\":2,\"temperature\":0,"
        "\"max_tokens\":1,\"logit_bias\":{\"516\":100}}"};
    static const char *const reasons[] = {"\"length\"", "\"length\"", "\"stop\""};
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        struct bytes out = ask(&s, API_COMPLETION, 0, bodies[i], NULL);
        struct json *j = json_of(out.data, out.n);
        uint64_t total;
        struct json_value l = json_at(json_root(j), "choices/0/logprobs");
        assert_true(json_u64(json_at(json_root(j), "usage/total_tokens"), &total));
        assert_int_equal(json_count(json_get(l, "tokens")), total);
        assert_int_equal(json_count(json_get(l, "token_logprobs")), total);
        assert_int_equal(json_count(json_get(l, "top_logprobs")), total);
        assert_json(j, "choices/0/finish_reason", reasons[i]);
        if (i != 1) assert_json(j, "choices/0/text", "\"the cat sat\"");
        json_close(j);
        bytes_free(&out);
    }
    server_close(&s);
}

/* 503 and when to come again, for a call one of whose prompts found the queue full. */
static void a_call_is_taken_whole_or_not_at_all(void **state)
{
    (void)state;
    struct server s;
    server_open(&s, &(struct world_options){.model = "tiny-rand",
                                            .max_running = 2,
                                            .max_waiting = 1,
                                            .stopped = true});
    const char *body = "{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\"]}";
    struct api_call *c;
    struct api_error e = {0};
    struct bytes out = {0};
    assert_int_equal(api_prepare(s.api, API_COMPLETION, body, strlen(body), 0, &c, &e),
                     0);
    assert_int_equal(api_submit(c, wake_reader, NULL, &e), -EINVAL);
    assert_int_equal(e.status, 503);
    assert_true(e.retry_after >= 1);
    assert_true(atomic_load(&request_of(c, 0)->cancelled));
    assert_int_equal(api_call_read(c, &out, 1, &e), API_DONE);
    api_call_free(c);
    assert_int_equal(outcomes(&s, "refused"), 1);
    bytes_free(&out);
    server_close(&s);
}

static void a_client_that_leaves_is_counted_once(void **state)
{
    (void)state;
    struct server s;
    server_open(&s, &(struct world_options){.model = "tiny-rand"});
    const char *body = BODY(",\"max_tokens\":4000,\"ignore_eos\":true,\"stream\":true");
    struct api_call *c;
    struct api_error e = {0};
    sem_t woken;
    sem_init(&woken, 0, 0);
    assert_int_equal(api_prepare(s.api, API_CHAT, body, strlen(body), 0, &c, &e), 0);
    assert_int_equal(api_submit(c, wake_reader, &woken, &e), 0);
    struct bytes out = {0};
    while (out.n == 0) {
        if (read_on(c, &out, &e) == API_WAIT && out.n == 0) sem_wait(&woken);
    }
    api_call_cancel(c);
    api_call_free(c);
    assert_int_equal(outcomes(&s, "cancelled"), 1);
    bytes_free(&out);
    sem_destroy(&woken);
    server_close(&s);
}

static void a_refused_body_is_counted_once(void **state)
{
    (void)state;
    struct server s;
    server_open(&s, &(struct world_options){.model = "tiny-rand", .context = 64});
    struct api_call *c = NULL;
    struct api_error e = {0};
    const char *body = "{" USER("zqxjzqxjzqxjzqxjzqxjzqxjzqxjzqxjzqxjzqxj"
                                "zqxjzqxjzqxjzqxjzqxjzqxjzqxjzqxjzqxjzqxj") "}";
    assert_int_equal(api_prepare(s.api, API_CHAT, body, strlen(body), 0, &c, &e),
                     -EINVAL);
    assert_string_equal(e.code, "context_length_exceeded");
    assert_non_null(strstr(e.message, "64 tokens"));
    assert_int_equal(outcomes(&s, "invalid"), 1);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_joins_to_the_whole_answer_for_every_choice),
        cmocka_unit_test(an_echo_scores_every_token_and_the_end),
        cmocka_unit_test(a_call_is_taken_whole_or_not_at_all),
        cmocka_unit_test(a_client_that_leaves_is_counted_once),
        cmocka_unit_test(a_refused_body_is_counted_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
