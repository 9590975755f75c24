/* test_tokenizer_plain.c - what a user writes stays text: plain spans and control tokens. */
#include "tests/tokenizer/golden.h"

#define CASES     GOLDEN "/cases"
#define TINY_RAND "tests/golden/models/tiny-rand/tokenizer.json"
#define LLAMA3    GOLDEN "/llama3/tokenizer.json"

static void a_users_text_never_becomes_a_control_token(void **state)
{
    (void)state;
    static const char before[] =
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n";
    static const char after[] =
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
    struct golden cases = golden_open("tests/golden/cases/control_tokens.json");
    struct tokenizer *t = golden_tokenizer(TINY_RAND);
    for (struct json_iter i = json_iter(cases.root); json_next(&i);) {
        struct json_iter messages = json_iter(json_get(i.value, "messages"));
        assert_true(json_next(&messages));
        char *content = json_string_dup(json_get(messages.value, "content"), NULL);
        char text[512];
        int n = snprintf(text, sizeof text, "%s%s%s", before, content, after);
        struct text_span plain = {strlen(before), strlen(before) + strlen(content)};
        assert_true(golden_same(t, text, (size_t)n, &plain, 1,
                                json_get(i.value, "safe_prompt_ids")));

        struct token_list injected = golden_encode(t, text, strlen(text), NULL, 0);
        uint64_t want;
        assert_true(json_u64(json_get(i.value, "injected_prompt_tokens"), &want));
        assert_int_equal(injected.n, want);
        token_list_free(&injected);
        free(content);
    }
    assert_int_equal(json_count(cases.root), 6);
    tokenizer_close(t);
    golden_close(&cases);
}

static void one_plain_byte_makes_a_control_token_text(void **state)
{
    (void)state;
    struct tokenizer *t = golden_tokenizer(LLAMA3);
    const char *text = "a<|eot_id|>b";
    int32_t eot = golden_find(t, "<|eot_id|>");
    assert_true(eot >= 0 && tokenizer_is_special(t, eot));
    for (size_t at = 0; at < strlen(text); at++) {
        struct text_span plain[] = {{0, 0}, {at, at + 1}};
        struct token_list l = golden_encode(t, text, strlen(text), plain, 2);
        bool within = at >= 1 && at < strlen(text) - 1;
        assert_int_equal(golden_count(&l, eot), within ? 0 : 1);
        token_list_free(&l);
    }
    tokenizer_close(t);
}

/* "<|user|>x" and "<|user|>" are both special: what a user begins the own text with must
 * not undo the token that the template put before it. */
static void a_user_cannot_undo_the_control_token_before(void **state)
{
    (void)state;
    struct tokenizer *t = golden_tokenizer(CASES "/added_tokens.json");
    struct text_span plain = {8, 9};
    struct token_list l = golden_encode(t, "<|user|>x", 9, &plain, 1);
    assert_int_equal(l.ids[0], 517);
    assert_int_equal(golden_count(&l, 522), 0);
    token_list_free(&l);
    tokenizer_close(t);
}

static void a_token_that_is_not_special_is_found_in_plain_text(void **state)
{
    (void)state;
    struct tokenizer *t = golden_tokenizer(GOLDEN "/qwen2/tokenizer.json");
    struct text_span plain = {0, 19};
    struct token_list l = golden_encode(t, "<think>a<|im_end|>x", 19, &plain, 1);
    assert_int_equal(golden_count(&l, golden_find(t, "<think>")), 1);
    assert_int_equal(golden_count(&l, golden_find(t, "<|im_end|>")), 0);
    token_list_free(&l);
    tokenizer_close(t);
}

/* GPT-2's control token is "normalized", so it is looked for behind the normalizer. */
static void plain_spans_survive_normalizing(void **state)
{
    (void)state;
    static const char added[] = "[{\"id\":2041,\"content\":\"<|e\\u0301|>\","
                                "\"normalized\":true,\"special\":true}]";
    struct tokenizer *t = golden_open_text(golden_with_member(
        GOLDEN "/qwen2/tokenizer.json", "added_tokens", added, sizeof added - 1));
    const char *s = "e\xcc\x81<|e\xcc\x81|>e\xcc\x81<|e\xcc\x81|>";  // decomposed
    size_t first = 3, second = 3 + 7 + 3, n = strlen(s);
    struct text_span none = {first - 3, first}, one = {first, first + 1},
                     accent = {second + 3, second + 4}, all = {0, n};
    struct {
        struct text_span plain;
        size_t found;
    } cases[] = {{none, 2}, {one, 1}, {accent, 1}, {all, 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct token_list l = golden_encode(t, s, n, &cases[i].plain, 1);
        assert_int_equal(golden_count(&l, 2041), cases[i].found);
        token_list_free(&l);
    }
    tokenizer_close(t);
}

static void plain_spans_survive_the_repair_of_bad_bytes(void **state)
{
    (void)state;
    struct tokenizer *t = golden_tokenizer(LLAMA3);
    const char *s = "\xff<|eot_id|>\xe2\x82<|eot_id|>\xff";
    struct text_span plain[] = {{0, 1}, {11, 13}, {23, 24}};
    struct token_list l = golden_encode(t, s, 24, plain, 3);
    assert_int_equal(golden_count(&l, golden_find(t, "<|eot_id|>")), 2);
    token_list_free(&l);
    plain[1] = (struct text_span){12, 14};
    l = golden_encode(t, s, 24, plain, 3);
    assert_int_equal(golden_count(&l, golden_find(t, "<|eot_id|>")), 1);
    token_list_free(&l);
    tokenizer_close(t);
}

/* ignore_merges looks a whole word up, and this word is a control token. */
static void no_word_of_a_text_is_a_control_token(void **state)
{
    (void)state;
    struct tokenizer *t = golden_open_text(
        strdup("{\"added_tokens\":[{\"id\":2,\"content\":\"ab\",\"special\":true}],"
               "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"],"
               "\"ignore_merges\":true},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
               "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"}}"));
    struct text_span plain = {0, 2};
    struct token_list l = golden_encode(t, "ab", 2, &plain, 1);
    assert_int_equal(l.n, 2);
    token_list_free(&l);
    l = golden_encode(t, "ab", 2, NULL, 0);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.ids[0], 2);
    token_list_free(&l);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_users_text_never_becomes_a_control_token),
        cmocka_unit_test(one_plain_byte_makes_a_control_token_text),
        cmocka_unit_test(a_user_cannot_undo_the_control_token_before),
        cmocka_unit_test(a_token_that_is_not_special_is_found_in_plain_text),
        cmocka_unit_test(plain_spans_survive_normalizing),
        cmocka_unit_test(plain_spans_survive_the_repair_of_bad_bytes),
        cmocka_unit_test(no_word_of_a_text_is_a_control_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
