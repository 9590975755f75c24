/* best_cases.h - rows of logits that are hard to rank, the plain answer, and a step of a backend
 * that asks for it.
 */
#ifndef TESTS_KERNELS_BEST_CASES_H
#define TESTS_KERNELS_BEST_CASES_H

#include "tests/kernels/fixture.h"

static const uint32_t vocabularies[] = {1, 2, 31, 64, 65, 511, 513, 1000, 4099};

enum row_kind {
    RANDOM,
    TIES,   // among a few values
    ALIKE,  // all of them
    ZEROS,  // of both signs
    RARE,   // -inf but for some
    LAST,   // the best is the last one
    WITH_NAN,
    WITH_MINUS_NAN,
    WITH_INFINITY,
    ONLY_MINUS_INFINITY,
    ROW_KINDS
};

static inline float *new_row(enum row_kind kind, uint32_t n, uint64_t seed)
{
    float *x = random_floats(seed + kind, n);
    for (uint32_t i = 0; i < n; i++) {
        if (kind == TIES) x[i] = floorf(x[i] * 3);
        if (kind == ALIKE) x[i] = -2.5f;
        if (kind == ZEROS) x[i] = i % 3 ? -0.0f : 0.0f;
        if (kind == RARE && i % 97 != n % 97) x[i] = -INFINITY;
        if (kind == ONLY_MINUS_INFINITY) x[i] = -INFINITY;
    }
    uint32_t at = (uint32_t)(seed * 31 % n);
    if (kind == LAST) x[n - 1] = 2;
    if (kind == WITH_NAN) x[at] = NAN;
    if (kind == WITH_MINUS_NAN) x[at] = -NAN;
    if (kind == WITH_INFINITY) x[at] = INFINITY;
    return x;
}

/* The k best, each found by looking at all. */
static inline void plain_best(struct best *out, uint32_t k, const float *x, uint32_t n)
{
    bool broken = false, finite = false;
    for (uint32_t i = 0; i < n; i++) {
        broken |= isnan(x[i]) || (isinf(x[i]) && x[i] > 0);
        finite |= !isinf(x[i]);
    }
    out[0] = (struct best){-1, 0};
    if (broken || !finite) return;
    bool *taken = calloc(n, sizeof *taken);
    assert_non_null(taken);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t top = UINT32_MAX;
        for (uint32_t j = 0; j < n; j++)
            if (!taken[j] && (top == UINT32_MAX || x[j] > x[top])) top = j;
        taken[top] = true;
        out[i] = (struct best){(int32_t)top, x[top]};
    }
    free(taken);
}

static inline void assert_best(const struct best *got, const float *x, uint32_t k,
                               uint32_t n)
{
    struct best want[BEST_MOST];
    plain_best(want, k, x, n);
    for (uint32_t i = 0; i < (want[0].id < 0 ? 1 : k); i++) {
        if (got[i].id != want[i].id)
            fail_msg("place %u of %u among %u: id %d, not %d", i, k, n, got[i].id,
                     want[i].id);
        assert_memory_equal(&got[i].logit, &want[i].logit, sizeof got[i].logit);
    }
}

/* ---- steps ---- */

/* A model of one column: row r of the logits is w times scales[r % 3]. */
static const float scales[] = {1, -1, 0.5f};

struct ranking {
    struct backend *b;
    uint32_t vocab;
    struct matrix w, table;
    struct buffer x, last;
    float *logits;
    struct best *best;
    struct step s;
    uint32_t n_best[64];
};

static inline void ranking_open(struct ranking *t, struct backend *b, const float *w,
                                uint32_t vocab)
{
    struct err err;
    t->b = b;
    t->vocab = vocab;
    t->w = new_matrix(b, w, DTYPE_F32, vocab, 1, NULL);
    t->table = new_matrix(b, scales, DTYPE_F32, 3, 1, NULL);
    t->x = new_buffer(b, 64, 1);
    t->last = new_buffer(b, 64, 1);
    assert_int_equal(backend_logits_alloc(b, &t->logits, 64, vocab, &err), 0);
    assert_int_equal(backend_best_alloc(b, &t->best, 64, &err), 0);
}

static inline void ranking_close(struct ranking *t)
{
    backend_logits_free(t->b, t->logits);
    backend_best_free(t->b, t->best);
    backend_buffer_free(t->b, &t->x);
    backend_buffer_free(t->b, &t->last);
    backend_matrix_free(t->b, &t->w);
    backend_matrix_free(t->b, &t->table);
}

/* Begin a step of n sequences of one row, or of one sequence, that asks for the best
 * n_best[i] of row i; its end is the caller's. */
static inline void ranking_begin(struct ranking *t, uint32_t n, bool decode,
                                 uint32_t usable)
{
    struct step *s = &t->s;
    step_clear(s);
    if (!decode) step_add(s, 0, n, NULL);
    for (uint32_t i = 0; i < n; i++) {
        if (decode) step_add(s, 0, 1, &i);
        s->ids[i] = (int32_t)(i % 3);
        s->logit_rows[i] = i;
    }
    s->batch.n_logits = n;
    s->batch.n_best = t->n_best;
    s->batch.n_usable = usable;
    backend_begin(t->b, &s->batch, frequencies(16), 16);
    backend_embed(t->b, &t->x, &t->table);
    backend_gather_logit_rows(t->b, &t->last, &t->x);
    backend_logits(t->b, t->logits, &t->w, &t->last);
    backend_best(t->b, t->best, t->logits, t->vocab);
}

/* What the step says of each row is the plain answer, or the row. */
static inline void ranking_check(const struct ranking *t, const float *w, uint32_t n,
                                 uint32_t usable)
{
    float *row = malloc(t->vocab * sizeof *row);
    assert_non_null(row);
    for (uint32_t r = 0; r < n; r++) {
        const float *got = t->logits + (size_t)r * t->vocab;
        for (uint32_t i = 0; i < t->vocab; i++) row[i] = w[i] * scales[r % 3] + 0.0f;
        if (t->n_best[r] > 0)
            assert_best(t->best + (size_t)r * BEST_MOST, row, t->n_best[r], usable);
        else
            for (uint32_t i = 0; i < t->vocab; i++)
                assert_true(got[i] == row[i] || (isnan(got[i]) && isnan(row[i])));
    }
    free(row);
}

static inline void ranking_run(struct ranking *t, const float *w, uint32_t n,
                               bool decode, uint32_t usable)
{
    ranking_begin(t, n, decode, usable);
    finish(t->b);
    ranking_check(t, w, n, usable);
}

/* Every kind of row, of many sizes; asking for none, one, some and the most.  Of all such
 * cases the part-th of `parts`, which has every kind where parts and ROW_KINDS share no
 * divisor. */
static inline void check_ranking(struct backend *b, uint32_t part, uint32_t parts)
{
    static struct ranking t;
    for (uint32_t i = part; i < ARRAY_LEN(vocabularies) * ROW_KINDS; i += parts) {
        uint32_t vocab = vocabularies[i / ROW_KINDS];
        uint32_t usable = vocab - vocab / 5,
                 most = usable < BEST_MOST ? usable : BEST_MOST;
        float *w = new_row((enum row_kind)(i % ROW_KINDS), vocab, i);
        const uint32_t asked[] = {1, 0, most, (most + 1) / 2};
        ranking_open(&t, b, w, vocab);
        for (uint32_t r = 0; r < 64; r++) t.n_best[r] = asked[(r + i) % 4];
        ranking_run(&t, w, 1 + i % 9, false, usable);
        for (uint32_t again = 0; again < 3; again++) {
            t.n_best[0] = asked[again];
            ranking_run(&t, w, 4, true, again ? usable : vocab);
        }
        ranking_close(&t);
        free(w);
    }
}

#endif
