/* The policy: when a block is copied, and when it may go. */
#include "offload/policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define S UINT64_C(1000000000)

static struct policy defaults(void)
{
    struct policy p;
    policy_defaults(&p);
    return p;
}

static void the_defaults_pass_their_own_check(void **state)
{
    (void)state;
    struct policy p = defaults();
    struct err err;
    assert_int_equal(policy_check(&p, &err), 0);
    assert_true(p.copy_after == 5 * S && p.idle_after == 60 * S);
    assert_true(p.high == 0.9 && p.low == 0.8);
}

static void refused(struct policy p, const char *part)
{
    struct err err;
    assert_int_equal(policy_check(&p, &err), -EINVAL);
    assert_non_null(strstr(err.msg, part));
}

static void numbers_that_contradict_each_other_are_refused_by_name(void **state)
{
    (void)state;
    struct policy p = defaults();
    p.copy_after = 61 * S;
    refused(p, "copy_after");
    p = defaults(), p.copy_after = p.idle_after = 0;
    refused(p, "idle_after");
    p = defaults(), p.low = 0.95;
    refused(p, "watermarks");
    p = defaults(), p.low = 0;
    refused(p, "watermarks");
    p = defaults(), p.high = 1.01;
    refused(p, "watermarks");
    p = defaults(), p.high = __builtin_nan("");
    refused(p, "watermarks");
    p = defaults(), p.max_loads = 0;
    refused(p, "max_loads");
    p = defaults(), p.max_stores = 100000;
    refused(p, "max_stores");
    p = defaults(), p.max_load_bytes = 0;
    refused(p, "max_load_bytes");
    p = defaults(), p.wake_deadline = 0;
    refused(p, "wake_deadline");
}

static void a_block_is_copied_when_quiet_unless_active_or_there_already(void **state)
{
    (void)state;
    struct policy p = defaults();
    struct policy_block b = {.last_used = 100 * S, .uses = 1};
    assert_int_equal(policy_copy(&p, &b, G1_TO_RAM, 105 * S - 1, false), COPY_LATER);
    assert_int_equal(policy_copy(&p, &b, G1_TO_RAM, 105 * S, false), COPY_NOW);
    assert_int_equal(policy_copy(&p, &b, G1_TO_RAM, 100 * S, true), COPY_NOW);
    assert_int_equal(policy_copy(&p, &b, G1_TO_RAM, 99 * S, false), COPY_LATER);
    b.active = true;
    assert_int_equal(policy_copy(&p, &b, G1_TO_RAM, 200 * S, true), COPY_NOT);
    b.active = false, b.lower = true;
    assert_int_equal(policy_copy(&p, &b, G1_TO_RAM, 200 * S, true), COPY_NOT);
}

static void a_block_that_another_one_needs_is_copied_whatever_else_is_so(void **state)
{
    (void)state;
    struct policy p = defaults();
    p.second_touch = true;
    struct policy_block b = {.last_used = 100 * S, .uses = 1, .active = true};
    for (int way = G1_TO_RAM; way <= RAM_TO_SSD; way++) {
        b.needed = true;
        assert_int_equal(policy_copy(&p, &b, (enum policy_way)way, 100 * S, false),
                         COPY_NOW);
        b.lower = true;
        assert_int_equal(policy_copy(&p, &b, (enum policy_way)way, 100 * S, false),
                         COPY_NOT);
        b.lower = false;
    }
    b.active = false;
    assert_false(policy_may_displace(&p, &b, 900 * S));
    b.needed = false;
    assert_true(policy_may_displace(&p, &b, 900 * S));
}

static void the_ssd_takes_later_and_where_asked_only_what_was_used_twice(void **state)
{
    (void)state;
    struct policy p = defaults();
    struct policy_block b = {.last_used = 100 * S, .uses = 1};
    assert_int_equal(policy_copy(&p, &b, RAM_TO_SSD, 130 * S - 1, false), COPY_LATER);
    assert_int_equal(policy_copy(&p, &b, RAM_TO_SSD, 130 * S, false), COPY_NOW);
    assert_int_equal(policy_copy(&p, &b, RAM_TO_SSD, 100 * S, true), COPY_NOW);
    assert_int_equal(policy_copy(&p, &b, G1_TO_SSD, 105 * S, false), COPY_NOW);
    p.second_touch = true;
    assert_int_equal(policy_copy(&p, &b, RAM_TO_SSD, 130 * S, true), COPY_UNUSED);
    assert_int_equal(policy_copy(&p, &b, G1_TO_SSD, 130 * S, true), COPY_UNUSED);
    assert_int_equal(policy_copy(&p, &b, G1_TO_RAM, 130 * S, true), COPY_NOW);
    b.uses = 2;
    assert_int_equal(policy_copy(&p, &b, RAM_TO_SSD, 130 * S, false), COPY_NOW);
    b.lower = true;
    assert_int_equal(policy_copy(&p, &b, RAM_TO_SSD, 130 * S, true), COPY_NOT);
}

static void a_block_goes_late_and_under_pressure_at_once(void **state)
{
    (void)state;
    struct policy p = defaults();
    struct policy_block b = {.last_used = 100 * S, .lower = true};
    assert_false(policy_may_free(&p, &b, 160 * S - 1, false, false));
    assert_true(policy_may_free(&p, &b, 160 * S, false, false));
    assert_true(policy_may_free(&p, &b, 100 * S, true, false));
    b.lower = false;  // by quiet alone nothing is lost
    assert_false(policy_may_free(&p, &b, 900 * S, false, false));
    assert_true(policy_may_free(&p, &b, 100 * S, true, false));
}

static void active_and_held_never_go_and_what_just_came_up_goes_last(void **state)
{
    (void)state;
    struct policy p = defaults();
    struct policy_block b = {.last_used = S, .lower = true};
    b.active = true;
    assert_false(policy_may_free(&p, &b, 900 * S, true, true));
    b.active = false, b.held = true;
    assert_false(policy_may_free(&p, &b, 900 * S, true, true));
    b.held = false, b.promoted = 895 * S;
    assert_false(policy_may_free(&p, &b, 900 * S, true, false));
    assert_true(policy_may_free(&p, &b, 900 * S, true, true));
    assert_true(policy_may_free(&p, &b, 905 * S, true, false));
}

static void a_last_copy_of_just_now_makes_room_for_nobody(void **state)
{
    (void)state;
    struct policy p = defaults();
    struct policy_block b = {.last_used = 100 * S};
    assert_false(policy_may_displace(&p, &b, 220 * S - 1));
    assert_true(policy_may_displace(&p, &b, 220 * S));
    b.lower = true;
    assert_true(policy_may_displace(&p, &b, 100 * S));
    b.held = true;
    assert_false(policy_may_displace(&p, &b, 900 * S));
}

static void between_the_watermarks_nothing_is_freed(void **state)
{
    (void)state;
    struct policy p = defaults();
    assert_int_equal(policy_excess(&p, 0, 100), 0);
    assert_int_equal(policy_excess(&p, 90, 100), 0);
    assert_int_equal(policy_excess(&p, 91, 100), 11);
    assert_int_equal(policy_excess(&p, 100, 100), 20);
    assert_int_equal(policy_excess(&p, 1, 1), 1);
    p.high = p.low = 1;
    assert_int_equal(policy_excess(&p, 100, 100), 0);
}

static void the_daily_budget_fills_by_time_and_never_above_a_day(void **state)
{
    (void)state;
    struct policy p = defaults();
    struct policy_budget b = {0};
    assert_true(policy_spend(&p, &b, UINT64_MAX, 0));  // none
    p.ssd_bytes_per_day = 86400;
    b.bytes = 86400;
    assert_true(policy_spend(&p, &b, 86400, 5 * S));
    assert_false(policy_spend(&p, &b, 11, 15 * S));
    assert_true(policy_spend(&p, &b, 9, 15 * S));
    assert_false(
        policy_spend(&p, &b, 2, 14 * S));  // a clock that stands still gives none
    assert_false(policy_spend(&p, &b, 86401, 10 * 86400 * S));
    assert_true(policy_spend(&p, &b, 86400, 10 * 86400 * S));
    assert_false(policy_spend(&p, &b, 1, 10 * 86400 * S));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_defaults_pass_their_own_check),
        cmocka_unit_test(numbers_that_contradict_each_other_are_refused_by_name),
        cmocka_unit_test(a_block_is_copied_when_quiet_unless_active_or_there_already),
        cmocka_unit_test(a_block_that_another_one_needs_is_copied_whatever_else_is_so),
        cmocka_unit_test(the_ssd_takes_later_and_where_asked_only_what_was_used_twice),
        cmocka_unit_test(a_block_goes_late_and_under_pressure_at_once),
        cmocka_unit_test(active_and_held_never_go_and_what_just_came_up_goes_last),
        cmocka_unit_test(a_last_copy_of_just_now_makes_room_for_nobody),
        cmocka_unit_test(between_the_watermarks_nothing_is_freed),
        cmocka_unit_test(the_daily_budget_fills_by_time_and_never_above_a_day),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
