#include "offload/cost.h"

#include <math.h>
#include <stdlib.h>

/* y = a + b x, fitted by least squares with weights that fade, and drawn a little towards
 * the rates given before anything was observed, so that it is determined at all times. */
struct line {
    double w, x, y, xx, xy;  // sums over the observations, weighted
    double prior_a, prior_b;
    double scale;  // an x at which a deviation of b counts as much as one of a
    double a, b;
};

struct rates {
    double a, b;
};

struct channel {
    struct line line;    // ns over bytes
    struct rates bound;  // the line as it was at `since`
    uint64_t since;      // what was asked for before is bounded by that
    uint64_t seen;       // the last observation
};

struct cost {
    struct line prefill;  // ns a token over its position
    struct channel load[COST_TIERS];
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

static double line_at(const struct line *l, double x)
{
    return l->a + l->b * x;
}

static double rates_at(struct rates r, double x)
{
    return r.a + r.b * x;
}

static double clamp(double y, double low, double high)
{
    return y < low ? low : y > high ? high : y;
}

/* bound: what was predicted for x. */
static void line_observe(struct line *l, double x, double y, double weight,
                         double bound)
{
    y = clamp(y, bound / SURPRISE, bound * SURPRISE);
    l->w = FADE * l->w + weight;
    l->x = FADE * l->x + weight * x;
    l->y = FADE * l->y + weight * y;
    l->xx = FADE * l->xx + weight * x * x;
    l->xy = FADE * l->xy + weight * x * y;
    line_solve(l);
}

static void line_scale(struct line *l, double factor)
{
    l->y *= factor;
    l->xy *= factor;
    line_solve(l);
}

/* Between what was calibrated and what is remembered, on a scale of ratios. */
static double between(double calibrated, double remembered, double share)
{
    if (!(calibrated > 0 && remembered > 0)) return share * remembered;
    return calibrated * pow(remembered / calibrated, share);
}

/* A of cost.h, whose coefficients lie between those of C and P. */
static struct rates believed(const struct channel *c, uint64_t now)
{
    const struct line *l = &c->line;
    double t = now > c->seen ? (double)(now - c->seen) : 0;
    double share = exp2(-t / (double)COST_HALF);
    return (struct rates){between(l->prior_a, l->a, share),
                          between(l->prior_b, l->b, share)};
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
    c->load[t] = (struct channel){.bound = {latency, 1e9 / bandwidth}};
    line_set(&c->load[t].line, latency, 1e9 / bandwidth, ns * bandwidth / 1e9);
}

void cost_observe_prefill(struct cost *c, uint32_t from, uint32_t to, uint64_t ns)
{
    if (to <= from) return;
    double n = to - from, x = (from + (to - 1.0)) / 2;
    // A few tokens tell little: of a chunk, the share that is overhead is not prefill.
    line_observe(&c->prefill, x, (double)ns / n, n < 64 ? n / 64 : 1,
                 line_at(&c->prefill, x));
}

void cost_observe_load(struct cost *c, const struct cost_load *l, uint64_t now)
{
    struct channel *ch = &c->load[l->tier];
    double x = (double)l->bytes + (double)l->ahead;
    double p = line_at(&ch->line, x), aged = rates_at(believed(ch, now), x);
    double low = p < aged ? p : aged, high = p < aged ? aged : p;
    double y = clamp(low, (double)l->least, (double)l->most);
    if (p > 0) line_scale(&ch->line, clamp(y, low, high) / p);
    ch->seen = now;

    uint64_t asked = now > l->most ? now - l->most : 0;
    if (asked >= ch->since) {
        ch->bound = (struct rates){ch->line.a, ch->line.b};
        ch->since = now;
    }
    line_observe(&ch->line, x, y, 1, rates_at(ch->bound, x));
}

double cost_prefill_ns(const struct cost *c, uint32_t from, uint32_t to)
{
    if (to <= from) return 0;
    double n = to - from, mean = (from + (to - 1.0)) / 2;
    return n * line_at(&c->prefill, mean);
}

double cost_load_ns(const struct cost *c, enum cost_tier t, uint64_t bytes,
                    uint64_t ahead)
{
    if (bytes == 0) return 0;
    return line_at(&c->load[t].line, (double)bytes + (double)ahead);
}

/* What is predicted where the first k blocks are loaded. */
static struct cost_answer answer_of(const struct cost *c, const struct cost_question *q,
                                    const struct rates *rates, uint32_t k,
                                    const uint64_t *bytes)
{
    double wait = 0;  // the tiers work beside each other
    for (int t = 0; t < COST_TIERS; t++) {
        double x = (double)bytes[t] + (double)q->queued[t];
        double ns = bytes[t] ? rates_at(rates[t], x) : 0;
        if (ns > wait) wait = ns;
    }
    return (struct cost_answer){
        .load = k,
        .load_ns = wait,
        .compute_ns = cost_prefill_ns(c, (q->first + k) * q->block_tokens, q->prompt),
        .without_ns = cost_prefill_ns(c, q->first * q->block_tokens, q->prompt),
    };
}

/* The best number of blocks from `from` to `to`, by these rates. */
static struct cost_answer best(const struct cost *c, const struct cost_question *q,
                               const struct rates *rates, uint32_t from, uint32_t to)
{
    uint64_t bytes[COST_TIERS] = {0};
    double price = q->compute_price > 1 ? q->compute_price : 1, least = 0;
    struct cost_answer out = {0};
    for (uint32_t k = 0; k <= to; k++) {
        if (k > 0 && q->tier[k - 1] < COST_TIERS)
            bytes[q->tier[k - 1]] += q->block_bytes;
        if (k < from) continue;
        struct cost_answer a = answer_of(c, q, rates, k, bytes);
        double total = price * a.compute_ns + a.load_ns;
        if (k > from && total > least) continue;
        least = total;
        out = a;
    }
    return out;
}

void cost_decide(const struct cost *c, const struct cost_question *q,
                 struct cost_answer *out)
{
    struct rates remembered[COST_TIERS], now[COST_TIERS];
    for (int t = 0; t < COST_TIERS; t++) {
        remembered[t] = (struct rates){c->load[t].line.a, c->load[t].line.b};
        now[t] = believed(&c->load[t], q->now);
    }
    *out = best(c, q, remembered, 0, q->n);
    uint32_t probe = out->load + 1;
    if (probe <= q->n && best(c, q, now, 0, q->n).load >= probe)
        *out = best(c, q, remembered, probe, probe);
}

/* The latency of a load passes before its first piece is there, in either case. */
double cost_overlap_gain(const struct cost *c, const struct cost_overlap *o)
{
    double load = c->load[COST_RAM].line.b * (double)o->bytes;
    double compute = cost_prefill_ns(c, o->from, o->to);
    double most = 1 - 1.0 / o->pieces;
    double gain = most * (load < compute ? load : compute);
    double stall = load > compute ? most * (load - compute) : 0;
    double others = o->compute_price > 1 ? o->compute_price - 1 : 0;
    return gain - others * stall;
}
