/* A reply that comes back as text finds its own blocks, whatever tokens its text has. */
#include "tests/server/api_server.h"
#include "tests/server/engine_prompts.h"

#define WORDS "one two three four five six seven eight nine ten the cat sat on the mat"
#define BEGINNING                                                                      \
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n" WORDS              \
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
#define REPLY                                                                          \
    "the cat sat on the mat and then the other cat ran to the river to test it"
#define NEXT                                                                           \
    "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nand then?<|eot_id|>"        \
    "<|start_header_id|>assistant<|end_header_id|>\n\n"

static struct client client, other;
static const struct world_options keeping = {
    .model = "tiny-rand", .keeps = true, .ram_blocks = 256};
static const struct world_options forgetful = {.model = "tiny-rand"};

static void add_ids(struct request *r, const int32_t *ids, size_t n)
{
    r->ids = realloc(r->ids, (r->n_ids + n) * sizeof *r->ids);
    memcpy(r->ids + r->n_ids, ids, n * sizeof *ids);
    r->n_ids += (uint32_t)n;
}

/* The text byte by byte, as no tokenizer would encode it: a model may. */
static void add_bytes(struct request *r, const struct world *w, const char *text)
{
    for (; *text; text++) {
        struct token_list l = {0};
        struct err err;
        struct text_span plain = {0, 1};
        assert_int_equal(
            tokenizer_encode(w->tokenizer, text, 1, &plain, 1, 0, &l, &err), 0);
        add_ids(r, l.ids, l.n);
        token_list_free(&l);
    }
}

/* A conversation whose reply the model had produced byte by byte. */
static struct request *first_turn(const struct world *w, const char *reply)
{
    struct request *r = world_request(w, BEGINNING, 1);
    add_bytes(r, w, reply);
    add_bytes(r, w, "!");  // the block of the last token is never reused
    return r;
}

static struct request *second_turn(const struct world *w, const char *text)
{
    struct request *r = world_request(w, text, 8);
    r->ignore_eos = r->sampling.logprobs = true;
    r->text = strdup(text);
    r->n_text = strlen(text);
    return r;
}

static void a_reply_in_other_tokens_is_found_by_its_text(void **state)
{
    (void)state;
    struct world w, cold;
    world_open(&w, &keeping);
    world_open(&cold, &forgetful);
    struct request *first = first_turn(&w, REPLY);
    uint32_t n_first = first->n_ids - 1;  // without the "!"
    int32_t *ids = malloc(n_first * sizeof *ids);
    memcpy(ids, first->ids, n_first * sizeof *ids);
    client_ask(&client, &w, first);

    struct request *r = second_turn(&w, BEGINNING REPLY NEXT);
    uint32_t canonical = r->n_ids;
    client_begin(&client, &w, r);
    client_read(&client);
    uint32_t reused = n_first / 16 * 16;
    assert_int_equal(cached(&client), reused);
    assert_true(r->n_ids > canonical);
    assert_memory_equal(r->ids, ids, reused * sizeof *ids);

    /* The same ids, where nothing is kept, give the same answer. */
    struct request *again = second_turn(&cold, "x");
    again->n_ids = 0;
    add_ids(again, r->ids, r->n_ids);
    client_begin(&other, &cold, again);
    client_read(&other);
    assert_int_equal(cached(&other), 0);
    assert_same(&client, &other);
    client_end(&client);
    client_end(&other);
    free(ids);
    world_close(&w);
    world_close(&cold);
}

static void another_text_finds_no_more_than_its_tokens_do(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &keeping);
    client_ask(&client, &w, first_turn(&w, REPLY));
    struct request *r = second_turn(&w, BEGINNING "quite another reply" NEXT);
    struct request *beginning = world_request(&w, BEGINNING, 1);
    uint32_t canonical = r->n_ids;
    client_begin(&client, &w, r);
    client_read(&client);
    assert_int_equal(cached(&client), beginning->n_ids / 16 * 16);
    assert_int_equal(r->n_ids, canonical);
    request_unref(beginning);
    client_end(&client);
    world_close(&w);
}

static void what_was_text_does_not_spell_a_control_token(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &keeping);
    /* Kept: a reply that only looked like the end of a turn. */
    client_ask(&client, &w, first_turn(&w, "<|eot_id|> and so on and so on and so on"));
    struct request *r =
        second_turn(&w, BEGINNING "<|eot_id|> and so on and so on and so on" NEXT);
    uint32_t canonical = r->n_ids;
    client_begin(&client, &w, r);
    client_read(&client);
    assert_int_equal(r->n_ids, canonical);
    client_end(&client);
    world_close(&w);
}

/* What a call says of itself before its end, as when its client leaves, is read while the
 * engine may be putting other tokens into its prompt. */
static void usage_keeps_off_a_prompt_that_is_being_recalled(void **state)
{
    (void)state;
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"" WORDS "\"},"
        "{\"role\":\"assistant\",\"content\":\"" REPLY "\"},"
        "{\"role\":\"user\",\"content\":\"and then?\"}],\"max_tokens\":4}";
    struct server s;
    server_open(&s, &keeping);
    client_ask(&client, &s.w, first_turn(&s.w, REPLY));
    struct api_call *c;
    struct api_error e = {0};
    struct bytes out = {0};
    sem_t woken;
    sem_init(&woken, 0, 0);
    assert_int_equal(api_prepare(s.api, API_CHAT, body, strlen(body), 0, &c, &e), 0);
    uint32_t encoded = request_of(c, 0)->n_ids;
    assert_int_equal(api_submit(c, wake_reader, &woken, &e), 0);
    assert_int_equal(api_call_usage(c).prompt, encoded);
    while (read_on(c, &out, &e) != API_DONE) sem_wait(&woken);
    assert_true(api_call_usage(c).prompt > encoded);
    api_call_free(c);
    bytes_free(&out);
    server_close(&s);
    sem_destroy(&woken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reply_in_other_tokens_is_found_by_its_text),
        cmocka_unit_test(another_text_finds_no_more_than_its_tokens_do),
        cmocka_unit_test(what_was_text_does_not_spell_a_control_token),
        cmocka_unit_test(usage_keeps_off_a_prompt_that_is_being_recalled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
