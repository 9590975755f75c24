/* The flags of `dormouse plan`, and the machine and the report they give. */
#include "kernels/json.h"
#include "server/plan_options.h"
#include "server/plan_report.h"

// cmocka needs these before it
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define READ(o, err, ...)                                                              \
    plan_options_read(o, (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)),      \
                      (char *[]){__VA_ARGS__}, err)

static void every_default_is_a_value_its_own_option_accepts(void **state)
{
    (void)state;
    struct plan_options o;
    struct err err;
    for (uint32_t i = 0; i < plan_options_list.n; i++)
        assert_int_equal(option_set(&plan_options_list.option[i], &o,
                                    plan_options_list.option[i].value, "default", &err),
                         0);
}

static void the_policy_is_the_servers_where_no_flag_says_otherwise(void **state)
{
    (void)state;
    struct plan_options o;
    struct plan_machine m;
    struct policy p;
    struct err err;
    plan_options_defaults(&o);
    assert_int_equal(plan_options_machine(&o, &m, &err), 0);
    policy_defaults(&p);
    assert_int_equal(m.policy.copy_after, p.copy_after);
    assert_int_equal(m.policy.idle_after, p.idle_after);
    assert_int_equal(m.policy.ssd_after, p.ssd_after);
    assert_int_equal(m.policy.residency, p.residency);
    assert_int_equal(m.policy.keep_for, p.keep_for);
    assert_int_equal(m.policy.wake_deadline, p.wake_deadline);
    assert_true(m.policy.high == p.high && m.policy.low == p.low);
    assert_int_equal(m.policy.second_touch, p.second_touch);
    assert_int_equal(m.policy.ssd_bytes_per_day, p.ssd_bytes_per_day);
    assert_int_equal(m.policy.max_loads, p.max_loads);
    assert_int_equal(m.policy.max_stores, p.max_stores);

    struct options serve;
    options_defaults(&serve);
    assert_memory_equal(&serve.policy, &o.policy, sizeof o.policy);
}

static void flags_describe_the_machine(void **state)
{
    (void)state;
    struct plan_options o;
    struct plan_machine m;
    struct err err;
    assert_int_equal(READ(&o, &err, "t.jsonl", "--layers=2", "--kv-heads", "3",
                          "--head-dim", "64", "--kv-type", "f16", "--kv-memory", "1G",
                          "--ram=0", "--second-touch", "--no-json", "--prefill-rate",
                          "1000", "--prefill-rate-32k", "500"),
                     0);
    assert_string_equal(o.trace, "t.jsonl");
    assert_false(o.json);
    assert_int_equal(plan_options_machine(&o, &m, &err), 0);
    assert_int_equal(m.token_bytes, 2 * 2 * 3 * 64 * 2);
    assert_int_equal(m.kv_bytes, 1 << 30);
    assert_int_equal(m.ram.bytes, 0);
    assert_true(m.policy.second_touch);
    assert_true(m.compute.prefill_a == 1e6);
    assert_true(m.compute.prefill_a + 32768 * m.compute.prefill_b == 2e6);
}

static void wrong_flags_are_named(void **state)
{
    (void)state;
    struct plan_options o;
    struct plan_machine m;
    struct err err;
    assert_int_equal(READ(&o, &err, "t", "--nonsense", "3"), -EINVAL);
    assert_non_null(strstr(err.msg, "flag --nonsense is unknown; `dormouse plan "));
    assert_int_equal(READ(&o, &err, "t", "--lyers=3"), -EINVAL);
    assert_string_equal(err.msg, "flag --lyers is unknown; did you mean --layers?");
    assert_int_equal(READ(&o, &err, "t", "--no-json=false"), -EINVAL);
    assert_string_equal(err.msg, "flag --no-json takes no value");
    assert_int_equal(READ(&o, &err, "t", "--kv_memory", "3G"), -EINVAL);
    assert_int_equal(READ(&o, &err, "t", "--no-ram"), -EINVAL);
    assert_int_equal(READ(&o, &err, "t", "-j"), -EINVAL);
    assert_int_equal(READ(&o, &err, "t", "--ram"), -EINVAL);
    assert_non_null(strstr(err.msg, "flag --ram needs a value"));
    assert_int_equal(READ(&o, &err, "t", "--ram", "much"), -EINVAL);
    assert_non_null(strstr(err.msg, "`much` is not a size"));
    assert_int_equal(READ(&o, &err, "t", "u"), -EINVAL);
    assert_non_null(strstr(err.msg, "both t and u"));
    assert_int_equal(READ(&o, &err, "--json"), -EINVAL);
    assert_int_equal(READ(&o, &err, "t", "--synthetic", "5"), -EINVAL);
    assert_int_equal(READ(&o, &err, "t", "--prefill-rate", "5"), 0);
    assert_int_equal(plan_options_machine(&o, &m, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "prefill_rate_32k"));
    assert_int_equal(READ(&o, &err, "t", "--low", "95"), 0);
    assert_int_equal(plan_options_machine(&o, &m, &err), -EINVAL);
}

static double number(const struct json *j, const char *a, const char *b, const char *c)
{
    double x;
    struct json_value v = json_get(json_get(json_root(j), a), b);
    assert_true(json_double(c ? json_get(v, c) : v, &x));
    return x;
}

static void the_report_says_what_the_replay_counted(void **state)
{
    (void)state;
    uint64_t ttft[] = {1000000000, 2000000000, 3000000000};
    struct plan_result with = {.turns = 3,
                               .returning = 1,
                               .prompt_tokens = 3000,
                               .span = UINT64_C(43200) * 1000000000,
                               .ttft = ttft,
                               .ttft_returning = ttft};
    with.counters.hit_tokens[KV_RAM] = 1024;
    with.counters.hit_tokens[KV_SSD] = 512;
    with.counters.demoted_bytes[KV_SSD] = 4096;
    const struct plan_result without = {
        .turns = 3, .ttft = ttft, .prompt_tokens = 3000};
    const struct plan_machine m = {.token_bytes = 8, .kv_bytes = 8 * 512 * 5};
    struct bytes out = {0};
    plan_report_json(&out, &m, &with, &without);
    struct json *j;
    struct err err = {{0}};
    assert_int_equal(json_open(&j, out.data, out.n, 8, &err), 0);
    assert_true(number(j, "with", "hit_tokens", "ram") == 1024);
    assert_true(number(j, "with", "computed_tokens", NULL) == 3000 - 1024 - 512);
    assert_true(number(j, "with", "bytes", "to_ssd_per_day") == 8192);
    assert_true(number(j, "with", "ttft", "p50") == 2);
    assert_true(number(j, "with", "ttft", "p99") == 3);
    assert_true(number(j, "with", "ttft_returning", "p99") == 1);
    assert_true(number(j, "without", "computed_tokens", NULL) == 3000);
    assert_true(number(j, "without", "ttft_returning", "p50") == 0);
    json_close(j);
    bytes_clear(&out);
    plan_report_text(&out, &m, &with, &without);
    bytes_add(&out, "", 1);
    assert_non_null(strstr(out.data, "3 turns answered, 1 of them returning"));
    assert_non_null(strstr(out.data, "device 2560 tokens"));
    bytes_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_default_is_a_value_its_own_option_accepts),
        cmocka_unit_test(the_policy_is_the_servers_where_no_flag_says_otherwise),
        cmocka_unit_test(flags_describe_the_machine),
        cmocka_unit_test(wrong_flags_are_named),
        cmocka_unit_test(the_report_says_what_the_replay_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
