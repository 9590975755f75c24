#include "server/http_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define JSON "application/json"

static enum MHD_Result give(struct exchange *x, int status, struct MHD_Response *r)
{
    if (x->close) MHD_add_response_header(r, "Connection", "close");
    enum MHD_Result rc = MHD_queue_response(x->connection->mhd, (unsigned)status, r);
    MHD_destroy_response(r);  // the library holds its own reference
    if (rc == MHD_YES) {
        x->status = status;
        x->state = EXCHANGE_ANSWER;
    }
    return rc;
}

/* A client that reads at all reads 16 KiB a second. */
static uint32_t send_ms(const struct exchange *x, size_t n)
{
    return exchange_http(x)->options->stall_ms + (uint32_t)(n / 16);
}

static struct MHD_Response *response_of(struct exchange *x, const char *type,
                                        struct bytes *body)
{
    if (body->failed ||
        !connection_phase(x->connection, PHASE_SEND, send_ms(x, body->n))) {
        bytes_free(body);
        return NULL;
    }
    struct MHD_Response *r =
        MHD_create_response_from_buffer(body->n, body->data, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        bytes_free(body);
        return NULL;
    }
    *body = (struct bytes){0};  // the library frees it
    MHD_add_response_header(r, "Content-Type", type);
    return r;
}

enum MHD_Result answer_bytes(struct exchange *x, int status, const char *type,
                             struct bytes *body)
{
    struct MHD_Response *r = response_of(x, type, body);
    return r ? give(x, status, r) : MHD_NO;
}

enum MHD_Result answer_error(struct exchange *x)
{
    const struct api_error *e = &x->error;
    struct bytes body = {0};
    api_error_json(e, &body);
    struct MHD_Response *r = response_of(x, JSON, &body);
    if (!r) return MHD_NO;
    if (x->challenge) MHD_add_response_header(r, "WWW-Authenticate", x->challenge);
    if (x->allow) MHD_add_response_header(r, "Allow", x->allow);
    if (e->retry_after) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", e->retry_after);
        MHD_add_response_header(r, "Retry-After", seconds);
    }
    return give(x, e->status, r);
}

enum MHD_Result answer_stream(struct exchange *x, MHD_ContentReaderCallback read)
{
    if (!connection_phase(x->connection, PHASE_SEND,
                          exchange_http(x)->options->stall_ms))
        return MHD_NO;
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, HTTP_CHUNK, read, x, NULL);
    if (!r) return MHD_NO;
    MHD_add_response_header(r, "Content-Type", "text/event-stream; charset=utf-8");
    MHD_add_response_header(r, "Cache-Control", "no-cache");
    MHD_add_response_header(r, "X-Accel-Buffering",
                            "no");  // or nginx would hold it back
    return give(x, 200, r);
}

void answer_raw(int fd, const struct api_error *e)
{
    struct bytes body = {0}, whole = {0};
    api_error_json(e, &body);
    bytes_printf(&whole, "HTTP/1.1 %d %s\r\nContent-Type: " JSON "\r\n", e->status,
                 MHD_get_reason_phrase_for((unsigned)e->status));
    if (e->retry_after) bytes_printf(&whole, "Retry-After: %u\r\n", e->retry_after);
    bytes_printf(&whole, "Content-Length: %zu\r\nConnection: close\r\n\r\n", body.n);
    bytes_add(&whole, body.data, body.n);
    /* Less than any socket's buffer; a client that left no room for it gets none. */
    if (!body.failed && !whole.failed)
        (void)!send(fd, whole.data, whole.n, MSG_DONTWAIT | MSG_NOSIGNAL);
    bytes_free(&body);
    bytes_free(&whole);
}

enum MHD_Result answer_and_linger(struct exchange *x)
{
    struct connection *c = x->connection;
    if (!connection_phase(c, PHASE_LINGER, HTTP_LINGER_MS)) return MHD_NO;
    pthread_mutex_lock(&c->lock);
    answer_raw(c->item.fd, &x->error);
    shutdown(c->item.fd, SHUT_WR);
    pthread_mutex_unlock(&c->lock);
    x->status = x->error.status;
    x->state = EXCHANGE_LINGER;
    return MHD_YES;
}
