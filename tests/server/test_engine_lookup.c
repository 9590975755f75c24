/* Speculative decoding by prompt lookup: the same answers, to the last bit, in fewer steps. */
#include "tests/allocs.h"
#include "tests/random.h"
#include "tests/server/engine_prompts.h"

#define ASKED 10

static struct client plain[ASKED], with[ASKED];

/* Phrases of a few tokens, over and over: so that what comes next was there before, as often
 * as not with another end. */
static void repeat_phrases(struct request *r, uint64_t *seed, uint32_t vocab)
{
    uint32_t phrase[3][8];
    for (uint32_t i = 0; i < 24; i++)
        phrase[i / 8][i % 8] =
            (i < 16 ? 40 : 0) + random_below(seed, i < 16 ? 30 : vocab);
    for (uint32_t i = 0; i < r->n_ids;) {
        uint32_t k = random_below(seed, 3), n = 2 + random_below(seed, 7);
        for (uint32_t at = 0; at < n && i < r->n_ids; at++)
            r->ids[i++] = (int32_t)phrase[k][at];
    }
}

static void add_bias(struct request *r, uint64_t *seed)
{
    struct logit_bias *bias = malloc(4 * sizeof *bias);
    for (uint32_t i = 0; i < 4; i++)
        bias[i] = (struct logit_bias){(int32_t)(40 + random_below(seed, 30)),
                                      4.0f + (float)random_below(seed, 8)};
    r->sampling.bias = bias;
    r->sampling.n_bias = 4;
}

/* Everything a request may ask for, by the number of it. */
static struct request *any_request(const struct world *w, uint64_t number)
{
    uint64_t seed = number;
    uint32_t n = 4 + random_below(&seed, 60);
    struct request *r =
        prompt_of(w, n, (uint32_t)number, 0, 1 + random_below(&seed, 70));
    repeat_phrases(r, &seed, w->model.config.vocab - 8);
    r->sampling.temperature =
        random_below(&seed, 3) ? 0 : 0.3f + 0.1f * (float)random_below(&seed, 8);
    r->sampling.seed = number;
    r->sampling.top_k = random_below(&seed, 4) ? 0 : 1 + random_below(&seed, 20);
    r->sampling.top_p = random_below(&seed, 4) ? 1 : 0.8f;
    r->sampling.presence_penalty = random_below(&seed, 4) ? 0 : 0.6f;
    r->sampling.frequency_penalty = random_below(&seed, 4) ? 0 : 0.02f;
    r->sampling.logprobs = random_below(&seed, 4) > 0;
    r->sampling.top_logprobs = r->sampling.logprobs ? random_below(&seed, 6) : 0;
    r->prompt_logprobs = random_below(&seed, 8) == 0;
    r->n_choices = random_below(&seed, 4) ? 1 : 1 + random_below(&seed, CLIENT_CHOICES);
    r->ignore_eos = random_below(&seed, 4) > 0;
    if (random_below(&seed, 2)) add_bias(r, &seed);
    if (random_below(&seed, 3) == 0) {
        request_stop_at(r, "JKLMNOPQ");
        request_stop_at(r, "e t");
    }
    return r;
}

/* All but the order in which choices of one request were told. */
static void assert_same_answer(const struct client *a, const struct client *b)
{
    assert_int_equal(a->n_samples, b->n_samples);
    assert_int_equal(a->n_prompt, b->n_prompt);
    for (uint32_t c = 0; c < CLIENT_CHOICES; c++) {
        const struct choice *x = &a->choices[c], *y = &b->choices[c];
        assert_int_equal(x->events, y->events);
        assert_int_equal(x->n, y->n);
        assert_memory_equal(x->text, y->text, x->n);
        assert_int_equal(x->end.reason, y->end.reason);
        assert_int_equal(x->end.completion_tokens, y->end.completion_tokens);
        assert_int_equal(x->end.has_logprob, y->end.has_logprob);
    }
    for (uint32_t i = 0; a->choices[1].over == false && i < a->n_samples; i++) {
        const struct sample *x = &a->samples[i], *y = &b->samples[i];
        assert_int_equal(x->id, y->id);
        assert_int_equal(a->scored[i], b->scored[i]);
        assert_int_equal(a->text_n[i], b->text_n[i]);
        if (!a->scored[i]) continue;
        assert_memory_equal(&x->logprob, &y->logprob, sizeof x->logprob);
        assert_int_equal(x->n_top, y->n_top);
        assert_memory_equal(x->top, y->top, x->n_top * sizeof *x->top);
    }
}

struct drafts {
    uint64_t drafted, accepted, put_back;
};

static struct drafts drafts_of(const struct world *w)
{
    return (struct drafts){
        metrics_counter(w->metrics, COUNTER_DRAFT_TOKENS),
        metrics_counter(w->metrics, COUNTER_ACCEPTED_TOKENS),
        metrics_counter(w->metrics, COUNTER_PREEMPTIONS),
    };
}

/* The same requests without drafts one by one, and with them all at once. */
static struct drafts answers_are_the_same(const struct world_options *o, uint64_t round)
{
    struct world cold, w;
    world_open(&cold, &(struct world_options){.model = o->model});
    world_open(&w, o);
    for (uint32_t i = 0; i < ASKED; i++)
        client_begin(&with[i], &w, any_request(&w, round * ASKED + i));
    for (uint32_t i = 0; i < ASKED; i++) {
        client_ask(&plain[i], &cold, any_request(&cold, round * ASKED + i));
        client_read(&with[i]);
        client_end(&with[i]);
        assert_same_answer(&plain[i], &with[i]);
    }
    wait_until(scrape(&w, "kv_blocks_used") == 0);
    assert_int_equal(metrics_counter(cold.metrics, COUNTER_GENERATION_TOKENS),
                     metrics_counter(w.metrics, COUNTER_GENERATION_TOKENS));
    assert_int_equal(metrics_counter(cold.metrics, COUNTER_DRAFT_TOKENS), 0);
    struct drafts d = drafts_of(&w);
    world_close(&cold);
    world_close(&w);
    return d;
}

static void add_drafts(struct drafts *sum, struct drafts d)
{
    sum->drafted += d.drafted;
    sum->accepted += d.accepted;
    sum->put_back += d.put_back;
}

static const char *const models[] = {"tiny-rand", "tiny-abc"};

static void any_answer_is_the_same_with_drafts_as_without(void **state)
{
    (void)state;
    struct drafts sum = {0};
    for (uint32_t i = 0; i < 40; i++)
        add_drafts(&sum, answers_are_the_same(
                             &(struct world_options){
                                 .model = models[i % 2],
                                 .max_running = 1 + i % 5,
                                 .max_logits = 1 + i % 5 + 3 + i % 29,
                                 .step_tokens = 21 + i * 7,
                                 .prompt_lookup = 1 + i % 16,
                             },
                             i));
    assert_true(sum.accepted > 0 && sum.accepted < sum.drafted);
}

/* Over a pool that holds two or three of them, with and without tiers below. */
static void those_who_sleep_and_wake_between_drafts_answer_the_same(void **state)
{
    (void)state;
    struct drafts sum = {0};
    for (uint32_t i = 0; i < 40; i++)
        add_drafts(&sum, answers_are_the_same(
                             &(struct world_options){
                                 .model = models[i % 2],
                                 .blocks = 12 + i % 6,
                                 .context = 12 * 16,
                                 .max_running = 3,
                                 .max_logits = 20,
                                 .step_tokens = 64,
                                 .prompt_lookup = 3 + i % 8,
                                 .keeps = i % 4 > 0,
                                 .ram_blocks = i % 4 > 1 ? 20 : 0,
                             },
                             100 + i));
    assert_true(sum.accepted > 0 && sum.accepted < sum.drafted);
    assert_true(sum.put_back > 0);
}

/* The alphabet over and over: what follows has been said. */
static struct request *alphabet(const struct world *w, uint32_t max_tokens)
{
    struct request *r = world_chat(w, "x", max_tokens);
    r->ignore_eos = true;
    return r;
}

static const struct world_options drafting = {
    .model = "tiny-abc", .max_running = 2, .max_logits = 18, .prompt_lookup = 8};

static void a_text_that_repeats_takes_fewer_steps(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &drafting);
    client_ask(&with[0], &w, alphabet(&w, 2000));
    assert_int_equal(with[0].choices[0].end.completion_tokens, 2000);
    struct drafts d = drafts_of(&w);
    assert_true(d.accepted > 1000);
    assert_int_equal(metrics_counter(w.metrics, COUNTER_STEPS), 2000 - d.accepted);
    world_close(&w);
}

/* A block that is found again holds what was accepted, and nothing that was only drafted. */
static void what_was_computed_with_drafts_is_found_by_the_turn_after_it(void **state)
{
    (void)state;
    struct world cold, w;
    uint64_t accepted = 0;
    for (uint32_t round = 0; round < 20; round++) {
        struct world_options o = drafting;
        o.model = models[round % 2];
        o.keeps = true;
        world_open(&cold, &(struct world_options){.model = o.model});
        world_open(&w, &o);
        uint64_t seed = round;
        struct request *r = prompt_of(&w, 40, 1, 0, 90), *turn[2];
        repeat_phrases(r, &seed, 500);
        for (int i = 0; i < 2; i++) {
            turn[i] = prompt_of(&w, 40 + 90 + 5, 1, 0, 20);
            memcpy(turn[i]->ids, r->ids, 40 * sizeof *r->ids);
        }
        client_ask(&with[0], &w, r);
        for (int i = 0; i < 2; i++)
            for (uint32_t k = 0; k < 90; k++)
                turn[i]->ids[40 + k] = with[0].samples[k].id;
        client_ask(&plain[0], &cold, turn[0]);
        client_ask(&with[0], &w, turn[1]);
        assert_same(&plain[0], &with[0]);
        assert_int_equal(cached(&with[0]), (40 + 90 - 1) / 16 * 16);
        accepted += drafts_of(&w).accepted;
        world_close(&cold);
        world_close(&w);
    }
    assert_true(accepted > 0);
}

/* Nothing is computed behind the last token. */
static void no_more_is_drafted_than_the_reply_may_have(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &drafting);
    client_ask(&plain[0], &w,
               alphabet(&w, 60));  // of which no more than 30 are different
    world_close(&w);
    for (uint32_t most = 1; most < 8; most++) {
        world_open(&w, &drafting);
        struct request *r = prompt_of(&w, 60, 1, 0, most);
        for (uint32_t i = 0; i < 60; i++) r->ids[i] = plain[0].samples[i].id;
        r->ids[59] = r->ids[0];
        client_ask(&with[0], &w, r);
        uint64_t drafted = drafts_of(&w).drafted;
        assert_true(drafted <= (most - 1) * (most - 2) / 2);
        assert_true(most < 5 || drafted > 0);
        world_close(&w);
    }
}

/* Nobody reads until the outbox is full, in the middle of some drafts; then all tokens are
 * there, each once and with its own text. */
static void a_reader_who_comes_late_misses_nothing(void **state)
{
    (void)state;
    struct world cold, w;
    world_open(&cold, &(struct world_options){.model = "tiny-abc"});
    client_ask(&plain[0], &cold, alphabet(&cold, 800));
    for (uint32_t most = 2; most <= 9; most++) {
        struct world_options o = drafting;
        o.prompt_lookup = most;
        world_open(&w, &o);
        client_begin(&with[0], &w, alphabet(&w, 800));
        wait_until(!request_has_room(with[0].r));
        client_read(&with[0]);
        client_end(&with[0]);
        assert_same_answer(&plain[0], &with[0]);
        assert_true(drafts_of(&w).accepted > 0);
        world_close(&w);
    }
    world_close(&cold);
}

static void drafting_allocates_nothing(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &drafting);
    for (uint32_t round = 0; round < 2; round++) {
        struct request *r = alphabet(&w, 300);
        unsigned long before = allocs_so_far();
        client_begin(&with[0], &w, r);
        client_read(&with[0]);
        if (round > 0) assert_int_equal(allocs_so_far(), before);
        client_end(&with[0]);
    }
    assert_true(drafts_of(&w).accepted > 0);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_answer_is_the_same_with_drafts_as_without),
        cmocka_unit_test(those_who_sleep_and_wake_between_drafts_answer_the_same),
        cmocka_unit_test(a_text_that_repeats_takes_fewer_steps),
        cmocka_unit_test(what_was_computed_with_drafts_is_found_by_the_turn_after_it),
        cmocka_unit_test(no_more_is_drafted_than_the_reply_may_have),
        cmocka_unit_test(a_reader_who_comes_late_misses_nothing),
        cmocka_unit_test(drafting_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
