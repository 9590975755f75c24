/* Sleep is invisible: a conversation that went down, or through a restart, answers as one that
 * never slept. */
#include "tests/server/engine_sleep.h"

static struct client other;

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
        assert_true(scrape(w, "kv_blocks_used") == 0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_comes_back_from_ram),
        cmocka_unit_test(every_length_comes_back_from_the_ssd),
        cmocka_unit_test(long_histories_come_back_whole),
        cmocka_unit_test(a_restart_finds_what_had_reached_the_ssd),
    };
    return run_in_folder(tests, ARRAY_LEN(tests));
}
