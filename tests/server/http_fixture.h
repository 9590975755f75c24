/* http_fixture.h - the whole server in this process over a tiny model, and raw sockets
 * to speak to it.
 *
 * Owns     what server_listen() and server_load() opened, until server_end().
 * Threads  one; the test's.
 */
#ifndef TESTS_SERVER_HTTP_FIXTURE_H
#define TESTS_SERVER_HTTP_FIXTURE_H

#include "server/http.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/stack.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

// cmocka needs these before it
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define HOST "Host: x\r\n"
#define JSON "Content-Type: application/json\r\n"
#define LAST "Connection: close\r\n"
#define CHAT "POST /v1/chat/completions HTTP/1.1\r\n" HOST JSON

#define KEY_A "sk-alice-0123456789"
#define KEY_B "sk-bob-9876543210-x"

struct server {
    struct options options;
    struct keys *keys;
    struct metrics *metrics;
    struct http *http;
    struct stack stack;
    uint16_t port;
};

static struct server server_options(void)
{
    struct server s = {0};
    options_defaults(&s.options);
    strcpy(s.options.model, "tests/golden/models/tiny-abc");
    s.options.port = 0;
    s.options.margin = 0;
    s.options.kv_blocks = 16384;
    s.options.max_body = 64 << 10;
    return s;
}

static void server_listen(struct server *s)
{
    struct err err = {{0}};
    int rc = metrics_open(&s->metrics, "tiny-abc", &err);
    const struct http_options h = {
        .options = &s->options, .keys = s->keys, .metrics = s->metrics};
    if (rc == 0) rc = http_open(&s->http, &h, &err);
    if (rc) fail_msg("%s", err.msg);
    s->port = (uint16_t)atoi(strrchr(http_address(s->http), ':') + 1);
}

static void server_load(struct server *s)
{
    struct err err = {{0}};
    const struct stack_options o = {.options = &s->options,
                                    .name = "tiny-abc",
                                    .metrics = s->metrics,
                                    .keys = s->keys,
                                    .tick = http_tick,
                                    .tick_arg = s->http};
    int rc = stack_check(&s->stack, &o, &err);
    if (rc == 0) rc = stack_start(&s->stack, &o, &err);
    if (rc) fail_msg("%s", err.msg);
    http_serve(s->http, s->stack.api);
}

static void server_end(struct server *s)
{
    http_drain(s->http);
    if (s->stack.engine) engine_drain(s->stack.engine, 0);
    http_stop(s->http, 1000);
    stack_close(&s->stack);
    http_close(s->http);
    metrics_close(s->metrics);
    keys_close(s->keys);
}

/* One server for all tests of a program: what the set-up of its group returns. */
static struct server shared;

static int server_share(struct server how)
{
    signal(SIGPIPE, SIG_IGN);
    log_open("error");
    shared = how;
    server_listen(&shared);
    server_load(&shared);
    return 0;
}

static int close_shared(void **state)
{
    (void)state;
    server_end(&shared);
    return 0;
}

static int dial(const struct server *s)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(s->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void say(int fd, const void *data, size_t n)
{
    (void)!send(fd, data, n, MSG_NOSIGNAL);  // the server may have hung up already
}

static void say_text(int fd, const char *text)
{
    say(fd, text, strlen(text));
}

/* Everything until the server closes, or `until` has come. */
static void hear(int fd, struct bytes *out, const char *until)
{
    char buf[4096];
    for (;;) {
        if (until && out->n && strstr(out->data, until)) return;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 60000) != 1) fail_msg("the server says nothing and stays");
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n <= 0) break;
        bytes_add(out, buf, (size_t)n);
    }
    if (until) fail_msg("the server closed before: %s", until);
}

/* The whole answer to one request that says Connection: close. */
static char *ask(const struct server *s, const char *request)
{
    struct bytes out = {0};
    int fd = dial(s);
    say_text(fd, request);
    hear(fd, &out, NULL);
    close(fd);
    bytes_add_text(&out, "");
    return out.data;
}

static int status_of(const char *answer)
{
    return strncmp(answer, "HTTP/1.1 ", 9) ? 0 : atoi(answer + 9);
}

static int status(const struct server *s, const char *request)
{
    char *answer = ask(s, request);
    int code = status_of(answer);
    free(answer);
    return code;
}

static unsigned count(const char *text, const char *what)
{
    unsigned n = 0;
    for (; (text = strstr(text, what)); text += strlen(what)) n++;
    return n;
}

/* A POST of the chat API with more head fields and this body. */
static const char *chat(const char *fields, const char *body)
{
    static char request[1024];
    snprintf(request, sizeof request, CHAT "%sContent-Length: %zu\r\n\r\n%s", fields,
             strlen(body), body);
    return request;
}

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define SHORT    "{" MESSAGES ",\"temperature\":0,\"max_tokens\":4}"
#define LONG     "{" MESSAGES ",\"max_tokens\":100000,\"stream\":true}"

/* The value of a metric's first series, or -1. */
static double metric(const struct server *s, const char *name)
{
    struct bytes text = {0};
    double value = -1;
    metrics_render(s->metrics, &text);
    for (char *p = text.data; p && (p = strstr(p, name)); p++) {
        if (p != text.data && p[-1] != '\n') continue;
        value = atof(p + strcspn(p, " "));
        break;
    }
    bytes_free(&text);
    return value;
}

/* Wait until it holds; the test program's own time limit is the bound. */
static void until_metric(const struct server *s, const char *name, double value)
{
    while (metric(s, name) != value) usleep(1000);
}

#endif
