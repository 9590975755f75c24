/* Conversations over HTTP: names in heads, paths, methods, arguments and keys. */
#include "tests/files.h"
#include "tests/server/http_fixture.h"

#include <fcntl.h>

#define ALICE "Authorization: Bearer " KEY_A "\r\n"
#define BOB   "Authorization: Bearer " KEY_B "\r\n"
#define TALK                                                                           \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"one two three four five six "     \
    "seven eight nine ten eleven twelve thirteen\"}],\"max_tokens\":4"

static struct server keeping(void)
{
    struct server s = server_options();
    s.options.ram = 1 << 20;
    s.options.kv_blocks = 256;
    s.options.context = 2048;
    return s;
}

static int open_shared(void **state)
{
    (void)state;
    return server_share(keeping());
}

/* A request without body. */
static const char *request(const char *method, const char *target, const char *fields)
{
    static char text[1024];
    snprintf(text, sizeof text, "%s %s HTTP/1.1\r\n" HOST LAST "%s\r\n", method, target,
             fields);
    return text;
}

static int status_for(const char *method, const char *target)
{
    return status(&shared, request(method, target, ""));
}

static void talk(const struct server *s, const char *fields, const char *more,
                 const char *expected)
{
    char body[512], head[256];
    snprintf(body, sizeof body, TALK "%s}", more);
    snprintf(head, sizeof head, LAST "%s", fields);
    char *answer = ask(s, chat(head, body));
    if (!strstr(answer, expected)) fail_msg("no %s in %s", expected, answer);
    free(answer);
}

static void the_head_names_a_conversation_before_the_body_does(void **state)
{
    (void)state;
    talk(&shared, "", ",\"prompt_cache_key\":\"of-body\"",
         "\"conversation\":\"of-body\"");
    talk(&shared, "x-conversation-id: of-head\r\n", ",\"prompt_cache_key\":\"of-body\"",
         "\"conversation\":\"of-head\"");
    talk(&shared, "X-Conversation-Id: a b\r\n", "", "\"param\":\"X-Conversation-Id\"");
    talk(&shared, "X-Conversation-Id: a\r\nX-Conversation-Id: a\r\n", "",
         "\"param\":\"X-Conversation-Id\"");
    talk(&shared, "X-Conversation-Id:\r\n", "", "HTTP/1.1 400");
    assert_int_equal(status_for("GET", "/v1/conversations/of-body"), 200);
    assert_int_equal(status_for("GET", "/v1/conversations/of-head"), 200);
}

static void paths_and_arguments_that_are_wrong_are_told_so(void **state)
{
    (void)state;
    talk(&shared, "", ",\"prompt_cache_key\":\"a:1\"", "\"conversation\":\"a:1\"");
    static const struct {
        const char *method, *target;
        int status;
    } cases[] = {
        {"GET", "/v1/conversations", 200},
        {"HEAD", "/v1/conversations", 200},
        {"GET", "/v1/conversations?limit=1&after=a%3A1", 200},
        {"GET", "/v1/conversations?limit=0", 400},
        {"GET", "/v1/conversations?limit=1001", 400},
        {"GET", "/v1/conversations?limit=x", 400},
        {"GET", "/v1/conversations?limit=", 400},
        {"GET", "/v1/conversations?after=nobody", 400},
        {"GET", "/v1/conversations?after=%00", 400},
        {"GET", "/v1/conversations/", 404},
        {"GET", "/v1/conversations/a:1", 200},
        {"GET", "/v1/conversations/a%3a1", 200},
        {"HEAD", "/v1/conversations/a%3A1", 200},
        {"GET", "/v1/conversations/nobody", 404},
        {"GET", "/v1/conversations/..", 400},
        {"GET", "/v1/conversations/%zz", 400},
        {"GET", "/v1/conversations/a%3A1/", 404},
        {"POST", "/v1/conversations/a:1/dance", 404},
        {"POST", "/v1/conversations/a:1/wake/", 404},
        {"POST", "/v1/conversations/a:1/wake", 200},
        {"POST", "/v1/conversations/nobody/wake", 404},
        {"POST", "/v1/conversations/a:1/hold", 400},
        {"POST", "/v1/conversations/a:1/hold?ttl=-1", 400},
        {"POST", "/v1/conversations/a:1/hold?ttl=1e3", 400},
        {"POST", "/v1/conversations/a:1/hold?ttl=99999999999999999999", 400},
        {"POST", "/v1/conversations/a:1/hold?ttl=60", 200},
        {"POST", "/v1/conversations/a:1/hold?ttl=0", 200},
        {"POST", "/v1/conversations/a:1/sleep", 200},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int got = status_for(cases[i].method, cases[i].target);
        if (got != cases[i].status)
            fail_msg("%s %s: %d", cases[i].method, cases[i].target, got);
    }
}

static void a_wrong_method_is_told_the_right_ones(void **state)
{
    (void)state;
    static const struct {
        const char *method, *target, *allow;
    } cases[] = {
        {"POST", "/v1/conversations", "\r\nAllow: GET, HEAD\r\n"},
        {"DELETE", "/v1/conversations", "\r\nAllow: GET, HEAD\r\n"},
        {"POST", "/v1/conversations/a", "\r\nAllow: GET, HEAD, DELETE\r\n"},
        {"PUT", "/v1/conversations/a", "\r\nAllow: GET, HEAD, DELETE\r\n"},
        {"GET", "/v1/conversations/a/wake", "\r\nAllow: POST\r\n"},
        {"DELETE", "/v1/conversations/a/hold", "\r\nAllow: POST\r\n"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char *answer = ask(&shared, request(cases[i].method, cases[i].target, ""));
        assert_int_equal(status_of(answer), 405);
        assert_non_null(strstr(answer, cases[i].allow));
        free(answer);
    }
}

static void a_body_is_thrown_away_and_the_connection_goes_on(void **state)
{
    (void)state;
    talk(&shared, "", ",\"prompt_cache_key\":\"b\"", "\"conversation\":\"b\"");
    char *answer =
        ask(&shared,
            "POST /v1/conversations/b/wake HTTP/1.1\r\n" HOST
            "Content-Length: 5\r\n\r\nhello"
            "DELETE /v1/conversations/b HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\n{}"
            "GET /v1/conversations/b HTTP/1.1\r\n" HOST LAST "\r\n");
    assert_int_equal(count(answer, "HTTP/1.1 200"), 2);
    assert_int_equal(count(answer, "HTTP/1.1 404"), 1);
    free(answer);
}

static void many_who_ask_and_leave_hold_up_nobody(void **state)
{
    (void)state;
    enum { N = 40 };
    int fd[N];
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < N; i++) {
            fd[i] = dial(&shared);
            say_text(fd[i], "GET /v1/conversations HTTP/1.1\r\n" HOST "\r\n");
        }
        for (int i = 0; i < N; i++) close(fd[i]);
        talk(&shared, "", "", "HTTP/1.1 200");
    }
    until_metric(&shared, "dormouse_connections{", 0);
}

static void a_key_sees_its_own_tenants_conversations_only(void **state)
{
    (void)state;
    static const char keys[] = "alice " KEY_A "\nbob " KEY_B "\n";
    struct server s = keeping();
    struct err err = {{0}};
    assert_int_equal(keys_parse(&s.keys, keys, sizeof keys - 1, "keys", &err), 0);
    server_listen(&s);
    /* The model is being loaded. */
    assert_int_equal(status(&s, request("GET", "/v1/conversations/a", ALICE)), 503);
    server_load(&s);

    talk(&s, ALICE, ",\"prompt_cache_key\":\"a\"", "\"conversation\":\"a\"");
    static const struct {
        const char *method, *target, *key;
        int status;
    } cases[] = {
        {"GET", "/v1/conversations/a", "", 401},
        {"GET", "/v1/conversations", "", 401},
        {"GET", "/v1/conversations/a", BOB, 404},
        {"DELETE", "/v1/conversations/a", BOB, 404},
        {"POST", "/v1/conversations/a/wake", BOB, 404},
        {"GET", "/v1/conversations?after=a", BOB, 400},
        {"GET", "/v1/conversations/a", ALICE, 200},
        {"DELETE", "/v1/conversations/a", ALICE, 200},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *text = request(cases[i].method, cases[i].target, cases[i].key);
        assert_int_equal(status(&s, text), cases[i].status);
    }
    http_drain(s.http);
    assert_int_equal(status(&s, request("GET", "/v1/conversations", ALICE)), 503);
    server_end(&s);
}

/* What the function writes to standard error; the server has no connection then. */
static char *log_of(const struct server *s, void (*run)(const struct server *s))
{
    char *dir = files_temp_dir();
    char path[512];
    size_t n;
    snprintf(path, sizeof path, "%s/log", dir);
    fflush(stderr);
    int there = dup(2), fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(there >= 0 && fd >= 0 && dup2(fd, 2) == 2);
    log_open("info");
    run(s);
    until_metric(s, "dormouse_connections{", 0);
    log_open("error");
    assert_int_equal(dup2(there, 2), 2);
    char *text = files_read(path, &n);
    close(fd);
    close(there);
    files_remove_dir(dir);
    return text;
}

#define SECRET "/v1/conversations/secret-name"

static void ask_about_a_secret(const struct server *s)
{
    assert_int_equal(status(s, request("GET", SECRET, "")), 401);
    assert_int_equal(status(s, request("POST", SECRET "/wake", "Host: y\r\n")), 400);
    assert_int_equal(status(s, request("GET", "http://u:p@h" SECRET, ALICE)), 404);
    assert_int_equal(status(s, "GET " SECRET "?a=secret-name HTTP/1.1\r\n"), 408);
}

static void no_name_reaches_the_log_whatever_became_of_the_request(void **state)
{
    (void)state;
    static const char keys[] = "alice " KEY_A "\n";
    struct server s = keeping();
    struct err err = {{0}};
    s.options.header_timeout_ms = 200;
    assert_int_equal(keys_parse(&s.keys, keys, sizeof keys - 1, "keys", &err), 0);
    server_listen(&s);
    server_load(&s);
    char *text = log_of(&s, ask_about_a_secret);
    assert_int_equal(count(text, "GET /v1/conversations/ID status=40"), 2);
    assert_int_equal(count(text, "- /v1/conversations/ID status=408"), 1);
    assert_int_equal(count(text, "POST /v1/conversations/ID/wake status=400"), 1);
    assert_int_equal(count(text, "secret"), 0);
    free(text);
    server_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_head_names_a_conversation_before_the_body_does),
        cmocka_unit_test(paths_and_arguments_that_are_wrong_are_told_so),
        cmocka_unit_test(a_wrong_method_is_told_the_right_ones),
        cmocka_unit_test(a_body_is_thrown_away_and_the_connection_goes_on),
        cmocka_unit_test(many_who_ask_and_leave_hold_up_nobody),
        cmocka_unit_test(a_key_sees_its_own_tenants_conversations_only),
        cmocka_unit_test(no_name_reaches_the_log_whatever_became_of_the_request),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
