/* test_stack_tiers.c - what of a server's start decides whose blocks it may take. */
#include "server/stack_tiers.h"

#include "kernels/crypto.h"
#include "offload/fingerprint.h"
#include "tests/server/engine_fixture.h"

static struct crypto_hash fingerprint_of(const char *describe,
                                         enum weight_format format)
{
    struct fingerprint_parts p = {.parallel_ranks = 1};
    struct crypto_hash h;
    stack_arithmetic(describe, format, p.arithmetic, sizeof p.arithmetic);
    fingerprint_make(&h, &p);
    return h;
}

static bool equal(struct crypto_hash a, struct crypto_hash b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void each_weight_format_has_a_fingerprint_of_its_own(void **state)
{
    (void)state;
    const char *cpu = "cpu (AVX2+FMA, 2 threads)";
    for (int i = WEIGHT_OWN; i <= WEIGHT_Q4; i++) {
        for (int k = WEIGHT_OWN; k <= WEIGHT_Q4; k++) {
            struct crypto_hash a = fingerprint_of(cpu, (enum weight_format)i);
            struct crypto_hash b = fingerprint_of(cpu, (enum weight_format)k);
            assert_int_equal(equal(a, b), i == k);
        }
    }
}

static void threads_leave_the_fingerprint_and_the_instruction_set_does_not(void **state)
{
    (void)state;
    struct crypto_hash two = fingerprint_of("cpu (AVX2+FMA, 2 threads)", WEIGHT_Q8);
    assert_true(equal(two, fingerprint_of("cpu (AVX2+FMA, 1 thread)", WEIGHT_Q8)));
    assert_false(equal(two, fingerprint_of("cpu (portable C, 2 threads)", WEIGHT_Q8)));
    struct crypto_hash wide = fingerprint_of("cpu (AVX-512, 2 threads)", WEIGHT_OWN);
    assert_false(
        equal(wide, fingerprint_of("cpu (AVX-512 BF16, 2 threads)", WEIGHT_OWN)));
}

static uint64_t bytes_of(uint64_t ram, const char *ssd)
{
    struct tiers_options o = {.ram_bytes = ram,
                              .ssd_dir = ssd,
                              .ssd_bytes = 1 << 24,
                              .max_wakes = 4,
                              .max_conversations = 16};
    policy_defaults(&o.policy);
    return tiers_bytes(&o, 64, 1 << 16);
}

static void staging_is_counted_where_blocks_go_from_ram_to_ssd(void **state)
{
    (void)state;
    struct policy p;
    policy_defaults(&p);
    uint64_t ram = bytes_of(1 << 24, ""), ssd = bytes_of(0, "kv");
    uint64_t both = bytes_of(1 << 24, "kv"), none = bytes_of(0, "");
    assert_int_equal(both - ram - ssd + none, (uint64_t)p.max_stores << 16);
}

static void refused(const struct tiers_options *o, size_t block, int rc,
                    const char *words)
{
    struct tier_ssd_found found;
    struct err err = {""};
    assert_int_equal(tiers_check(o, block, &found, &err), rc);
    if (!strstr(err.msg, words)) fail_msg("%s", err.msg);
}

static void more_blocks_than_a_tier_can_count_are_refused_and_not_made_fewer(void **s)
{
    (void)s;
    const uint64_t most = (uint64_t)SLOTS_MOST * 4096;
    struct tiers_options ram = {.ram_bytes = most};
    struct tiers_options ssd = {.ssd_dir = "not/there", .ssd_bytes = 4 * most};
    struct tier_ssd_found found;
    struct err err = {""};
    assert_int_equal(tiers_check(&ram, 4096, &found, &err), 0);
    policy_defaults(&ssd.policy);
    refused(&ssd, 12288, -ENOENT, "not/there cannot be made");

    ram.ram_bytes += 4096;
    refused(&ram, 4096, -EINVAL,
            "ram of 4398046511104 bytes is 1073741824 KV blocks of 4096 bytes; at most "
            "1073741823 can be kept, so lower it to 4398046507008 bytes");
    ssd.ssd_bytes = 900000ull << 30;
    refused(
        &ssd, 12288, -EINVAL,
        "ssd_size of 966367641600000 bytes is 58982400000 KV blocks of 16384 bytes; "
        "at most 1073741823 can be kept, so lower it to 17592186028032 bytes");
}

/* What a start says of a RAM tier of so many blocks. */
static void calibrated(uint32_t blocks, char *out, size_t cap)
{
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-rand",
                                           .stopped = true,
                                           .keeps = true,
                                           .ram_blocks = blocks});
    w.tiers.measured.prefill = true;
    tiers_calibrate(&w.tiers, &w.kv);
    stack_rates(&w.tiers, kv_block_bytes(&w.kv.mem.shape), out, cap);
    world_close(&w);
}

static void a_rate_that_could_not_be_measured_is_said_to_be_assumed(void **state)
{
    (void)state;
    char text[192];
    calibrated(64, text, sizeof text);
    assert_non_null(strstr(text, " tokens/s of prefill, "));
    assert_non_null(strstr(text, " tokens/s from RAM"));
    assert_null(strstr(text, "assumed"));
    calibrated(2, text, sizeof text);  // too few
    assert_non_null(strstr(text, " tokens/s of prefill, "));
    assert_non_null(strstr(text, " tokens/s from RAM (assumed, not measured)"));
}

int main(void)
{
    struct err err;
    if (crypto_open(&err)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_weight_format_has_a_fingerprint_of_its_own),
        cmocka_unit_test(
            threads_leave_the_fingerprint_and_the_instruction_set_does_not),
        cmocka_unit_test(staging_is_counted_where_blocks_go_from_ram_to_ssd),
        cmocka_unit_test(a_rate_that_could_not_be_measured_is_said_to_be_assumed),
        cmocka_unit_test(
            more_blocks_than_a_tier_can_count_are_refused_and_not_made_fewer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
