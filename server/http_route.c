#include "server/http_internal.h"

#include "server/log.h"
#include "server/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- GET ---- */

static enum MHD_Result get_health(struct exchange *x)
{
    static const char *const words[] = {"loading", "ok", "draining"};
    const struct http *h = exchange_http(x);
    int state = atomic_load(&h->state);
    const struct api *api = atomic_load(&h->api);
    bool failed = api && api_failed(api);
    struct bytes body = {0};
    bytes_printf(&body, "{\"status\":\"%s\"}\n", failed ? "failed" : words[state]);
    bool good = state == HTTP_READY && !failed;
    return answer_bytes(x, good ? 200 : 503, "application/json", &body);
}

static enum MHD_Result get_metrics(struct exchange *x)
{
    struct bytes body = {0};
    metrics_render(exchange_http(x)->metrics, &body);
    return answer_bytes(x, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static enum MHD_Result get_root(struct exchange *x)
{
    struct bytes body = {0};
    bytes_add_text(&body, "dormouse serves an OpenAI-style API.\n\n"
                          "POST /v1/chat/completions\n"
                          "POST /v1/completions\n"
                          "GET  /v1/models\n"
                          "GET  /v1/models/ID\n"
                          "GET  /v1/conversations\n"
                          "GET  /v1/conversations/ID (or DELETE)\n"
                          "POST /v1/conversations/ID/sleep\n"
                          "POST /v1/conversations/ID/wake\n"
                          "POST /v1/conversations/ID/hold?ttl=SECONDS\n"
                          "GET  /health\n"
                          "GET  /metrics\n");
    return answer_bytes(x, 200, "text/plain; charset=utf-8", &body);
}

/* The API; NULL, and a 503 in x->error, while there is none. */
static struct api *ready_api(struct exchange *x)
{
    struct api *api = atomic_load(&exchange_http(x)->api);
    if (!api) {
        api_fail(&x->error, 503, NULL, NULL, "The model is being loaded.");
        x->error.retry_after = 5;
    }
    return api;
}

static enum MHD_Result get_models(struct exchange *x)
{
    struct api *api = ready_api(x);
    if (!api) return answer_error(x);
    struct bytes body = {0};
    api_models_json(api, &body);
    return answer_bytes(x, 200, "application/json", &body);
}

bool http_unescape(char *s)
{
    char *to = s;
    for (; *s; s++, to++) {
        *to = *s;
        if (*s != '%') continue;
        int high = base_hex_digit(s[1]), low = high < 0 ? -1 : base_hex_digit(s[2]);
        if (low < 0 || (high == 0 && low == 0)) return false;
        *to = (char)(high << 4 | low);
        s += 2;
    }
    *to = 0;
    return true;
}

static enum MHD_Result get_model(struct exchange *x)
{
    struct api *api = ready_api(x);
    if (!api) return answer_error(x);
    struct bytes body = {0};
    if (!http_unescape(x->id)) {
        api_fail(&x->error, 400, NULL, "model",
                 "The model's name is not well encoded.");
        return answer_error(x);
    }
    if (api_model_json(api, x->id, &body, &x->error)) {
        bytes_free(&body);
        return answer_error(x);
    }
    return answer_bytes(x, 200, "application/json", &body);
}

/* ---- the paths ---- */

struct route {
    const char *path;
    bool prefix;  // something must follow, which goes to exchange.id
    bool open;    // asks for no key
    bool quiet;   // asked all the time by machines: logged as a detail
    bool post;
    bool asks;           // about conversations, by several methods
    enum api_kind kind;  // POST
    enum MHD_Result (*get)(struct exchange *x);  // of all that is no `post`
};

static const struct route routes[] = {
    {.path = "/v1/chat/completions", .post = true, .kind = API_CHAT},
    {.path = "/v1/completions", .post = true, .kind = API_COMPLETION},
    {.path = "/v1/models", .get = get_models},
    {.path = "/v1/models/", .prefix = true, .get = get_model},
    {.path = "/v1/conversations", .asks = true, .get = conversation_ask},
    {.path = "/v1/conversations/",
     .prefix = true,
     .asks = true,
     .get = conversation_ask},
    {.path = "/health", .open = true, .quiet = true, .get = get_health},
    {.path = "/metrics", .quiet = true, .get = get_metrics},
    {.path = "/", .get = get_root},
};

/* The path of "http://host/path", which a client of a proxy sends; others unchanged. */
static const char *path_of(const char *target)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < ARRAY_LEN(schemes); i++) {
        size_t n = strlen(schemes[i]);
        if (strncasecmp(target, schemes[i], n)) continue;
        const char *path = target + n + strcspn(target + n, "/?");
        return *path == '/' ? path : "/";
    }
    return target;
}

void exchange_note_path(struct exchange *x, const char *target)
{
    static const char before[] = "/v1/conversations/";
    const char *path = path_of(target), *masked = "";
    if (strncmp(path, before, sizeof before - 1) == 0) {
        masked = "/v1/conversations/ID";
        path += sizeof before - 1;
        path += strcspn(path, "/?");
    } else if (*path != '/') {
        path = "-";
    }
    snprintf(x->path, sizeof x->path, "%s%.*s", masked, (int)strcspn(path, "?"), path);
}

static const struct route *find_route(struct exchange *x, const char *path)
{
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        const struct route *r = &routes[i];
        size_t n = strlen(r->path);
        if (!r->prefix && strcmp(r->path, path) == 0) return r;
        if (!r->prefix || strncmp(r->path, path, n) || !path[n]) continue;
        if (strlen(path + n) >= sizeof x->id) return NULL;
        strcpy(x->id, path + n);
        return r;
    }
    return NULL;
}

bool exchange_is_post(const struct exchange *x)
{
    return x->route && x->route->post && strcmp(x->method, "POST") == 0;
}

bool exchange_is_quiet(const struct exchange *x)
{
    return x->route && x->route->quiet && x->status == 200;
}

enum api_kind exchange_kind(const struct exchange *x)
{
    return x->route->kind;
}

bool exchange_is_get(const struct exchange *x)
{
    return strcmp(x->method, "GET") == 0 || strcmp(x->method, "HEAD") == 0;
}

int exchange_wrong_method(struct exchange *x, const char *allow)
{
    x->allow = allow;
    return api_fail(&x->error, 405, NULL, NULL, "This path takes %s only.", allow);
}

static int check_method(struct exchange *x)
{
    bool post = x->route->post;
    if (post ? exchange_is_post(x) : exchange_is_get(x)) return 0;
    return exchange_wrong_method(x, post ? "POST" : "GET, HEAD");
}

/* ---- a tenant's place ---- */

static int take_place(struct exchange *x)
{
    struct http *h = exchange_http(x);
    uint32_t most = h->options->max_per_tenant;
    if (atomic_load(&h->state) == HTTP_DRAINING) {
        api_fail(&x->error, 503, NULL, NULL, "The server is shutting down.");
        x->error.retry_after = 5;
        return -EINVAL;
    }
    if (!ready_api(x)) return -EINVAL;
    uint32_t before = atomic_fetch_add(&h->tenant_posts[x->tenant], 1);
    if (most && before >= most) {
        atomic_fetch_sub(&h->tenant_posts[x->tenant], 1);
        api_fail(&x->error, 429, "rate_limit_exceeded", NULL,
                 "%u requests with this key are in progress, which is the limit.",
                 most);
        x->error.retry_after = 1;
        return -EINVAL;
    }
    atomic_fetch_add(&h->posts, 1);
    x->holds_place = true;
    return 0;
}

/* ---- an exchange ---- */

/* Everything that the head alone can decide.  Nonzero: x->error says what is wrong. */
static int judge_head(struct exchange *x, const struct head *h, const char *target)
{
    exchange_note_path(x, target);
    x->route = find_route(x, path_of(target));

    bool open = x->route && x->route->open;
    if (!open && head_authorize(x, h)) return -EINVAL;
    if (!x->route)
        return api_fail(&x->error, 404, NULL, NULL,
                        "There is nothing at this path; GET / lists what there is.");
    if (x->route->asks) return conversation_read(x) ? -EINVAL : take_place(x);
    if (check_method(x)) return -EINVAL;
    if (!exchange_is_post(x)) return 0;
    if (head_check_type(x, h) || head_conversation(x, h)) return -EINVAL;
    return take_place(x);
}

static enum MHD_Result answer_now(struct exchange *x)
{
    return x->error.status ? answer_error(x) : x->route->get(x);
}

static enum MHD_Result begin(struct exchange *x, const char *target,
                             const char *version)
{
    struct head h;
    head_read(x->connection->mhd, &h);
    const struct options *o = exchange_http(x)->options;

    if (head_check(x, &h, target, version)) {
        x->close = true;
        return answer_error(x);
    }
    int rc = judge_head(x, &h, target);
    if (h.has_body && head_length(&h) > o->max_body && x->error.status != 401) {
        x->error = (struct api_error){0};
        api_fail(&x->error, 413, NULL, NULL, "The body is larger than %llu bytes.",
                 (unsigned long long)o->max_body);
        x->allow = NULL;
        if (!h.expects) return answer_and_linger(x);
        rc = -EINVAL;
    }
    /* An answer before the body ends the connection, and closing that takes the answer
     * with it while the client still sends.  So the body is read first, unless the client
     * waits for leave to send it.  (The library ends it also where there is no body.) */
    if (rc && h.expects) return answer_error(x);
    bool wanted = rc == 0 && exchange_is_post(x);
    if (!connection_phase(x->connection, PHASE_BODY, o->body_timeout_ms)) return MHD_NO;
    x->state = wanted ? EXCHANGE_BODY : EXCHANGE_DISCARD;
    return MHD_YES;
}

static enum MHD_Result discard(struct exchange *x, size_t *n)
{
    if (*n == 0) return answer_now(x);
    x->discarded += *n;
    *n = 0;
    if (x->discarded <= exchange_http(x)->options->max_body) return MHD_YES;
    if (!x->error.status)
        api_fail(&x->error, 413, NULL, NULL, "The body is too large.");
    return answer_and_linger(x);
}

enum MHD_Result http_access(void *cls, struct MHD_Connection *mhd, const char *url,
                            const char *method, const char *version, const char *data,
                            size_t *n, void **context)
{
    struct exchange *x = *context;
    (void)cls, (void)mhd;
    if (!x) return MHD_NO;  // there was no memory for it
    switch (x->state) {
    case EXCHANGE_HEAD:
        snprintf(x->method, sizeof x->method, "%s", method);
        return begin(x, url, version);
    case EXCHANGE_BODY: return post_body(x, data, n);
    case EXCHANGE_DISCARD: return discard(x, n);
    case EXCHANGE_LINGER:
        if (*n == 0) return MHD_NO;
        *n = 0;
        return MHD_YES;
    case EXCHANGE_WORK: return post_continue(x);
    case EXCHANGE_ANSWER: break;
    }
    return MHD_NO;
}
