#include "offload/cost.h"

#include <stdlib.h>

/* y = a + b x, fitted by least squares with weights that fade, and drawn a little towards
 * the rates given before anything was observed, so that it is determined at all times. */
struct line {
    double w, x, y, xx, xy;  // sums over the observations, weighted
    double prior_a, prior_b;
    double scale;  // an x at which a deviation of b counts as much as one of a
    double a, b;
};

struct cost {
    struct line prefill;  // ns a token over its position
    struct line load[COST_TIERS];
};

#define FADE 0.96  // of older observations, at each new one: about 25 are remembered
/* The weight of the first rates, in observations.  That of b is larger: where all x are
 * alike, b would be noise, and predictions far from them are made with it. */
#define PRIOR_A 0.005
#define PRIOR_B 0.2
/* One observation moves a rate by no more than this factor of what was predicted, so that
 * a single hiccup is forgotten, and a lasting change is followed in a few steps. */
#define SURPRISE 4.0

static void line_solve(struct line *l)
{
    double weight_b = PRIOR_B * l->scale * l->scale;
    double w = l->w + PRIOR_A, xx = l->xx + weight_b;
    double y = l->y + PRIOR_A * l->prior_a, xy = l->xy + weight_b * l->prior_b;

    double det = w * xx - l->x * l->x;  // positive: both sums include the prior
    l->a = (y * xx - xy * l->x) / det;
    l->b = (w * xy - l->x * y) / det;
    if (l->a < 0) {
        l->a = 0;
        l->b = xy / xx;
    }
    if (l->b < 0) {
        l->b = 0;
        l->a = y / w;
    }
}

static void line_set(struct line *l, double a, double b, double scale)
{
    *l = (struct line){.prior_a = a, .prior_b = b, .scale = scale, .a = a, .b = b};
}

static void line_observe(struct line *l, double x, double y, double weight)
{
    double predicted = l->a + l->b * x;
    if (y > SURPRISE * predicted) y = SURPRISE * predicted;
    if (y < predicted / SURPRISE) y = predicted / SURPRISE;

    l->w = FADE * l->w + weight;
    l->x = FADE * l->x + weight * x;
    l->y = FADE * l->y + weight * y;
    l->xx = FADE * l->xx + weight * x * x;
    l->xy = FADE * l->xy + weight * x * y;
    line_solve(l);
}

int cost_open(struct cost **out, struct err *err)
{
    struct cost *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, -ENOMEM, "no memory for the cost model");
    cost_set_prefill(c, 1e6, 50);
    cost_set_tier(c, COST_RAM, 2e4, 5e9);
    cost_set_tier(c, COST_SSD, 2e5, 1e9);
    *out = c;
    return 0;
}

void cost_close(struct cost *c)
{
    free(c);
}

void cost_set_prefill(struct cost *c, double a, double b)
{
    line_set(&c->prefill, a, b, 2048);
}

void cost_set_tier(struct cost *c, enum cost_tier t, double latency, double bandwidth)
{
    // At this many bytes the transfer takes as long as the latency, or a millisecond.
    double ns = latency > 1e6 ? latency : 1e6;
    line_set(&c->load[t], latency, 1e9 / bandwidth, ns * bandwidth / 1e9);
}

void cost_observe_prefill(struct cost *c, uint32_t from, uint32_t to, uint64_t ns)
{
    if (to <= from) return;
    double n = to - from;
    // A few tokens tell little: of a chunk, the share that is overhead is not prefill.
    line_observe(&c->prefill, (from + (to - 1.0)) / 2, (double)ns / n,
                 n < 64 ? n / 64 : 1);
}

void cost_observe_load(struct cost *c, enum cost_tier t, uint64_t bytes, uint64_t ahead,
                       uint64_t ns)
{
    line_observe(&c->load[t], (double)bytes + (double)ahead, (double)ns, 1);
}

double cost_prefill_ns(const struct cost *c, uint32_t from, uint32_t to)
{
    if (to <= from) return 0;
    double n = to - from, mean = (from + (to - 1.0)) / 2;
    return n * (c->prefill.a + c->prefill.b * mean);
}

double cost_load_ns(const struct cost *c, enum cost_tier t, uint64_t bytes,
                    uint64_t ahead)
{
    if (bytes == 0) return 0;
    return c->load[t].a + c->load[t].b * ((double)bytes + (double)ahead);
}

void cost_decide(const struct cost *c, const struct cost_question *q,
                 struct cost_answer *out)
{
    uint64_t bytes[COST_TIERS] = {0};
    double price = q->compute_price > 1 ? q->compute_price : 1, least = 0;

    *out = (struct cost_answer){0};
    for (uint32_t k = 0; k <= q->n; k++) {
        if (k > 0 && q->tier[k - 1] < COST_TIERS)
            bytes[q->tier[k - 1]] += q->block_bytes;

        double wait = 0;  // the tiers work beside each other
        for (int t = 0; t < COST_TIERS; t++) {
            double ns = cost_load_ns(c, (enum cost_tier)t, bytes[t], q->queued[t]);
            if (ns > wait) wait = ns;
        }
        double compute =
            cost_prefill_ns(c, (q->first + k) * q->block_tokens, q->prompt);
        double total = price * compute + wait;
        if (k == 0) out->without_ns = compute;
        if (k == 0 || total <= least) {
            least = total;
            out->load = k;
            out->load_ns = wait;
            out->compute_ns = compute;
        }
    }
}
