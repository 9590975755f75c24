/* http_post.c - one POST: its body, a worker that prepares it, the engine, its answer.
 *
 *     BODY --whole--> WORK: worker: api_prepare, api_submit --> read ... --> ANSWER
 *
 * While there is nothing to do for it, the connection is suspended: no thread waits.  A
 * wake may come before the suspension does; so both are decided under the connection's
 * lock, and a wake that found nobody asleep is kept in `woken`.
 */
#include "server/http_internal.h"

#include "server/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define BODIES 16  // of the largest size that may be in memory at one time

/* ---- asleep and awake ---- */

/* Suspend, or answer false: something has happened since the last look. */
static bool park(struct exchange *x)
{
    struct connection *c = x->connection;
    pthread_mutex_lock(&c->lock);
    bool asleep = !x->woken;
    x->woken = false;
    x->suspended = asleep;
    if (asleep) MHD_suspend_connection(c->mhd);
    pthread_mutex_unlock(&c->lock);
    return asleep;
}

void exchange_wake_locked(struct exchange *x)
{
    if (x->suspended) {
        x->suspended = false;
        MHD_resume_connection(x->connection->mhd);
    } else {
        x->woken = true;
    }
}

static void wake(void *arg)
{
    struct exchange *x = arg;
    pthread_mutex_lock(&x->connection->lock);
    exchange_wake_locked(x);
    pthread_mutex_unlock(&x->connection->lock);
}

static bool is_gone(struct exchange *x)
{
    pthread_mutex_lock(&x->connection->lock);
    bool gone = x->gone;
    pthread_mutex_unlock(&x->connection->lock);
    return gone;
}

static bool is_prepared(struct exchange *x)
{
    pthread_mutex_lock(&x->connection->lock);
    bool prepared = x->prepared;
    pthread_mutex_unlock(&x->connection->lock);
    return prepared;
}

/* ---- the worker's side ---- */

void post_release_body(struct exchange *x)
{
    atomic_fetch_sub(&exchange_http(x)->body_bytes, x->charged);
    x->charged = 0;
    bytes_free(&x->body);
}

void exchange_prepared(struct exchange *x, int rc)
{
    struct connection *c = x->connection;
    pthread_mutex_lock(&c->lock);
    x->prepared = true;
    x->prepare_rc = rc;
    /* A client that left while its requests were handed over. */
    if (x->gone && x->call) api_call_cancel(x->call);
    exchange_wake_locked(x);
    pthread_mutex_unlock(&c->lock);
}

static void prepare(struct job *j)
{
    struct exchange *x = CONTAINER_OF(j, struct exchange, job);
    struct connection *c = x->connection;
    struct api *api = atomic_load(&exchange_http(x)->api);
    struct api_call *call = NULL;
    if (is_gone(x)) {  // while it waited for a worker
        metrics_outcome(exchange_http(x)->metrics, OUTCOME_CANCELLED);
        post_release_body(x);
        exchange_prepared(x, -ECANCELED);
        return;
    }

    int rc = api_prepare(api, exchange_kind(x), x->body.data ? x->body.data : "",
                         x->body.n, x->tenant, &call, &x->error);
    post_release_body(x);
    if (rc == 0 && x->conversation[0]) api_call_name(call, x->conversation);

    pthread_mutex_lock(&c->lock);
    x->call = call;
    bool gone = x->gone;
    pthread_mutex_unlock(&c->lock);
    if (rc == 0 && !gone) rc = api_submit(call, wake, x, &x->error);

    exchange_prepared(x, rc);
}

/* ---- the body ---- */

static enum MHD_Result refuse(struct exchange *x, int status, const char *why)
{
    post_release_body(x);
    api_fail(&x->error, status, NULL, NULL, "%s", why);
    snprintf(x->error.why, sizeof x->error.why, "%s", why);
    if (status == 503) x->error.retry_after = 1;
    return answer_and_linger(x);
}

/* Account for memory that the body has grown into.  False: that is too much. */
static bool charge(struct exchange *x)
{
    struct http *h = exchange_http(x);
    size_t more = x->body.cap - x->charged;
    if (more == 0) return true;
    size_t before = atomic_fetch_add(&h->body_bytes, more);
    x->charged += more;
    return before + more <= BODIES * h->options->max_body;
}

enum MHD_Result exchange_work(struct exchange *x, struct workers *w,
                              void (*run)(struct job *j))
{
    struct connection *c = x->connection;
    if (!connection_phase(c, PHASE_WORK, 0)) return MHD_NO;
    watch_await(exchange_http(x)->watch, &c->item);
    x->job.run = run;
    x->state = EXCHANGE_WORK;
    if (workers_submit(w, &x->job) == 0) return post_continue(x);

    post_release_body(x);
    api_fail(
        &x->error, 503, "overloaded", NULL,
        "The server is busy: as many requests as may wait for a thread are waiting "
        "already; try again in a second.");
    x->error.retry_after = 1;
    return answer_error(x);
}

enum MHD_Result post_body(struct exchange *x, const char *data, size_t *n)
{
    if (*n == 0) return exchange_work(x, exchange_http(x)->workers, prepare);
    if (*n > exchange_http(x)->options->max_body - x->body.n)
        return refuse(x, 413, "The body is larger than the limit.");
    bytes_add(&x->body, data, *n);
    if (x->body.failed || !charge(x))
        return refuse(x, 503, "The server has no memory for the body now.");
    *n = 0;
    return MHD_YES;
}

/* ---- the answer ---- */

/* End a stream before its end.  The library's own way to say so leaves the connection open
 * until others of its thread have gone (0.9.75), so the socket is shut down: what it wants
 * to send now fails, and then it closes. */
static ssize_t break_off(struct exchange *x)
{
    shutdown(x->connection->item.fd, SHUT_RDWR);
    return MHD_CONTENT_READER_END_OF_STREAM;
}

static ssize_t read_stream(void *arg, uint64_t at, char *buf, size_t cap)
{
    struct exchange *x = arg;
    struct connection *c = x->connection;
    /* Twice the engine's patience, so that who holds up a reply is found by the engine,
     * which knows it for a stall. */
    uint32_t send_ms = 2 * exchange_http(x)->options->stall_ms;
    (void)at;
    for (;;) {
        if (is_gone(x)) return break_off(x);
        if (x->sent < x->out.n) {
            size_t n = x->out.n - x->sent;
            if (n > cap) n = cap;
            memcpy(buf, x->out.data + x->sent, n);
            x->sent += n;
            return connection_phase(c, PHASE_SEND, send_ms) ? (ssize_t)n : break_off(x);
        }
        if (x->ended) return MHD_CONTENT_READER_END_OF_STREAM;

        bytes_clear(&x->out);
        x->sent = 0;
        enum api_state s = api_call_read(x->call, &x->out, HTTP_CHUNK, &x->error);
        if (x->out.failed || s == API_FAILED) return break_off(x);
        x->ended = s == API_DONE;
        if (s != API_WAIT || x->out.n) continue;
        if (!connection_phase(c, PHASE_WORK, 0)) return break_off(x);
        if (park(x)) return 0;
    }
}

static enum MHD_Result no_memory(struct exchange *x)
{
    api_fail(&x->error, 500, NULL, NULL, "There is no memory for the answer.");
    return answer_error(x);
}

/* Look how far it is, and answer or sleep. */
enum MHD_Result post_continue(struct exchange *x)
{
    while (!is_prepared(x))
        if (park(x)) return MHD_YES;
    if (is_gone(x)) return MHD_NO;
    if (x->prepare_rc) return answer_error(x);
    if (!x->call)
        return x->out.failed ? no_memory(x)
                             : answer_bytes(x, 200, "application/json", &x->out);

    for (;;) {
        enum api_state s = api_call_read(x->call, &x->out, HTTP_CHUNK, &x->error);
        if (s == API_FAILED) return answer_error(x);
        if (x->out.failed) return no_memory(x);
        bool streams = api_call_streams(x->call);
        x->ended = s == API_DONE;
        if (streams && x->out.n) return answer_stream(x, read_stream);
        if (s == API_DONE) return answer_bytes(x, 200, "application/json", &x->out);
        if (s == API_WAIT && park(x)) return MHD_YES;
        if (is_gone(x)) return MHD_NO;
    }
}
