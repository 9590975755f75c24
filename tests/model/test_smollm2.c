/* test_smollm2.c - a real model against greedy replies recorded from transformers in f32.
 *
 * The model is not in the repository: `make model` puts it where this looks for it.
 *
 * All replies are decoded together, as in a server.  A chosen token must be the recorded
 * one wherever the recorded margin between the best two logits exceeds what both of them
 * may be off by; at a nearer tie the recorded token is fed and the reply goes on.  The
 * tolerances hold the largest error in a chosen token's logprob and in the first token's
 * five logits, which the test prints, with some room: 3.5e-5 was seen with f32 KV, 9e-3
 * with f16, and 1.6e-1 on the path that rounds what it multiplies with bf16 weights.
 */
#include "tests/model/fixture.h"
#include "tests/model/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL      "models/smollm2-135m-instruct"
#define CASES      10  // the last has a prompt of 2,963 tokens
#define STEPS      48
#define TOP        5
#define MAX_TOKENS 3100
#define MAX_ROWS   256

#define ROUNDED_TOLERANCE 2.5e-1

struct setup {
    const char *cpu_path;  // NULL: the best
    enum dtype kv;
    double tolerance;  // where inputs of products are not rounded
    uint32_t cases;    // the first of them
};

struct reply {
    int32_t ids[MAX_TOKENS];  // the prompt, then the recorded reply
    uint32_t n_prompt;
    int32_t top_ids[TOP];
    double margins[STEPS], logprobs[STEPS], top_logits[TOP];
    struct kv_table table;
};

struct tally {
    double error;
    uint32_t compared, near_ties, differing;
};

static void read_reply(struct reply *r, struct json_value v)
{
    r->n_prompt = golden_ids(json_get(v, "prompt_ids"), r->ids, MAX_TOKENS - STEPS);
    assert_int_equal(golden_ids(json_get(v, "greedy_ids"), r->ids + r->n_prompt, STEPS),
                     STEPS);
    golden_numbers(json_get(v, "greedy_margins"), r->margins, STEPS);
    golden_numbers(json_get(v, "greedy_logprobs"), r->logprobs, STEPS);
    golden_ids(json_get(json_get(v, "first_top5"), "ids"), r->top_ids, TOP);
    golden_numbers(json_get(json_get(v, "first_top5"), "logits"), r->top_logits, TOP);
    r->table = table_open(kv_blocks_for(MAX_TOKENS));
}

static void compare(struct tally *t, const struct reply *r, uint32_t step,
                    const float *logits, uint32_t vocab, double tolerance)
{
    int32_t want = r->ids[r->n_prompt + step], got = argmax(logits, vocab);
    double logprob = golden_logprob(logits, vocab, want);
    t->error = fmax(t->error, fabs(logprob - r->logprobs[step]));
    for (uint32_t i = 0; i < TOP && step == 0; i++)
        t->error =
            fmax(t->error, fabs((double)logits[r->top_ids[i]] - r->top_logits[i]));

    t->compared++;
    t->differing += got != want;
    if (r->margins[step] <= 2 * tolerance)
        t->near_ties++;
    else
        assert_int_equal(got, want);
}

/* Prompts in chunks, one after the other; the last chunk's logits choose the first token. */
static void prefill(struct fixture *f, struct reply *r, struct tally *t,
                    double tolerance)
{
    for (uint32_t from = 0; from < r->n_prompt; from += MAX_ROWS) {
        uint32_t to = from + MAX_ROWS < r->n_prompt ? from + MAX_ROWS : r->n_prompt;
        step_add(f, &r->table, r->ids, from, to, r->n_prompt - 1);
        const float *logits = step_run(f);
        if (to == r->n_prompt)
            compare(t, r, 0, logits, f->model.config.vocab, tolerance);
    }
}

static void decode_together(struct fixture *f, struct reply *replies, uint32_t n,
                            struct tally *t, double tolerance)
{
    uint32_t vocab = f->model.config.vocab;
    for (uint32_t step = 1; step < STEPS; step++) {
        for (uint32_t i = 0; i < n; i++) {
            uint32_t pos = replies[i].n_prompt + step - 1;
            step_add(f, &replies[i].table, replies[i].ids, pos, pos + 1, pos);
        }
        const float *logits = step_run(f);
        for (uint32_t i = 0; i < n; i++)
            compare(t, &replies[i], step, logits + (size_t)i * vocab, vocab, tolerance);
    }
}

static double tolerance_of(const struct setup *s, const struct backend *b)
{
    return backend_rounds(b, DTYPE_BF16) ? ROUNDED_TOLERANCE : s->tolerance;
}

static void replies_are_the_recorded_ones(void **state)
{
    const struct setup *s = *state;
    if (access(MODEL "/model.safetensors", R_OK) != 0) {
        print_message("skipped: %s is not there (make model)\n", MODEL);
        skip();
    }
    if (s->cases == 0) {
        print_message("skipped: takes minutes under a sanitizer\n");
        skip();
    }
    struct fixture f;
    struct fixture_options o = {MODEL,    s->cpu_path, 0,         s->kv,
                                MAX_ROWS, 300,         WEIGHT_OWN};
    if (!fixture_open(&f, &o)) {
        print_message("skipped: this machine has no %s\n", s->cpu_path);
        skip();
    }
    double tolerance = tolerance_of(s, f.backend);
    struct golden g = golden_open("tests/golden/smollm2", "golden.json");
    static struct reply replies[CASES];
    struct tally t = {0};
    uint32_t n = 0;
    for (struct json_iter i = json_iter(json_root(g.json));
         json_next(&i) && n < s->cases;)
        read_reply(&replies[n++], i.value);

    for (uint32_t i = 0; i < n; i++) prefill(&f, &replies[i], &t, tolerance);
    decode_together(&f, replies, n, &t, tolerance);

    print_message("%s, %s KV: largest error %.1e; %u tokens, %u near ties, %u differ\n",
                  backend_describe(f.backend), dtype_name(s->kv), t.error, t.compared,
                  t.near_ties, t.differing);
    assert_int_equal(t.compared, n * STEPS);
    assert_true(t.error < tolerance);
    for (uint32_t i = 0; i < n; i++) free(replies[i].table.blocks);
    golden_close(&g);
    fixture_close(&f);
}

/* A sanitizer makes the arithmetic several times slower, and of portable C minutes.  What
 * threads do is the same with any path and any KV, each of which test_forward.c has. */
#if WATCHED_ADDRESS || WATCHED_THREAD
#define RUN_CASES      1
#define PORTABLE_CASES 0
#else
#define RUN_CASES      CASES
#define PORTABLE_CASES 1
#endif
#if WATCHED_THREAD
#define OTHER_CASES 0
#else
#define OTHER_CASES RUN_CASES
#endif

int main(void)
{
    static struct setup f32 = {NULL, DTYPE_F32, 5e-4, OTHER_CASES};
    static struct setup f16 = {NULL, DTYPE_F16, 2e-2, RUN_CASES};
    static struct setup avx512 = {"avx512", DTYPE_F32, 5e-4, OTHER_CASES};
    static struct setup portable = {"portable", DTYPE_F32, 5e-4, PORTABLE_CASES};
    const struct CMUnitTest tests[] = {
        {"smollm2_replies_as_recorded_with_f32_kv", replies_are_the_recorded_ones, NULL,
         NULL, &f32},
        {"smollm2_replies_as_recorded_with_f16_kv", replies_are_the_recorded_ones, NULL,
         NULL, &f16},
        {"smollm2_replies_as_recorded_on_avx512", replies_are_the_recorded_ones, NULL,
         NULL, &avx512},
        {"smollm2_replies_as_recorded_on_portable", replies_are_the_recorded_ones, NULL,
         NULL, &portable},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
