/* Conversations by their names: what the API tells and does, over a real engine. */
#include "tests/server/api_server.h"

#define WORDS "the cat sat on the mat and looked at the other cat that sat on its mat "
#define LONG  WORDS WORDS WORDS
#define NAMED(name, more)                                                              \
    "{" USER(LONG) ",\"max_tokens\":2,\"prompt_cache_key\":\"" name "\"" more "}"

/* The answer as JSON; header: as X-Conversation-Id would, or NULL. */
static struct json *chat(struct server *s, uint32_t tenant, const char *body,
                         const char *header)
{
    static struct bytes out;
    bytes_free(&out);
    out = ask(s, API_CHAT, tenant, body, header);
    return json_of(out.data, out.n);
}

static int put(struct server *s, const struct api_question *q, struct json **out,
               struct api_error *e)
{
    static struct bytes text;
    bytes_clear(&text);
    *e = (struct api_error){0};
    *out = NULL;
    int rc = api_answer_question(s->api, q, &text, e);
    if (rc == 0) *out = json_of(text.data, text.n);
    return rc;
}

static struct api_question about(int what, uint32_t tenant, const char *name)
{
    struct api_question q = {.tenant = tenant, .limit = 100, .ttl_s = 60};
    q.about = what;
    snprintf(q.name, sizeof q.name, "%s", name);
    return q;
}

/* The answer must be good. */
static struct json *tell(struct server *s, int what, uint32_t tenant, const char *name)
{
    struct api_question q = about(what, tenant, name);
    struct api_error e;
    struct json *j;
    if (put(s, &q, &j, &e) < 0) fail_msg("%d: %s", e.status, e.message);
    return j;
}

static int status_to(struct server *s, int what, uint32_t tenant, const char *name)
{
    struct api_question q = about(what, tenant, name);
    struct api_error e;
    struct json *j;
    if (put(s, &q, &j, &e) == 0) {
        json_close(j);
        return 200;
    }
    return e.status;
}

static uint64_t number(const struct json *j, const char *path)
{
    uint64_t n;
    if (!json_u64(json_at(json_root(j), path), &n)) fail_msg("no number at %s", path);
    return n;
}

static const struct world_options keeping = {
    .model = "tiny-rand",
    .keeps = true,
    .ram_blocks = 256,
    .policy = {.copy_after = 1,
               .idle_after = UINT64_C(3600000000000),
               .ssd_after = UINT64_C(3600000000000),
               .high = 1,
               .low = 1,
               .max_loads = 8,
               .max_stores = 8,
               .max_load_bytes = 1 << 28,
               .wake_deadline = UINT64_C(60000000000)},
};

static void a_name_is_of_a_safe_alphabet_and_at_most_63_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool good;
    } cases[] = {
        {"a", true},
        {"0", true},
        {"user-7:chat_2.b@c", true},
        {"123456789012345678901234567890123456789012345678901234567890123", true},
        {"1234567890123456789012345678901234567890123456789012345678901234", false},
        {"", false},
        {".", false},
        {"..", false},
        {"-a", false},
        {"a b", false},
        {"a/b", false},
        {"a%b", false},
        {"caf\xc3\xa9", false},
        {"a\nb", false},
        {"a\x7f", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct api_error e = {0};
        int rc = api_check_conversation(cases[i].name, strlen(cases[i].name), "id", &e);
        assert_int_equal(rc, cases[i].good ? 0 : -EINVAL);
        if (cases[i].good) continue;
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, "id");
    }
    struct api_error e = {0};
    assert_int_equal(api_check_conversation("a\0b", 3, "id", &e), -EINVAL);
}

static void a_prompt_cache_key_names_the_conversation_whatever_it_holds(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f);
    struct api_call *c = prepare(&f, API_CHAT, BODY(",\"prompt_cache_key\":\"k:1\""));
    assert_string_equal(request_of(c, 0)->conversation, "k:1");
    api_call_name(c, "header");
    assert_string_equal(request_of(c, 0)->conversation, "header");
    api_call_free(c);
    c = prepare(&f, API_COMPLETION,
                "{\"prompt\":[\"a\",\"b\"],\"prompt_cache_key\":\"\\u0061\"}");
    assert_string_equal(request_of(c, 0)->conversation, "a");
    assert_string_equal(request_of(c, 1)->conversation, "");
    api_call_free(c);
    c = prepare(&f, API_CHAT, BODY(",\"prompt_cache_key\":null"));
    assert_string_equal(request_of(c, 0)->conversation, "");
    api_call_free(c);

    static const char *const odd[] = {
        "\"a b\"", "\"a\\u0000b\"", "\"\\u00e9\"",
        "\"12345678901234567890123456789012345678901234567890"
        "123456789012345\""};
    char names[ARRAY_LEN(odd)][KVSTORE_CONVERSATION], body[256];
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        snprintf(body, sizeof body, BODY(",\"prompt_cache_key\":%s"), odd[i]);
        c = prepare(&f, API_CHAT, body);
        strcpy(names[i], request_of(c, 0)->conversation);
        api_call_free(c);
        assert_int_equal(strlen(names[i]), 4 + 32);
        assert_memory_equal(names[i], "key-", 4);
        for (size_t k = 0; k < i; k++) assert_string_not_equal(names[i], names[k]);
    }
    c = prepare(&f, API_CHAT, BODY(",\"prompt_cache_key\":\"\""));
    assert_string_equal(request_of(c, 0)->conversation, "");
    api_call_free(c);
    for (int i = 0; i < 2; i++) {
        struct api_error e = {0};
        snprintf(body, sizeof body, BODY(",\"prompt_cache_key\":%s"), i ? "7" : "[]");
        assert_int_equal(api_prepare(&f.api, API_CHAT, body, strlen(body), 0, &c, &e),
                         -EINVAL);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, "prompt_cache_key");
    }
    fixture_close(&f);
}

static void an_answer_tells_where_its_prompt_came_from(void **state)
{
    (void)state;
    struct server s;
    server_open(&s, &keeping);
    uint64_t cached = 0, computed = 0;
    for (int i = 0; i < 2; i++) {
        struct json *j = chat(&s, 0, NAMED("a", ""), i ? "b" : NULL);
        assert_json(j, "usage/dormouse/conversation", i ? "\"b\"" : "\"a\"");
        assert_json(j, "usage/dormouse/woken_from", i ? "\"device\"" : "null");
        uint64_t prompt = number(j, "usage/prompt_tokens");
        uint64_t from = number(j, "usage/dormouse/tokens/device");
        assert_int_equal(from, number(j, "usage/prompt_tokens_details/cached_tokens"));
        assert_int_equal(from, i ? (prompt - 1) / 16 * 16 : 0);
        assert_int_equal(from + number(j, "usage/dormouse/computed/new"), prompt);
        cached += from;
        computed += prompt - from;
        json_close(j);
    }
    assert_int_equal(metrics_counter(s.w.metrics, COUNTER_FROM_DEVICE), cached);
    assert_int_equal(metrics_counter(s.w.metrics, COUNTER_NEW), computed);
    assert_int_equal(metrics_counter(s.w.metrics, COUNTER_PROMPT_TOKENS),
                     cached + computed);
    server_close(&s);
}

static void a_stream_tells_it_in_its_usage_and_nowhere_else(void **state)
{
    (void)state;
    struct server s;
    server_open(&s, &keeping);
    struct bytes out =
        ask(&s, API_CHAT, 0,
            NAMED("a", ",\"stream\":true,\"stream_options\":{\"include_usage\":true}"),
            NULL);
    int told = 0;
    struct json *j;
    for (int i = 0; (j = frame_of(&out, i)); i++) {
        struct json_value usage = json_at(json_root(j), "usage");
        if (json_is(usage, JSON_OBJECT)) {
            assert_true(json_exists(json_at(usage, "dormouse")));
            told++;
        }
        json_close(j);
    }
    assert_int_equal(told, 1);
    bytes_free(&out);
    out = ask(&s, API_CHAT, 0, NAMED("a", ",\"stream\":true"), NULL);
    bytes_add(&out, "", 1);
    assert_null(strstr(out.data, "dormouse"));
    bytes_free(&out);
    server_close(&s);
}

/* Wait until the conversation is in that state; the program's time limit is the bound. */
static void until_state(struct server *s, const char *name, const char *state)
{
    for (;;) {
        struct json *j = tell(s, API_TELL, 0, name);
        char is[16];
        assert_int_equal(
            json_string(json_at(json_root(j), "state"), is, sizeof is, NULL), 0);
        json_close(j);
        if (strcmp(is, state) == 0) return;
        usleep(1000);
    }
}

static void
a_conversation_sleeps_wakes_and_is_forgotten_when_it_is_told_to(void **state)
{
    (void)state;
    struct server s;
    server_open(&s, &keeping);
    json_close(chat(&s, 0, NAMED("a", ""), NULL));
    json_close(tell(&s, API_SLEEP, 0, "a"));
    until_state(&s, "a", "asleep");
    struct json *j = tell(&s, API_TELL, 0, "a");
    uint64_t block = kv_block_bytes(&s.w.kv.mem.shape);
    uint64_t kept = number(j, "tokens") / 16 * block;
    assert_json(j, "object", "\"conversation\"");
    assert_int_equal(number(j, "bytes/device"), 0);
    assert_int_equal(number(j, "bytes/ram"), kept);
    assert_json(j, "held_until", "null");
    assert_true(number(j, "last_used") > 1000000000);
    json_close(j);

    json_close(tell(&s, API_WAKE, 0, "a"));
    until_state(&s, "a", "idle");
    j = tell(&s, API_HOLD, 0, "a");
    assert_int_equal(number(j, "bytes/device"), kept);
    uint64_t held = number(j, "held_until"), used = number(j, "last_used");
    assert_true(held > used && held - used < 3600);
    json_close(j);

    json_close(tell(&s, API_SLEEP, 0, "a"));
    until_state(&s, "a", "asleep");
    j = chat(&s, 0, NAMED("a", ""), NULL);
    assert_json(j, "usage/dormouse/woken_from", "\"ram\"");
    uint64_t from = number(j, "usage/dormouse/tokens/ram");
    assert_int_equal(from, number(j, "usage/prompt_tokens_details/cached_tokens"));
    assert_int_equal(number(j, "usage/dormouse/promoted_bytes"), from / 16 * block);
    json_close(j);
    assert_int_equal(metrics_counter(s.w.metrics, COUNTER_FROM_RAM), from);

    j = tell(&s, API_FORGET, 0, "a");
    assert_json(j, "deleted", "true");
    json_close(j);
    assert_int_equal(status_to(&s, API_TELL, 0, "a"), 404);
    assert_int_equal(slots_used(s.w.tiers.ram->slots), 0);
    j = chat(&s, 0, NAMED("a", ""), NULL);
    assert_json(j, "usage/dormouse/woken_from", "null");
    json_close(j);
    server_close(&s);
}

static void another_tenants_conversations_are_not_there(void **state)
{
    (void)state;
    struct server s;
    server_open(&s, &keeping);
    json_close(chat(&s, 0, NAMED("a", ""), NULL));
    static const int all[] = {API_TELL, API_FORGET, API_SLEEP, API_WAKE, API_HOLD};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        assert_int_equal(status_to(&s, all[i], 1, "a"), 404);
    struct json *j = tell(&s, API_LIST, 1, "");
    assert_json(j, "data", "[]");
    assert_json(j, "first_id", "null");
    json_close(j);
    assert_int_equal(status_to(&s, API_TELL, 0, "a"), 200);
    server_close(&s);
}

static void pages_hold_every_conversation_once(void **state)
{
    (void)state;
    struct server s;
    server_open(&s, &keeping);
    enum { N = 30 };
    for (int i = 0; i < N; i++) {
        char body[1024];
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"%d " WORDS
                 "\"}],\"max_tokens\":1,\"prompt_cache_key\":\"c%d\"}",
                 i, i);
        json_close(chat(&s, (uint32_t)i % 2, body, NULL));
    }
    for (uint32_t limit = 1; limit <= N / 2 + 1; limit++) {
        struct api_question q = about(API_LIST, 1, "");
        struct api_error e;
        int expected = N - 1;
        q.limit = limit;
        for (bool more = true; more;) {
            struct json *j;
            assert_int_equal(put(&s, &q, &j, &e), 0);
            struct json_value data = json_at(json_root(j), "data");
            for (struct json_iter i = json_iter(data); json_next(&i); expected -= 2) {
                char name[64], wanted[64];
                snprintf(wanted, sizeof wanted, "c%d", expected);
                struct json_value id = json_get(i.value, "id");
                assert_int_equal(json_string(id, name, sizeof name, NULL), 0);
                assert_string_equal(name, wanted);
                memcpy(q.after, name, sizeof name);
            }
            assert_true(json_bool(json_at(json_root(j), "has_more"), &more));
            json_close(j);
        }
        assert_int_equal(expected, -1);
    }
    struct api_question q = about(API_LIST, 1, "");
    struct api_error e;
    struct json *j;
    strcpy(q.after, "c0");  // of the other tenant
    assert_int_equal(put(&s, &q, &j, &e), -EINVAL);
    assert_int_equal(e.status, 400);
    assert_string_equal(e.param, "after");
    server_close(&s);
}

static void an_active_conversation_is_not_touched(void **state)
{
    (void)state;
    struct server s;
    server_open(&s, &keeping);
    static const char body[] =
        "{" USER(LONG) ",\"max_tokens\":8000,\"ignore_eos\":true,"
                       "\"stream\":true,\"prompt_cache_key\":\"a\"}";
    struct api_call *c;
    struct api_error e = {0};
    sem_t woken;
    sem_init(&woken, 0, 0);
    assert_int_equal(api_prepare(s.api, API_CHAT, body, sizeof body - 1, 0, &c, &e), 0);
    assert_int_equal(api_submit(c, wake_reader, &woken, &e), 0);
    wait_until(scrape(&s.w, "num_requests_running") == 1);
    until_state(&s, "a", "active");
    assert_int_equal(status_to(&s, API_SLEEP, 0, "a"), 409);
    assert_int_equal(status_to(&s, API_FORGET, 0, "a"), 409);
    api_call_cancel(c);
    api_call_free(c);
    until_state(&s, "a", "idle");
    assert_int_equal(status_to(&s, API_FORGET, 0, "a"), 200);
    sem_destroy(&woken);
    server_close(&s);
}

static void a_server_that_keeps_nothing_says_so(void **state)
{
    (void)state;
    struct server s;
    server_open(&s, &(struct world_options){.model = "tiny-rand"});
    assert_int_equal(status_to(&s, API_LIST, 0, ""), 503);
    assert_int_equal(status_to(&s, API_TELL, 0, "a"), 503);
    struct json *j = chat(&s, 0, NAMED("a", ""), NULL);
    assert_json(j, "usage/dormouse/woken_from", "null");
    assert_int_equal(number(j, "usage/dormouse/computed/new"),
                     number(j, "usage/prompt_tokens"));
    json_close(j);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_of_a_safe_alphabet_and_at_most_63_bytes),
        cmocka_unit_test(a_prompt_cache_key_names_the_conversation_whatever_it_holds),
        cmocka_unit_test(an_answer_tells_where_its_prompt_came_from),
        cmocka_unit_test(a_stream_tells_it_in_its_usage_and_nowhere_else),
        cmocka_unit_test(
            a_conversation_sleeps_wakes_and_is_forgotten_when_it_is_told_to),
        cmocka_unit_test(another_tenants_conversations_are_not_there),
        cmocka_unit_test(pages_hold_every_conversation_once),
        cmocka_unit_test(an_active_conversation_is_not_touched),
        cmocka_unit_test(a_server_that_keeps_nothing_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
