/* engine_command.c - questions about conversations, asked from other threads and answered
 * by the engine's between two steps.
 *
 * A command is its caller's and waits in the queue, or is being answered, or is done; only
 * one that still waits can be taken back.
 */
#include "server/engine_state.h"

#include <string.h>

#define LIST_LOOKED_AT 512   // conversations that one command looks at
#define LIST_BLOCKS    4096  // of those that are told of between two steps

enum command_state { WAITING, ANSWERING, DONE };

void commands_open(struct command_queue *q)
{
    clock_cond_open(&q->answered);
    pthread_mutex_init(&q->lock, NULL);
    q->open = true;
}

void commands_close(struct command_queue *q)
{
    if (!q->open) return;
    pthread_cond_destroy(&q->answered);
    pthread_mutex_destroy(&q->lock);
    q->open = false;
}

/* ---- the engine's side ---- */

/* Until `blocks` of the conversations have been gone through, or a few more. */
static int list(const struct engine *e, uint64_t tenant, struct engine_command *c,
                uint32_t *blocks)
{
    struct kv_conversation found;
    uint32_t i = c->from;
    uint32_t end = i + LIST_LOOKED_AT;
    for (; *blocks > 0 && i < end && c->n < c->cap; i++) {
        if (!kvstore_conversation_at(e->o.store, i, &tenant, &found)) {
            c->next = UINT32_MAX;
            return 0;
        }
        if (found.tenant != tenant) continue;
        c->list[c->n++] = found;
        uint32_t n = 1 + found.tokens / KV_BLOCK_TOKENS;
        *blocks -= n < *blocks ? n : *blocks;
    }
    c->next = i;
    return 0;
}

static int find(const struct engine *e, uint64_t tenant, struct engine_command *c)
{
    if (!kvstore_conversation_find(e->o.store, tenant, c->name, c->list))
        return -ENOENT;
    c->n = 1;
    return 0;
}

/* What came of it; -EINPROGRESS: nothing yet, as blocks of it are on their way. */
static int unless_moving(const struct engine *e, uint64_t tenant,
                         struct engine_command *c, int rc)
{
    struct kv_conversation found;
    if (rc != -EBUSY) return rc;
    if (!kvstore_conversation_find(e->o.store, tenant, c->name, &found)) return 0;
    c->moving = found.state != KV_ACTIVE;
    return c->moving ? -EINPROGRESS : -EBUSY;
}

static int why_not_erased(const struct tier *ssd)
{
    if (!ssd) return 0;
    return ssd->wipes.error ? ssd->wipes.error : ssd->naming.error;
}

/* One that is gone already may be so for a moment only, as far as a restart can tell. */
static int forget(const struct engine *e, uint64_t tenant, struct engine_command *c)
{
    if (!c->gone) {
        int rc =
            unless_moving(e, tenant, c, kvstore_forget(e->o.store, tenant, c->name));
        if (rc < 0 && rc != -ENOENT) return rc;
        c->rc = rc;
        c->gone = true;
    }
    c->wipe_error = why_not_erased(e->o.ssd);
    return kvstore_erasing(e->o.store, tenant, c->name) ? -EINPROGRESS : c->rc;
}

static int hold(struct kvstore *store, uint64_t tenant, struct engine_command *c,
                uint64_t now)
{
    c->hold_tokens = kvstore_hold_tokens(store);
    return kvstore_hold(store, tenant, c->name, now + c->hold_ns, now);
}

static int answer(struct engine *e, struct engine_command *c, uint32_t *blocks)
{
    struct kvstore *store = e->o.store;
    if (c->tenant >= e->o.n_tenants) return -ENOENT;
    uint64_t tenant = e->o.tenants[c->tenant].number;
    c->n = 0;
    switch (c->op) {
    case ENGINE_LIST: return list(e, tenant, c, blocks);
    case ENGINE_FIND: return find(e, tenant, c);
    case ENGINE_SLEEP:
        return unless_moving(e, tenant, c,
                             kvstore_sleep(store, tenant, c->name, e->now));
    case ENGINE_WAKE: return kvstore_prefetch(store, tenant, c->name, e->now);
    case ENGINE_HOLD: return hold(store, tenant, c, e->now);
    case ENGINE_FORGET: return forget(e, tenant, c);
    case ENGINE_COUNT: kvstore_count(store, c->counters); return 0;
    }
    return -EINVAL;
}

static struct engine_command *take(struct command_queue *q)
{
    struct engine_command *c = NULL;
    pthread_mutex_lock(&q->lock);
    if (q->n > 0) {
        c = q->waiting[0];
        memmove(q->waiting, q->waiting + 1, --q->n * sizeof(struct engine_command *));
        c->state = ANSWERING;
    }
    pthread_mutex_unlock(&q->lock);
    return c;
}

/* Those who ask get no answer while there is none: their place in the queue is free since
 * take(), but others may have come.  They hear of it, as their time may be over. */
static void give_answer(struct command_queue *q, struct engine_command *c, int rc)
{
    pthread_mutex_lock(&q->lock);
    if (rc == -EINPROGRESS && q->n < ENGINE_COMMANDS) {
        c->state = WAITING;
        q->waiting[q->n++] = c;
    } else {
        c->rc = rc == -EINPROGRESS ? -EAGAIN : rc;
        c->state = DONE;
    }
    pthread_cond_broadcast(&q->answered);
    pthread_mutex_unlock(&q->lock);
}

/* Those that are there now: what has to wait comes again in the next turn. */
void engine_answer_commands(struct engine *e)
{
    struct command_queue *q = &e->commands;
    pthread_mutex_lock(&q->lock);
    uint32_t n = q->n, blocks = LIST_BLOCKS;
    pthread_mutex_unlock(&q->lock);
    for (struct engine_command *c; n > 0 && (c = take(q)) != NULL; n--)
        give_answer(q, c, answer(e, c, &blocks));
}

void engine_shut_commands(struct engine *e)
{
    pthread_mutex_lock(&e->commands.lock);
    e->commands.closed = true;
    pthread_mutex_unlock(&e->commands.lock);
    for (struct engine_command *c; (c = take(&e->commands)) != NULL;)
        give_answer(&e->commands, c, -ESHUTDOWN);
}

/* ---- the caller's side ---- */

static int post(struct command_queue *q, struct engine_command *c)
{
    int rc = q->closed ? -ESHUTDOWN : q->n == ENGINE_COMMANDS ? -EAGAIN : 0;
    if (rc < 0) return rc;
    c->state = WAITING;
    c->moving = c->gone = false;
    c->wipe_error = 0;
    q->waiting[q->n++] = c;
    return 0;
}

static void take_back(struct command_queue *q, const struct engine_command *c)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < q->n; i++)
        if (q->waiting[i] != c) q->waiting[kept++] = q->waiting[i];
    q->n = kept;
}

/* Holding the lock: until it is done, or still waits when the time is over. */
static int wait_for(struct command_queue *q, struct engine_command *c)
{
    uint64_t until = clock_ns() + ENGINE_COMMAND_MS * CLOCK_MS;
    bool in_time = true;
    while (c->state != DONE) {
        if (in_time)
            in_time = clock_wait(&q->answered, &q->lock, until);
        else if (c->state == WAITING) {
            take_back(q, c);
            return -ETIMEDOUT;
        } else
            pthread_cond_wait(&q->answered, &q->lock);
    }
    return c->rc;
}

static int explain(const struct engine_command *c, int rc, struct err *err)
{
    switch (rc) {
    case 0: return 0;
    case -ENOENT: return err_set(err, rc, "there is no conversation `%.64s`", c->name);
    case -EBUSY:
        return err_set(
            err, rc,
            "conversation `%.64s` is active: a reply to it is being computed; "
            "ask again when it is over",
            c->name);
    case -EDQUOT:
        return err_set(
            err, rc,
            "conversation `%.64s` cannot be held: all that is held at one time may "
            "have %llu tokens at most, and what you hold no more than your quota of "
            "RAM and, beside other tenants, half of what they leave; end another hold "
            "first",
            c->name, (unsigned long long)c->hold_tokens);
    case -EAGAIN:
        return err_set(err, rc,
                       "the server is busy: %d questions about conversations "
                       "are waiting already",
                       ENGINE_COMMANDS);
    case -ETIMEDOUT:
        if (c->gone)
            return err_set(
                err, rc,
                "conversation `%.64s` is gone, but the SSD has not overwritten all "
                "that was deleted within %d ms%s%s; it is tried again, and until then "
                "a restart may find it; ask again until it is not found",
                c->name, ENGINE_COMMAND_MS, c->wipe_error ? ": " : "",
                c->wipe_error ? strerror(-c->wipe_error) : "");
        if (c->moving)
            return err_set(
                err, rc,
                "blocks of conversation `%.64s` have been on their way for %d "
                "ms; ask again",
                c->name, ENGINE_COMMAND_MS);
        return err_set(err, rc, "the server is busy: it has not answered within %d ms",
                       ENGINE_COMMAND_MS);
    case -ESHUTDOWN: return err_set(err, rc, "the server is shutting down");
    default: return err_set(err, rc, "the question cannot be answered: error %d", -rc);
    }
}

int engine_command(struct engine *e, struct engine_command *c, struct err *err)
{
    if (!e->o.store)
        return err_set(err, -EOPNOTSUPP, "this server keeps no conversations");
    struct command_queue *q = &e->commands;
    pthread_mutex_lock(&q->lock);
    int rc = post(q, c);
    if (rc == 0) {
        mailbox_poke(&e->mailbox);
        rc = wait_for(q, c);
    }
    pthread_mutex_unlock(&q->lock);
    return explain(c, rc, err);
}
