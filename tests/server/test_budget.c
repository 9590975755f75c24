/* The memory budget: what is available, and what is refused. */
#include "server/budget.h"

// cmocka needs these before it
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

/* SmolLM2-135M: 360 KiB a block. */
static struct budget smollm2(uint64_t available)
{
    return (struct budget){.weights = 257 * MIB,
                           .activations = 10 * MIB,
                           .engine = 2 * MIB,
                           .margin = 512 * MIB,
                           .block_bytes = 360 * 1024,
                           .context = 8192,
                           .max_sequences = 32,
                           .available = available,
                           .limit = "MemAvailable"};
}

static void the_default_is_a_quarter_but_at_most_two_gibibytes(void **state)
{
    (void)state;
    struct err err;
    struct budget b = smollm2(64 * GIB);
    assert_int_equal(budget_plan(&b, &err), 0);
    assert_int_equal(b.blocks, 2 * GIB / (360 * 1024));
    assert_true(b.kv <= 2 * GIB);
    assert_true(b.total == b.weights + b.activations + b.engine + b.margin + b.kv);

    b = smollm2(4 * GIB);
    assert_int_equal(budget_plan(&b, &err), 0);
    assert_int_equal(b.blocks, (4 * GIB - 257 * MIB) / 4 / (360 * 1024));
}

static void recorded_steps_have_a_line_of_their_own(void **state)
{
    (void)state;
    struct err err;
    char text[256];
    struct budget b = smollm2(4 * GIB);
    b.whole = true;
    assert_int_equal(budget_plan(&b, &err), 0);
    uint64_t without = b.kv;
    b.graphs = 72 * MIB;
    assert_int_equal(budget_plan(&b, &err), 0);
    assert_int_equal(b.total,
                     b.weights + b.activations + b.graphs + b.engine + b.margin + b.kv);
    assert_in_range(without - b.kv, 72 * MIB - b.block_bytes, 72 * MIB + b.block_bytes);
    budget_describe(&b, text, sizeof text);
    assert_non_null(strstr(text, "activations 10.0 MiB, graphs 72.0 MiB, engine"));
}

static void the_default_holds_one_conversation_or_what_fits_of_it(void **state)
{
    (void)state;
    struct err err;
    struct budget b = smollm2(1 * GIB);  // a quarter would be 540 blocks
    assert_int_equal(budget_plan(&b, &err), 0);
    assert_int_equal(b.blocks, (1024 - 257) * MIB / 4 / (360 * 1024));

    b = smollm2(850 * MIB);  // 69 MiB are left: 196 blocks, 3136 tokens
    assert_int_equal(budget_plan(&b, &err), 0);
    assert_int_equal(b.blocks, (850 - 781) * MIB / (360 * 1024));

    b = smollm2(800 * MIB);  // 19 MiB: 54 blocks are no conversation
    assert_int_equal(budget_plan(&b, &err), -ENOMEM);
}

static void a_tiny_model_does_not_take_more_than_it_can_use(void **state)
{
    (void)state;
    struct err err;
    struct budget b = smollm2(64 * GIB);
    b.block_bytes = 1024;
    b.context = 256;
    assert_int_equal(budget_plan(&b, &err), 0);
    assert_int_equal(b.blocks, 32 * 16);
}

static void what_does_not_fit_is_refused_and_every_part_named(void **state)
{
    (void)state;
    struct err err;
    struct budget b = smollm2(2 * GIB);
    b.kv_bytes = 8 * GIB;
    assert_int_equal(budget_plan(&b, &err), -ENOMEM);
    assert_string_equal(err.msg,
                        "the memory budget needs 8.76 GiB (weights 257 MiB, "
                        "activations 10.0 MiB, engine "
                        "2.00 MiB, KV pool 8.00 GiB and margin 512 MiB), "
                        "but MemAvailable has "
                        "2.00 GiB available; lower kv_memory, kv_blocks or margin");

    b = smollm2(512 * MIB);
    assert_int_equal(budget_plan(&b, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "weights 257 MiB"));

    b = smollm2(UINT64_MAX);
    b.kv_bytes = UINT64_MAX;
    assert_int_equal(budget_plan(&b, &err), -EINVAL);
    b = smollm2(2 * GIB);
    b.margin = UINT64_MAX;
    assert_int_equal(budget_plan(&b, &err), -ENOMEM);
    b = smollm2(2 * GIB);
    b.kv_bytes = 100;
    assert_int_equal(budget_plan(&b, &err), -EINVAL);
    b = smollm2(2 * GIB);
    b.kv_blocks = 64;
    assert_int_equal(budget_plan(&b, &err), 0);
    assert_int_equal(b.blocks, 64);
}

static void on_a_device_all_that_is_left_is_the_pool(void **state)
{
    (void)state;
    struct err err;
    struct budget b = smollm2(80 * GIB);
    b.engine = 0;
    b.whole = true;
    assert_int_equal(budget_plan(&b, &err), 0);
    assert_int_equal(b.blocks, (80 * GIB - 779 * MIB) / (360 * 1024));
    assert_true(b.available - b.total < b.block_bytes);
    char parts[256];
    budget_describe(&b, parts, sizeof parts);
    assert_string_equal(parts,
                        "weights 257 MiB, activations 10.0 MiB, KV pool 79.2 GiB "
                        "and margin 512 MiB");

    b.kv_bytes = GIB;
    assert_int_equal(budget_plan(&b, &err), 0);
    assert_int_equal(b.blocks, GIB / (360 * 1024));
    b = smollm2(779 * MIB + 1024);
    b.engine = 0;
    b.whole = true;
    assert_int_equal(budget_plan(&b, &err), -ENOMEM);
}

static void beside_a_device_the_host_has_a_budget_without_a_pool(void **state)
{
    (void)state;
    struct err err;
    struct budget b = {.activations = 16 * MIB,
                       .engine = 2 * MIB,
                       .tiers = 1 * GIB,
                       .margin = 512 * MIB,
                       .available = 2 * GIB,
                       .limit = "MemAvailable"};
    assert_int_equal(budget_fits(&b, &err), 0);
    assert_int_equal(b.total, 1554 * MIB);
    b.tiers = 2 * GIB;
    assert_int_equal(budget_fits(&b, &err), -ENOMEM);
    assert_non_null(strstr(err.msg,
                           "(activations 16.0 MiB, engine 2.00 MiB, tiers 2.00 "
                           "GiB and margin 512 MiB)"));
}

/* ---- a made-up machine ---- */

static char root[] = "/tmp/dormouse-budget-XXXXXX";

static void put(const char *path, const char *text)
{
    char name[512];
    snprintf(name, sizeof name, "%s%s", root, path);
    for (char *p = name + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(name, 0700);
    }
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void the_least_limit_of_kernel_and_control_groups_counts(void **state)
{
    (void)state;
    struct err err;
    struct budget b = {0};
    assert_int_equal(budget_available(&b, root, &err), -EIO);

    put("/proc/meminfo", "MemTotal: 99 kB\nMemAvailable:    4096 kB\n");
    assert_int_equal(budget_available(&b, root, &err), 0);
    assert_int_equal(b.available, 4096 * 1024);
    assert_string_equal(b.limit, "MemAvailable");

    /* Version 2: the group itself has no limit, the one above it has. */
    put("/proc/self/cgroup", "0::/pod/app\n");
    put("/sys/fs/cgroup/pod/app/memory.max", "max\n");
    put("/sys/fs/cgroup/pod/memory.max", "2000000\n");
    put("/sys/fs/cgroup/pod/memory.current", "1500000\n");
    put("/sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 500000\n");
    assert_int_equal(budget_available(&b, root, &err), 0);
    assert_int_equal(b.available, 1000000);
    assert_string_equal(b.limit, "the memory limit of the control group");

    /* Version 1, seen from within a container: only the root of it is there. */
    put("/proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n0::/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "900000\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n");
    put("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 200000\n");
    assert_int_equal(budget_available(&b, root, &err), 0);
    assert_int_equal(b.available, 100000);
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_is_a_quarter_but_at_most_two_gibibytes),
        cmocka_unit_test(recorded_steps_have_a_line_of_their_own),
        cmocka_unit_test(the_default_holds_one_conversation_or_what_fits_of_it),
        cmocka_unit_test(a_tiny_model_does_not_take_more_than_it_can_use),
        cmocka_unit_test(what_does_not_fit_is_refused_and_every_part_named),
        cmocka_unit_test(on_a_device_all_that_is_left_is_the_pool),
        cmocka_unit_test(beside_a_device_the_host_has_a_budget_without_a_pool),
        cmocka_unit_test(the_least_limit_of_kernel_and_control_groups_counts),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
