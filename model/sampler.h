/* sampler.h - logits to a token id.
 *
 * Owns     scratch of the size of the vocabulary; nothing allocates after open.
 * Caller   checks the settings: every float is finite, temperature, top_p and min_p at
 *          least 0; ids of bias and history lie in the vocabulary.
 * Exact    the choice depends on the logits, the settings, the history and (seed,
 *          choice, step) alone: random numbers are a function of these three, never a
 *          state that other requests move.  Ties go to the lowest id.
 * Order    logit_bias, then presence and frequency penalties, then (temperature 0: argmax)
 *          temperature, top_k, top_p, min_p, draw.  top_p counts the mass of what top_k
 *          left; min_p is relative to the likeliest token.  logprobs are of the model's
 *          own distribution: log-softmax of the logits before any of these.
 * Time     O(vocab + history) for each token; only the ids that top_k, top_p or
 *          top_logprobs can keep are ever sorted.
 * Threads  one at a time for each sampler.
 */
#ifndef MODEL_SAMPLER_H
#define MODEL_SAMPLER_H

#include "kernels/best.h"

#define SAMPLER_MAX_TOP  20    // top_logprobs
#define SAMPLER_MAX_BIAS 1024  // entries of logit_bias

struct logit_bias {
    int32_t id;
    float bias;
};

struct sampling {
    float temperature;                          // 0: greedy
    uint32_t top_k;                             // 0: all
    float top_p;                                // 1: all
    float min_p;                                // 0: all
    float presence_penalty, frequency_penalty;  // over generated tokens
    uint64_t seed;
    bool logprobs;
    uint32_t top_logprobs;          // at most SAMPLER_MAX_TOP; with logprobs only
    const struct logit_bias *bias;  // borrowed; ids within the vocabulary
    uint32_t n_bias;
};

struct token_logprob {
    int32_t id;
    float logprob;  // natural logarithm, finite: clamped at -9999
};

struct sample {
    int32_t id;
    float logprob;  // valid with logprobs
    uint32_t n_top;
    struct token_logprob top[SAMPLER_MAX_TOP];  // by falling logprob, then rising id
};

struct sampler;
NODISCARD int sampler_open(struct sampler **out, uint32_t vocab, struct err *err);
void sampler_close(struct sampler *s);

/* Ids from `usable` on (without a token, when the model's vocabulary is padded) are never
 * chosen. */
void sampler_set_usable(struct sampler *s, uint32_t usable);
uint32_t sampler_usable(const struct sampler *s);

/* Choose the token of step `step` (0 for the first generated one) of choice `choice`.
 * history: the n generated ids so far.  -EDOM where a logit is NaN or +infinity, or none
 * is finite (a broken model): the request fails, not the server. */
NODISCARD int sampler_pick(struct sampler *s, const float *logits,
                           const struct sampling *how, uint32_t choice, uint32_t step,
                           const int32_t *history, uint32_t n, struct sample *out);

/* How many of the best of the usable logits sampler_pick_best() needs in place of the row; 0:
 * it needs the row, as bias, penalties and logprobs do, and drawing from more than BEST_MOST. */
uint32_t sampler_best(const struct sampler *s, const struct sampling *how);
/* The same token from so many, as best_of_row() has them, that sampler_pick() chooses from the
 * row.  -EDOM likewise. */
NODISCARD int sampler_pick_best(struct sampler *s, const struct best *best,
                                const struct sampling *how, uint32_t choice,
                                uint32_t step, struct sample *out);

/* Logprobs of a given id (prompt tokens of an echo): fills out as pick does where logprobs
 * are asked for.  -EDOM as above; -EINVAL where id is not usable. */
NODISCARD int sampler_score(struct sampler *s, const float *logits,
                            const struct sampling *how, int32_t id, struct sample *out);

#endif
