#include "server/metrics.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct metrics *open_metrics(const char *model)
{
    struct metrics *m;
    struct err err;
    assert_int_equal(metrics_open(&m, model, &err), 0);
    return m;
}

static const char *render(const struct metrics *m, struct bytes *b)
{
    bytes_clear(b);
    metrics_render(m, b);
    assert_false(b->failed);
    return b->data;
}

/* ---- the text format, as promtool checks it ---- */

static size_t name_length(const char *s)
{
    return strspn(s,
                  "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:0123456789");
}

/* {name="value",...}; returns what follows, NULL: malformed. */
static const char *skip_labels(const char *s)
{
    if (*s != '{') return s;
    do {
        s++;
        size_t n = name_length(s);
        if (n == 0 || s[n] != '=' || s[n + 1] != '"') return NULL;
        for (s += n + 2; *s != '"'; s++) {
            if (*s == '\\' && !strchr("\\\"n", *++s)) return NULL;
            if (*s == '\n' || !*s) return NULL;
        }
        s++;
    } while (*s == ',');
    return *s == '}' ? s + 1 : NULL;
}

static bool belongs(const char *series, size_t n, const char *family, const char *type)
{
    size_t f = strlen(family);
    if (n < f || memcmp(series, family, f) != 0) return false;
    if (strcmp(type, "histogram") != 0) return n == f;
    return (n == f + 7 && !memcmp(series + f, "_bucket", 7)) ||
           (n == f + 4 && !memcmp(series + f, "_sum", 4)) ||
           (n == f + 6 && !memcmp(series + f, "_count", 6));
}

static bool well_formed(const char *text)
{
    static char seen[400][512];
    size_t n_seen = 0;
    char family[128] = "", type[32] = "", helped[128] = "";
    for (const char *end; *text; text = end + 1) {
        end = strchr(text, '\n');
        if (!end) return false;  // the last line ends too
        if (sscanf(text, "# HELP %127s", helped) == 1) continue;
        if (sscanf(text, "# TYPE %127s %31s", family, type) == 2) {
            if (strcmp(family, helped) != 0) return false;
            continue;
        }
        size_t n = name_length(text);
        if (n == 0 || !belongs(text, n, family, type)) return false;
        const char *rest = skip_labels(text + n);
        if (!rest || *rest != ' ') return false;
        char *after;
        double value = strtod(rest + 1, &after);
        if (after != end || !(value >= 0)) return false;
        if (strcmp(type, "counter") == 0 &&
            strcmp(family + strlen(family) - 6, "_total"))
            return false;

        size_t size = (size_t)(rest - text);
        if (size >= sizeof seen[0] || n_seen == ARRAY_LEN(seen)) return false;
        memcpy(seen[n_seen], text, size);
        seen[n_seen][size] = 0;
        for (size_t i = 0; i < n_seen; i++)
            if (strcmp(seen[i], seen[n_seen]) == 0) return false;
        n_seen++;
    }
    return n_seen > 0;
}

/* The value of the series whose line begins so; -1: there is none. */
static double value_of(const char *text, const char *series)
{
    for (const char *line = text; line && *line;) {
        if (strncmp(line, series, strlen(series)) == 0) {
            const char *rest = skip_labels(line + name_length(line));
            return rest ? strtod(rest, NULL) : -1;
        }
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return -1;
}

static void the_bytes_of_each_tenant_have_a_series_of_their_own(void **state)
{
    (void)state;
    struct metrics *m = open_metrics("m");
    struct bytes b = {0};
    struct err err;
    assert_null(strstr(render(m, &b), "tenant_used_bytes"));
    const char *const names[] = {"ada", NULL, "b\"ea"};  // the second shares
    assert_int_equal(metrics_tenants(m, names, 3, &err), 0);
    for (uint32_t i = 0; i < 5; i++) metrics_set_tenant(m, i, i % 2, 100 + i);
    const char *text = render(m, &b);
    assert_true(well_formed(text));
#define OF(tenant, tier)                                                               \
    "dormouse_tenant_used_bytes{model_name=\"m\",tenant=\"" tenant "\",tier=\"" tier   \
    "\"}"
    assert_true(value_of(text, OF("ada", "ram")) == 100);
    assert_true(value_of(text, OF("ada", "ssd")) == 0);
    assert_true(value_of(text, OF("b\\\"ea", "ram")) == 102);
    assert_null(strstr(text, "101"));
    bytes_free(&b);
    metrics_close(m);
}

static void the_checker_tells_right_from_wrong(void **state)
{
    (void)state;
#define HEAD "# HELP a_total x\n# TYPE a_total counter\n"
    assert_true(well_formed(HEAD "a_total{x=\"1\"} 3\n"));
    assert_false(well_formed("a_total 3\n"));
    assert_false(well_formed(HEAD "a_total 3"));
    assert_false(well_formed(HEAD "a_total -3\n"));
    assert_false(well_formed(HEAD "a_total nan\n"));
    assert_false(well_formed(HEAD "b_total 3\n"));
    assert_false(well_formed(HEAD "a_total 3\na_total 3\n"));
    assert_false(well_formed(HEAD "a_total{x=\"\"\"} 3\n"));
    assert_false(well_formed(HEAD "a_total{x=\"\\q\"} 3\n"));
    assert_false(well_formed(HEAD "a_total{x=\"1\",} 3\n"));
}

static void the_text_is_well_formed_from_the_start(void **state)
{
    (void)state;
    struct bytes b = {0};
    struct metrics *m = open_metrics("SmolLM2-135M-Instruct");
    assert_true(well_formed(render(m, &b)));
    assert_non_null(
        strstr(b.data, "# TYPE dormouse_time_to_first_token_seconds histogram"));
    assert_true(value_of(b.data, "dormouse_kv_cache_usage_perc{") == 0);
    assert_true(value_of(b.data, "dormouse_prompt_tokens_total{") == 0);
    metrics_close(m);
    bytes_free(&b);
}

static void a_model_name_with_quotes_and_newlines_is_escaped(void **state)
{
    (void)state;
    struct bytes b = {0};
    struct metrics *m = open_metrics("a\"b\\c\nd");
    assert_true(well_formed(render(m, &b)));
    assert_non_null(strstr(b.data, "{model_name=\"a\\\"b\\\\c\\nd\"}"));
    metrics_close(m);
    bytes_free(&b);
}

static void what_is_counted_is_told(void **state)
{
    (void)state;
    struct bytes b = {0};
    struct metrics *m = open_metrics("m");
    metrics_count(m, COUNTER_PROMPT_TOKENS, 12);
    metrics_count(m, COUNTER_PROMPT_TOKENS, 30);
    metrics_outcome(m, OUTCOME_LENGTH);
    metrics_http(m, 200);
    metrics_http(m, 200);
    metrics_http(m, 9999);
    metrics_set(m, GAUGE_KV_BLOCKS_TOTAL, 64);
    metrics_set(m, GAUGE_KV_BLOCKS_USED, 16);
    metrics_add(m, GAUGE_CONNECTIONS, 2);
    metrics_add(m, GAUGE_CONNECTIONS, -1);
    assert_true(well_formed(render(m, &b)));
    assert_int_equal(metrics_counter(m, COUNTER_PROMPT_TOKENS), 42);
    assert_true(value_of(b.data, "dormouse_prompt_tokens_total{") == 42);
    assert_true(
        value_of(b.data,
                 "dormouse_requests_total{model_name=\"m\",outcome=\"length\"") == 1);
    assert_true(
        value_of(b.data,
                 "dormouse_http_responses_total{model_name=\"m\",code=\"200\"") == 2);
    assert_true(value_of(b.data, "dormouse_kv_blocks_free{") == 48);
    assert_true(value_of(b.data, "dormouse_kv_cache_usage_perc{") == 0.25);
    assert_true(value_of(b.data, "dormouse_connections{") == 1);
    metrics_close(m);
    bytes_free(&b);
}

static void series_of_one_name_stand_together_and_differ_in_their_label(void **state)
{
    (void)state;
    struct bytes b = {0};
    struct metrics *m = open_metrics("m");
    metrics_count(m, COUNTER_FROM_RAM, 32);
    metrics_total(m, COUNTER_PROMOTED_SSD, 8192);
    metrics_total(m, COUNTER_PROMOTED_SSD, 12288);
    metrics_count(m, COUNTER_IDLE_NS, 1500000000);
    metrics_set(m, GAUGE_WRITABLE_SSD, 1);
    metrics_observe(m, HISTOGRAM_WAKE_SSD, 3000000);
    assert_true(well_formed(render(m, &b)));
    static const struct {
        const char *series;
        double value;
    } cases[] = {
        {"cached_prompt_tokens_total{model_name=\"m\",tier=\"device\"", 0},
        {"cached_prompt_tokens_total{model_name=\"m\",tier=\"ram\"", 32},
        {"computed_prompt_tokens_total{model_name=\"m\",reason=\"late\"", 0},
        {"promoted_bytes_total{model_name=\"m\",tier=\"ssd\"", 12288},
        {"load_wait_idle_seconds_total{model_name=\"m\"", 1.5},
        {"tier_writable{model_name=\"m\",tier=\"ram\"", 0},
        {"tier_writable{model_name=\"m\",tier=\"ssd\"", 1},
        {"wake_seconds_bucket{model_name=\"m\",tier=\"ssd\",le=\"0.0025\"", 0},
        {"wake_seconds_bucket{model_name=\"m\",tier=\"ssd\",le=\"0.005\"", 1},
        {"wake_seconds_count{model_name=\"m\",tier=\"ssd\"", 1},
        {"wake_seconds_count{model_name=\"m\",tier=\"ram\"", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char series[128];
        snprintf(series, sizeof series, "dormouse_%s", cases[i].series);
        assert_true(value_of(b.data, series) == cases[i].value);
    }
    metrics_close(m);
    bytes_free(&b);
}

static void an_observation_falls_into_its_bucket_and_all_above(void **state)
{
    (void)state;
    struct bytes b = {0};
    struct metrics *m = open_metrics("m");
    metrics_observe(m, HISTOGRAM_TTFT, 1000000);         // 1 ms: bounds are inclusive
    metrics_observe(m, HISTOGRAM_TTFT, 30000000);        // 30 ms
    metrics_observe(m, HISTOGRAM_TTFT, 9999000000000u);  // beyond all
    assert_true(well_formed(render(m, &b)));
#define TTFT "dormouse_time_to_first_token_seconds"
    assert_true(value_of(b.data, TTFT "_bucket{model_name=\"m\",le=\"0.001\"") == 1);
    assert_true(value_of(b.data, TTFT "_bucket{model_name=\"m\",le=\"0.02\"") == 1);
    assert_true(value_of(b.data, TTFT "_bucket{model_name=\"m\",le=\"0.04\"") == 2);
    assert_true(value_of(b.data, TTFT "_bucket{model_name=\"m\",le=\"2560\"") == 2);
    assert_true(value_of(b.data, TTFT "_bucket{model_name=\"m\",le=\"+Inf\"") == 3);
    assert_true(value_of(b.data, TTFT "_count{") == 3);
    assert_true(value_of(b.data, TTFT "_sum{") == 9999.031);
    metrics_close(m);
    bytes_free(&b);
}

static void *count_much(void *arg)
{
    struct metrics *m = arg;
    for (int i = 0; i < 20000; i++) {
        metrics_count(m, COUNTER_STEPS, 1);
        metrics_observe(m, HISTOGRAM_ITL, (uint64_t)i * 1000);
        metrics_add(m, GAUGE_CONNECTIONS, i % 2 ? -1 : 1);
    }
    return NULL;
}

static void
scrapes_never_see_a_counter_go_down_or_a_count_apart_from_its_buckets(void **state)
{
    (void)state;
    struct bytes b = {0};
    struct metrics *m = open_metrics("m");
    pthread_t t[3];
    for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, count_much, m);
    double steps = 0, count = 0;
    for (int i = 0; i < 50; i++) {
        assert_true(well_formed(render(m, &b)));
        double s = value_of(b.data, "dormouse_steps_total{");
        double c = value_of(b.data, "dormouse_inter_token_latency_seconds_count{");
        double inf = value_of(
            b.data,
            "dormouse_inter_token_latency_seconds_bucket{model_name=\"m\",le=\"+Inf\"");
        assert_true(s >= steps && c >= count && c == inf);
        steps = s;
        count = c;
    }
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    render(m, &b);
    assert_true(value_of(b.data, "dormouse_steps_total{") == 60000);
    assert_true(value_of(b.data, "dormouse_connections{") == 0);
    metrics_close(m);
    bytes_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_of_each_tenant_have_a_series_of_their_own),
        cmocka_unit_test(the_checker_tells_right_from_wrong),
        cmocka_unit_test(the_text_is_well_formed_from_the_start),
        cmocka_unit_test(a_model_name_with_quotes_and_newlines_is_escaped),
        cmocka_unit_test(what_is_counted_is_told),
        cmocka_unit_test(series_of_one_name_stand_together_and_differ_in_their_label),
        cmocka_unit_test(an_observation_falls_into_its_bucket_and_all_above),
        cmocka_unit_test(
            scrapes_never_see_a_counter_go_down_or_a_count_apart_from_its_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
