#include "server/mailbox.h"

#include "server/clock.h"

#include <assert.h>
#include <stdlib.h>

int mailbox_open(struct mailbox *m, uint32_t max_waiting, uint32_t max_choices,
                 struct err *err)
{
    *m = (struct mailbox){.max_waiting = max_waiting, .max_choices = max_choices};
    if (__builtin_add_overflow(max_waiting, max_choices, &m->cap))
        return err_set(err, -E2BIG, "a queue of %u requests is too long", max_waiting);
    m->slots = calloc(m->cap, sizeof(struct request *));
    if (!m->slots)
        return err_set(err, -ENOMEM, "no memory for a queue of %u requests", m->cap);

    clock_cond_open(&m->some);
    pthread_mutex_init(&m->lock, NULL);
    return 0;
}

void mailbox_close(struct mailbox *m)
{
    if (!m->slots) return;
    assert(m->n == 0);
    pthread_cond_destroy(&m->some);
    pthread_mutex_destroy(&m->lock);
    free(m->slots);
    *m = (struct mailbox){0};
}

static int admit(const struct mailbox *m, uint32_t choices)
{
    if (m->closed) return -ESHUTDOWN;
    if (m->requests == m->cap) return -EBUSY;
    bool runs_at_once =
        choices <= m->max_choices && m->choices <= m->max_choices - choices;
    return m->waiting < m->max_waiting || runs_at_once ? 0 : -EBUSY;
}

int mailbox_post(struct mailbox *m, struct request *r)
{
    pthread_mutex_lock(&m->lock);
    int rc = admit(m, r->n_choices);
    if (rc == 0) {
        m->slots[(m->head + m->n) % m->cap] = r;
        m->n++;
        m->requests++;
        m->waiting++;
        m->choices += r->n_choices;
        pthread_cond_signal(&m->some);
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

void mailbox_poke(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    m->poked = true;
    pthread_cond_signal(&m->some);
    pthread_mutex_unlock(&m->lock);
}

void mailbox_shut(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    m->closed = m->poked = true;
    pthread_cond_signal(&m->some);
    pthread_mutex_unlock(&m->lock);
}

uint32_t mailbox_waiting(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    uint32_t n = m->waiting;
    pthread_mutex_unlock(&m->lock);
    return n;
}

struct request *mailbox_take(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    struct request *r = NULL;
    if (m->n > 0) {
        r = m->slots[m->head];
        m->head = (m->head + 1) % m->cap;
        m->n--;
    }
    pthread_mutex_unlock(&m->lock);
    return r;
}

void mailbox_wait(struct mailbox *m, int64_t timeout_ns)
{
    uint64_t until = clock_ns() + (uint64_t)timeout_ns;
    bool in_time = true;
    pthread_mutex_lock(&m->lock);
    while (m->n == 0 && !m->poked && in_time) {
        if (timeout_ns < 0)
            pthread_cond_wait(&m->some, &m->lock);
        else
            in_time = clock_wait(&m->some, &m->lock, until);
    }
    m->poked = false;
    pthread_mutex_unlock(&m->lock);
}

void mailbox_started(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    assert(m->waiting > 0);
    m->waiting--;
    pthread_mutex_unlock(&m->lock);
}

void mailbox_left(struct mailbox *m, uint32_t n_choices, bool started)
{
    pthread_mutex_lock(&m->lock);
    assert(m->requests > 0 && m->choices >= n_choices);
    m->requests--;
    m->choices -= n_choices;
    if (!started) m->waiting--;
    pthread_mutex_unlock(&m->lock);
}

bool mailbox_over(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    bool over = m->closed && m->requests == 0;
    pthread_mutex_unlock(&m->lock);
    return over;
}
