/* Media that fail or take their time, and clients that leave meanwhile, change no answer. */
#include "tests/server/engine_sleep.h"

static struct client other;

static const struct tier_medium *real;
static struct tier_medium meddled;
static atomic_bool shut;            // nothing lands
static atomic_int fail_in, failed;  // so many loads go well before one fails
static int fail_with;

static struct tier_io *meddled_finish(struct tier *t)
{
    if (atomic_load(&shut)) return NULL;
    struct tier_io *io = real->finish(t);
    if (io && io->dir == TIER_LOAD && io->res == 0 &&
        atomic_fetch_sub(&fail_in, 1) == 0) {
        memset(io->buf, 0x5a, t->block_bytes);
        io->res = fail_with;
        atomic_fetch_add(&failed, 1);
    }
    return io;
}

static void meddle(struct tiers *t)
{
    struct tier *tier = t->ram ? t->ram : t->ssd;
    real = tier->medium;
    meddled = *real;
    meddled.finish = meddled_finish;
    tier->medium = &meddled;
}

static void a_load_that_fails_costs_time_and_no_answer(void **state)
{
    (void)state;
    static const int errors[] = {-EIO, -EBADMSG};
    for (int k = 0; k < 4; k++) {
        struct world cold, w;
        struct world_options o = k / 2 ? sleeping(0, 64) : sleeping(64, 0);
        o.meddle = meddle;
        fail_with = errors[k % 2];
        empty_folder();
        world_open(&cold, &forgetful);
        atomic_store(&fail_in, -1);
        world_open(&w, &o);
        uint32_t n = 16 * 9 + 1;
        client_ask(&client, &cold, prompt_of(&cold, n, 3, 0, TURNS));
        ask(&other, &w, named(prompt_of(&w, n, 3, 0, TURNS), "one"));
        for (int in = 0; in < 9; in++) {
            wait_asleep(&w, "one", k / 2 ? KV_SSD : KV_RAM);
            int before = atomic_load(&failed);
            atomic_store(&fail_in, in);
            struct kv_wake_report report =
                ask(&other, &w, named(prompt_of(&w, n, 3, 0, TURNS), "one"));
            assert_same(&client, &other);
            assert_int_equal(atomic_load(&failed), before + 1);
            assert_true(report.blocks < 9);
            assert_true(report.computed[KV_WHY_FAILED] > 0);
            assert_int_equal(cached(&other), 16 * report.blocks);
        }
        atomic_store(&fail_in, -1);
        world_close(&cold);
        world_close(&w);
    }
}

static void what_is_late_is_computed(void **state)
{
    (void)state;
    struct world cold, w;
    struct world_options o = sleeping(64, 0);
    policy_defaults(&o.policy);
    o.policy.copy_after = o.policy.idle_after = 1;
    o.policy.residency = 0;
    o.policy.wake_deadline = 20000000;
    o.meddle = meddle;
    atomic_store(&fail_in, -1);
    world_open(&cold, &forgetful);
    world_open(&w, &o);
    client_ask(&client, &cold, prompt_of(&cold, 200, 3, 0, TURNS));
    ask(&other, &w, named(prompt_of(&w, 200, 3, 0, TURNS), "one"));
    wait_asleep(&w, "one", KV_RAM);
    atomic_store(&shut, true);
    for (int i = 0; i < 3; i++) {
        struct kv_wake_report report =
            ask(&other, &w, named(prompt_of(&w, 200, 3, 0, TURNS), "one"));
        assert_same(&client, &other);
        if (i == 0) assert_int_equal(report.computed[KV_WHY_LATE], 12);
    }
    atomic_store(&shut, false);
    wait_asleep(&w, "one", KV_RAM);
    assert_true(scrape(&w, "kv_blocks_used") == 0);
    world_close(&cold);
    world_close(&w);
}

static void clients_that_leave_while_it_loads_leave_nothing_behind(void **state)
{
    (void)state;
    struct world cold, w;
    struct world_options o = sleeping(64, 0);
    o.meddle = meddle;
    atomic_store(&fail_in, -1);
    world_open(&cold, &forgetful);
    world_open(&w, &o);
    client_ask(&client, &cold, prompt_of(&cold, 300, 3, 0, TURNS));
    ask(&other, &w, named(prompt_of(&w, 300, 3, 0, TURNS), "one"));
    static struct client all[6];
    for (int round = 0; round < 5; round++) {
        wait_asleep(&w, "one", KV_RAM);
        atomic_store(&shut, true);
        for (int i = 0; i < 6; i++)
            client_begin(&all[i], &w, prompt_of(&w, 300, 3, 0, TURNS));
        wait_until(scrape(&w, "num_sequences_waking") == 6);
        /* all at once, or all but one, before or after the first blocks have landed */
        for (int i = 0; i < 6 - round % 2; i++) request_cancel(all[i].r);
        engine_wake(w.engine);
        if (round < 3) wait_until(scrape(&w, "num_sequences_waking") == round % 2);
        atomic_store(&shut, false);
        for (int i = 0; i < 6; i++) {
            client_read(&all[i]);
            if (all[i].choices[0].end.reason != FINISH_CANCELLED)
                assert_same(&client, &all[i]);
            client_end(&all[i]);
        }
        wait_until(scrape(&w, "kv_blocks_used") == 0);
    }
    world_close(&cold);
    world_close(&w);
}

static void others_go_on_while_one_wakes(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = sleeping(64, 0);
    o.meddle = meddle;
    atomic_store(&fail_in, -1);
    world_open(&w, &o);
    ask(&other, &w, named(prompt_of(&w, 300, 3, 0, TURNS), "one"));
    wait_asleep(&w, "one", KV_RAM);
    atomic_store(&shut, true);
    client_begin(&client, &w, prompt_of(&w, 300, 3, 0, TURNS));
    wait_until(scrape(&w, "num_sequences_waking") == 1);
    ask(&other, &w, prompt_of(&w, 40, 9, 0, 50));
    assert_int_equal(other.n_samples, 50);
    assert_true(scrape(&w, "num_sequences_waking") == 1);
    atomic_store(&shut, false);
    client_read(&client);
    client_end(&client);
    world_close(&w);
}

/* ---- everything at once ---- */

/* Turns of a few conversations over tiers that hold some of them, with clients that leave;
 * what a turn was answered is part of the next one. */
static void storm(struct world *cold, struct world *w, unsigned seed)
{
    enum { TALKS = 5, MOST = 400 };
    static int32_t ids[TALKS][MOST];
    uint32_t n[TALKS];
    for (uint32_t t = 0; t < TALKS; t++) {
        struct request *r = prompt_of(w, 60, t + 2, 30, 1);
        memcpy(ids[t], r->ids, 60 * sizeof(int32_t));
        n[t] = 60;
        request_unref(r);
    }
    for (int turn = 0; turn < 40; turn++) {
        uint32_t t = (uint32_t)rand_r(&seed) % TALKS;
        if (rand_r(&seed) % 8 == 0) n[t] = 20 + (uint32_t)rand_r(&seed) % (n[t] - 19);
        if (n[t] + 40 > MOST) n[t] = 50;
        struct request *r[2];
        for (int k = 0; k < 2; k++) {
            r[k] = prompt_of(w, n[t], 1, 0, 24);
            memcpy(r[k]->ids, ids[t], n[t] * sizeof(int32_t));
        }
        client_ask(&client, cold, r[0]);
        client_begin(&other, w, r[1]);
        if (rand_r(&seed) % 4 == 0) {
            if (rand_r(&seed) % 2) usleep(300);
            request_cancel(r[1]);
            engine_wake(w->engine);
        }
        client_read(&other);
        if (other.choices[0].end.reason != FINISH_CANCELLED)
            assert_same(&client, &other);
        client_end(&other);
        for (uint32_t i = 0; i < 24; i++) ids[t][n[t]++] = client.samples[i].id;
        for (uint32_t i = 0; i < 5; i++) ids[t][n[t]++] = rand_r(&seed) % 500;
        if (rand_r(&seed) % 3 == 0) usleep(2000);
    }
}

static void a_storm_over_small_tiers_changes_no_answer(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 6; seed++) {
        struct world cold, w;
        struct world_options o = sleeping(seed % 3 * 20, 30 + seed * 5);
        o.blocks = 40;
        o.context = 40 * 16;
        o.max_running = 4;
        o.meddle = meddle;
        fail_with = seed % 2 ? -EIO : -EBADMSG;
        empty_folder();
        world_open(&cold, &forgetful);
        for (int run = 0; run < 2; run++) {
            atomic_store(&fail_in, 7);
            world_open(&w, &o);
            storm(&cold, &w, seed);
            wait_until(scrape(&w, "kv_blocks_used") == 0);
            world_close(&w);
        }
        world_close(&cold);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_load_that_fails_costs_time_and_no_answer),
        cmocka_unit_test(what_is_late_is_computed),
        cmocka_unit_test(clients_that_leave_while_it_loads_leave_nothing_behind),
        cmocka_unit_test(others_go_on_while_one_wakes),
        cmocka_unit_test(a_storm_over_small_tiers_changes_no_answer),
    };
    return run_in_folder(tests, ARRAY_LEN(tests));
}
