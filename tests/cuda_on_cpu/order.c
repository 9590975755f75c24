/* Operations and the order in which they run.
 *
 * Whatever is put on a stream becomes an operation that runs after some others.  Nothing
 * runs until the host waits or time passes, and then anything that may: so a missing
 * event wait or an early read of a buffer shows.
 */
#include <stdlib.h>
#include <time.h>

#include "tests/cuda_on_cpu/internal.h"

enum { CELLS = 1 << 18 };

static struct operation **pending;  // oldest first
static size_t n_pending, room;
static enum standin_streams order = STANDIN_RANDOM;
static bool held;

/* Under TSan the operations of a stream are a thread of their own.  Cells come round so
 * late that nothing remembers their last use. */
static void *identities[IDENTITIES];
static char *new_cell(void)
{
    static char cells[CELLS][8];
    static unsigned next;
    return cells[next++ % CELLS];
}

void order_open(void)
{
    for (int i = 0; TSAN && i < IDENTITIES; i++) identities[i] = __tsan_create_fiber(0);
}

void order_set(enum standin_streams s)
{
    order = s;
}

/* ---- operations ---- */

struct operation *operation_new(const char *what, void (*run)(void *),
                                const void *argument, size_t n, unsigned stream)
{
    struct operation *o = raw_alloc(sizeof *o);
    o->what = what;
    o->run = run;
    o->stream = stream;
    o->refs = 1;
    o->enqueued = new_cell();
    o->ran = new_cell();
    if (n) {
        o->argument = raw_alloc(n);
        o->argument_bytes = n;
        if (argument) raw_copy(o->argument, argument, n);
    }
    return o;
}

struct operation *operation_copy(const struct operation *o)
{
    return operation_new(o->what, o->run, o->argument, o->argument_bytes, o->stream);
}

struct operation *operation_ref(struct operation *o)
{
    if (o) o->refs++;
    return o;
}

static void forget_order(struct operation *o)
{
    for (unsigned i = 0; i < o->n_after; i++) operation_unref(o->after[i]);
    o->n_after = 0;
}

void operation_unref(struct operation *o)
{
    if (!o || --o->refs) return;
    forget_order(o);
    raw_free(o->after);
    raw_free(o->argument);
    raw_free(o);
}

void operation_after(struct operation *o, struct operation *earlier)
{
    if (!earlier || earlier == o) return;
    if ((o->n_after & (o->n_after + 1)) == 0) {  // full: there is room for 2^i - 1
        struct operation **more = raw_alloc((2 * o->n_after + 1) * sizeof(void *));
        raw_copy(more, o->after, o->n_after * sizeof(void *));
        raw_free(o->after);
        o->after = more;
    }
    o->after[o->n_after++] = operation_ref(earlier);
}

static bool may_run(const struct operation *o)
{
    for (unsigned i = 0; i < o->n_after; i++)
        if (!o->after[i]->done) return false;
    return true;
}

/* ---- running ---- */

static void run(size_t index)
{
    struct operation *o = pending[index];
    n_pending--;
    for (size_t i = index; i < n_pending; i++) pending[i] = pending[i + 1];
    void *self = TSAN ? __tsan_get_current_fiber() : NULL;
    if (TSAN) __tsan_switch_to_fiber(identities[o->stream], TSAN_NO_SYNC);
    sync_acquire(o->enqueued);
    for (unsigned i = 0; i < o->n_after; i++) sync_acquire(o->after[i]->ran);
    if (o->run && !sticky_error()) o->run(o->argument);
    sync_release(o->ran);
    if (TSAN) __tsan_switch_to_fiber(self, TSAN_NO_SYNC);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    o->time = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    o->done = true;
    forget_order(o);
    operation_unref(o);
}

static bool run_any(bool marked_only)
{
    size_t n = 0, chosen = 0;
    for (size_t i = 0; i < n_pending; i++)
        if ((!marked_only || pending[i]->marked) && may_run(pending[i]) &&
            random_below(++n) == 0)
            chosen = i;
    if (n) run(chosen);
    return n != 0;
}

static void run_first_marked(void)
{
    size_t i = 0;
    while (i < n_pending && !(pending[i]->marked && may_run(pending[i]))) i++;
    if (i == n_pending) device_report("an operation waits for one that never runs");
    run(i);
}

static void run_all_if_eager(void)
{
    while (order == STANDIN_EAGER && !held && n_pending) run_any(false);
}

void operations_hold(bool hold)
{
    held = hold;
    run_all_if_eager();
}

void operations_progress(void)
{
    if (order == STANDIN_RANDOM && random_below(4) == 0) run_any(false);
}

void operation_submit(struct operation *o)
{
    if (n_pending == room) {
        struct operation **more = raw_alloc((room ? 2 * room : 256) * sizeof *more);
        raw_copy(more, pending, n_pending * sizeof *more);
        raw_free(pending);
        pending = more;
        room = room ? 2 * room : 256;
    }
    pending[n_pending++] = o;
    sync_release(o->enqueued);
    run_all_if_eager();
}

/* Everything pending that o needs, itself included. */
static void mark_needed(const struct operation *o)
{
    for (size_t i = 0; i < n_pending; i++) pending[i]->marked = pending[i] == o;
    for (size_t i = n_pending; i-- > 0;)
        for (unsigned j = 0; pending[i]->marked && j < pending[i]->n_after; j++)
            pending[i]->after[j]->marked = true;
}

void operation_wait(struct operation *o)
{
    if (!o) return;
    operation_ref(o);
    if (!o->done) mark_needed(o);
    while (!o->done) {
        if (order != STANDIN_RANDOM)
            run_first_marked();
        else if (!run_any(random_below(2)))
            run_any(false);
    }
    sync_acquire(o->ran);
    operation_unref(o);
}

void operations_wait_all(void)
{
    while (n_pending) operation_wait(pending[random_below(n_pending)]);
    for (struct CUstream_st *s = streams; s; s = s->next)
        if (s->last) sync_acquire(s->last->ran);
}
