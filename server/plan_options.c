/* plan_options.c - the flags of `dormouse plan`, and the machine they describe. */
#include "server/plan_options.h"

#include "server/plan_build.h"

#include <stdio.h>
#include <string.h>

#define FAR 32768  // the position of prefill_rate_32k

void plan_options_defaults(struct plan_options *to)
{
    memset(to, 0, sizeof *to);
    option_set_defaults(&plan_options_list, to);
}

/* ---- flags ---- */

static void print_help(void)
{
    puts(
        "Usage: dormouse plan [TRACE] [--flag value]...\n\n"
        "Replays a trace of conversations in virtual time, through the code that the\n"
        "server decides with, and says what tiers of these sizes would do for it: "
        "hits\n"
        "by tier, time to the first token, bytes moved; beside it the same without "
        "them.\n"
        "TRACE is Mooncake's jsonl or a CSV of sessions. The model and the machine "
        "are\n"
        "given by flags. TIME is 250ms or 30s, SIZE is 512M or 2G, of powers of 1024.");
    option_print_list(&plan_options_list);
}

int plan_options_read(struct plan_options *to, int argc, char **argv, struct err *err)
{
    plan_options_defaults(to);
    if (option_asked(argc, argv, "--help", "-h")) {
        print_help();
        return 1;
    }
    const struct option *trace = option_find(&plan_options_list, "trace");
    bool named = false;
    struct option_args in = {.argv = argv, .n = argc};
    while (in.at < in.n) {
        struct option_arg a;
        int rc = option_next_arg(&plan_options_list, &in, &a, err);
        if (rc) return rc;
        if (a.positional && named)
            return err_set(
                err, -EINVAL,
                "one trace is replayed, but both %.100s and %.100s are given",
                to->trace, a.value);
        named = named || a.positional;
        if (a.positional)
            rc = option_once(&plan_options_list, &in, trace, "the trace", err);
        if (rc == 0 && a.positional)
            rc = option_set(trace, to, a.value, "the trace", err);
        else if (rc == 0)
            rc = option_set(a.option, to, a.value, a.where, err);
        if (rc) return rc;
    }
    if (!to->trace[0] == !to->synthetic)
        return err_set(err, -EINVAL,
                       "a trace or --synthetic is needed, and not both; `dormouse plan "
                       "--help` tells more");
    return 0;
}

/* ---- the machine ---- */

static void set_compute(const struct plan_options *o, struct plan_machine *m)
{
    double near = 1e9 / o->prefill_rate, far = 1e9 / o->prefill_rate_32k;
    double byte_ns = 1e9 / (double)o->memory_bandwidth;
    m->compute = (struct plan_compute){.prefill_a = near,
                                       .prefill_b = (far - near) / FAR,
                                       .weights = (double)o->weights * byte_ns,
                                       .context = (double)m->token_bytes * byte_ns,
                                       .overhead = o->step_overhead_us * 1e3,
                                       .step_tokens = o->step_tokens,
                                       .max_running = o->max_running};
}

static void set_policy(const struct plan_options *o, struct plan_machine *m)
{
    struct policy *p = &m->policy;
    *p = policy_of(&o->policy);
    /* A block of a replay is many of the server's, and two must be under way for one to
     * follow the other without a gap. */
    uint64_t two = 2 * m->token_bytes * PLAN_BLOCK_TOKENS;
    if (p->max_load_bytes < two) p->max_load_bytes = two;
}

int plan_options_machine(const struct plan_options *o, struct plan_machine *m,
                         struct err *err)
{
    const struct kv_shape shape = {o->layers, o->kv_heads, o->head_dim, o->kv_type};
    *m =
        (struct plan_machine){.kv_bytes = o->kv_memory,
                              .token_bytes = kv_token_bytes(&shape),
                              .context = o->context,
                              .ram = {o->ram, (double)o->ram_read, (double)o->ram_write,
                                      o->ram_latency_us * UINT64_C(1000)},
                              .ssd = {o->ssd, (double)o->ssd_read, (double)o->ssd_write,
                                      o->ssd_latency_us * UINT64_C(1000)},
                              .max_conversations = o->max_conversations,
                              .max_wakes = o->max_wakes};
    if (o->prefill_rate_32k > o->prefill_rate)
        return err_set(
            err, -EINVAL,
            "prefill_rate_32k is %u; expected at most prefill_rate, which is "
            "%u",
            o->prefill_rate_32k, o->prefill_rate);
    set_compute(o, m);
    set_policy(o, m);
    return policy_check(&m->policy, err);
}
