/* plan_report.c - see plan_report.h. */
#include "server/plan_report.h"

#define GIB  1073741824.0
#define DAY  86400e9
#define COLS "  %-34s"

struct figures {
    double prompt, hit[KV_SOURCES], computed;  // tokens
    double ttft[3], returning[3];              // s, percentiles 50, 90, 99
    double from_ram, from_ssd, into_ram, into_ssd;
    double ssd_per_day, busy, waited;  // bytes; shares of the time
};

static const uint32_t percents[3] = {50, 90, 99};

static struct figures figures_of(const struct plan_result *r)
{
    const struct kvstore_counters *c = &r->counters;
    double span = r->span ? (double)r->span : 1;
    struct figures f = {.prompt = (double)r->prompt_tokens,
                        .computed = (double)r->prompt_tokens,
                        .from_ram = (double)c->promoted_bytes[KV_RAM],
                        .from_ssd = (double)c->promoted_bytes[KV_SSD],
                        .into_ram = (double)c->demoted_bytes[KV_RAM],
                        .into_ssd = (double)c->demoted_bytes[KV_SSD],
                        .busy = (double)r->busy / span,
                        .waited = (double)r->waited_for_load / span};
    f.ssd_per_day = f.into_ssd / span * DAY;
    for (int s = 0; s < KV_SOURCES; s++) {
        f.hit[s] = (double)c->hit_tokens[s];
        f.computed -= f.hit[s];
    }
    for (int i = 0; i < 3; i++) {
        f.ttft[i] = (double)plan_percentile(r->ttft, r->turns, percents[i]) / 1e9;
        f.returning[i] =
            (double)plan_percentile(r->ttft_returning, r->returning, percents[i]) / 1e9;
    }
    return f;
}

/* ---- for people ---- */

static void row_tokens(struct bytes *out, const char *name, double a, double a_of,
                       double b, double b_of)
{
    bytes_printf(out, COLS "%14.0f %5.1f%% %14.0f %5.1f%%\n", name, a,
                 a_of > 0 ? 100 * a / a_of : 0, b, b_of > 0 ? 100 * b / b_of : 0);
}

static void row(struct bytes *out, const char *name, double a, double b,
                const char *unit)
{
    bytes_printf(out, COLS "%14.3f %-6s %14.3f %s\n", name, a, unit, b, unit);
}

static void percentile_rows(struct bytes *out, const char *what, const double a[3],
                            const double b[3])
{
    for (int i = 0; i < 3; i++) {
        struct bytes name = {0};
        bytes_printf(&name, "%s p%u", what, percents[i]);
        row(out, name.failed ? what : name.data, a[i], b[i], "s");
        bytes_free(&name);
    }
}

void plan_report_text(struct bytes *out, const struct plan_machine *m,
                      const struct plan_result *with, const struct plan_result *without)
{
    struct figures a = figures_of(with), b = figures_of(without);
    double block = (double)m->token_bytes * PLAN_BLOCK_TOKENS;
    bytes_printf(
        out,
        "%u turns answered, %u of them returning, %u refused as too long; %.1f "
        "h\nKV %.0f bytes a token: device %.0f tokens, RAM %.0f, SSD %.0f\n\n",
        with->turns, with->returning, with->refused, (double)with->span / 3.6e12,
        (double)m->token_bytes,
        (double)(uint64_t)((double)m->kv_bytes / block) * PLAN_BLOCK_TOKENS,
        (double)(uint64_t)((double)m->ram.bytes / block) * PLAN_BLOCK_TOKENS,
        (double)(uint64_t)((double)m->ssd.bytes / block) * PLAN_BLOCK_TOKENS);
    bytes_printf(out, COLS "%14s %6s %14s\n", "", "with tiers", "", "no offload");
    row_tokens(out, "prompt tokens", a.prompt, a.prompt, b.prompt, b.prompt);
    row_tokens(out, "  found on the device", a.hit[KV_DEVICE], a.prompt,
               b.hit[KV_DEVICE], b.prompt);
    row_tokens(out, "  loaded from RAM", a.hit[KV_RAM], a.prompt, b.hit[KV_RAM],
               b.prompt);
    row_tokens(out, "  loaded from the SSD", a.hit[KV_SSD], a.prompt, b.hit[KV_SSD],
               b.prompt);
    row_tokens(out, "  computed", a.computed, a.prompt, b.computed, b.prompt);
    percentile_rows(out, "first token", a.ttft, b.ttft);
    percentile_rows(out, "first token, returning", a.returning, b.returning);
    row(out, "device to RAM", a.into_ram / GIB, b.into_ram / GIB, "GiB");
    row(out, "RAM to device", a.from_ram / GIB, b.from_ram / GIB, "GiB");
    row(out, "written to the SSD", a.into_ssd / GIB, b.into_ssd / GIB, "GiB");
    row(out, "read from the SSD", a.from_ssd / GIB, b.from_ssd / GIB, "GiB");
    row(out, "written to the SSD per day", a.ssd_per_day / GIB, b.ssd_per_day / GIB,
        "GiB");
    row(out, "computing", 100 * a.busy, 100 * b.busy, "%");
    row(out, "idle, waiting for a load or room", 100 * a.waited, 100 * b.waited, "%");
}

/* ---- for programs ---- */

static void json_percentiles(struct bytes *out, const char *name, const double v[3])
{
    bytes_printf(out, "\"%s\": {\"p50\": %.9g, \"p90\": %.9g, \"p99\": %.9g}, ", name,
                 v[0], v[1], v[2]);
}

static void json_result(struct bytes *out, const char *name,
                        const struct plan_result *r)
{
    static const char *const why[KV_WHYS] = {"new", "cheaper", "failed", "late",
                                             "busy"};
    struct figures f = figures_of(r);
    const struct kvstore_counters *c = &r->counters;
    bytes_printf(out,
                 "\"%s\": {\"turns\": %u, \"returning\": %u, \"refused\": %u, "
                 "\"seconds\": %.9g, \"prompt_tokens\": %.0f, \"reply_tokens\": %llu, "
                 "\"hit_tokens\": {\"device\": %.0f, \"ram\": %.0f, \"ssd\": %.0f}, "
                 "\"computed_tokens\": %.0f, \"computed_block_tokens\": {",
                 name, r->turns, r->returning, r->refused, (double)r->span / 1e9,
                 f.prompt, (unsigned long long)r->reply_tokens, f.hit[KV_DEVICE],
                 f.hit[KV_RAM], f.hit[KV_SSD], f.computed);
    for (int i = 0; i < KV_WHYS; i++)
        bytes_printf(out, "%s\"%s\": %llu", i ? ", " : "", why[i],
                     (unsigned long long)c->computed_tokens[i]);
    bytes_add_text(out, "}, ");
    json_percentiles(out, "ttft", f.ttft);
    json_percentiles(out, "ttft_returning", f.returning);
    bytes_printf(out,
                 "\"bytes\": {\"device_to_ram\": %.0f, \"ram_to_device\": %.0f, "
                 "\"to_ssd\": %.0f, \"from_ssd\": %.0f, \"to_ssd_per_day\": %.0f}, "
                 "\"evicted_blocks\": {\"device\": %llu, \"ram\": %llu, \"ssd\": %llu, "
                 "\"lost\": %llu}, \"busy\": %.6f, \"waiting\": %.6f}",
                 f.into_ram, f.from_ram, f.into_ssd, f.from_ssd, f.ssd_per_day,
                 (unsigned long long)c->evicted[KV_DEVICE],
                 (unsigned long long)c->evicted[KV_RAM],
                 (unsigned long long)c->evicted[KV_SSD], (unsigned long long)c->lost,
                 f.busy, f.waited);
}

void plan_report_json(struct bytes *out, const struct plan_machine *m,
                      const struct plan_result *with, const struct plan_result *without)
{
    bytes_printf(out, "{\"block_tokens\": %d, \"token_bytes\": %llu, ",
                 PLAN_BLOCK_TOKENS, (unsigned long long)m->token_bytes);
    json_result(out, "with", with);
    bytes_add_text(out, ", ");
    json_result(out, "without", without);
    bytes_add_text(out, "}\n");
}
