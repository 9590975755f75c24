/* Beginning early: a wake from a RAM tier whose loads arrive in pieces is ready when the
 * first pieces are there, where it may and where that pays; the loads land afterwards.
 */
#include "tests/offload/kvstore_world.h"

#define PIECES 4

/* A medium over the RAM's: loads arrive and land when the test says so. */
struct slow {
    struct tier_medium medium;
    const struct tier_medium *real;
    bool first;                       // the first piece of all loads has landed
    uint32_t land;                    // transfers that may land
    uint32_t sliced, whole, awaited;  // loads
};

static struct slow *slow_of(const struct tier *t)
{
    return CONTAINER_OF((struct tier_medium *)(uintptr_t)t->medium, struct slow,
                        medium);
}

static int slow_start(struct tier *t, struct tier_io *io)
{
    struct slow *s = slow_of(t);
    if (io->dir == TIER_LOAD) *(io->sliced ? &s->sliced : &s->whole) += 1;
    return s->real->start(t, io);
}

static struct tier_io *slow_finish(struct tier *t)
{
    struct slow *s = slow_of(t);
    if (s->land == 0) return NULL;
    struct tier_io *io = s->real->finish(t);
    if (io) s->land--;
    return io;
}

static bool slow_arriving(struct tier *t, const struct tier_io *io)
{
    return slow_of(t)->first && io->sliced;
}

static bool slow_await(struct tier *t, const struct tier_io *io)
{
    (void)io;
    slow_of(t)->awaited++;
    return true;
}

static void install(struct slow *s, struct tier *t)
{
    *s = (struct slow){.medium = *t->medium, .real = t->medium, .land = UINT32_MAX};
    s->medium.start = slow_start;
    s->medium.finish = slow_finish;
    s->medium.arriving = slow_arriving;
    s->medium.await = slow_await;
    t->medium = &s->medium;
    t->pieces = PIECES;
}

/* A conversation of so many blocks and a token, in RAM alone; its loads land no more. */
static struct text open_asleep(struct world *w, struct slow *s, uint32_t blocks,
                               const struct policy *p)
{
    world_open(w, (struct sizes){32, 32, 0});
    install(s, w->o.ram);
    if (p) restart_with(w, p);
    struct text t = chat(0, blocks, 1);
    text_add(&t, 1, 2);
    turn(w, &t, 0, 0);
    world_pass(w, 61 * SEC);
    where(w, &t, 0, blocks, 0);
    s->land = s->sliced = s->whole = 0;
    return t;
}

static void close_world(struct world *w, struct slow *s)
{
    s->land = UINT32_MAX;
    world_settle(w);
    w->o.ram->medium = s->real;
    world_close(w);
}

static void begin(struct world *w, struct request *r, struct text *t, bool may)
{
    *r = (struct request){.text = t, .prompt = text_prompt(w, t)};
    r->prompt.may_begin_early = may;
    r->n = kvstore_wake(w->kv, &r->prompt, w->now, r->blocks, MAX_BLOCKS, &r->wake,
                        &r->report);
    world_step(w);
}

static bool is_ready(struct world *w, struct request *r)
{
    bool ready = kvstore_wake_poll(w->kv, r->wake, w->now, &r->n, &r->report);
    assert_true(kvstore_check(w->kv));
    if (ready) r->wake = UINT32_MAX;
    return ready;
}

static struct policy any_gain(void)
{
    struct policy p;
    policy_defaults(&p);
    p.residency = p.keep_for = p.overlap_gain = 0;
    return p;
}

static void a_wake_is_ready_when_the_first_pieces_are_there(void **state)
{
    (void)state;
    struct world w;
    struct slow s;
    struct request r;
    struct policy p = any_gain();
    struct text t = open_asleep(&w, &s, 5, &p);
    begin(&w, &r, &t, true);
    assert_int_equal(s.sliced, 5);
    assert_int_equal(s.whole, 0);
    assert_false(is_ready(&w, &r));
    s.first = true;
    assert_true(is_ready(&w, &r));
    assert_int_equal(r.n, 5);
    assert_int_equal(s.awaited, 5);
    assert_true(r.report.early);
    assert_int_equal(r.report.loaded[KV_RAM], 5);
    assert_int_equal(r.report.bytes, 5 * PAGE);
    assert_int_equal(counted(&w).began_early, 1);

    assert_true(kvstore_in_flight(w.kv));
    assert_int_equal(found(&w, &t).by[KV_RAM], 5);
    s.land = UINT32_MAX;
    world_settle(&w);
    assert_true(request_ready(&w, &r));
    assert_int_equal(found(&w, &t).by[KV_DEVICE], 5);
    request_end(&w, &r);
    close_world(&w, &s);
}

static void it_may_end_before_its_loads_have_landed(void **state)
{
    (void)state;
    struct world w;
    struct slow s;
    struct request r;
    struct policy p = any_gain();
    struct text t = open_asleep(&w, &s, 5, &p);
    begin(&w, &r, &t, true);
    s.first = true;
    assert_true(is_ready(&w, &r));
    text_add(&t, 2 * B, 3);
    text_chain(&w, &t, t.n / B);
    assert_true(request_compute(&w, &r));
    request_end(&w, &r);
    assert_true(kvstore_in_flight(w.kv));
    s.land = UINT32_MAX;
    world_pass(&w, 10 * SEC);
    where(&w, &t, 7, 7, 0);
    world_pass(&w, 61 * SEC);
    where(&w, &t, 0, 7, 0);
    assert_int_equal(turn(&w, &t, 0, 0).loaded[KV_RAM], 7);
    close_world(&w, &s);
}

static void
another_that_needs_the_same_blocks_waits_until_they_have_landed(void **state)
{
    (void)state;
    struct world w;
    struct slow s;
    struct request first, other;
    struct policy p = any_gain();
    struct text t = open_asleep(&w, &s, 5, &p);
    begin(&w, &first, &t, true);
    begin(&w, &other, &t, false);
    s.first = true;
    assert_true(is_ready(&w, &first));
    assert_false(is_ready(&w, &other));
    s.land = UINT32_MAX;
    world_settle(&w);
    assert_true(is_ready(&w, &other));
    assert_false(other.report.early);
    request_end(&w, &first);
    request_end(&w, &other);
    close_world(&w, &s);
}

/* Without leave, without gain, without pieces, and where one block is still to come. */
static void else_it_waits_for_all(void **state)
{
    (void)state;
    for (int why = 0; why < 4; why++) {
        struct world w;
        struct slow s;
        struct request r;
        struct policy p = any_gain();
        if (why == 1) p.overlap_gain = UINT64_MAX;
        struct text t = open_asleep(&w, &s, 5, &p);
        if (why == 2) w.o.ram->pieces = 0;
        begin(&w, &r, &t, why != 0);
        s.first = why != 3;
        assert_int_equal(s.sliced, why == 3 ? 5 : 0);
        assert_false(is_ready(&w, &r));
        s.land = why == 3 ? 4 : UINT32_MAX;
        for (int i = 0; i < 20; i++) world_step(&w);
        assert_int_equal(is_ready(&w, &r), why != 3);
        s.land = UINT32_MAX;
        request_wait(&w, &r);
        assert_false(r.report.early);
        assert_int_equal(s.awaited, 0);
        assert_int_equal(counted(&w).began_early, 0);
        request_end(&w, &r);
        close_world(&w, &s);
    }
}

static void of_many_the_last_start_together_while_others_are_copied(void **state)
{
    (void)state;
    struct world w;
    struct slow s;
    struct request r;
    struct policy p = any_gain();
    p.max_loads = 4;
    struct text t = open_asleep(&w, &s, 7, &p);
    begin(&w, &r, &t, true);
    assert_int_equal(s.whole, 4);
    s.first = true;
    static const uint32_t whole[] = {5, 5, 5}, sliced[] = {0, 0, 2};
    for (int landed = 0; landed < 3; landed++) {
        s.land = 1;
        world_step(&w);
        assert_int_equal(s.whole, whole[landed]);
        assert_int_equal(s.sliced, sliced[landed]);
        assert_false(is_ready(&w, &r));
    }
    s.land = 2;
    world_step(&w);
    assert_true(is_ready(&w, &r));
    assert_true(r.report.early);
    assert_int_equal(r.n, 7);
    assert_int_equal(s.awaited, 2);
    s.land = UINT32_MAX;
    world_settle(&w);
    assert_true(request_ready(&w, &r));
    request_end(&w, &r);
    close_world(&w, &s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wake_is_ready_when_the_first_pieces_are_there),
        cmocka_unit_test(it_may_end_before_its_loads_have_landed),
        cmocka_unit_test(
            another_that_needs_the_same_blocks_waits_until_they_have_landed),
        cmocka_unit_test(else_it_waits_for_all),
        cmocka_unit_test(of_many_the_last_start_together_while_others_are_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
