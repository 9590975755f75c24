/* Answers: that they are right, and the same whoever else is there. */
#include "kernels/json.h"
#include "tests/allocs.h"
#include "tests/server/engine_fixture.h"

static const char *const prompts[] = {
    "hello",
    "the cat sat on the mat",
    "one two three four five six seven eight nine ten",
    "Hello world, this is a test. Numbers 123 456 1234 2024.",
};

static struct client client;

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = malloc(1 << 20);
    *n = fread(text, 1, 1 << 20, f);
    fclose(f);
    return text;
}

static void greedy_answers_are_those_of_the_reference(void **state)
{
    (void)state;
    struct world w;
    struct err err;
    size_t n;
    char *text = read_file("tests/golden/models/tiny-rand/expected.json", &n);
    struct json *j;
    assert_int_equal(json_open(&j, text, n, JSON_MAX_DEPTH, &err), 0);
    world_open(&w, &(struct world_options){.model = "tiny-rand"});
    uint32_t cases = 0;
    for (struct json_iter i = json_iter(json_root(j)); json_next(&i); cases++) {
        char *words = NULL,
             *content = json_string_dup(json_get(i.value, "content"), NULL);
        struct json_iter m = json_iter(json_get(i.value, "messages"));
        if (json_next(&m)) words = json_string_dup(json_get(m.value, "content"), NULL);
        uint64_t max, prompt;
        assert_true(json_u64(json_get(i.value, "max_tokens"), &max));
        assert_true(json_u64(json_get(i.value, "prompt_tokens"), &prompt));
        struct request *r = world_chat(&w, words, (uint32_t)max);
        assert_int_equal(r->n_ids, prompt);
        assert_string_equal(client_ask(&client, &w, r), content);
        assert_int_equal(client.choices[0].end.completion_tokens, max);
        assert_int_equal(client.choices[0].end.reason, FINISH_LENGTH);
        free(words);
        free(content);
    }
    assert_int_equal(cases, 4);
    world_close(&w);
    json_close(j);
    free(text);
}

/* ---- many at once ---- */

#define ASKED 48

static uint32_t length_of(uint32_t i)
{
    static const uint32_t lengths[] = {1, 7, 40, 23, 90};
    return lengths[i / ARRAY_LEN(prompts) % ARRAY_LEN(lengths)];
}

static char alone[ASKED][CLIENT_TEXT];

static void ask_alone(void)
{
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-rand"});
    for (uint32_t i = 0; i < ASKED; i++) {
        struct request *r =
            world_chat(&w, prompts[i % ARRAY_LEN(prompts)], length_of(i));
        r->sampling.temperature = i % 3 == 2 ? 1.0f : 0.0f;
        r->sampling.seed = i;
        strcpy(alone[i], client_ask(&client, &w, r));
    }
    world_close(&w);
}

struct asker {
    pthread_t thread;
    struct world *w;
    uint32_t from, step;
    uint32_t wrong, answered;
    unsigned seed;
};

static void *ask_many(void *arg)
{
    struct asker *a = arg;
    struct client *c = calloc(ASKED, sizeof *c);
    for (uint32_t i = a->from; i < ASKED; i += a->step) {
        struct request *r =
            world_chat(a->w, prompts[i % ARRAY_LEN(prompts)], length_of(i));
        r->sampling.temperature = i % 3 == 2 ? 1.0f : 0.0f;
        r->sampling.seed = i;
        client_begin(&c[i], a->w, r);
        if (rand_r(&a->seed) % 8 == 0) usleep(500);
        if (rand_r(&a->seed) % 5) continue;
        request_cancel(r);
        engine_wake(a->w->engine);
    }
    for (uint32_t i = a->from; i < ASKED; i += a->step) {
        client_read(&c[i]);
        if (c[i].choices[0].end.reason != FINISH_CANCELLED) {
            a->answered++;
            a->wrong += strcmp(c[i].choices[0].text, alone[i]) != 0;
        } else {
            a->wrong += strncmp(c[i].choices[0].text, alone[i], c[i].choices[0].n) != 0;
        }
        client_end(&c[i]);
    }
    free(c);
    return NULL;
}

static uint64_t ask_from_threads(const struct world_options *o)
{
    struct world w;
    world_open(&w, o);
    struct asker a[4];
    uint32_t answered = 0;
    for (uint32_t i = 0; i < 4; i++) {
        a[i] = (struct asker){.w = &w, .from = i, .step = 4, .seed = i};
        pthread_create(&a[i].thread, NULL, ask_many, &a[i]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        pthread_join(a[i].thread, NULL);
        assert_int_equal(a[i].wrong, 0);
        answered += a[i].answered;
    }
    assert_true(answered > ASKED / 2);
    assert_true(scrape(&w, "kv_blocks_used") == 0);
    assert_true(scrape(&w, "num_requests_running") == 0);
    assert_true(scrape(&w, "num_requests_waiting") == 0);
    uint64_t preemptions = metrics_counter(w.metrics, COUNTER_PREEMPTIONS);
    world_close(&w);
    return preemptions;
}

static void many_at_once_get_the_answers_they_would_get_alone(void **state)
{
    (void)state;
    ask_alone();
    ask_from_threads(&(struct world_options){.model = "tiny-rand", .max_running = 64});
    ask_from_threads(&(struct world_options){
        .model = "tiny-rand", .max_running = 5, .step_tokens = 21, .max_logits = 7});
}

static void being_put_back_changes_no_answer(void **state)
{
    (void)state;
    ask_alone();
    uint64_t n = ask_from_threads(&(struct world_options){
        .model = "tiny-rand", .blocks = 14, .max_running = 12, .step_tokens = 64});
    assert_true(n > 0);
}

static void choices_differ_by_their_number_and_repeat_by_their_seed(void **state)
{
    (void)state;
    char first[4][CLIENT_TEXT];
    const struct world_options worlds[] = {
        {.model = "tiny-rand"},
        {.model = "tiny-rand", .blocks = 7, .max_running = 8, .step_tokens = 64},
        {.model = "tiny-rand", .max_running = 2, .step_tokens = 18},
    };
    for (uint32_t i = 0; i < ARRAY_LEN(worlds); i++) {
        struct world w;
        world_open(&w, &worlds[i]);
        struct request *r = world_chat(&w, prompts[3], 40);
        r->n_choices = 4;
        r->sampling.temperature = 1;
        r->sampling.seed = 42;
        r->ignore_eos = true;
        client_ask(&client, &w, r);
        for (int c = 0; c < 4; c++) {
            if (i == 0) strcpy(first[c], client.choices[c].text);
            assert_string_equal(client.choices[c].text, first[c]);
            assert_int_equal(client.choices[c].end.completion_tokens, 40);
            for (int d = 0; d < c; d++) assert_string_not_equal(first[c], first[d]);
        }
        if (i == 1) assert_true(metrics_counter(w.metrics, COUNTER_PREEMPTIONS) > 0);
        assert_int_equal(metrics_counter(w.metrics, COUNTER_GENERATION_TOKENS), 160);
        assert_int_equal(metrics_counter(w.metrics, COUNTER_PROMPT_TOKENS), 30);
        world_close(&w);
    }
}

/* ---- text ---- */

static void a_stop_string_ends_the_answer_and_is_not_in_it(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-abc"});
    struct request *r = world_chat(&w, "x", 100);
    request_stop_at(r, "FGH");
    request_stop_at(r, "EFX");
    assert_string_equal(client_ask(&client, &w, r), "ABCDE");
    assert_int_equal(client.choices[0].end.reason, FINISH_STOP);
    assert_int_equal(client.choices[0].end.completion_tokens, 8);

    r = world_chat(&w, "x", 7);
    request_stop_at(r, "FGH");
    r->sampling.logprobs = true;
    assert_string_equal(client_ask(&client, &w, r), "ABCDEFG");
    assert_int_equal(client.choices[0].end.reason, FINISH_LENGTH);
    assert_int_equal(client.choices[0].events, 7);
    world_close(&w);
}

static void a_character_that_the_limit_cuts_is_told_as_one_replacement(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-emoji", .max_running = 1});
    for (uint32_t n = 1; n < 10; n++) {
        char expected[64] = "";
        for (uint32_t i = 0; i < n / 4; i++) strcat(expected, "\xF0\x9F\x98\x80");
        if (n % 4) strcat(expected, "\xEF\xBF\xBD");
        assert_string_equal(client_ask(&client, &w, world_chat(&w, "x", n)), expected);
        assert_int_equal(client.choices[0].end.completion_tokens, n);
        assert_int_equal(client.choices[0].events, n);
    }
    world_close(&w);
}

static void an_end_of_sequence_token_counts_but_is_not_shown(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-abc"});
    const int32_t eos = w.model.config.eos[0];
    for (int ignore = 0; ignore < 2; ignore++) {
        struct request *r = world_chat(&w, "x", 5);
        struct logit_bias *bias = malloc(sizeof *bias);
        *bias = (struct logit_bias){.id = eos, .bias = 1000};
        r->sampling.bias = bias;
        r->sampling.n_bias = 1;
        r->ignore_eos = ignore;
        assert_string_equal(client_ask(&client, &w, r), "");
        assert_int_equal(client.choices[0].end.reason,
                         ignore ? FINISH_LENGTH : FINISH_STOP);
        assert_int_equal(client.choices[0].end.completion_tokens, ignore ? 5 : 1);
    }
    world_close(&w);
}

/* ---- scores ---- */

static void a_scored_prompt_has_the_logprobs_it_was_generated_with(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-rand"});
    struct request *r = world_chat(&w, prompts[1], 60);
    r->sampling.logprobs = true;
    r->sampling.top_logprobs = 5;
    r->ignore_eos = true;
    client_ask(&client, &w, r);
    static struct sample generated[60];
    assert_int_equal(client.n_samples, 60);
    memcpy(generated, client.samples, sizeof generated);
    world_close(&w);

    for (uint32_t logits = 3; logits < 100; logits *= 5) {
        world_open(&w, &(struct world_options){.model = "tiny-rand",
                                               .max_running = 3,
                                               .max_logits = logits,
                                               .step_tokens = 32});
        r = world_chat(&w, prompts[1], 0);
        uint32_t prompt = r->n_ids;
        r->ids = realloc(r->ids, (prompt + 60) * sizeof *r->ids);
        for (uint32_t i = 0; i < 60; i++) r->ids[prompt + i] = generated[i].id;
        r->n_ids = prompt + 60;
        r->n_choices = 2;
        r->prompt_logprobs = r->sampling.logprobs = true;
        r->sampling.top_logprobs = 5;
        client_ask(&client, &w, r);
        assert_int_equal(client.n_prompt, prompt + 60);
        assert_int_equal(client.choices[0].end.reason, FINISH_LENGTH);
        assert_int_equal(client.choices[1].end.completion_tokens, 0);
        for (uint32_t i = 0; i < client.n_prompt; i++)
            assert_int_equal(client.scored[i], i > 0);
        for (uint32_t i = 0; i < 60; i++) {
            const struct sample *s = &client.samples[prompt + i];
            assert_int_equal(s->id, generated[i].id);
            assert_memory_equal(&s->logprob, &generated[i].logprob, sizeof s->logprob);
            assert_memory_equal(s->top, generated[i].top, 5 * sizeof s->top[0]);
        }
        world_close(&w);
    }
}

static void a_conversation_allocates_nothing_in_the_engine(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &(struct world_options){
                       .model = "tiny-rand", .blocks = 14, .max_running = 6});
    struct request *r[12];
    static struct client c[12];
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 12; i++) {
            r[i] = world_chat(&w, prompts[i % 4], 50);
            r[i]->n_choices = 1 + i % 2;
            r[i]->sampling.temperature = 1;
            r[i]->sampling.top_p = 0.9f;
            r[i]->sampling.frequency_penalty = 0.5f;
            r[i]->sampling.logprobs = i % 3 == 0;
            r[i]->sampling.top_logprobs = i % 3 == 0 ? 20 : 0;
            r[i]->prompt_logprobs = i % 6 == 0;
            request_stop_at(r[i], " the");
        }
        unsigned long before = allocs_so_far();
        for (uint32_t i = 0; i < 12; i++) client_begin(&c[i], &w, r[i]);
        for (uint32_t i = 0; i < 12; i++) client_read(&c[i]);
        if (round > 0) assert_int_equal(allocs_so_far(), before);
        for (uint32_t i = 0; i < 12; i++) client_end(&c[i]);
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_answers_are_those_of_the_reference),
        cmocka_unit_test(many_at_once_get_the_answers_they_would_get_alone),
        cmocka_unit_test(being_put_back_changes_no_answer),
        cmocka_unit_test(choices_differ_by_their_number_and_repeat_by_their_seed),
        cmocka_unit_test(a_stop_string_ends_the_answer_and_is_not_in_it),
        cmocka_unit_test(a_character_that_the_limit_cuts_is_told_as_one_replacement),
        cmocka_unit_test(an_end_of_sequence_token_counts_but_is_not_shown),
        cmocka_unit_test(a_scored_prompt_has_the_logprobs_it_was_generated_with),
        cmocka_unit_test(a_conversation_allocates_nothing_in_the_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
