/* http_conversation.c - requests about conversations: what they ask, and who answers.
 *
 *     GET           /v1/conversations?after=ID&limit=N
 *     GET, DELETE   /v1/conversations/ID
 *     POST          /v1/conversations/ID/sleep, /wake, /hold?ttl=SECONDS
 *
 * The answer waits for the engine's next step, so a thread waits for it that has nothing
 * else to do: neither connections nor the preparing of prompts are held up.  A body is read
 * and thrown away.
 */
#include "server/http_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_USUAL 100

static const struct {
    const char *word;
    int about;
} actions[] = {{"sleep", API_SLEEP}, {"wake", API_WAKE}, {"hold", API_HOLD}};

/* ---- the method ---- */

/* By what follows the name, NULL where nothing does. */
static int read_method(struct exchange *x, const char *action)
{
    struct api_question *q = &x->question;
    if (!action && strcmp(x->method, "DELETE") == 0) {
        q->about = API_FORGET;
        return 0;
    }
    if (!action) {
        q->about = API_TELL;
        return exchange_is_get(x) ? 0 : exchange_wrong_method(x, "GET, HEAD, DELETE");
    }
    for (size_t i = 0; i < ARRAY_LEN(actions); i++) {
        if (strcmp(actions[i].word, action) != 0) continue;
        q->about = actions[i].about;
        return strcmp(x->method, "POST") == 0 ? 0 : exchange_wrong_method(x, "POST");
    }
    return api_fail(&x->error, 404, NULL, NULL, "There is nothing at this path.");
}

/* ---- names and numbers ---- */

static int read_name(struct exchange *x, char *text, const char *param, char *out)
{
    if (!http_unescape(text))
        return api_fail(&x->error, 400, "invalid_value", param,
                        "%s is not well encoded", param);
    size_t n = strlen(text);
    int rc = api_check_conversation(text, n, param, &x->error);
    if (rc == 0) memcpy(out, text, n + 1);
    return rc;
}

static const char *argument(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection->mhd, MHD_GET_ARGUMENT_KIND, name);
}

static int read_number(struct exchange *x, const char *name, const char *text,
                       uint64_t low, uint64_t high, uint64_t *out)
{
    size_t digits = strspn(text, "0123456789");
    bool good = digits > 0 && digits < 10 && !text[digits];
    *out = good ? strtoull(text, NULL, 10) : 0;
    if (good && *out >= low && *out <= high) return 0;
    return api_fail(&x->error, 400, "invalid_value", name,
                    "%s must be a whole number from %llu to %llu", name,
                    (unsigned long long)low, (unsigned long long)high);
}

static int read_list(struct exchange *x)
{
    struct api_question *q = &x->question;
    const char *limit = argument(x, "limit"), *after = argument(x, "after");
    uint64_t n = LIST_USUAL;
    int rc = exchange_is_get(x) ? 0 : exchange_wrong_method(x, "GET, HEAD");
    if (rc == 0 && limit) rc = read_number(x, "limit", limit, 1, API_LIST_LIMIT, &n);
    q->about = API_LIST;
    q->limit = (uint32_t)n;
    if (rc < 0 || !after) return rc;
    char text[256];
    snprintf(text, sizeof text, "%s", after);
    return read_name(x, text, "after", q->after);
}

int conversation_read(struct exchange *x)
{
    struct api_question *q = &x->question;
    q->tenant = x->tenant;
    if (!x->id[0]) return read_list(x);

    char *action = strchr(x->id, '/');
    if (action) *action++ = 0;
    int rc = read_method(x, action);
    if (rc == 0) rc = read_name(x, x->id, "id", q->name);
    if (rc < 0 || q->about != API_HOLD) return rc;
    const char *ttl = argument(x, "ttl");
    return read_number(x, "ttl", ttl ? ttl : "", 0, API_HOLD_MOST, &q->ttl_s);
}

/* ---- the answer ---- */

static void answer(struct job *j)
{
    struct exchange *x = CONTAINER_OF(j, struct exchange, job);
    struct api *api = atomic_load(&exchange_http(x)->api);
    int rc = api_answer_question(api, &x->question, &x->out, &x->error);
    exchange_prepared(x, rc);
}

enum MHD_Result conversation_ask(struct exchange *x)
{
    return exchange_work(x, exchange_http(x)->askers, answer);
}
