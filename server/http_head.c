/* http_head.c - what a request's head says, and what is refused for it alone.
 *
 * Only heads that libmicrohttpd has read come here.  What it cannot read it answers by
 * itself, with no callback before (0.9.75): a line without a colon 400, a head that is too
 * large 414 or 431, a chunk's size beyond 64 bits 413, each with a body of HTML and the
 * connection's end.  And it hands out values as C strings that its parser has measured by
 * strlen(), so that a NUL within one ends it and cannot be seen here.
 */
#include "server/http_internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static enum MHD_Result note_field(void *arg, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    struct head *h = arg;
    (void)kind;
    h->n_fields++;
    if (!value) value = "";
    /* "Content-Length : 5" is another field to the library than it may be to a gateway. */
    if (name[strcspn(name, " \t")]) h->blank_in_name = true;
    if (strcasecmp(name, "Authorization") == 0) {
        h->authorization = value;
        h->n_authorization++;
    } else if (strcasecmp(name, "Content-Length") == 0) {
        h->content_length = value;
        h->n_content_length++;
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        h->transfer_encoding = value;
        h->n_transfer_encoding++;
    } else if (strcasecmp(name, "Content-Type") == 0) {
        h->content_type = value;
    } else if (strcasecmp(name, "Content-Encoding") == 0) {
        h->content_encoding = value;
    } else if (strcasecmp(name, HTTP_CONVERSATION) == 0) {
        h->conversation = value;
        h->n_conversation++;
    } else if (strcasecmp(name, "Host") == 0) {
        h->n_host++;
    } else if (strcasecmp(name, "Expect") == 0) {
        h->expects = true;
    }
    return MHD_YES;
}

uint64_t head_length(const struct head *h)
{
    if (!h->content_length) return 0;
    errno = 0;
    unsigned long long n = strtoull(h->content_length, NULL, 10);
    return errno ? UINT64_MAX : n;
}

void head_read(struct MHD_Connection *c, struct head *h)
{
    *h = (struct head){0};
    MHD_get_connection_values(c, MHD_HEADER_KIND, note_field, h);
    h->has_body = h->n_transfer_encoding || head_length(h);
}

static bool all_digits(const char *s)
{
    return *s && s[strspn(s, "0123456789")] == 0;
}

/* Where a body ends must have one reading only: a gateway in front of this server that
 * takes another one would let a request through inside a body. */
int head_check(struct exchange *x, const struct head *h, const char *target,
               const char *version)
{
    struct api_error *e = &x->error;
    if (h->n_fields > HTTP_MAX_FIELDS)
        return api_fail(e, 431, NULL, NULL,
                        "The request has %u header fields; at most %d "
                        "are read.",
                        h->n_fields, HTTP_MAX_FIELDS);
    if (h->blank_in_name)
        return api_fail(e, 400, NULL, NULL, "A header field's name holds a blank.");
    if (strchr(target, ' '))
        return api_fail(e, 400, NULL, NULL, "The request's target holds a blank.");
    /* The library would check this too, but its answer then carries its own head again in
     * place of a body (0.9.75). */
    bool needs_host = strcmp(version, MHD_HTTP_VERSION_1_0) != 0;
    if (h->n_host > 1 || (needs_host && h->n_host == 0))
        return api_fail(e, 400, NULL, NULL, "The request has %u Host fields, not one.",
                        h->n_host);
    if (h->n_content_length && h->n_transfer_encoding)
        return api_fail(e, 400, NULL, NULL,
                        "The request has both Content-Length and Transfer-Encoding.");
    if (h->n_content_length > 1 || h->n_transfer_encoding > 1)
        return api_fail(e, 400, NULL, NULL,
                        "The request says more than once how its body is sent.");
    if (h->n_content_length && !all_digits(h->content_length))
        return api_fail(e, 400, NULL, NULL, "Content-Length is not a number.");
    if (h->n_transfer_encoding && (strcasecmp(h->transfer_encoding, "chunked") ||
                                   strcmp(version, MHD_HTTP_VERSION_1_1)))
        return api_fail(
            e, 400, NULL, NULL,
            "The only Transfer-Encoding understood is chunked, in HTTP/1.1.");
    return 0;
}

int head_authorize(struct exchange *x, const struct head *h)
{
    static const char scheme[] = "Bearer";
    const struct keys *keys = exchange_http(x)->keys;
    if (!keys) return 0;

    const char *key = "";
    if (h->n_authorization == 1 &&
        strncasecmp(h->authorization, scheme, sizeof scheme - 1) == 0) {
        key = h->authorization + sizeof scheme - 1;
        size_t blanks = strspn(key, " \t");
        key = blanks ? key + blanks : "";
    }
    /* Whatever is wrong, the answer and the work for it are the same. */
    if (keys_match(keys, key, strlen(key), &x->tenant)) {
        x->known_tenant = true;
        return 0;
    }
    x->challenge = "Bearer";
    return api_fail(&x->error, 401, "invalid_api_key", NULL,
                    "A valid API key is needed: Authorization: Bearer KEY.");
}

int head_check_type(struct exchange *x, const struct head *h)
{
    static const char json[] = "application/json";
    const char *type = h->content_type;
    if (type) {
        size_t n = strcspn(type, "; \t");
        if (n != sizeof json - 1 || strncasecmp(type, json, n))
            return api_fail(&x->error, 415, NULL, NULL,
                            "Content-Type must be application/json.");
    }
    if (h->content_encoding && strcasecmp(h->content_encoding, "identity"))
        return api_fail(&x->error, 415, NULL, NULL,
                        "Content-Encoding is not supported; send the body as it is.");
    return 0;
}

int head_conversation(struct exchange *x, const struct head *h)
{
    if (h->n_conversation == 0) return 0;
    if (h->n_conversation > 1)
        return api_fail(&x->error, 400, "invalid_value", HTTP_CONVERSATION,
                        "The request has %u " HTTP_CONVERSATION " fields, not one.",
                        h->n_conversation);
    size_t n = strlen(h->conversation);
    int rc = api_check_conversation(h->conversation, n, HTTP_CONVERSATION, &x->error);
    if (rc == 0) memcpy(x->conversation, h->conversation, n + 1);
    return rc;
}
