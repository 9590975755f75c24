/* pool.c - see pool.h.
 *
 * The state of a job is one 64-bit word, (job number << 32) | next item.  An item is
 * taken by compare-and-swap of the whole word, so a worker that read the description of
 * a job which has meanwhile ended fails to take anything from the next one:
 *
 *     closed (g, CLOSED) --describe--> open (g, 0) --take--> (g, 1) ... (g, n)
 *            ^                                                             |
 *            +------------------- pool_run, when done == n ----------------+
 *
 * Invariants: fn, arg and n change only while the word says CLOSED; the word moves from
 * (g, n) to (g + 1, CLOSED) only after all n items of g have returned.
 */
#include "kernels/pool.h"

#include "kernels/thread.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define CLOSED 0xffffffffu

/* How many looks at the word before parking: some tens of microseconds, longer than the
 * gaps between the operations of a step and shorter than anybody would notice. */
#define SPINS 3000

struct worker {
    struct pool *pool;
    pthread_t thread;
    uint32_t number;
};

struct pool {
    _Alignas(64) _Atomic uint64_t word;
    _Alignas(64) _Atomic uint32_t done;
    _Alignas(64) _Atomic(pool_fn *) fn;
    _Atomic(void *) arg;
    _Atomic uint32_t n;

    _Atomic uint32_t parked;  // workers at `wake`; changed under `lock`
    _Atomic bool stop;        // set under `lock`
    pthread_mutex_t lock;
    pthread_cond_t wake;

    uint32_t n_workers;  // started ones
    struct worker workers[];
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static bool has_work(struct pool *p)
{
    uint32_t next = (uint32_t)atomic_load(&p->word);
    return next != CLOSED && next < atomic_load_explicit(&p->n, memory_order_relaxed);
}

/* Take and run items until none is left. */
static void take_items(struct pool *p, uint32_t thread)
{
    uint64_t word = atomic_load_explicit(&p->word, memory_order_acquire);
    for (;;) {
        uint32_t i = (uint32_t)word;
        pool_fn *fn = atomic_load_explicit(&p->fn, memory_order_acquire);
        void *arg = atomic_load_explicit(&p->arg, memory_order_acquire);
        uint32_t n = atomic_load_explicit(&p->n, memory_order_acquire);
        if (i == CLOSED || i >= n) return;
        if (!atomic_compare_exchange_weak_explicit(&p->word, &word, word + 1,
                                                   memory_order_acq_rel,
                                                   memory_order_acquire)) {
            continue;
        }
        word++;
        fn(arg, i, thread);
        atomic_fetch_add_explicit(&p->done, 1, memory_order_release);
    }
}

static void park(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    // Counted before looking again, while pool_run opens the job before it looks at the
    // count: one of the two sees the other.
    atomic_fetch_add(&p->parked, 1);
    while (!has_work(p) && !atomic_load(&p->stop)) {
        pthread_cond_wait(&p->wake, &p->lock);
    }
    atomic_fetch_sub(&p->parked, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    while (!atomic_load_explicit(&p->stop, memory_order_relaxed)) {
        uint32_t spins = 0;
        while (!has_work(p) && ++spins < SPINS) relax();
        if (spins == SPINS) park(p);
        take_items(p, w->number);
    }
    return NULL;
}

int pool_open(struct pool **out, uint32_t threads, struct err *err)
{
    size_t bytes = sizeof(struct pool) + (size_t)threads * sizeof(struct worker);
    struct pool *p = aligned_alloc(64, ALIGN_UP(bytes, 64));
    if (!p) return err_set(err, -ENOMEM, "no memory for a pool of %u threads", threads);
    atomic_init(&p->word, CLOSED);
    atomic_init(&p->done, 0);
    atomic_init(&p->fn, NULL);
    atomic_init(&p->arg, NULL);
    atomic_init(&p->n, 0);
    atomic_init(&p->parked, 0);
    atomic_init(&p->stop, false);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);

    for (p->n_workers = 0; p->n_workers + 1 < threads; p->n_workers++) {
        struct worker *w = &p->workers[p->n_workers];
        *w = (struct worker){.pool = p, .number = p->n_workers + 1};
        int rc = thread_start(&w->thread, work, w);
        if (rc < 0) {
            uint32_t started = p->n_workers;
            pool_close(p);
            return err_set(err, rc, "the system started %u of %u compute threads",
                           started + 1, threads);
        }
    }
    *out = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_workers; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static void open_job(struct pool *p, uint32_t n, pool_fn *fn, void *arg)
{
    uint64_t job = (atomic_load_explicit(&p->word, memory_order_relaxed) >> 32) + 1;
    atomic_store(&p->word, job << 32 | CLOSED);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    // Release, and acquire in take_items: a worker that reads any of these before its
    // compare-and-swap has then also seen the word closed, so that the swap fails.
    atomic_store_explicit(&p->fn, fn, memory_order_release);
    atomic_store_explicit(&p->arg, arg, memory_order_release);
    atomic_store_explicit(&p->n, n, memory_order_release);
    atomic_store(&p->word, job << 32);
}

void pool_run(struct pool *p, uint32_t n, pool_fn *fn, void *arg)
{
    if (p->n_workers == 0 || n <= 1) {
        for (uint32_t i = 0; i < n; i++) fn(arg, i, 0);
        return;
    }
    open_job(p, n, fn, arg);
    if (atomic_load(&p->parked)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
    take_items(p, 0);

    uint32_t spins = 0;
    while (atomic_load_explicit(&p->done, memory_order_acquire) != n) {
        if (++spins < SPINS) {
            relax();
        } else {
            sched_yield();  // whoever holds the last item may need this core
        }
    }
}
