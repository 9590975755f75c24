#include "offload/ssd_sums.h"

#include "kernels/thread.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct list {
    struct ssd_sum *first, **end;
};

struct ssd_sums {
    struct crypto_hash fingerprint;
    size_t block_bytes;
    pthread_t thread;
    bool started;
    atomic_uint n_done;  // so that the owner may look often without the lock

    pthread_mutex_t lock;  // guards all that follows
    pthread_cond_t work;
    struct list todo, done;
    bool asleep, closing;
};

static void put(struct list *l, struct ssd_sum *job)
{
    job->next = NULL;
    *l->end = job;
    l->end = &job->next;
}

static struct ssd_sum *take(struct list *l)
{
    struct ssd_sum *job = l->first;
    if (!job) return NULL;
    l->first = job->next;
    if (!l->first) l->end = &l->first;
    return job;
}

static void compute(const struct ssd_sums *s, struct ssd_sum *job)
{
    const struct tier_io *io = job->io;
    if (io->dir == TIER_STORE)
        disk_header_make(job->page, &io->meta, &s->fingerprint, job->sequence, io->buf,
                         s->block_bytes);
    else
        job->right = disk_block_right(job->page, &io->meta, &s->fingerprint, io->buf,
                                      s->block_bytes);
}

static void *work(void *arg)
{
    struct ssd_sums *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        struct ssd_sum *job = take(&s->todo);
        if (!job && s->closing) break;
        if (!job) {
            s->asleep = true;
            pthread_cond_wait(&s->work, &s->lock);
            s->asleep = false;
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        compute(s, job);
        pthread_mutex_lock(&s->lock);
        put(&s->done, job);
        atomic_fetch_add_explicit(&s->n_done, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void ssd_sums_push(struct ssd_sums *s, struct ssd_sum *job)
{
    pthread_mutex_lock(&s->lock);
    put(&s->todo, job);
    if (s->asleep) pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

struct ssd_sum *ssd_sums_pop(struct ssd_sums *s)
{
    if (atomic_load_explicit(&s->n_done, memory_order_relaxed) == 0) return NULL;
    atomic_fetch_sub_explicit(&s->n_done, 1, memory_order_relaxed);
    pthread_mutex_lock(&s->lock);
    struct ssd_sum *job = take(&s->done);
    pthread_mutex_unlock(&s->lock);
    return job;
}

void ssd_sums_close(struct ssd_sums *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->started) pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int ssd_sums_open(struct ssd_sums **out, const struct crypto_hash *fingerprint,
                  size_t block_bytes, struct err *err)
{
    struct ssd_sums *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, -ENOMEM, "no memory for the SSD tier's checksums");
    s->fingerprint = *fingerprint;
    s->block_bytes = block_bytes;
    s->todo.end = &s->todo.first;
    s->done.end = &s->done.first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    int rc = thread_start(&s->thread, work, s);
    s->started = rc == 0;
    if (rc < 0) {
        ssd_sums_close(s);
        return err_set(err, rc,
                       "the thread of the SSD tier's checksums cannot be started: %s",
                       strerror(-rc));
    }
    *out = s;
    return 0;
}
