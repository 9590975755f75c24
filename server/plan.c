/* plan.c - the command `dormouse plan`. */
#include "server/plan.h"

#include "server/plan_build.h"
#include "server/plan_options.h"
#include "server/plan_report.h"

#include <stdio.h>

static int get_trace(struct plan_trace *t, const struct plan_options *o,
                     struct err *err)
{
    const struct plan_synthetic made = {.conversations = o->synthetic,
                                        .duration = o->duration_ms * PLAN_MS,
                                        .seed = o->seed,
                                        .first_tokens = o->first_tokens,
                                        .turn_tokens = o->turn_tokens,
                                        .reply_tokens = o->reply_tokens};
    int rc = o->synthetic ? plan_trace_make(t, &made, err)
                          : plan_trace_load(t, o->trace, err);
    if (rc) return rc;
    plan_trace_thin(t, o->sample, o->seed);
    plan_trace_spread(t, o->spread_ms * PLAN_MS, o->seed);
    return 0;
}

static int print_report(const struct plan_options *o, const struct plan_machine *m,
                        const struct plan_result *with,
                        const struct plan_result *without, struct err *err)
{
    struct bytes text = {0};
    if (o->json)
        plan_report_json(&text, m, with, without);
    else
        plan_report_text(&text, m, with, without);
    int rc = 0;
    if (text.failed)
        rc = err_set(err, -ENOMEM, "there is no memory for the report");
    else if (fwrite(text.data, 1, text.n, stdout) != text.n || fflush(stdout))
        rc = err_set(err, -EIO, "standard output cannot be written");
    bytes_free(&text);
    return rc;
}

static int plan(const struct plan_options *o, struct err *err)
{
    struct plan_trace t = {0};
    struct plan_machine m;
    struct plan_result with = {0}, without = {0};
    int rc = plan_options_machine(o, &m, err);
    if (rc == 0) rc = get_trace(&t, o, err);
    if (rc == 0) rc = plan_replay(&with, &t, &m, err);
    if (rc == 0) {
        struct plan_machine bare = m;
        bare.ram.bytes = bare.ssd.bytes = 0;
        rc = plan_replay(&without, &t, &bare, err);
    }
    if (rc == 0) rc = print_report(o, &m, &with, &without, err);
    plan_result_free(&with);
    plan_result_free(&without);
    plan_trace_free(&t);
    return rc;
}

int plan_command(int argc, char **argv)
{
    struct err err = {{0}};
    struct plan_options o;
    int rc = plan_options_read(&o, argc, argv, &err);
    if (rc > 0) return 0;
    if (rc == 0) rc = plan(&o, &err);
    if (rc) fprintf(stderr, "dormouse plan: %s\n", err.msg);
    return rc != 0;
}
