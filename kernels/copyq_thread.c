/* copyq_thread.c - the copy queue of a machine without a copy engine: a thread is it.
 *
 * Ticket n lies at ring[n % COPYQ_DEPTH].  The owner alone moves `pushed` and the thread
 * alone moves `done`, each after what it stands for, so that both read the other's without
 * a lock.  The lock is for sleeping only.
 */
#include "kernels/copy.h"
#include "kernels/copyq.h"
#include "kernels/thread.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct copy {
    void *dst;
    const void *src;
    size_t bytes;
};

struct copyq_thread {
    struct copyq base;
    struct copy ring[COPYQ_DEPTH];
    _Alignas(64) atomic_uint_fast64_t pushed;  // tickets handed out
    _Alignas(64) atomic_uint_fast64_t done;    // tickets completed

    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t work;
    atomic_bool asleep;  // changed under the lock
    bool closing;        // guarded by it
};

static struct copyq_thread *thread_of(struct copyq *base)
{
    return CONTAINER_OF(base, struct copyq_thread, base);
}

/* False at the end. */
static bool wait_for_work(struct copyq_thread *q, uint64_t done)
{
    pthread_mutex_lock(&q->lock);
    // Said before looking again, while push looks after it has pushed: one of the two
    // sees the other.
    atomic_store(&q->asleep, true);
    while (!q->closing && atomic_load(&q->pushed) == done)
        pthread_cond_wait(&q->work, &q->lock);
    atomic_store(&q->asleep, false);
    bool more = !q->closing;
    pthread_mutex_unlock(&q->lock);
    return more;
}

static void *work(void *arg)
{
    struct copyq_thread *q = arg;
    for (uint64_t done = 0; wait_for_work(q, done);) {
        uint64_t end = atomic_load(&q->pushed);
        while (done < end) {
            const struct copy *c = &q->ring[++done % COPYQ_DEPTH];
            copy_past_caches(c->dst, c->src, c->bytes);
            atomic_store_explicit(&q->done, done, memory_order_release);
        }
    }
    return NULL;
}

static void wake(struct copyq_thread *q)
{
    pthread_mutex_lock(&q->lock);
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

static int thread_push(struct copyq *base, void *dst, const void *src, size_t bytes,
                       uint64_t *out)
{
    struct copyq_thread *q = thread_of(base);
    uint64_t ticket = atomic_load_explicit(&q->pushed, memory_order_relaxed) + 1;
    uint64_t done = atomic_load_explicit(&q->done, memory_order_acquire);
    if (ticket - done > COPYQ_DEPTH) return -EAGAIN;

    q->ring[ticket % COPYQ_DEPTH] = (struct copy){dst, src, bytes};
    atomic_store(&q->pushed, ticket);
    if (atomic_load(&q->asleep)) wake(q);
    *out = ticket;
    return 0;
}

static int thread_poll(struct copyq *base, uint64_t ticket)
{
    struct copyq_thread *q = thread_of(base);
    if (ticket == 0 || ticket > atomic_load_explicit(&q->pushed, memory_order_relaxed))
        return -EINVAL;
    uint64_t done = atomic_load_explicit(&q->done, memory_order_acquire);
    return ticket <= done ? 0 : -EAGAIN;
}

static void thread_close(struct copyq *base)
{
    struct copyq_thread *q = thread_of(base);
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
    if (q->started) pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->work);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static const struct copyq_ops thread_ops = {
    .push = thread_push,
    .poll = thread_poll,
    .host_alloc = copyq_cpu_host_alloc,
    .host_free = copyq_cpu_host_free,
    .close = thread_close,
};

int copyq_thread_open(struct copyq **out, struct err *err)
{
    struct copyq_thread *q = aligned_alloc(64, ALIGN_UP(sizeof *q, 64));
    if (!q) return err_set(err, -ENOMEM, "no memory for a copy queue");
    memset(q, 0, sizeof *q);
    q->base.ops = &thread_ops;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    int rc = thread_start(&q->thread, work, q);
    q->started = rc == 0;
    if (rc < 0) {
        thread_close(&q->base);
        return err_set(err, rc, "the thread that copies could not be started: %s",
                       strerror(-rc));
    }
    *out = &q->base;
    return 0;
}
