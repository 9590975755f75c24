#include "server/http_internal.h"

#include "server/clock.h"
#include "server/log.h"
#include "server/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define OVER_LIMIT 128  // connections that are told so, or make room, at one time

/* ---- a connection ---- */

bool connection_phase(struct connection *c, enum phase phase, uint32_t ms)
{
    bool evictable = phase <= PHASE_BODY;
    /* The deadline first: when the phase changes, the old one can no longer strike. */
    watch_deadline(c->http->watch, &c->item, ms, evictable);
    pthread_mutex_lock(&c->lock);
    c->phase = phase;
    bool open = !c->closing;
    pthread_mutex_unlock(&c->lock);
    if (evictable) watch_await(c->http->watch, &c->item);
    return open;
}

static void client_gone(struct watch_item *i)
{
    struct connection *c = CONTAINER_OF(i, struct connection, item);
    pthread_mutex_lock(&c->lock);
    struct exchange *x = c->current;
    if (c->phase <= PHASE_BODY) {
        /* The library is told of an end once, and forgets it where bytes came with it:
         * shutting the dead half makes the system tell it again. */
        shutdown(i->fd, SHUT_RD);
    } else if (x) {
        x->gone = true;
        if (x->call) api_call_cancel(x->call);
        /* An exchange that a worker has is left asleep: awake, the library could find out
         * for itself that the client has gone, and end it under the worker's hands. */
        if (x->prepared) exchange_wake_locked(x);
    }
    pthread_mutex_unlock(&c->lock);
}

/* The socket is shut down, not closed: its number stays taken until the library, whose
 * reads and writes now fail, has closed it. */
static void time_is_up(struct watch_item *i)
{
    struct connection *c = CONTAINER_OF(i, struct connection, item);
    pthread_mutex_lock(&c->lock);
    struct exchange *x = c->current;
    c->closing = true;
    if (c->phase == PHASE_NEW || c->phase == PHASE_HEAD || c->phase == PHASE_BODY) {
        struct api_error e = {0};
        api_fail(&e, 408, NULL, NULL, "The request did not come in time.");
        answer_raw(i->fd, &e);
        if (x) x->status = 408;
    }
    if (x && x->call) api_call_cancel(x->call);
    shutdown(i->fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->lock);
}

static struct connection *connection_open(struct http *h, struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct connection *c = info ? calloc(1, sizeof *c) : NULL;
    if (!c) return NULL;
    c->http = h;
    c->mhd = mhd;
    c->item = (struct watch_item){
        .gone = client_gone, .expired = time_is_up, .fd = info->connect_fd};
    pthread_mutex_init(&c->lock, NULL);
    watch_add(h->watch, &c->item);
    connection_phase(c, PHASE_NEW, h->options->header_timeout_ms);
    metrics_add(h->metrics, GAUGE_CONNECTIONS, 1);
    return c;
}

static void connection_close(struct connection *c)
{
    struct http *h = c->http;
    watch_remove(h->watch, &c->item);
    metrics_add(h->metrics, GAUGE_CONNECTIONS, -1);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* All connections have a request that is being answered. */
static void turn_away(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct api_error e = {0};
    if (!info) return;
    api_fail(&e, 503, NULL, NULL, "The server has as many connections as it may.");
    e.retry_after = 1;
    answer_raw(info->connect_fd, &e);
    shutdown(info->connect_fd, SHUT_RDWR);
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http *h = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        /* At the limit, whoever has been idle for the longest makes room. */
        bool full = watch_count(h->watch) >= h->max_connections;
        if (full && !watch_evict(h->watch))
            turn_away(mhd);
        else
            *context = connection_open(h, mhd);
    } else if (*context) {
        connection_close(*context);
        *context = NULL;
    }
}

/* ---- an exchange ---- */

/* The request line is there: the library's first word about a request. */
static void *on_request_line(void *cls, const char *uri, struct MHD_Connection *mhd)
{
    struct http *h = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct connection *c = info ? info->socket_context : NULL;
    struct exchange *x = c ? calloc(1, sizeof *x) : NULL;
    if (!x) return NULL;
    x->connection = c;
    x->started = clock_ns();
    snprintf(x->method, sizeof x->method, "-");
    exchange_note_path(x, uri);
    pthread_mutex_lock(&c->lock);
    c->current = x;
    pthread_mutex_unlock(&c->lock);
    connection_phase(c, PHASE_HEAD, h->options->header_timeout_ms);
    return x;
}

/* The field and the rule it breaks; the message may repeat what the client wrote. */
static void describe_error(const struct api_error *e, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s%s%s%s%s%s", e->code ? " code=" : "", e->code ? e->code : "",
             e->param[0] ? " field=" : "", e->param, e->why[0] ? " why=" : "", e->why);
}

static void log_exchange(const struct exchange *x)
{
    const struct http *h = exchange_http(x);
    char status[16] = "left";  // the client did, before it had an answer
    if (x->status) snprintf(status, sizeof status, "%d", x->status);
    char error[320] = "";
    if (x->error.status) describe_error(&x->error, error, sizeof error);
    log_line(exchange_is_quiet(x) ? LOG_DEBUG : LOG_INFO,
             "%s %s status=%s ms=%llu%s%s%s%s%s", x->method, x->path, status,
             (unsigned long long)((clock_ns() - x->started) / 1000000),
             x->known_tenant ? " tenant=" : "",
             x->known_tenant ? keys_tenant_name(h->keys, x->tenant) : "",
             x->summary[0] ? " " : "", x->summary, error);
}

/* The outcome of a POST that never came to the API, which counts its own. */
static void count_outcome(struct http *h, int status)
{
    enum outcome o = OUTCOME_CANCELLED;
    if (status == 503 || status == 429)
        o = OUTCOME_REFUSED;
    else if (status >= 500)
        o = OUTCOME_ERROR;
    else if (status >= 400)
        o = OUTCOME_INVALID;
    metrics_outcome(h->metrics, o);
}

static void exchange_end(struct exchange *x)
{
    struct connection *c = x->connection;
    struct http *h = c->http;
    watch_leave(h->watch, &c->item);

    pthread_mutex_lock(&c->lock);
    struct api_call *call = x->call;
    x->call = NULL;
    c->current = NULL;
    pthread_mutex_unlock(&c->lock);
    if (call) {
        api_call_summary(call, x->summary, sizeof x->summary);
        api_call_free(call);
    } else if (exchange_is_post(x) && !x->prepared) {
        count_outcome(h, x->status);
    }
    if (x->status) metrics_http(h->metrics, x->status);
    log_exchange(x);

    post_release_body(x);
    bytes_free(&x->out);
    if (x->holds_place) {
        atomic_fetch_sub(&h->tenant_posts[x->tenant], 1);
        atomic_fetch_sub(&h->posts, 1);
    }
    free(x);
    connection_phase(c, PHASE_IDLE, h->options->idle_timeout_ms);
}

static void on_completed(void *cls, struct MHD_Connection *mhd, void **context,
                         enum MHD_RequestTerminationCode code)
{
    struct exchange *x = *context;
    (void)cls, (void)code;
    if (!x) return;
    /* What the library has answered on its own: a head it could not read. */
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_HTTP_STATUS);
    pthread_mutex_lock(&x->connection->lock);
    if (!x->status && info) x->status = (int)info->http_status;
    pthread_mutex_unlock(&x->connection->lock);
    exchange_end(x);
    *context = NULL;
}

/* A path is compared as it was written. */
static size_t leave_escapes(void *cls, struct MHD_Connection *mhd, char *s)
{
    (void)cls, (void)mhd;
    return strlen(s);
}

PRINTF_LIKE(2, 0)
static void on_library_message(void *cls, const char *fmt, va_list args)
{
    char text[512];
    (void)cls;
    int n = vsnprintf(text, sizeof text, fmt, args);
    if (n > 0 && (size_t)n < sizeof text && text[n - 1] == '\n') text[n - 1] = 0;
    log_line(LOG_DEBUG, "libmicrohttpd: %s", text);
}

/* ---- open and close ---- */

static struct MHD_Daemon *start_library(struct http *h, int fd)
{
    const struct options *o = h->options;
    /* Each thread of the library gets a share of its limit, which would turn clients
     * away while others have room; so the limit it knows is out of reach, and
     * on_connection() keeps ours. */
    unsigned limit = (o->max_connections + OVER_LIMIT) * o->http_threads;
    const struct MHD_OptionItem per_thread[] = {
        {MHD_OPTION_THREAD_POOL_SIZE, (intptr_t)o->http_threads, NULL},
        {MHD_OPTION_END, 0, NULL}};
    const struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    return MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0,
        NULL, NULL, http_access, h,                            //
        MHD_OPTION_EXTERNAL_LOGGER, on_library_message, NULL,  //
        MHD_OPTION_ARRAY, o->http_threads > 1 ? per_thread : none,
        MHD_OPTION_LISTEN_SOCKET, fd,                                   //
        MHD_OPTION_CONNECTION_LIMIT, limit,                             //
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, o->max_connections_per_ip,  //
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_ARENA,         //
        MHD_OPTION_UNESCAPE_CALLBACK, leave_escapes, NULL,              //
        MHD_OPTION_URI_LOG_CALLBACK, on_request_line, h,                //
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,                   //
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,                 //
        MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,                           //
        MHD_OPTION_END);
}

int http_open(struct http **out, const struct http_options *o, struct err *err)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h) return err_set(err, -ENOMEM, "no memory for the HTTP server");
    h->options = o->options;
    h->keys = o->keys;
    h->metrics = o->metrics;
    h->tenant_posts =
        calloc(o->keys ? keys_tenants(o->keys) : 1, sizeof *h->tenant_posts);
    int fd = -1;
    int rc =
        h->tenant_posts ? 0 : err_set(err, -ENOMEM, "no memory for the HTTP server");
    if (rc == 0) rc = watch_open(&h->watch, err);
    if (rc == 0)
        rc = workers_open(&h->workers, o->options->workers,
                          o->options->max_waiting + o->options->max_running, err);
    if (rc == 0) rc = workers_open(&h->askers, HTTP_ASKERS, HTTP_QUESTIONS, err);
    if (rc == 0)
        rc = http_listen(o->options, o->keys, &fd, h->address, sizeof h->address, err);
    if (rc == 0) {
        rc = http_limit_connections(o->options, fd, &h->max_connections, err);
        if (rc) close(fd);
    }
    if (rc == 0) {
        h->daemon = start_library(h, fd);
        if (!h->daemon) {
            rc =
                err_set(err, -EIO, "libmicrohttpd cannot be started on %s", h->address);
            close(fd);
        }
    }
    if (rc) {
        http_close(h);
        return rc;
    }
    *out = h;
    return 0;
}

const char *http_address(const struct http *h)
{
    return h->address;
}

void http_serve(struct http *h, struct api *api)
{
    atomic_store(&h->api, api);
    atomic_store(&h->state, HTTP_READY);
}

void http_tick(void *h)
{
    watch_poll(((struct http *)h)->watch);
}

void http_drain(struct http *h)
{
    atomic_store(&h->state, HTTP_DRAINING);
}

/* Until no POST is in progress, or `ms` have passed. */
static void wait_for_posts(struct http *h, uint32_t ms)
{
    uint64_t end = clock_ns() + (uint64_t)ms * 1000000u;
    while (atomic_load(&h->posts) && clock_ns() < end)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

void http_stop(struct http *h, uint32_t flush_ms)
{
    http_drain(h);
    if (!h->daemon) return;
    wait_for_posts(h, flush_ms);
    /* No connection may be suspended when the library stops.  None is: after this the
     * workers have woken theirs, and the engine is drained. */
    workers_stop(h->workers);
    workers_stop(h->askers);
    MHD_stop_daemon(h->daemon);
    h->daemon = NULL;
}

void http_close(struct http *h)
{
    if (!h) return;
    http_stop(h, 0);
    workers_close(h->workers);
    workers_close(h->askers);
    watch_close(h->watch);
    free(h->tenant_posts);
    free(h);
}
