/* Sleep is invisible: a conversation that went down, through a restart, a failure or a
 * client that left, answers as one that never slept. */
#include "tests/files.h"
#include "tests/server/engine_prompts.h"

#define TURNS 8  // tokens of a reply

static struct client client, other;
static char folder[256];

static struct world_options sleeping(uint32_t ram, uint32_t ssd)
{
    return (struct world_options){
        .model = "tiny-rand",
        .keeps = true,
        .ram_blocks = ram,
        .ssd_blocks = ssd,
        .ssd_dir = folder,
    };
}

static const struct world_options forgetful = {.model = "tiny-rand"};

static void empty_folder(void)
{
    if (access(folder, F_OK) == 0) files_remove_dir(strdup(folder));
}

/* ---- conversations by name ---- */

static bool look_up(struct world *w, const char *name, struct kv_conversation *out)
{
    struct err err;
    struct engine_command c = {.op = ENGINE_FIND, .list = out, .cap = 1};
    strcpy(c.name, name);
    return engine_command(w->engine, &c, &err) == 0;
}

/* Until nothing of it is in G1; and with `source`, until all of it has arrived there. */
static void wait_asleep(struct world *w, const char *name, enum kv_source source)
{
    struct kv_conversation c;
    for (;;) {
        assert_true(look_up(w, name, &c));
        bool down = c.blocks[KV_DEVICE] == 0 && c.state == KV_ASLEEP;
        if (down && (c.blocks[source] >= c.tokens / 16 || c.tokens < 16)) return;
        usleep(500);
    }
}

static struct request *named(struct request *r, const char *name)
{
    strcpy(r->conversation, name);
    return r;
}

/* As client_ask(), and what its start was like. */
static struct kv_wake_report ask(struct client *c, struct world *w, struct request *r)
{
    client_begin(c, w, r);
    client_read(c);
    struct kv_wake_report report = c->r->wake;
    client_end(c);
    return report;
}

/* ---- by tier and by length ---- */

static void sleep_and_return(struct world *cold, struct world *w, uint32_t n,
                             enum kv_source source)
{
    uint32_t blocks = (n - 1) / 16;
    client_ask(&client, cold, prompt_of(cold, n, 3, 0, TURNS));
    for (int i = 0; i < 3; i++) {
        struct kv_wake_report report =
            ask(&other, w, named(prompt_of(w, n, 3, 0, TURNS), "one"));
        assert_same(&client, &other);
        assert_int_equal(cached(&other), i == 0 ? 0 : 16 * blocks);
        if (i > 0) {
            assert_int_equal(report.blocks, blocks);
            assert_int_equal(report.loaded[source], blocks);
            assert_int_equal(report.bytes, blocks * kv_block_bytes(&w->kv.mem.shape));
        }
        wait_asleep(w, "one", source);
        assert_int_equal(status_of(w).blocks_used, 0);
    }
}

static void every_length_comes_back_from(const struct world_options *o,
                                         enum kv_source source)
{
    static const uint32_t lengths[] = {15, 16, 17, 31, 32, 33, 47, 48, 49, 113};
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        struct world cold, w;
        empty_folder();
        world_open(&cold, &forgetful);
        world_open(&w, o);
        sleep_and_return(&cold, &w, lengths[i], source);
        world_close(&cold);
        world_close(&w);
    }
}

static void every_length_comes_back_from_ram(void **state)
{
    (void)state;
    struct world_options o = sleeping(64, 0);
    every_length_comes_back_from(&o, KV_RAM);
}

static void every_length_comes_back_from_the_ssd(void **state)
{
    (void)state;
    struct world_options o = sleeping(0, 64);
    every_length_comes_back_from(&o, KV_SSD);
}

/* Each length is the one before, and more: all but the last are restored in part. */
static void long_histories_come_back_whole(void **state)
{
    (void)state;
    static const uint32_t blocks[] = {1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257};
    for (int tier = 0; tier < 2; tier++) {
        struct world_options o = tier ? sleeping(0, 400) : sleeping(400, 0);
        enum kv_source source = tier ? KV_SSD : KV_RAM;
        struct world cold, w;
        empty_folder();
        world_open(&cold, &forgetful);
        world_open(&w, &o);
        uint32_t before = 0;
        for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
            uint32_t n = blocks[i] * 16 + 1;
            client_ask(&client, &cold, prompt_of(&cold, n, 1, n, TURNS));
            for (int again = 0; again < 2; again++) {
                ask(&other, &w, named(prompt_of(&w, n, 1, n, TURNS), "long"));
                assert_same(&client, &other);
                assert_int_equal(cached(&other), 16 * (again ? blocks[i] : before));
                wait_asleep(&w, "long", source);
            }
            before = blocks[i];
        }
        /* An early turn is edited: what is before it is used. */
        struct request *a = prompt_of(&w, 2000, 1, 2000, TURNS),
                       *b = prompt_of(&w, 2000, 1, 2000, TURNS);
        a->ids[1000] = b->ids[1000] = (a->ids[1000] + 1) % 500;
        client_ask(&client, &cold, a);
        client_ask(&other, &w, b);
        assert_same(&client, &other);
        assert_int_equal(cached(&other), 1000 / 16 * 16);
        world_close(&cold);
        world_close(&w);
    }
}

static void a_restart_finds_what_had_reached_the_ssd(void **state)
{
    (void)state;
    struct world cold, w;
    struct world_options o = sleeping(32, 200);
    o.policy = (struct policy){0};
    empty_folder();
    world_open(&cold, &forgetful);
    for (int run = 0; run < 3; run++) {
        world_open(&w, &o);
        for (uint32_t i = 0; i < 6; i++) {
            uint32_t n = 100 + 30 * i;
            client_ask(&client, &cold, prompt_of(&cold, n, i + 2, 33, TURNS));
            struct kv_wake_report report =
                ask(&other, &w, prompt_of(&w, n, i + 2, 33, TURNS));
            assert_same(&client, &other);
            if (run == 0) continue;
            assert_int_equal(cached(&other), (n - 1) / 16 * 16);
            assert_int_equal(report.blocks, (n - 1) / 16);
        }
        world_close(&w);  // with blocks that are still only in G1: they are copied down
    }
    world_close(&cold);
}

/* ---- media that fail, or take their time ---- */

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
    assert_int_equal(status_of(&w).blocks_used, 0);
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
        wait_until(status_of(&w).waking == 6);
        /* all at once, or all but one, before or after the first blocks have landed */
        for (int i = 0; i < 6 - round % 2; i++) request_cancel(all[i].r);
        engine_wake(w.engine);
        if (round < 3) wait_until(status_of(&w).waking == (uint32_t)(round % 2));
        atomic_store(&shut, false);
        for (int i = 0; i < 6; i++) {
            client_read(&all[i]);
            if (all[i].choices[0].end.reason != FINISH_CANCELLED)
                assert_same(&client, &all[i]);
            client_end(&all[i]);
        }
        wait_until(status_of(&w).blocks_used == 0);
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
    wait_until(status_of(&w).waking == 1);
    ask(&other, &w, prompt_of(&w, 40, 9, 0, 50));
    assert_int_equal(other.n_samples, 50);
    assert_int_equal(status_of(&w).waking, 1);
    atomic_store(&shut, false);
    client_read(&client);
    client_end(&client);
    world_close(&w);
}

/* ---- what may be asked of a conversation ---- */

static int command(struct world *w, enum engine_op op, uint32_t tenant,
                   const char *name)
{
    struct err err;
    struct engine_command c = {.op = op, .tenant = tenant, .hold_ns = 1};
    struct kv_conversation found;
    strcpy(c.name, name);
    c.list = &found;
    c.cap = 1;
    return engine_command(w->engine, &c, &err);
}

static void conversations_are_listed_slept_woken_and_forgotten(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = sleeping(64, 0);
    policy_defaults(&o.policy);  // nothing moves by itself for seconds
    o.policy.residency = 0;
    world_open(&w, &o);
    ask(&client, &w, named(prompt_of(&w, 100, 3, 0, TURNS), "one"));
    ask(&client, &w, named(prompt_of(&w, 120, 4, 0, TURNS), "two"));

    struct kv_conversation list[4];
    struct err err;
    struct engine_command c = {.op = ENGINE_LIST, .list = list, .cap = 4};
    assert_int_equal(engine_command(w.engine, &c, &err), 0);
    assert_int_equal(c.n, 2);
    assert_int_equal(c.next, UINT32_MAX);
    assert_string_equal(list[0].name, "two");
    assert_int_equal(list[1].blocks[KV_DEVICE], (100 + TURNS - 1) / 16);
    c = (struct engine_command){.op = ENGINE_LIST, .tenant = 1, .list = list, .cap = 4};
    assert_int_equal(engine_command(w.engine, &c, &err), 0);
    assert_int_equal(c.n, 0);
    for (int op = ENGINE_FIND; op <= ENGINE_FORGET; op++) {
        assert_int_equal(command(&w, (enum engine_op)op, 1, "one"), -ENOENT);
        assert_int_equal(command(&w, (enum engine_op)op, 0, "none"), -ENOENT);
    }

    assert_int_equal(command(&w, ENGINE_SLEEP, 0, "one"), 0);
    wait_asleep(&w, "one", KV_RAM);
    assert_int_equal(command(&w, ENGINE_WAKE, 0, "one"), 0);
    wait_until(look_up(&w, "one", list) && list[0].blocks[KV_DEVICE] == 6);
    struct kv_wake_report report =
        ask(&client, &w, named(prompt_of(&w, 100, 3, 0, TURNS), "one"));
    assert_int_equal(report.loaded[KV_DEVICE], 6);
    assert_int_equal(command(&w, ENGINE_HOLD, 0, "one"), 0);
    assert_int_equal(command(&w, ENGINE_FORGET, 0, "one"), 0);
    assert_false(look_up(&w, "one", list));
    ask(&client, &w, named(prompt_of(&w, 100, 3, 0, TURNS), "one"));
    assert_int_equal(cached(&client), 0);
    world_close(&w);
}

static void a_server_that_keeps_nothing_or_ends_says_so(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &forgetful);
    assert_int_equal(command(&w, ENGINE_FIND, 0, "one"), -EOPNOTSUPP);
    world_close(&w);
    struct world_options o = sleeping(64, 0);
    world_open(&w, &o);
    engine_drain(w.engine, 0);
    assert_int_equal(command(&w, ENGINE_FIND, 0, "one"), -ESHUTDOWN);
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
            wait_until(status_of(&w).blocks_used == 0);
            world_close(&w);
        }
        world_close(&cold);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_comes_back_from_ram),
        cmocka_unit_test(every_length_comes_back_from_the_ssd),
        cmocka_unit_test(long_histories_come_back_whole),
        cmocka_unit_test(a_restart_finds_what_had_reached_the_ssd),
        cmocka_unit_test(a_load_that_fails_costs_time_and_no_answer),
        cmocka_unit_test(what_is_late_is_computed),
        cmocka_unit_test(clients_that_leave_while_it_loads_leave_nothing_behind),
        cmocka_unit_test(others_go_on_while_one_wakes),
        cmocka_unit_test(conversations_are_listed_slept_woken_and_forgotten),
        cmocka_unit_test(a_server_that_keeps_nothing_or_ends_says_so),
        cmocka_unit_test(a_storm_over_small_tiers_changes_no_answer),
    };
    char *base = files_temp_dir();
    snprintf(folder, sizeof folder, "%s/ssd", base);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    empty_folder();
    files_remove_dir(base);
    return rc;
}
