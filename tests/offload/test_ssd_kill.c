/* A process that stores, drops and loads is killed at random moments; what the next one
 * finds and can load is right, byte for byte. */
#include "tests/offload/tier_fixture.h"

#include <signal.h>
#include <sys/wait.h>

#define KILLS         50
#define CAPACITY      64
#define CONVERSATIONS 8
#define DEPTHS        12

struct round {
    struct tier_io io[DEPTH];
    bool busy[DEPTH];
    unsigned char *buf;
    uint64_t random;
};

static void submit_one(struct round *x, struct tier *t, uint32_t i)
{
    uint64_t r = mix64(&x->random);
    struct block_meta victim;
    if (slots_used(t->slots) > CAPACITY * 3 / 4 && coldest(t, NULL, &victim))
        (void)!(r & 1 ? tier_drop(t, &victim.id) : tier_erase(t, &victim.id, 0));
    struct tier_io *io = &x->io[i];
    *io = (struct tier_io){
        .meta = block_meta_of((uint32_t)(r >> 8) % CONVERSATIONS,
                              (uint32_t)(r >> 16) % DEPTHS),
        .dir = r >> 32 & 3 ? TIER_STORE : TIER_LOAD,
        .buf = x->buf + i * BUFFER_BYTES,
    };
    if (io->dir == TIER_STORE) block_fill(io->buf, BLOCK_BYTES, &io->meta);
    x->busy[i] = tier_submit(t, io, 1) == 0;
}

/* Until it is killed.  It may say that something was wrong by ending itself. */
static void storm(const struct tier_ssd_options *o, uint64_t seed, int ready)
{
    struct tier *t;
    struct tier_ssd_found found;
    struct round x = {.random = seed};
    x.buf = aligned_alloc(TIER_ALIGN, DEPTH * BUFFER_BYTES);
    if (!x.buf || tier_ssd_open(&t, &found, o, NULL) < 0) _exit(2);
    if (write(ready, "", 1) != 1) _exit(3);
    for (;;) {
        for (uint32_t i = 0; i < DEPTH; i++)
            if (!x.busy[i]) submit_one(&x, t, i);
        tier_flush(t);
        struct tier_io *done[DEPTH];
        size_t n = tier_reap(t, done, DEPTH, 1);
        for (size_t k = 0; k < n; k++) {
            x.busy[done[k] - x.io] = false;
            if (done[k]->dir == TIER_LOAD &&
                (done[k]->res ||
                 !block_holds(done[k]->buf, BLOCK_BYTES, &done[k]->meta)))
                _exit(4);
        }
    }
}

static void storm_until_killed(const struct tier_ssd_options *o, uint64_t seed,
                               unsigned microseconds)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) storm(o, seed, ready[1]);
    assert_true(child > 0);
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    usleep(microseconds);
    kill(child, SIGKILL);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* What is there must be right, or be dropped as damaged; how many were right. */
static uint32_t load_all(struct world *w)
{
    uint32_t right = 0;
    for (uint32_t c = 0; c < CONVERSATIONS; c++) {
        for (uint32_t d = 0; d < DEPTHS; d++) {
            if (!has(w->tier, c, d)) continue;
            int rc = load(w->tier, c, d);
            assert_true(rc == 0 || rc == -EBADMSG);
            right += rc == 0;
        }
    }
    assert_true(slots_check(w->tier->slots));
    return right;
}

static void whatever_is_found_after_a_kill_is_right(void **state)
{
    (void)state;
    uint32_t right = 0, torn = 0;
    uint64_t random = 3;
    struct world w;
    world_ssd(&w, "/tmp", CAPACITY);
    for (int i = 0; i < KILLS; i++) {
        w.ssd.no_uring = i & 1;
        w.ssd.no_direct = i & 2;
        storm_until_killed(&w.ssd, (uint64_t)i, (unsigned)(mix64(&random) % 20000));
        world_start(&w);
        right += load_all(&w);
        torn += w.found.damaged + (uint32_t)w.tier->dropped_bad;
        world_stop(&w);
    }
    print_message("%d kills: %u blocks found and right, %u torn ones refused\n", KILLS,
                  right, torn);
    assert_true(right > KILLS);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_is_found_after_a_kill_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
