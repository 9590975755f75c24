#include "server/workers.h"

#include "kernels/thread.h"

#include <stdlib.h>
#include <string.h>

struct workers {
    pthread_mutex_t lock;  // guards what follows, but for threads
    pthread_cond_t changed;
    struct job *first, **last;
    uint32_t queued, most;
    bool closing;
    uint32_t n_threads;
    pthread_t threads[];
};

static void *work(void *arg)
{
    struct workers *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->closing) pthread_cond_wait(&w->changed, &w->lock);
        struct job *j = w->first;
        if (!j) break;
        w->first = j->next;
        if (!w->first) w->last = &w->first;
        w->queued--;

        pthread_mutex_unlock(&w->lock);
        j->run(j);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int workers_open(struct workers **out, uint32_t threads, uint32_t queue,
                 struct err *err)
{
    struct workers *w = calloc(1, sizeof *w + threads * sizeof w->threads[0]);
    if (!w) return err_set(err, -ENOMEM, "no memory for %u worker threads", threads);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->last = &w->first;
    w->most = queue;

    for (; w->n_threads < threads; w->n_threads++) {
        int rc = thread_start(&w->threads[w->n_threads], work, w);
        if (rc < 0) {
            err_set(err, rc, "worker thread %u cannot be started: %s", w->n_threads,
                    strerror(-rc));
            workers_close(w);
            return rc;
        }
    }
    *out = w;
    return 0;
}

int workers_submit(struct workers *w, struct job *j)
{
    int rc = 0;
    j->next = NULL;
    pthread_mutex_lock(&w->lock);
    if (w->closing || w->queued == w->most) {
        rc = -EBUSY;
    } else {
        *w->last = j;
        w->last = &j->next;
        w->queued++;
        pthread_cond_signal(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

void workers_stop(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    for (; w->n_threads; w->n_threads--)
        pthread_join(w->threads[w->n_threads - 1], NULL);
}

void workers_close(struct workers *w)
{
    if (!w) return;
    workers_stop(w);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
