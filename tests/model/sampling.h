/* sampling.h - what the tests of the sampler share: data, and the formula written plainly.
 *
 * Threads  one.
 */
#ifndef TESTS_MODEL_SAMPLING_H
#define TESTS_MODEL_SAMPLING_H

#include "model/sampler.h"
#include "tests/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define VOCAB 1000

static const struct sampling PLAIN = {.temperature = 1, .top_p = 1};

static inline struct sampler *open_sampler(uint32_t vocab)
{
    struct sampler *s = NULL;
    struct err err;
    assert_int_equal(sampler_open(&s, vocab, &err), 0);
    return s;
}

static inline int32_t pick(struct sampler *s, const float *logits,
                           const struct sampling *how, uint32_t step)
{
    struct sample out;
    assert_int_equal(sampler_pick(s, logits, how, 0, step, NULL, 0, &out), 0);
    return out.id;
}

static inline void random_logits(float *logits, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        logits[i] =
            (float)(random_next(&seed) % 4096) / 200.0f - 10.0f;  // with many ties
}

struct entry {
    double p;
    float logit;
    int32_t id;
};

static inline int best_first(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Sort the whole vocabulary and answer how many of its best are kept. */
static inline uint32_t reference(const float *logits, uint32_t n,
                                 const struct sampling *how, struct entry *e)
{
    for (uint32_t i = 0; i < n; i++) e[i] = (struct entry){0, logits[i], (int32_t)i};
    qsort(e, n, sizeof *e, best_first);
    uint32_t kept = how->top_k > 0 && how->top_k < n ? how->top_k : n;

    double total = 0, mass = 0;
    for (uint32_t i = 0; i < kept; i++) {
        e[i].p =
            exp(((double)e[i].logit - (double)e[0].logit) / (double)how->temperature);
        total += e[i].p;
    }
    uint32_t head = 0;
    while (head < kept && (head == 0 || mass < (double)how->top_p * total))
        mass += e[head++].p;
    kept = head;
    while (kept > 1 && e[kept - 1].p < (double)how->min_p) kept--;
    return kept;
}

#endif
