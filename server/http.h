/* http.h - sockets and HTTP: connections in, requests to the API, answers out.
 *
 * Owns     the listening socket, every connection, the threads that serve them, and the
 *          workers that prepare requests and ask about conversations.
 * Paths    POST /v1/chat/completions, /v1/completions; GET /v1/models, /v1/models/ID,
 *          /health, /metrics, /; GET /v1/conversations?after=ID&limit=N, GET and DELETE
 *          /v1/conversations/ID, POST .../ID/sleep, .../ID/wake, .../ID/hold?ttl=SECONDS;
 *          HEAD wherever GET.  A path is taken as it is written: "//v1/models" and
 *          "/v1/../metrics" are unknown.  With keys every path but /health needs one,
 *          known or not.
 * Names    a POST's X-Conversation-Id names its conversation, and goes before the body's
 *          prompt_cache_key.
 * Types    a POST's Content-Type is application/json, with or without parameters; none
 *          at all is taken as that.  Bodies come as they are: no Content-Encoding.
 * Bounds   a connection takes a 32 KiB arena (longer heads, and those of more than 100
 *          fields, are answered 431, longer request lines 414), a body at most max_body
 *          (413, also where a chunk claims to be longer than 64 bits can say), a stream's
 *          buffer about 64 KiB.  All bodies together take at most sixteen times max_body
 *          (503).  Beside them each of the `workers` may take, for the request it is at,
 *          fifteen bytes for each of its body, and to render a chat 64 MiB and sixteen more
 *          for each; a text that cannot fit the context is refused before, and so is a body
 *          of more JSON values than a prompt that fits can have.  Heads and bodies have
 *          deadlines (408), and so have clients that do not read.  More connections
 *          than max_connections push out the one that has been idle, or sending its head or
 *          its body, for the longest.
 * Leaving  a client that closes its connection, or only its sending half, is gone: its
 *          request is cancelled within one step of the engine.
 * Threads  open, serve, drain, stop and close belong to one thread; http_tick() to any.
 *
 *     http_open -> (503 while loading) -> http_serve -> ... -> http_drain
 *               -> http_stop -> (the engine and the API close) -> http_close
 */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include "server/api.h"
#include "server/keys.h"
#include "server/options.h"

struct http_options {
    const struct options *options;  // borrowed
    const struct keys *keys;        // borrowed; NULL: every client is tenant 0
    struct metrics *metrics;        // borrowed
};

struct http;

/* Listen, and answer /health with 503 until http_serve().  -EPERM: listening beyond
 * loopback without keys, and options do not allow it; else what the system says. */
NODISCARD int http_open(struct http **out, const struct http_options *o,
                        struct err *err);
/* "http://127.0.0.1:8080", with the port that was really taken. */
const char *http_address(const struct http *h);

void http_serve(struct http *h, struct api *api);  // the model is ready; borrowed
void http_tick(void *h);  // cancel the requests of clients that have left by now
void http_drain(struct http *h);  // from now on POSTs are answered 503
/* Wait at most flush_ms for answers on their way out, then close all connections and end
 * all threads but the watch's.  The engine has been drained: no request waits for it. */
void http_stop(struct http *h, uint32_t flush_ms);
/* Stops first.  http_tick() is not called any more.  NULL is fine. */
void http_close(struct http *h);

#endif
