/* http_internal.h - what the files of the HTTP side and their tests share; nothing else
 * includes it.
 *
 *     http.c         open and close, connections and their deadlines
 *     http_listen.c  the socket
 *     http_files.c   descriptors for the connections
 *     http_head.c    what a request's head says, and what is refused for it alone
 *     http_route.c   one exchange: the library's callback, paths, GET
 *     http_post.c    one POST: body, worker, engine, answer
 *     http_conversation.c  requests about conversations
 *     http_answer.c  answers, in order or straight to the socket
 *
 * A connection lives as long as its socket; an exchange is one request and its answer
 * on it.  Both belong to the connection's thread, but for what their lock guards.
 *
 * Locks, outermost first: the watch's, a request's wake lock, connection.lock, the
 * library's own.  connection.lock is never held around a call of watch_* or
 * api_call_read, _submit or _free.
 */
#ifndef SERVER_HTTP_INTERNAL_H
#define SERVER_HTTP_INTERNAL_H

#include "server/http.h"
#include "server/watch.h"
#include "server/workers.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

#define HTTP_ARENA        (32u << 10)  // of a connection: its head, and what it sends
#define HTTP_CHUNK        (64u << 10)  // of a stream, read at one time
#define HTTP_MAX_FIELDS   100          // header fields of one request
#define HTTP_CONVERSATION "X-Conversation-Id"
#define HTTP_ASKERS       8  // threads; each may wait for seconds, and all do nothing else
#define HTTP_QUESTIONS    64    // that wait for one of them
#define HTTP_LINGER_MS    5000  // for a client to read why its body is not wanted

enum http_state { HTTP_LOADING, HTTP_READY, HTTP_DRAINING };

struct http {
    const struct options *options;
    const struct keys *keys;
    struct metrics *metrics;
    struct MHD_Daemon *daemon;
    struct watch *watch;
    struct workers *workers;
    struct workers *askers;  // they wait for the engine's answers about conversations
    char address[300];
    uint32_t max_connections;
    atomic_int state;
    _Atomic(struct api *) api;  // NULL while loading
    atomic_uint posts;          // exchanges that hold a tenant's place
    atomic_uint *tenant_posts;  // (tenants) of them, by tenant
    atomic_size_t body_bytes;   // of all bodies in memory
};

/* What a connection is doing, and so what its deadline means. */
enum phase {
    PHASE_NEW,     // no request line yet on a new connection
    PHASE_IDLE,    // the same, after an answer
    PHASE_HEAD,    // header fields
    PHASE_BODY,    // a body
    PHASE_WORK,    // the client waits for us: no deadline
    PHASE_SEND,    // the client has an answer to read
    PHASE_LINGER,  // an early answer is out; the rest of the body is thrown away
};

struct connection {
    struct watch_item item;
    struct http *http;
    struct MHD_Connection *mhd;
    pthread_mutex_t lock;  // guards what follows, and what exchange says
    enum phase phase;
    bool closing;              // expired: nothing more may be answered
    struct exchange *current;  // NULL between requests
};

/* What the head says, as far as it matters here. */
struct head {
    const char *authorization, *content_type, *content_encoding, *transfer_encoding;
    const char *content_length;
    const char *conversation;
    uint32_t n_conversation;
    uint32_t n_fields, n_authorization, n_content_length, n_transfer_encoding, n_host;
    bool blank_in_name;  // of a field
    bool expects;        // 100-continue: it waits for leave to send its body
    bool has_body;
};

enum exchange_state {
    EXCHANGE_HEAD,     // the library has not told the whole head yet
    EXCHANGE_BODY,     // of a POST that is wanted
    EXCHANGE_DISCARD,  // reading what is not wanted before the answer in `error` or GET's
    EXCHANGE_LINGER,
    EXCHANGE_WORK,
    EXCHANGE_ANSWER
};

struct route;

struct exchange {
    struct connection *connection;
    enum exchange_state state;
    char method[16], path[256];  // for the log, which gets no more of the target; cut
    const struct route *route;   // NULL: unknown path
    char id[256];                // what follows a route's prefix
    uint64_t started;
    uint32_t tenant;
    bool known_tenant;       // the log may name it
    bool holds_place;        // counted in posts
    bool close;              // the connection ends with this answer
    int status;              // of the answer given; 0: none
    struct api_error error;  // status 0: nothing refused
    const char *challenge;   // WWW-Authenticate of a 401
    const char *allow;       // Allow of a 405

    struct api_question question;             // about conversations
    char conversation[KVSTORE_CONVERSATION];  // of a POST's head; "": not named

    /* POST */
    struct bytes body;
    size_t charged;  // of http.body_bytes
    uint64_t discarded;
    struct job job;
    struct bytes out;  // answer read and not yet sent
    size_t sent;       // of it
    bool ended;        // the stream's last byte is in out
    char summary[512];

    /* guarded by connection.lock */
    struct api_call *call;
    bool suspended, woken, gone;
    bool prepared;   // the worker is done with it
    int prepare_rc;  // valid then
};

static inline struct http *exchange_http(const struct exchange *x)
{
    return x->connection->http;
}

/* http.c.  False: the connection's time was up; say nothing more on it. */
bool connection_phase(struct connection *c, enum phase phase, uint32_t ms);
/* From any thread, with connection.lock: let a suspended exchange look again. */
void exchange_wake_locked(struct exchange *x);

/* http_listen.c */
NODISCARD int http_listen(const struct options *o, bool keys, int *fd, char *address,
                          size_t cap, struct err *err);

/* http_files.c.  How many connections this process may have: max_connections, or as many
 * as there are descriptors for, so that one too many is met by our own limit; without a
 * descriptor it could not even be turned away.  -EMFILE: too few to serve at all. */
NODISCARD int http_limit_connections(const struct options *o, int listening,
                                     uint32_t *most, struct err *err);

/* http_head.c */
void head_read(struct MHD_Connection *c, struct head *h);
/* 0, or the status and message in x->error of what makes the head unacceptable whatever
 * it asks for; the connection must then close. */
NODISCARD int head_check(struct exchange *x, const struct head *h, const char *target,
                         const char *version);
/* The tenant of the key presented; a 401 where there is none. */
NODISCARD int head_authorize(struct exchange *x, const struct head *h);
NODISCARD int head_check_type(struct exchange *x, const struct head *h);
NODISCARD int head_conversation(struct exchange *x, const struct head *h);
uint64_t
head_length(const struct head *h);  // Content-Length; UINT64_MAX: too many digits

/* http_route.c */
enum MHD_Result http_access(void *cls, struct MHD_Connection *mhd, const char *url,
                            const char *method, const char *version, const char *data,
                            size_t *n, void **context);
enum api_kind exchange_kind(const struct exchange *x);  // of a POST
bool exchange_is_post(const struct exchange *x);
bool exchange_is_quiet(const struct exchange *x);  // logged as a detail only
bool exchange_is_get(const struct exchange *x);    // or HEAD
int exchange_wrong_method(struct exchange *x, const char *allow);  // a 405; -EINVAL
/* What the log may tell of a target: its path, without the query, in which clients may put
 * a key, without a user's name and password before a host, and without the name of a
 * conversation, which is its user's business. */
void exchange_note_path(struct exchange *x, const char *target);

/* Undo percent-encoding in place; false where it is malformed or hides a NUL. */
bool http_unescape(char *s);

/* http_conversation.c */
NODISCARD int conversation_read(struct exchange *x);  // by path, method and arguments
enum MHD_Result conversation_ask(struct exchange *x);

/* http_post.c */
/* Let one of the workers do it, and what comes of it be answered. */
enum MHD_Result exchange_work(struct exchange *x, struct workers *w,
                              void (*run)(struct job *j));
/* The last that the worker does with it: rc < 0 is answered by x->error; else x->out is
 * the answer, or the call's. */
void exchange_prepared(struct exchange *x, int rc);
enum MHD_Result post_body(struct exchange *x, const char *data, size_t *n);
enum MHD_Result post_continue(struct exchange *x);
void post_release_body(struct exchange *x);

/* http_answer.c.  Each sets x->status and takes over *body. */
enum MHD_Result answer_bytes(struct exchange *x, int status, const char *type,
                             struct bytes *body);
enum MHD_Result answer_error(struct exchange *x);  // x->error
enum MHD_Result answer_stream(struct exchange *x, MHD_ContentReaderCallback read);
/* Write an error's answer to the socket past the library, which takes none while a body
 * is being read.  For a connection that ends: with connection.lock held. */
void answer_raw(int fd, const struct api_error *e);
/* answer_raw(), then throw away what still comes, so that closing does not reset the
 * connection before the client has read. */
enum MHD_Result answer_and_linger(struct exchange *x);

#endif
