/* Blocks of CUDA threads: one fiber a thread, one block after another.
 *
 * One warp runs as far as it can before the next gets a turn, so that whatever only a
 * barrier keeps apart is seen apart; taking turns lane by lane would hide a missing one.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_on_cpu/fiber.h"
#include "tests/cuda_on_cpu/internal.h"

enum { MAX_THREADS = 1024, LANES = 32, MAX_WARPS = MAX_THREADS / LANES };
enum { CELLS = 2048 };

struct dim device_thread, device_block, device_block_dim, device_grid_dim;
unsigned device_lane;
struct thread *running;

static struct thread threads[MAX_THREADS];
static struct warp warps[MAX_WARPS];
static unsigned n_threads, n_arrived, n_exited;
static const struct kernel *kernel;
static void **kernel_args;
static enum standin_threads thread_order;

/* Fibers.  Under TSan a thread keeps one identity for each stream, and neighbouring blocks
 * of a kernel have different ones; else any idle fiber will do, the one used last being warm. */
static struct fiber host, fibers[IDENTITIES][2][MAX_THREADS];
static struct fiber *idle[MAX_THREADS];
static unsigned n_idle, n_used, identity, block_number;
static char start_cell[IDENTITIES][8], end_cell[IDENTITIES][8];

void block_set_order(enum standin_threads t)
{
    thread_order = t;
}

void device_report(const char *format, ...)
{
    char text[1024];
    int n = 0;
    if (running)
        n = snprintf(text, sizeof text,
                     "kernel %s block (%u,%u,%u) thread (%u,%u,%u): ", kernel->name,
                     device_block.x, device_block.y, device_block.z, running->index.x,
                     running->index.y, running->index.z);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, sizeof text - (size_t)n, format, args);
    va_end(args);
    fprintf(stderr, "stand-in: %s\n", text);
    abort();
}

/* ---- the barrier ---- */

/* Each phase has a cell of its own: a thread that runs ahead must not order what this one
 * does after the barrier. */
static char barrier_cell[CELLS][8];
static unsigned barrier_phase;
static struct {
    const char *file;
    int line;
    int gathered[3], result[3];
} barrier;

static void barrier_reset(void)
{
    n_arrived = 0;
    barrier.gathered[BARRIER_COUNT] = 0;
    barrier.gathered[BARRIER_AND] = 1;
    barrier.gathered[BARRIER_OR] = 0;
}

static void barrier_open(void)
{
    memcpy(barrier.result, barrier.gathered, sizeof barrier.result);
    barrier_reset();
    barrier_phase++;
    for (unsigned i = 0; i < n_threads; i++)
        if (threads[i].state == THREAD_AT_BARRIER) threads[i].state = THREAD_READY;
    for (unsigned i = 0; i < MAX_WARPS; i++) warps[i].at_barrier = 0;
}

static void barrier_check(const char *file, int line)
{
    if (!running) device_report("__syncthreads at %s:%d outside a kernel", file, line);
    if (n_exited)
        device_report("__syncthreads at %s:%d after %u threads of the block exited",
                      file, line, n_exited);
    if (n_arrived && (barrier.line != line || differ(barrier.file, file)))
        device_report("divergent __syncthreads: this thread at %s:%d, others at %s:%d",
                      file, line, barrier.file, barrier.line);
}

int device_barrier(int predicate, enum barrier_op op, const char *file, int line)
{
    barrier_check(file, line);
    counts.barriers++;
    barrier.file = running->file = file;
    barrier.line = running->line = line;
    barrier.gathered[BARRIER_COUNT] += predicate != 0;
    barrier.gathered[BARRIER_AND] &= predicate != 0;
    barrier.gathered[BARRIER_OR] |= predicate != 0;
    char *cell = barrier_cell[barrier_phase % CELLS];
    sync_release(cell);
    if (++n_arrived == n_threads) {
        barrier_open();
    } else {
        running->state = THREAD_AT_BARRIER;
        running->warp->at_barrier |= 1u << running->lane;
        thread_yield();
    }
    sync_acquire(cell);
    return barrier.result[op];
}

/* ---- threads ---- */

/* Whose turn it is: the lanes of one warp, round and round while one of them moves. */
static struct {
    unsigned first, lanes, order[LANES], next;
    uint64_t left;  // rounds
    bool moved;     // in this round
} turn;

static void shuffle(unsigned *a, unsigned n)
{
    for (unsigned i = n; i > 1; i--) {
        unsigned j = (unsigned)random_below(i), t = a[i - 1];
        a[i - 1] = a[j];
        a[j] = t;
    }
}

static struct thread *next_thread(void)
{
    for (;;) {
        while (turn.next < turn.lanes) {
            struct thread *t = &threads[turn.first + turn.order[turn.next++]];
            if (t->state != THREAD_READY) continue;
            turn.moved = true;
            return t;
        }
        if (!turn.moved || !turn.left) return NULL;
        turn.next = 0;
        turn.moved = false;
        turn.left--;
        if (thread_order == STANDIN_SHUFFLED && turn.left % 8 == 0)
            shuffle(turn.order, turn.lanes);
    }
}

static void thread_main(void);

static struct fiber *take_fiber(const struct thread *t)
{
    if (!TSAN && n_idle) return idle[--n_idle];
    struct fiber *f =
        TSAN ? &fibers[identity][block_number & 1][t->linear] : &fibers[0][0][n_used++];
    if (!f->stack) fiber_prepare(f, thread_main);
    return f;
}

static void set_running(struct thread *t)
{
    running = t;
    if (!t) return;
    device_thread = t->index;
    device_lane = t->lane;
}

/* Goes on with the next thread whose turn it is, or with the host where the warp has had
 * its turns; `ended` says that the calling thread has. */
static void go_on(struct fiber *self, bool ended)
{
    struct thread *t = next_thread();
    if (t && !t->fiber) t->fiber = take_fiber(t);
    set_running(t);
    struct fiber *to = t ? t->fiber : &host;
    if (to == self) return;
    counts.switches++;
    fiber_switch(self, to, ended);
}

void thread_yield(void)
{
    struct thread *t = running;
    go_on(t->fiber, false);
    set_running(t);
}

static void thread_main(void)
{
    fiber_entered(running->fiber);
    for (;;) {
        sync_acquire(start_cell[identity]);
        kernel->call(kernel, kernel_args);
        struct thread *t = running;
        if (t->n_copies) {  // whatever is still on its way lands
            device_cp_async_commit();
            device_cp_async_wait(0);
        }
        t->state = THREAD_DONE;
        t->warp->exited |= 1u << t->lane;
        n_exited++;
        struct fiber *self = t->fiber;
        if (!TSAN) idle[n_idle++] = self;
        go_on(self, true);
    }
}

/* ---- a block ---- */

static unsigned lanes_of(unsigned warp)
{
    unsigned left = n_threads - warp * LANES;
    return left < LANES ? left : LANES;
}

/* One warp as far as it will go, or, shuffled, some turns of it; whether it moved. */
static bool run_warp(unsigned warp)
{
    turn.first = warp * LANES;
    turn.lanes = lanes_of(warp);
    for (unsigned i = 0; i < turn.lanes; i++)
        turn.order[i] = thread_order == STANDIN_REVERSE ? turn.lanes - 1 - i : i;
    turn.left = thread_order == STANDIN_SHUFFLED ? random_below(64) + 1 : UINT64_MAX;
    turn.next = turn.lanes;
    turn.moved = true;
    uint64_t before = counts.switches;
    go_on(&host, false);
    return counts.switches != before;
}

static void report_stuck(void)
{
    char text[600] = "";
    size_t n = 0;
    for (unsigned i = 0; i < n_threads && n < 400; i++) {
        const struct thread *t = &threads[i];
        if (t->state == THREAD_DONE || (i && t->state == threads[i - 1].state))
            continue;
        bool at_barrier = t->state == THREAD_AT_BARRIER;
        n += (size_t)snprintf(
            text + n, sizeof text - n, " thread %u waits %s at %s:%d;", i,
            at_barrier ? "in __syncthreads" : "for its warp",
            at_barrier ? t->file : t->call->file, at_barrier ? t->line : t->call->line);
    }
    device_report("kernel %s block (%u,%u,%u) is stuck, %u of %u threads exited:%s",
                  kernel->name, device_block.x, device_block.y, device_block.z,
                  n_exited, n_threads, text);
}

static void block_start(size_t shared_bytes)
{
    block_number++;
    n_exited = 0;
    barrier_reset();
    memset(warps, 0, sizeof warps);
    shared_start(shared_bytes);
    for (unsigned i = 0; i < n_threads; i++) {
        threads[i].state = THREAD_READY;
        threads[i].fiber = NULL;
        threads[i].n_copies = threads[i].group = 0;
    }
}

static void run_block(size_t shared_bytes)
{
    block_start(shared_bytes);
    unsigned n_warps = (n_threads + LANES - 1) / LANES, order[MAX_WARPS];
    for (unsigned i = 0; i < n_warps; i++)
        order[i] = thread_order == STANDIN_REVERSE ? n_warps - 1 - i : i;
    while (n_exited < n_threads) {
        bool moved = false;
        if (thread_order == STANDIN_SHUFFLED) shuffle(order, n_warps);
        for (unsigned i = 0; i < n_warps; i++) moved |= run_warp(order[i]);
        if (!moved) report_stuck();
    }
}

/* ---- a grid ---- */

/* The order of blocks: upwards, downwards, or from anywhere by a stride that is prime to
 * their number. */
struct walk {
    uint64_t n, start, step;
};

static struct walk walk_of(uint64_t n)
{
    static const unsigned primes[] = {1, 7919, 104729, 1299709, 15485863};
    struct walk w = {n, 0, 1};
    if (thread_order == STANDIN_REVERSE) {
        w.start = w.step = n - 1;
    } else if (thread_order == STANDIN_SHUFFLED) {
        w.start = random_below(n);
        w.step = primes[random_below(sizeof primes / sizeof *primes)];
        if (n % w.step == 0) w.step = 1;
    }
    return w;
}

static void place_thread(unsigned i, dim3 block)
{
    struct thread *t = &threads[i];
    t->linear = i;
    t->lane = i % LANES;
    t->warp = &warps[i / LANES];
    t->mates = t - t->lane;
    t->n_mates = lanes_of(i / LANES);
    t->index =
        (struct dim){i % block.x, i / block.x % block.y, i / (block.x * block.y)};
}

/* Once for a kernel and not for each of its blocks, as it takes time in proportion to all
 * threads that there are. */
static void release_threads(uint64_t blocks)
{
    if (!TSAN) return;
    for (unsigned b = 0; b < 2 && b < blocks; b++)
        for (unsigned i = 0; i < n_threads; i++)
            fiber_release(&host, &fibers[identity][(block_number - b) & 1][i],
                          end_cell[identity]);
}

void kernel_run(const struct kernel *k, dim3 grid, dim3 block, size_t shared_bytes,
                void **args, unsigned stream)
{
    if (running) device_report("a kernel is launched from a kernel");
    kernel = k;
    kernel_args = args;
    identity = stream;
    device_block_dim = (struct dim){block.x, block.y, block.z};
    device_grid_dim = (struct dim){grid.x, grid.y, grid.z};
    n_threads = block.x * block.y * block.z;
    for (unsigned i = 0; i < n_threads; i++) place_thread(i, block);
    fiber_adopt(&host);
    sync_release(start_cell[identity]);
    block_number = 0;
    struct walk w = walk_of((uint64_t)grid.x * grid.y * grid.z);
    counts.launches++;
    counts.blocks += w.n;
    counts.threads += w.n * n_threads;
    for (uint64_t i = 0; i < w.n; i++) {
        uint64_t b = (w.start + i * w.step) % w.n;
        device_block =
            (struct dim){(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                         (unsigned)(b / grid.x / grid.y)};
        run_block(shared_bytes);
    }
    release_threads(w.n);
    sync_acquire(end_cell[identity]);
}
