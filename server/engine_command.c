/* engine_command.c - questions about conversations, asked from other threads and answered
 * by the engine's between two steps.
 *
 * A command is its caller's and waits in the queue, or is being answered, or is done; only
 * one that still waits can be taken back.
 */
#include "server/engine_state.h"

#include <string.h>

#define LIST_LOOKED_AT 512  // conversations that one command looks at

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

static int list(const struct engine *e, uint64_t tenant, struct engine_command *c)
{
    struct kv_conversation found;
    uint32_t i = c->from;
    for (uint32_t looked = 0; looked < LIST_LOOKED_AT && c->n < c->cap; looked++, i++) {
        if (!kvstore_conversation_at(e->o.store, i, &found)) {
            c->next = UINT32_MAX;
            return 0;
        }
        if (found.tenant == tenant) c->list[c->n++] = found;
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

/* -EINPROGRESS: a block of it is on its way; to be asked again. */
static int forget(const struct engine *e, uint64_t tenant, struct engine_command *c)
{
    struct kv_conversation found;
    int rc = kvstore_forget(e->o.store, tenant, c->name);
    if (rc != -EBUSY) return rc;
    if (!kvstore_conversation_find(e->o.store, tenant, c->name, &found)) return 0;
    c->moving = found.state != KV_ACTIVE;
    return c->moving ? -EINPROGRESS : -EBUSY;
}

static int answer(struct engine *e, struct engine_command *c)
{
    struct kvstore *store = e->o.store;
    if (c->tenant >= e->o.n_tenants) return -ENOENT;
    uint64_t tenant = e->o.tenants[c->tenant].number;
    c->n = 0;
    switch (c->op) {
    case ENGINE_LIST: return list(e, tenant, c);
    case ENGINE_FIND: return find(e, tenant, c);
    case ENGINE_SLEEP: return kvstore_sleep(store, tenant, c->name, e->now);
    case ENGINE_WAKE: return kvstore_prefetch(store, tenant, c->name, e->now);
    case ENGINE_HOLD: return kvstore_hold(store, tenant, c->name, e->now + c->hold_ns);
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
 * take(), but others may have come. */
static void give_answer(struct command_queue *q, struct engine_command *c, int rc)
{
    pthread_mutex_lock(&q->lock);
    if (rc == -EINPROGRESS && q->n < ENGINE_COMMANDS) {
        c->state = WAITING;
        q->waiting[q->n++] = c;
    } else {
        c->rc = rc == -EINPROGRESS ? -EAGAIN : rc;
        c->state = DONE;
        pthread_cond_broadcast(&q->answered);
    }
    pthread_mutex_unlock(&q->lock);
}

void engine_answer_commands(struct engine *e)
{
    struct engine_command *c;
    for (int i = 0; i < ENGINE_COMMANDS && (c = take(&e->commands)) != NULL; i++)
        give_answer(&e->commands, c, answer(e, c));
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
    case -EAGAIN:
        return err_set(err, rc,
                       "the server is busy: %d questions about conversations "
                       "are waiting already",
                       ENGINE_COMMANDS);
    case -ETIMEDOUT:
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
