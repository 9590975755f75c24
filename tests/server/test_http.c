/* HTTP with raw sockets, on the whole server in this process over a tiny model. */
#include "server/http_internal.h"
#include "tests/server/http_fixture.h"

#include <netinet/tcp.h>
#include <semaphore.h>

/* ---- one server for most ---- */

static int open_shared(void **state)
{
    (void)state;
    struct server how = server_options();
    how.options.header_timeout_ms = how.options.body_timeout_ms = 500;
    return server_share(how);
}

static void a_path_is_taken_as_it_is_written(void **state)
{
    (void)state;
    static const struct {
        const char *target;
        int status;
    } cases[] = {
        {"/health", 200},
        {"/metrics", 200},
        {"/", 200},
        {"/v1/models", 200},
        {"/v1/models/tiny-abc", 200},
        {"/v1/models/tiny%2Dabc", 200},
        {"/v1/models?x=y", 200},
        {"http://x/v1/models", 200},
        {"HTTP://x", 200},
        {"//v1/models", 404},
        {"/v1/../metrics", 404},
        {"/v1%2Fmodels", 404},
        {"/v1/models/", 404},
        {"/v1/models/other", 404},
        {"/v1/models/%00", 400},
        {"/v1/models/%4", 400},
        {"/health/", 404},
        {"*", 404},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char request[256];
        snprintf(request, sizeof request, "GET %s HTTP/1.1\r\n" HOST LAST "\r\n",
                 cases[i].target);
        assert_int_equal(status(&shared, request), cases[i].status);
    }
}

static void a_wrong_method_is_told_the_right_ones(void **state)
{
    (void)state;
    char *answer = ask(&shared, "GET /v1/completions HTTP/1.1\r\n" HOST LAST "\r\n");
    assert_int_equal(status_of(answer), 405);
    assert_non_null(strstr(answer, "\r\nAllow: POST\r\n"));
    free(answer);
    answer = ask(&shared,
                 "POST /health HTTP/1.1\r\n" HOST LAST "Content-Length: 2\r\n\r\n{}");
    assert_int_equal(status_of(answer), 405);
    assert_non_null(strstr(answer, "\r\nAllow: GET, HEAD\r\n"));
    free(answer);
    answer = ask(&shared, "HEAD /health HTTP/1.1\r\n" HOST LAST "\r\n");
    assert_int_equal(status_of(answer), 200);
    assert_string_equal(strstr(answer, "\r\n\r\n"), "\r\n\r\n");
    free(answer);
}

static void a_body_that_is_not_json_by_its_type_is_refused(void **state)
{
    (void)state;
#define TYPED(type)                                                                    \
    "POST /v1/chat/completions HTTP/1.1\r\n" HOST LAST type                            \
    "Content-Length: 2\r\n\r\n{}"
    assert_int_equal(status(&shared, TYPED("Content-Type: text/plain\r\n")), 415);
    assert_int_equal(status(&shared, TYPED("Content-Type: application/jsonx\r\n")),
                     415);
    assert_int_equal(status(&shared, TYPED(JSON "Content-Encoding: gzip\r\n")), 415);
    /* 400: the body was read, and lacks its messages. */
    assert_int_equal(status(&shared, TYPED("Content-Type: Application/JSON;a=b\r\n")),
                     400);
    assert_int_equal(status(&shared, TYPED("")), 400);
}

static void
a_head_with_two_readings_is_refused_and_nothing_after_it_is_read(void **state)
{
    (void)state;
    static const char *const heads[] = {
        CHAT "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHAT "Content-Length: 2\r\nContent-Length: 60\r\n\r\n{}",
        CHAT "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        CHAT "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        CHAT
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHAT "Content-Length: +2\r\n\r\n{}",
        CHAT HOST "Content-Length: 2\r\n\r\n{}",
        CHAT "Content-Length : 2\r\n\r\n{}",
        "GET /health HTTP/1.1\r\n\r\n",
        "GET /he alth HTTP/1.1\r\n" HOST "\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        struct bytes request = {0};
        bytes_add_text(&request, heads[i]);
        bytes_add_text(&request, "GET /health HTTP/1.1\r\n" HOST LAST "\r\n");
        char *answer = ask(&shared, request.data);
        assert_int_equal(status_of(answer), 400);
        assert_int_equal(count(answer, "HTTP/1.1 200"), 0);
        free(answer);
        bytes_free(&request);
    }
}

static void a_large_body_is_refused_before_it_is_read(void **state)
{
    (void)state;
    assert_int_equal(status(&shared, CHAT "Content-Length: 10000000000\r\n\r\n{"), 413);
    assert_int_equal(
        status(&shared, CHAT "Content-Length: 99999999999999999999999\r\n\r\n{"), 413);
    assert_int_equal(status(&shared, CHAT "Expect: 100-continue\r\n"
                                          "Content-Length: 10000000000\r\n\r\n"),
                     413);
}

static void a_chunked_body_is_refused_where_it_passes_the_limit(void **state)
{
    (void)state;
    char chunk[4096 + 8] = "1000\r\n";
    memset(chunk + 6, ' ', 4096);
    memcpy(chunk + 6 + 4096, "\r\n", 2);
    struct bytes out = {0};
    int fd = dial(&shared);
    say_text(fd, CHAT "Transfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 64; i++) say(fd, chunk, sizeof chunk);
    hear(fd, &out, "\r\n\r\n{\"error\"");
    assert_int_equal(status_of(out.data), 413);
    close(fd);
    bytes_free(&out);
}

static void a_large_head_is_refused(void **state)
{
    (void)state;
    struct bytes request = {0};
    bytes_add_text(&request, "GET /health HTTP/1.1\r\n" HOST LAST);
    for (int i = 0; i < 200; i++) bytes_add_text(&request, "A: b\r\n");
    bytes_add_text(&request, "\r\n");
    assert_int_equal(status(&shared, request.data), 431);
    bytes_free(&request);
}

static void requests_behind_one_another_are_answered_in_order(void **state)
{
    (void)state;
    struct bytes request = {0};
    bytes_add_text(&request, chat("", SHORT));
    bytes_add_text(&request, chat("", "{"));
    bytes_add_text(&request, "GET /v1/models HTTP/1.1\r\n" HOST LAST "\r\n");
    char *answer = ask(&shared, request.data), *at = answer;
    assert_int_equal(count(answer, "HTTP/1.1 "), 3);
    assert_int_equal(status_of(at), 200);
    assert_non_null(strstr(at, "ABCD"));
    assert_int_equal(status_of(at = strstr(at + 1, "HTTP/1.1 ")), 400);
    assert_int_equal(status_of(strstr(at + 1, "HTTP/1.1 ")), 200);
    free(answer);
    bytes_free(&request);
}

static void a_stream_is_framed_and_ends(void **state)
{
    (void)state;
    char *answer =
        ask(&shared, chat(LAST, "{" MESSAGES ",\"max_tokens\":3,\"stream\":true}"));
    assert_int_equal(status_of(answer), 200);
    assert_non_null(
        strstr(answer, "\r\nContent-Type: text/event-stream; charset=utf-8\r\n"));
    assert_int_equal(count(answer, "data: [DONE]\n\n"), 1);
    free(answer);
}

static void a_client_that_leaves_or_half_leaves_ends_its_request(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        struct bytes out = {0};
        int fd = dial(&shared);
        say_text(fd, chat("", LONG));
        hear(fd, &out, "data: ");
        assert_true(metric(&shared, "dormouse_num_requests_running") == 1);
        if (half)
            shutdown(fd, SHUT_WR);
        else
            close(fd);
        until_metric(&shared, "dormouse_num_requests_running", 0);
        if (half) close(fd);
        bytes_free(&out);
    }
}

static int cancelled(const struct server *s)
{
    struct bytes text = {0};
    metrics_render(s->metrics, &text);
    const char *at = strstr(text.data, "outcome=\"cancelled\"} ");
    int n = at ? atoi(strchr(at, ' ')) : -1;
    bytes_free(&text);
    return n;
}

/* A job that holds the worker which has it. */
struct gate {
    struct job job;
    sem_t reached, open;
};

static void wait_at_gate(struct job *j)
{
    struct gate *g = CONTAINER_OF(j, struct gate, job);
    sem_post(&g->reached);
    while (sem_wait(&g->open) != 0) {
    }
}

/* Leave, and wait until the server's side of the connection has the end. */
static void leave(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    for (int ms = 0; info.tcpi_state != TCP_FIN_WAIT2; ms++, usleep(1000)) {
        if (ms == 60000) fail_msg("the end of a connection is not acknowledged");
        assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
    }
}

static void a_client_that_leaves_before_a_worker_has_its_body_is_counted(void **state)
{
    (void)state;
    enum { QUEUE = 8 };
    struct server s = server_options();
    s.options.workers = 1;
    s.options.max_running = s.options.max_waiting = QUEUE / 2;
    server_listen(&s);
    server_load(&s);
    struct gate gate = {.job.run = wait_at_gate};
    sem_init(&gate.reached, 0, 0);
    sem_init(&gate.open, 0, 0);
    assert_int_equal(workers_submit(s.http->workers, &gate.job), 0);
    assert_int_equal(sem_wait(&gate.reached), 0);

    /* The one that is refused tells that all others are in the queue. */
    struct pollfd clients[QUEUE + 1];
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
        clients[i] = (struct pollfd){.fd = dial(&s), .events = POLLIN};
        say_text(clients[i].fd, chat(LAST, LONG));
    }
    assert_int_equal(poll(clients, ARRAY_LEN(clients), 60000), 1);
    for (size_t i = 0; i < ARRAY_LEN(clients); i++)
        if (!clients[i].revents) leave(clients[i].fd);
    watch_poll(s.http->watch);

    sem_post(&gate.open);
    workers_stop(s.http->workers);  // it has run all of the queue
    assert_int_equal(cancelled(&s), QUEUE);
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) close(clients[i].fd);
    server_end(&s);
    sem_destroy(&gate.reached);
    sem_destroy(&gate.open);
}

static void what_comes_too_slowly_is_408(void **state)
{
    (void)state;
    assert_int_equal(status(&shared, "GET /hea"), 408);
    assert_int_equal(status(&shared, "GET /health HTTP/1.1\r\nHost: "), 408);
    assert_int_equal(status(&shared, CHAT "Content-Length: 9\r\n\r\n{"), 408);
}

/* ---- servers of their own ---- */

static void until_the_model_is_loaded_all_is_503(void **state)
{
    (void)state;
    struct server s = server_options();
    server_listen(&s);
    char *answer = ask(&s, "GET /health HTTP/1.1\r\n" HOST LAST "\r\n");
    assert_int_equal(status_of(answer), 503);
    assert_non_null(strstr(answer, "\"loading\""));
    free(answer);
    answer = ask(&s, chat(LAST, SHORT));
    assert_int_equal(status_of(answer), 503);
    assert_non_null(strstr(answer, "\r\nRetry-After: "));
    free(answer);
    assert_int_equal(status(&s, "GET /v1/models HTTP/1.1\r\n" HOST LAST "\r\n"), 503);
    assert_int_equal(status(&s, "GET /metrics HTTP/1.1\r\n" HOST LAST "\r\n"), 200);
    server_load(&s);
    assert_int_equal(status(&s, chat(LAST, SHORT)), 200);
    http_drain(s.http);
    assert_int_equal(status(&s, "GET /health HTTP/1.1\r\n" HOST LAST "\r\n"), 503);
    assert_int_equal(status(&s, chat(LAST, SHORT)), 503);
    server_end(&s);
}

static void with_keys_all_but_health_asks_for_one(void **state)
{
    (void)state;
    static const char file[] = "alice " KEY_A "\nbob " KEY_B "\n";
    struct server s = server_options();
    struct err err;
    assert_int_equal(keys_parse(&s.keys, file, sizeof file - 1, "keys", &err), 0);
    server_listen(&s);

    static const char *const wrong[] = {
        "",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer wrong-key-0123456789\r\n",
        "Authorization: Bearer" KEY_A "\r\n",
        "Authorization: Basic " KEY_A "\r\n",
        "Authorization: " KEY_A "\r\n",
        "Authorization: Bearer " KEY_A "\r\nAuthorization: Bearer " KEY_A "\r\n",
    };
    static const char *const lines[] = {"GET /v1/models", "GET //v1/models",
                                        "GET /metrics",   "GET /v1/../metrics",
                                        "BREW /x",        "GET /"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        for (size_t j = 0; j < ARRAY_LEN(lines); j++) {
            char request[512];
            snprintf(request, sizeof request, "%s HTTP/1.1\r\n" HOST LAST "%s\r\n",
                     lines[j], wrong[i]);
            char *answer = ask(&s, request);
            assert_int_equal(status_of(answer), 401);
            assert_non_null(strstr(answer, "\r\nWWW-Authenticate: Bearer\r\n"));
            assert_null(strstr(answer, KEY_A));
            free(answer);
        }
    assert_int_equal(status(&s, "GET /metrics HTTP/1.1\r\n" HOST LAST
                                "Authorization: bEARER  " KEY_B "\r\n\r\n"),
                     200);
    assert_int_equal(status(&s, "GET /health HTTP/1.1\r\n" HOST LAST "\r\n"), 503);
    server_end(&s);
}

static void a_tenant_is_held_to_its_places(void **state)
{
    (void)state;
    struct server s = server_options();
    s.options.max_per_tenant = 1;
    server_listen(&s);
    server_load(&s);
    struct bytes out = {0};
    int fd = dial(&s);
    say_text(fd, chat("", LONG));
    hear(fd, &out, "data: ");
    char *answer = ask(&s, chat(LAST, SHORT));
    assert_int_equal(status_of(answer), 429);
    assert_non_null(strstr(answer, "\r\nRetry-After: "));
    free(answer);
    close(fd);
    while (status(&s, chat(LAST, SHORT)) != 200) usleep(1000);
    bytes_free(&out);
    server_end(&s);
}

static void at_the_limit_of_connections_an_idle_one_makes_room(void **state)
{
    (void)state;
    struct server s = server_options();
    s.options.max_connections = 8;
    server_listen(&s);
    int idle[64];
    for (size_t i = 0; i < ARRAY_LEN(idle); i++) {
        idle[i] = dial(&s);
        say_text(idle[i], "G");
    }
    assert_int_equal(status(&s, "GET /health HTTP/1.1\r\n" HOST LAST "\r\n"), 503);
    /* The oldest was told that its time is up. */
    struct bytes out = {0};
    hear(idle[0], &out, NULL);
    assert_int_equal(status_of(out.data), 408);
    bytes_free(&out);
    for (size_t i = 0; i < ARRAY_LEN(idle); i++) close(idle[i]);
    server_end(&s);
}

static void beyond_loopback_it_listens_with_keys_only(void **state)
{
    (void)state;
    struct server s = server_options();
    struct err err;
    strcpy(s.options.host, "0.0.0.0");
    const struct http_options h = {.options = &s.options};
    assert_int_equal(http_open(&s.http, &h, &err), -EPERM);
    assert_non_null(strstr(err.msg, "0.0.0.0"));
    strcpy(s.options.host, "::ffff:10.0.0.1");
    assert_int_equal(http_open(&s.http, &h, &err), -EPERM);
    /* Loopback by its IPv6 name, where this machine has IPv6. */
    strcpy(s.options.host, "::ffff:127.0.0.1");
    int rc = http_open(&s.http, &h, &err);
    assert_int_not_equal(rc, -EPERM);
    if (rc == 0) http_close(s.http);
    strcpy(s.options.host, "no such host");
    assert_int_equal(http_open(&s.http, &h, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_path_is_taken_as_it_is_written),
        cmocka_unit_test(a_wrong_method_is_told_the_right_ones),
        cmocka_unit_test(a_body_that_is_not_json_by_its_type_is_refused),
        cmocka_unit_test(
            a_head_with_two_readings_is_refused_and_nothing_after_it_is_read),
        cmocka_unit_test(a_large_body_is_refused_before_it_is_read),
        cmocka_unit_test(a_chunked_body_is_refused_where_it_passes_the_limit),
        cmocka_unit_test(a_large_head_is_refused),
        cmocka_unit_test(requests_behind_one_another_are_answered_in_order),
        cmocka_unit_test(a_stream_is_framed_and_ends),
        cmocka_unit_test(a_client_that_leaves_or_half_leaves_ends_its_request),
        cmocka_unit_test(a_client_that_leaves_before_a_worker_has_its_body_is_counted),
        cmocka_unit_test(what_comes_too_slowly_is_408),
        cmocka_unit_test(until_the_model_is_loaded_all_is_503),
        cmocka_unit_test(with_keys_all_but_health_asks_for_one),
        cmocka_unit_test(a_tenant_is_held_to_its_places),
        cmocka_unit_test(at_the_limit_of_connections_an_idle_one_makes_room),
        cmocka_unit_test(beyond_loopback_it_listens_with_keys_only),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
