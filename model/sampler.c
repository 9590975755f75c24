#include "model/sampler.h"

#include "kernels/best.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOGPROB_MIN  (-9999.0f)
#define BUCKET_SHIFT 17                                   // see bucket_of()
#define BUCKETS      ((0x3f800000u >> BUCKET_SHIFT) + 1)  // of weights 0 to 1

/* Between calls every count is 0; the other arrays hold nothing that matters. */
struct sampler {
    uint32_t vocab, usable;
    float *adjusted;   // (vocab) logits after bias and penalties; or the best alone
    float *weight;     // (vocab) exp((logit - largest) / temperature); 0: excluded
    uint64_t *ranked;  // (vocab) best_rank() of the ids that are to be sorted
    uint32_t *count;   // (vocab) how often an id occurs in the history
    double mass[BUCKETS];
};

int sampler_open(struct sampler **out, uint32_t vocab, struct err *err)
{
    if (vocab == 0 || vocab > INT32_MAX)
        return err_set(err, -EINVAL, "a vocabulary of %u ids cannot be sampled", vocab);

    struct sampler *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, -ENOMEM, "no memory for a sampler");

    s->vocab = s->usable = vocab;
    s->adjusted = malloc(vocab * sizeof *s->adjusted);
    s->weight = malloc(vocab * sizeof *s->weight);
    s->ranked = malloc(vocab * sizeof *s->ranked);
    s->count = calloc(vocab, sizeof *s->count);
    if (!s->adjusted || !s->weight || !s->ranked || !s->count) {
        sampler_close(s);
        return err_set(err, -ENOMEM, "no memory for a sampler of %u ids", vocab);
    }
    *out = s;
    return 0;
}

void sampler_close(struct sampler *s)
{
    if (!s) return;
    free(s->adjusted);
    free(s->weight);
    free(s->ranked);
    free(s->count);
    free(s);
}

void sampler_set_usable(struct sampler *s, uint32_t usable)
{
    if (usable > 0 && usable <= s->vocab) s->usable = usable;
}

uint32_t sampler_usable(const struct sampler *s)
{
    return s->usable;
}

/* ---- probabilities ---- */

/* exp(x) for x <= 0 within 2 units in the last place, without a branch so that compilers
 * vectorise it; 0 below -87.7.  The polynomial and the two-part ln 2 are those of expf in
 * S. L. Moshier's Cephes library. */
static inline float exp_nonpositive(float x)
{
    uint32_t magnitude;  // of numbers below 0, bits grow as they fall
    memcpy(&magnitude, &x, sizeof magnitude);
    magnitude = magnitude < 0xc2b00f5cu ? magnitude : 0xc2b00f5cu;  // -88.03
    memcpy(&x, &magnitude, sizeof x);

    float n = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to an integer
    n -= 12582912.0f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = ((int32_t)n + 127) * (1 << 23);
    float power;  // 2^n; 0 where n is -127
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static double sum(const float *x, uint32_t n)
{
    double lane[8] = {0};
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (uint32_t j = 0; j < 8; j++) lane[j] += (double)x[i + j];
    }
    for (uint32_t j = 0; i < n; i++, j++) lane[j] += (double)x[i];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
           ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

/* per_temperature is at most 1e30: times 0 it is 0, and times the least difference of two
 * logits it is far below -88. */
static inline float weight_of(float logit, float largest, float per_temperature)
{
    return exp_nonpositive((logit - largest) * per_temperature);
}

static void weigh_all(struct sampler *s, const float *logits, float largest,
                      float per_temperature)
{
    for (uint32_t i = 0; i < s->usable; i++)
        s->weight[i] = weight_of(logits[i], largest, per_temperature);
}

static void weigh_best(struct sampler *s, const float *logits, float largest,
                       float per_temperature, uint32_t k)
{
    best_select(s->ranked, k, logits, s->usable);
    memset(s->weight, 0, s->usable * sizeof *s->weight);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t id = best_id(s->ranked[i]);
        s->weight[id] = weight_of(logits[id], largest, per_temperature);
    }
}

/* The same of k logits that are known to be the best. */
static void weigh_given(struct sampler *s, const struct best *best, uint32_t k,
                        float per_temperature)
{
    memset(s->weight, 0, s->usable * sizeof *s->weight);
    for (uint32_t i = 0; i < k; i++) {
        s->weight[best[i].id] =
            weight_of(best[i].logit, best[0].logit, per_temperature);
        s->adjusted[best[i].id] = best[i].logit;
    }
}

static inline uint32_t bucket_of(float weight)
{
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return bits >> BUCKET_SHIFT;
}

/* Keep the shortest head of the ranking that holds top_p of the mass.  Weights are first
 * added up by their leading bits, 64 buckets to each power of two: whole buckets lie
 * within the head or outside it, and only the one that its end falls into is sorted, and
 * only as far as needed, in a heap with the best at the root (~ turns its order over). */
static void keep_nucleus(struct sampler *s, const float *logits, double top_p)
{
    double want = top_p * sum(s->weight, s->usable), mass = 0;
    memset(s->mass, 0, sizeof s->mass);
    for (uint32_t i = 0; i < s->usable; i++)
        s->mass[bucket_of(s->weight[i])] += (double)s->weight[i];
    uint32_t cut = BUCKETS - 1;
    while (cut > 0 && mass + s->mass[cut] < want) mass += s->mass[cut--];

    uint64_t *heap = s->ranked;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->usable; i++) {
        uint32_t bucket = bucket_of(s->weight[i]);
        if (bucket == cut && s->weight[i] > 0) heap[n++] = ~best_rank(logits[i], i);
        if (bucket < cut) s->weight[i] = 0;
    }
    best_heapify(heap, n);
    for (bool first = true; n > 0 && (first || mass < want); first = false) {
        mass += (double)s->weight[best_id(~heap[0])];
        heap[0] = heap[--n];
        best_sift(heap, n, 0);
    }
    for (uint32_t i = 0; i < n; i++) s->weight[best_id(~heap[i])] = 0;
}

static void keep_likelier_than(struct sampler *s, float min_p)
{
    float least = min_p < 1 ? min_p : 1;  // the likeliest has weight 1 and always stays
    for (uint32_t i = 0; i < s->usable; i++)
        s->weight[i] = s->weight[i] < least ? 0 : s->weight[i];
}

/* The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
 * Generators", 2014, with the constants of Stafford's Mix13). */
static uint64_t mix64(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Number (choice, step) of the SplitMix64 sequence that starts at the mixed seed, as a
 * double in [0, 1): a counter in place of a state. */
static double uniform(uint64_t seed, uint32_t choice, uint32_t step)
{
    uint64_t counter = ((uint64_t)choice << 32 | step) + 1;
    uint64_t bits = mix64(mix64(seed) + counter * 0x9e3779b97f4a7c15u);
    return (double)(bits >> 11) * 0x1p-53;
}

/* The id at which the running sum of weights passes u of the whole.  Rounding may leave
 * the sum short of it at the very end: then the last id with any weight. */
static int32_t draw(const struct sampler *s, double u)
{
    double target = u * sum(s->weight, s->usable), before = 0;
    uint32_t i = 0, last = 0;
    for (double part; i + 64 <= s->usable; i += 64, before += part) {
        part = sum(s->weight + i, 64);
        if (before + part > target) break;
    }
    for (; i < s->usable; i++) {
        before += (double)s->weight[i];
        if (s->weight[i] > 0) last = i;
        if (s->weight[i] > 0 && before > target) return (int32_t)i;
    }
    while (s->weight[last] <= 0) last = last ? last - 1 : s->usable - 1;
    return (int32_t)last;
}

/* ---- logprobs ---- */

static float logprob_of(float logit, float largest, double log_total)
{
    double x = (double)logit - (double)largest - log_total;
    return x > (double)LOGPROB_MIN ? (float)x : LOGPROB_MIN;
}

static void fill_logprobs(struct sampler *s, const float *logits, float largest,
                          uint32_t n_top, struct sample *out)
{
    weigh_all(s, logits, largest, 1);
    double log_total = log(sum(s->weight, s->usable));
    out->logprob = logprob_of(logits[out->id], largest, log_total);

    if (n_top > SAMPLER_MAX_TOP) n_top = SAMPLER_MAX_TOP;
    if (n_top > s->usable) n_top = s->usable;
    out->n_top = n_top;
    if (n_top == 0) return;

    best_select(s->ranked, n_top, logits, s->usable);
    best_sort(s->ranked, n_top);
    for (uint32_t i = 0; i < n_top; i++) {
        uint32_t id = best_id(s->ranked[i]);
        out->top[i] = (struct token_logprob){
            (int32_t)id, logprob_of(logits[id], largest, log_total)};
    }
}

/* ---- picking ---- */

static bool is_adjusted(const struct sampling *how, uint32_t n_history)
{
    bool penal = how->presence_penalty != 0 || how->frequency_penalty != 0;
    return how->n_bias > 0 || (penal && n_history > 0);
}

/* OpenAI's formula: a logit loses presence_penalty once if its id was generated at all,
 * and frequency_penalty for each time. */
static void adjust(struct sampler *s, const float *logits, const struct sampling *how,
                   const int32_t *history, uint32_t n)
{
    memcpy(s->adjusted, logits, s->vocab * sizeof *s->adjusted);
    for (uint32_t i = 0; i < how->n_bias; i++)
        s->adjusted[how->bias[i].id] += how->bias[i].bias;

    for (uint32_t i = 0; i < n; i++) s->count[history[i]]++;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *count = &s->count[history[i]];
        if (*count == 0) continue;
        s->adjusted[history[i]] -=
            how->presence_penalty + how->frequency_penalty * (float)*count;
        *count = 0;
    }
}

static float per_temperature_of(const struct sampling *how)
{
    return 1 / fmaxf(how->temperature, 1e-30f);
}

/* From the weights, for which logits are read where a weight is not 0. */
static int32_t choose_weighted(struct sampler *s, const float *logits,
                               const struct sampling *how, uint32_t choice,
                               uint32_t step)
{
    if (how->top_p < 1) keep_nucleus(s, logits, (double)how->top_p);
    if (how->min_p > 0) keep_likelier_than(s, how->min_p);
    return draw(s, uniform(how->seed, choice, step));
}

static int32_t choose(struct sampler *s, const float *logits, float largest,
                      const struct sampling *how, uint32_t choice, uint32_t step)
{
    if (how->top_k > 0 && how->top_k < s->usable)
        weigh_best(s, logits, largest, per_temperature_of(how), how->top_k);
    else
        weigh_all(s, logits, largest, per_temperature_of(how));
    return choose_weighted(s, logits, how, choice, step);
}

int sampler_pick(struct sampler *s, const float *logits, const struct sampling *how,
                 uint32_t choice, uint32_t step, const int32_t *history, uint32_t n,
                 struct sample *out)
{
    float largest, largest_adjusted;
    int rc = best_largest(logits, s->usable, &largest);
    if (rc < 0) return rc;

    const float *final = logits;
    largest_adjusted = largest;
    if (is_adjusted(how, n)) {
        adjust(s, logits, how, history, n);
        final = s->adjusted;
        rc = best_largest(final, s->usable, &largest_adjusted);
        if (rc < 0) return rc;
    }
    out->n_top = 0;
    out->logprob = 0;
    out->id = how->temperature > 0
                  ? choose(s, final, largest_adjusted, how, choice, step)
                  : best_id_of(final, largest_adjusted);
    if (how->logprobs) fill_logprobs(s, logits, largest, how->top_logprobs, out);
    return 0;
}

uint32_t sampler_best(const struct sampler *s, const struct sampling *how)
{
    if (is_adjusted(how, 1) || how->logprobs) return 0;
    if (how->temperature <= 0) return 1;
    if (how->top_k > BEST_MOST) return 0;
    return how->top_k < s->usable ? how->top_k : s->usable;
}

int sampler_pick_best(struct sampler *s, const struct best *best,
                      const struct sampling *how, uint32_t choice, uint32_t step,
                      struct sample *out)
{
    if (best[0].id < 0) return -EDOM;
    out->n_top = 0;
    out->logprob = 0;
    out->id = best[0].id;
    if (how->temperature <= 0) return 0;
    weigh_given(s, best, sampler_best(s, how), per_temperature_of(how));
    out->id = choose_weighted(s, s->adjusted, how, choice, step);
    return 0;
}

int sampler_score(struct sampler *s, const float *logits, const struct sampling *how,
                  int32_t id, struct sample *out)
{
    if (id < 0 || (uint32_t)id >= s->usable) return -EINVAL;
    float largest;
    int rc = best_largest(logits, s->usable, &largest);
    if (rc < 0) return rc;

    out->id = id;
    out->n_top = 0;
    out->logprob = 0;
    if (how->logprobs) fill_logprobs(s, logits, largest, how->top_logprobs, out);
    return 0;
}
