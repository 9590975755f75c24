/* ssd_threads.c - the queue over worker threads that read and write as anybody does. */
#include "offload/ssd_queue.h"

#include "kernels/thread.h"

#include <stdlib.h>
#include <string.h>

#define WORKERS 16

struct ssd_threads {
    struct ssd_queue base;
    const struct ssd_sys *sys;  // borrowed
    pthread_t worker[WORKERS];
    unsigned n_workers;
    struct ssd_op *pushed, **pushed_end;  // the owner's, until kicked

    pthread_mutex_t lock;          // guards all that follows
    pthread_cond_t work, results;  // something to do; something done
    struct ssd_op *todo, **todo_end;
    struct ssd_op *done, **done_end;
    bool closing;
};

static struct ssd_threads *threads_of(struct ssd_queue *base)
{
    return CONTAINER_OF(base, struct ssd_threads, base);
}

static struct ssd_op *take(struct ssd_op **list, struct ssd_op ***end)
{
    struct ssd_op *op = *list;
    if (!op) return NULL;
    *list = op->next;
    if (!*list) *end = list;
    return op;
}

static void put(struct ssd_op ***end, struct ssd_op *op)
{
    op->next = NULL;
    **end = op;
    *end = &op->next;
}

static void *work(void *arg)
{
    struct ssd_threads *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        struct ssd_op *op = take(&q->todo, &q->todo_end);
        if (!op && q->closing) break;
        if (!op) {
            pthread_cond_wait(&q->work, &q->lock);
            continue;
        }
        pthread_mutex_unlock(&q->lock);
        op->res = (op->write ? q->sys->write : q->sys->read)(q->sys, op->fd, op->iov,
                                                             (int)op->n_iov, op->at);
        pthread_mutex_lock(&q->lock);
        put(&q->done_end, op);
        pthread_cond_signal(&q->results);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static void threads_push(struct ssd_queue *base, struct ssd_op *op)
{
    put(&threads_of(base)->pushed_end, op);
}

static void threads_kick(struct ssd_queue *base)
{
    struct ssd_threads *q = threads_of(base);
    if (!q->pushed) return;
    pthread_mutex_lock(&q->lock);
    *q->todo_end = q->pushed;
    q->todo_end = q->pushed_end;
    pthread_cond_broadcast(&q->work);
    pthread_mutex_unlock(&q->lock);
    q->pushed = NULL;
    q->pushed_end = &q->pushed;
}

static struct ssd_op *threads_pop(struct ssd_queue *base, bool wait)
{
    struct ssd_threads *q = threads_of(base);
    threads_kick(base);
    pthread_mutex_lock(&q->lock);
    while (wait && !q->done) pthread_cond_wait(&q->results, &q->lock);
    struct ssd_op *op = take(&q->done, &q->done_end);
    pthread_mutex_unlock(&q->lock);
    return op;
}

static void threads_close(struct ssd_queue *base)
{
    struct ssd_threads *q = threads_of(base);
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    pthread_cond_broadcast(&q->work);
    pthread_mutex_unlock(&q->lock);
    for (unsigned i = 0; i < q->n_workers; i++) pthread_join(q->worker[i], NULL);
    pthread_cond_destroy(&q->results);
    pthread_cond_destroy(&q->work);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static const struct ssd_queue_ops threads_ops = {
    .push = threads_push,
    .kick = threads_kick,
    .pop = threads_pop,
    .close = threads_close,
};

/* Fewer than n are as good. */
static int start_workers(struct ssd_threads *q, unsigned n)
{
    int rc = 0;
    while (rc == 0 && q->n_workers < n) {
        rc = thread_start(&q->worker[q->n_workers], work, q);
        if (rc == 0) q->n_workers++;
    }
    return q->n_workers ? 0 : rc;
}

int ssd_threads_open(struct ssd_queue **out, unsigned entries,
                     const struct ssd_sys *sys, struct err *err)
{
    struct ssd_threads *q = calloc(1, sizeof *q);
    if (!q) return err_set(err, -ENOMEM, "no memory for the SSD tier's threads");
    q->base.ops = &threads_ops;
    q->sys = sys;
    q->pushed_end = &q->pushed;
    q->todo_end = &q->todo;
    q->done_end = &q->done;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    pthread_cond_init(&q->results, NULL);

    int rc = start_workers(q, entries < WORKERS ? entries : WORKERS);
    if (rc < 0) {
        threads_close(&q->base);
        return err_set(err, rc, "no thread for the SSD tier can be started: %s",
                       strerror(-rc));
    }
    *out = &q->base;
    return 0;
}
