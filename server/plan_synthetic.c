/* plan_synthetic.c - a made-up day of conversations. */
#include "server/plan_build.h"

#include <math.h>

/* Of Mooncake's conversation trace: the chance of a next turn after the first, the second
 * and so on, and pauses whose percentiles 10, 50, 90 and 99 are 42, 123, 477 and 1470 s. */
static const double next_turn[] = {.27, .40, .53, .60, .67};
#define PAUSE_MEDIAN_S 123.0
#define PAUSE_SPREAD   1.0  // of the logarithm
#define LENGTH_SPREAD  0.8
#define MOST_TURNS     64

struct random {
    uint64_t state;
};

static double uniform(struct random *r)  // in (0, 1)
{
    r->state = plan_mix(r->state);
    return ((double)(r->state >> 12) + .5) / 4503599627370496.0;
}

static double log_normal(struct random *r, double median, double spread)
{
    double a = uniform(r), b = uniform(r);
    double normal = sqrt(-2 * log(a)) * cos(6.283185307179586 * b);
    return median * exp(spread * normal);
}

static uint32_t length(struct random *r, uint32_t median)
{
    double x = log_normal(r, median, LENGTH_SPREAD);
    if (x < 1) return 1;
    return x > PLAN_MAX_TOKENS / 256 ? PLAN_MAX_TOKENS / 256 : (uint32_t)x;
}

static int make_session(struct plan_trace *t, const struct plan_synthetic *o,
                        struct random *r, uint64_t at, struct err *err)
{
    uint32_t before = PLAN_NONE, kept = 0;
    for (uint32_t n = 0; n < MOST_TURNS; n++) {
        struct plan_turn turn = {
            .prompt = kept + length(r, n ? o->turn_tokens : o->first_tokens),
            .reply = length(r, o->reply_tokens)};
        turn.n_blocks = plan_full_blocks(turn.prompt, turn.reply);
        if (n)
            turn.wait = (uint64_t)(log_normal(r, PAUSE_MEDIAN_S, PAUSE_SPREAD) *
                                   (double)PLAN_S);
        else
            turn.at = at;
        uint32_t i;
        int rc = plan_add_turn(t, &turn, before, &i, err);
        if (rc) return rc;
        plan_name_blocks(t, i, before, kept);
        before = i;
        kept = turn.prompt + turn.reply;
        size_t chance = n < ARRAY_LEN(next_turn) ? n : ARRAY_LEN(next_turn) - 1;
        if (uniform(r) >= next_turn[chance]) break;
    }
    return 0;
}

int plan_trace_make(struct plan_trace *t, const struct plan_synthetic *o,
                    struct err *err)
{
    struct random r = {plan_mix(o->seed)};
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < o->conversations; i++)
        rc = make_session(t, o, &r, (uint64_t)(uniform(&r) * (double)o->duration), err);
    return rc;
}
