/* engine_prompts.h - prompts that tests of the store make up, and answers compared bit by bit.
 *
 * Threads  the test's own.
 */
#ifndef TESTS_SERVER_ENGINE_PROMPTS_H
#define TESTS_SERVER_ENGINE_PROMPTS_H

#include "tests/server/engine_fixture.h"

/* The prompt of n ids that a small generator gives; the first `same` of seed 1. */
static inline struct request *prompt_of(const struct world *w, uint32_t n,
                                        uint32_t seed, uint32_t same,
                                        uint32_t max_tokens)
{
    struct request *r = world_request(w, "x", max_tokens);
    r->ids = realloc(r->ids, n * sizeof *r->ids);
    r->n_ids = n;
    uint32_t vocab = w->model.config.vocab - 8;
    for (uint32_t i = 0, x = 1, y = seed; i < n; i++) {
        x = x * 1664525 + 1013904223;
        y = y * 1664525 + 1013904223;
        r->ids[i] = (int32_t)((i < same ? x : y) >> 8) % (int32_t)vocab;
    }
    r->ignore_eos = true;
    r->sampling.logprobs = true;
    return r;
}

/* Every token and every logprob, bit for bit. */
static inline void assert_same(const struct client *a, const struct client *b)
{
    assert_int_equal(a->n_samples, b->n_samples);
    for (uint32_t i = 0; i < a->n_samples; i++) {
        assert_int_equal(a->samples[i].id, b->samples[i].id);
        assert_memory_equal(&a->samples[i].logprob, &b->samples[i].logprob,
                            sizeof a->samples[i].logprob);
    }
    assert_string_equal(a->choices[0].text, b->choices[0].text);
}

static inline uint32_t cached(const struct client *c)
{
    return c->choices[0].end.cached_tokens;
}

#endif
