/* api_conversation.c - conversations by their names: the list, and what can be done to one. */
#include "server/api_internal.h"
#include "server/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NS          UINT64_C(1000000000)
#define PAGE_LOOKED 256  // conversations asked for at one time

/* ---- names ---- */

int api_check_conversation(const char *name, size_t n, const char *param,
                           struct api_error *e)
{
    return name_right(name, n)
               ? 0
               : api_fail(e, 400, "invalid_value", param,
                          "%s must be 1 to %d letters, digits and -_.:@, of which the "
                          "first is a letter or a digit",
                          param, KVSTORE_CONVERSATION - 1);
}

void api_call_name(struct api_call *c, const char *name)
{
    /* One name for one prompt: those after the first are named after what they hold. */
    snprintf(c->part[0].request->conversation, KVSTORE_CONVERSATION, "%s", name);
}

/* ---- the engine's answers ---- */

static int explain(const struct api *a, int rc, const char *why, struct api_error *e)
{
    switch (rc) {
    case -ENOENT: return api_fail(e, 404, "conversation_not_found", "id", "%s", why);
    case -EBUSY: return api_fail(e, 409, "conversation_active", "id", "%s", why);
    case -EDQUOT: return api_fail(e, 409, "too_much_held", "id", "%s", why);
    case -EOPNOTSUPP: return api_fail(e, 503, "nothing_kept", NULL, "%s", why);
    case -EAGAIN:
    case -ETIMEDOUT:
    case -ESHUTDOWN:
        api_fail(e, 503, "overloaded", NULL, "%s", why);
        e->retry_after = engine_retry_after(a->o.engine);
        return -EINVAL;
    default: return api_fail(e, 500, NULL, NULL, "%s", why);
    }
}

static int command(const struct api *a, struct engine_command *c, struct api_error *e)
{
    struct err err = {""};
    int rc = engine_command(a->o.engine, c, &err);
    return rc == 0 ? 0 : explain(a, rc, err.msg, e);
}

static struct engine_command command_of(const struct api_question *q, enum engine_op op)
{
    struct engine_command c = {.op = op, .tenant = q->tenant};
    memcpy(c.name, q->name, sizeof c.name);
    return c;
}

/* ---- one conversation as JSON ---- */

/* The engine's clock began at any time: a moment of it is as long ago, or ahead, on the
 * other clock as it is on this one. */
static double unix_seconds(uint64_t at)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    double ago = ((double)clock_ns() - (double)at) / (double)NS;
    return (double)(int64_t)((double)t.tv_sec + (double)t.tv_nsec / (double)NS - ago);
}

static cJSON *moment(uint64_t at, bool known)
{
    return known ? cJSON_CreateNumber(unix_seconds(at)) : cJSON_CreateNull();
}

static cJSON *conversation(const struct api *a, const struct kv_conversation *x,
                           struct bytes *out)
{
    static const char *const states[] = {
        [KV_ACTIVE] = "active",
        [KV_IDLE] = "idle",
        [KV_WAKING] = "waking",
        [KV_ASLEEP] = "asleep",
    };
    double block = (double)engine_block_bytes(a->o.engine);
    cJSON *o = cJSON_CreateObject();
    api_put_text(out, o, "id", x->name, strlen(x->name));
    api_put(out, o, "object", cJSON_CreateString("conversation"));
    api_put(out, o, "state", cJSON_CreateString(states[x->state]));
    api_put(out, o, "tokens", cJSON_CreateNumber(x->tokens));
    cJSON *bytes = api_put(out, o, "bytes", cJSON_CreateObject());
    for (int i = 0; i < KV_SOURCES; i++)
        api_put(out, bytes, api_source_name((enum kv_source)i),
                cJSON_CreateNumber(x->blocks[i] * block));
    api_put(out, o, "last_used", moment(x->last_used, x->last_used > 0));
    api_put(out, o, "held_until", moment(x->held_until, x->held_until > clock_ns()));
    return o;
}

/* ---- the list ---- */

struct page {
    struct kv_conversation *list;  // (limit)
    uint32_t n, limit;
    bool begun, more;
};

/* Those of one answer of the engine that belong on the page. */
static void add_to_page(struct page *p, const struct api_question *q,
                        const struct engine_command *c)
{
    for (uint32_t i = 0; i < c->n && !p->more; i++) {
        if (!p->begun) {
            p->begun = strcmp(c->list[i].name, q->after) == 0;
        } else if (p->n < p->limit) {
            p->list[p->n++] = c->list[i];
        } else {
            p->more = true;
        }
    }
}

static int fill_page(const struct api *a, const struct api_question *q, struct page *p,
                     struct api_error *e)
{
    struct kv_conversation found[PAGE_LOOKED];
    struct engine_command c = command_of(q, ENGINE_LIST);
    c.list = found;
    c.cap = PAGE_LOOKED;
    while (c.next != UINT32_MAX && !p->more) {
        c.from = c.next;
        int rc = command(a, &c, e);
        if (rc < 0) return rc;
        add_to_page(p, q, &c);
    }
    return 0;
}

/* A page can only be asked for behind a conversation that is there. */
static int find_after(const struct api *a, const struct api_question *q,
                      struct api_error *e)
{
    struct kv_conversation found;
    struct engine_command c = command_of(q, ENGINE_FIND);
    struct err err = {""};
    memcpy(c.name, q->after, sizeof c.name);
    c.list = &found;
    c.cap = 1;
    int rc = engine_command(a->o.engine, &c, &err);
    if (rc == -ENOENT)
        return api_fail(e, 400, "invalid_value", "after",
                        "after: %s; begin without it again", err.msg);
    return rc == 0 ? 0 : explain(a, rc, err.msg, e);
}

static void print_page(const struct api *a, const struct page *p, struct bytes *out)
{
    cJSON *root = cJSON_CreateObject();
    api_put(out, root, "object", cJSON_CreateString("list"));
    cJSON *data = api_put(out, root, "data", cJSON_CreateArray());
    for (uint32_t i = 0; i < p->n; i++)
        api_put(out, data, NULL, conversation(a, &p->list[i], out));
    const char *const ends[] = {"first_id", "last_id"};
    for (int i = 0; i < 2; i++) {
        const char *id = p->n > 0 ? p->list[i ? p->n - 1 : 0].name : NULL;
        api_put(out, root, ends[i], id ? cJSON_CreateString(id) : cJSON_CreateNull());
    }
    api_put(out, root, "has_more", cJSON_CreateBool(p->more));
    api_json_print(out, root);
}

static int list(const struct api *a, const struct api_question *q, struct bytes *out,
                struct api_error *e)
{
    struct page p = {.limit = q->limit, .begun = !q->after[0]};
    int rc = p.begun ? 0 : find_after(a, q, e);
    if (rc < 0) return rc;
    p.list = calloc(p.limit, sizeof *p.list);
    if (!p.list) return api_fail(e, 500, NULL, NULL, "no memory for the list");
    rc = fill_page(a, q, &p, e);
    if (rc == 0) print_page(a, &p, out);
    free(p.list);
    return rc;
}

/* ---- one ---- */

static int tell(const struct api *a, const struct api_question *q, struct bytes *out,
                struct api_error *e)
{
    struct kv_conversation found;
    struct engine_command c = command_of(q, ENGINE_FIND);
    c.list = &found;
    c.cap = 1;
    int rc = command(a, &c, e);
    if (rc == 0) api_json_print(out, conversation(a, &found, out));
    return rc;
}

static int forget(const struct api *a, const struct api_question *q, struct bytes *out,
                  struct api_error *e)
{
    struct engine_command c = command_of(q, ENGINE_FORGET);
    int rc = command(a, &c, e);
    if (rc < 0) return rc;
    cJSON *o = cJSON_CreateObject();
    api_put_text(out, o, "id", q->name, strlen(q->name));
    api_put(out, o, "object", cJSON_CreateString("conversation.deleted"));
    api_put(out, o, "deleted", cJSON_CreateTrue());
    api_json_print(out, o);
    return 0;
}

/* Do it, and tell how the conversation is then. */
static int change(const struct api *a, const struct api_question *q, enum engine_op op,
                  struct bytes *out, struct api_error *e)
{
    struct engine_command c = command_of(q, op);
    c.hold_ns = q->ttl_s * NS;
    int rc = command(a, &c, e);
    return rc < 0 ? rc : tell(a, q, out, e);
}

int api_answer_question(struct api *a, const struct api_question *q, struct bytes *out,
                        struct api_error *e)
{
    switch (q->about) {
    case API_LIST: return list(a, q, out, e);
    case API_TELL: return tell(a, q, out, e);
    case API_FORGET: return forget(a, q, out, e);
    case API_SLEEP: return change(a, q, ENGINE_SLEEP, out, e);
    case API_WAKE: return change(a, q, ENGINE_WAKE, out, e);
    case API_HOLD: return change(a, q, ENGINE_HOLD, out, e);
    }
    return api_fail(e, 500, NULL, NULL, "an unknown question");
}
