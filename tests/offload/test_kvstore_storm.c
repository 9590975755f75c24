/* The store over random schedules. */
#include "tests/offload/kvstore_storm.h"

static void storm(struct sizes sizes, struct policy policy, bool weak, uint64_t seed,
                  uint32_t steps)
{
    struct storm *s = calloc(1, sizeof *s);
    assert_non_null(s);
    storm_open(s, sizes, &policy, weak, seed);
    for (uint32_t n = 0; n < steps; n++) storm_step(s);
    if (sizes.ram || sizes.ssd) assert_true(s->woken > 20);
    storm_close(s);
    free(s);
}

static void a_storm_over_three_levels_never_gives_a_wrong_byte(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++)
        storm((struct sizes){32, 24, 60}, storm_policy(), false, seed, 3000);
}

static void a_storm_without_ram_never_gives_a_wrong_byte(void **state)
{
    (void)state;
    storm((struct sizes){28, 0, 50}, storm_policy(), false, 11, 4000);
}

static void a_storm_without_an_ssd_never_gives_a_wrong_byte(void **state)
{
    (void)state;
    storm((struct sizes){28, 40, 0}, storm_policy(), false, 12, 4000);
}

static void a_storm_in_g1_alone_never_gives_a_wrong_byte(void **state)
{
    (void)state;
    storm((struct sizes){40, 0, 0}, storm_policy(), false, 13, 3000);
}

static void a_storm_with_quotas_and_budgets_never_gives_a_wrong_byte(void **state)
{
    (void)state;
    struct policy p = storm_policy();
    p.ram_quota = 9 * PAGE;
    p.ssd_quota = 15 * PAGE;
    p.ssd_bytes_per_day = 86400 * PAGE;
    p.second_touch = true;
    p.max_loads_tenant = 2;
    storm((struct sizes){32, 24, 40}, p, false, 14, 4000);
}

static void names_of_8_bits_collide_and_never_give_a_wrong_byte(void **state)
{
    (void)state;
    for (uint64_t seed = 21; seed <= 24; seed++)
        storm((struct sizes){32, 24, 60}, storm_policy(), true, seed, 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_storm_over_three_levels_never_gives_a_wrong_byte),
        cmocka_unit_test(a_storm_without_ram_never_gives_a_wrong_byte),
        cmocka_unit_test(a_storm_without_an_ssd_never_gives_a_wrong_byte),
        cmocka_unit_test(a_storm_in_g1_alone_never_gives_a_wrong_byte),
        cmocka_unit_test(a_storm_with_quotas_and_budgets_never_gives_a_wrong_byte),
        cmocka_unit_test(names_of_8_bits_collide_and_never_give_a_wrong_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
