/* What may be asked of a conversation by its name, and what is answered. */
#include "tests/server/engine_sleep.h"

static int command(struct world *w, enum engine_op op, uint32_t tenant,
                   const char *name)
{
    struct err err;
    struct engine_command c = {
        .op = op, .tenant = tenant, .hold_ns = UINT64_C(3600000000000)};
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

/* Bytes of the file behind its first page that are not zero. */
static size_t left_on_ssd(void)
{
    char path[300];
    snprintf(path, sizeof path, "%s/blocks", folder);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = 0;
    assert_int_equal(fseek(f, 4096, SEEK_SET), 0);
    for (int c; (c = fgetc(f)) != EOF;) n += c != 0;
    fclose(f);
    return n;
}

static void a_conversation_is_forgotten_when_the_ssd_holds_nothing_of_it(void **state)
{
    (void)state;
    struct world w;
    empty_folder();
    struct world_options o = sleeping(0, 512);
    world_open(&w, &o);
    ask(&client, &w, named(prompt_of(&w, 4000, 3, 0, TURNS), "one"));
    wait_asleep(&w, "one", KV_SSD);
    assert_true(left_on_ssd() > 0);
    assert_int_equal(command(&w, ENGINE_FORGET, 0, "one"), 0);
    assert_int_equal(left_on_ssd(), 0);
    assert_int_equal(command(&w, ENGINE_FORGET, 0, "one"), -ENOENT);
    world_close(&w);
}

/* Half of the pool is held: what needs more of it starts, and what grows into it goes on. */
static void no_request_fails_for_what_is_held(void **state)
{
    (void)state;
    const struct {
        uint32_t prompt, reply;
    } needs_more[] = {{200, 8}, {60, 180}};
    for (size_t i = 0; i < ARRAY_LEN(needs_more); i++) {
        struct world w;
        empty_folder();
        struct world_options o = sleeping(0, 64);
        o.blocks = 16;
        o.max_wait_ms = 3000;
        policy_defaults(&o.policy);
        world_open(&w, &o);
        ask(&client, &w, named(prompt_of(&w, 128 - TURNS, 3, 0, TURNS), "held"));
        assert_int_equal(command(&w, ENGINE_HOLD, 0, "held"), 0);
        client_begin(&client, &w,
                     prompt_of(&w, needs_more[i].prompt, 4, 0, needs_more[i].reply));
        client_read(&client);
        assert_int_equal(client.choices[0].end.reason, FINISH_LENGTH);
        client_end(&client);
        struct kv_conversation c;
        assert_true(look_up(&w, "held", &c));
        assert_int_equal(c.held_until, 0);

        ask(&client, &w, named(prompt_of(&w, 200, 5, 0, TURNS), "long"));
        assert_int_equal(command(&w, ENGINE_HOLD, 0, "long"), -EDQUOT);
        world_close(&w);
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_are_listed_slept_woken_and_forgotten),
        cmocka_unit_test(a_conversation_is_forgotten_when_the_ssd_holds_nothing_of_it),
        cmocka_unit_test(no_request_fails_for_what_is_held),
        cmocka_unit_test(a_server_that_keeps_nothing_or_ends_says_so),
    };
    return run_in_folder(tests, ARRAY_LEN(tests));
}
