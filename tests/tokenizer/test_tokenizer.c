/* test_tokenizer.c - what a file says is followed, and what a user writes stays text. */
#include "tests/tokenizer/golden.h"
#include "tokenizer/detok.h"

#include <pthread.h>

#define CASES     GOLDEN "/cases"
#define TINY_RAND "tests/golden/models/tiny-rand/tokenizer.json"
#define LLAMA3    GOLDEN "/llama3/tokenizer.json"

static struct token_list encode(const struct tokenizer *t, const char *text)
{
    return golden_encode(t, text, strlen(text), NULL, 0);
}

/* Decoded as a whole; free it. */
static char *decode(const struct tokenizer *t, const struct token_list *l)
{
    char *text = malloc((l->n + 1) * detok_max_bound(t) + 1);
    assert_non_null(text);
    struct detok d;
    size_t n = 0;
    detok_init(&d, false);
    for (size_t i = 0; i < l->n; i++) n += detok_push(&d, t, l->ids[i], text + n);
    n += detok_flush(&d, text + n);
    text[n] = 0;
    return text;
}

static int32_t find(const struct tokenizer *t, const char *content)
{
    return tokenizer_find(t, content, strlen(content));
}

static size_t count_id(const struct token_list *l, int32_t id)
{
    size_t count = 0;
    for (size_t i = 0; i < l->n; i++) count += l->ids[i] == id;
    return count;
}

/* ---- goldens of single rules ---- */

/* Each {"text", "ids"} of an array; with `back`, decoding gives what is at that key. */
static void check_cases(const struct tokenizer *t, struct json_value cases,
                        const char *back)
{
    assert_true(json_count(cases) > 0);
    unsigned failed = 0;
    for (struct json_iter i = json_iter(cases); json_next(&i);) {
        size_t n;
        char *text = json_string_dup(json_get(i.value, "text"), &n);
        assert_non_null(text);
        failed += !golden_same(t, text, n, NULL, 0, json_get(i.value, "ids"));
        if (back) {
            struct token_list l = golden_encode(t, text, n, NULL, 0);
            char *got = decode(t, &l);
            failed += !json_equals(json_get(i.value, back), got) && strlen(text) == n;
            free(got);
            token_list_free(&l);
        }
        free(text);
    }
    assert_int_equal(failed, 0);
}

static void merges_may_be_strings_or_pairs(void **state)
{
    (void)state;
    static const char *const files[] = {CASES "/merges_strings.json",
                                        CASES "/merges_lists.json"};
    struct golden want = golden_open(CASES "/merges_expected.json");
    size_t n;
    char *text = json_string_dup(json_get(want.root, "text"), &n);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        struct tokenizer *t = golden_tokenizer(files[i]);
        assert_true(golden_same(t, text, n, NULL, 0, json_get(want.root, "ids")));
        tokenizer_close(t);
    }
    free(text);
    golden_close(&want);
}

static void added_tokens_obey_their_flags(void **state)
{
    (void)state;
    struct golden cases = golden_open(CASES "/added_tokens_cases.json");
    struct tokenizer *t = golden_tokenizer(CASES "/added_tokens.json");
    check_cases(t, cases.root, "decoded_keep");
    tokenizer_close(t);
    golden_close(&cases);
}

static void unicode_classes_are_those_of_the_reference(void **state)
{
    (void)state;
    struct golden cases = golden_open(CASES "/classes_cases.json");
    struct tokenizer *t = golden_tokenizer(TINY_RAND);
    check_cases(t, cases.root, "text");
    tokenizer_close(t);
    golden_close(&cases);
}

/* The text of the tokenizer at `path` with another value for one of its members. */
static char *with_member(const char *path, const char *key, const char *value, size_t n)
{
    struct golden g = golden_open(path);
    size_t n_old, n_text = strlen(g.text);
    const char *old = json_raw(json_get(g.root, key), &n_old);
    assert_non_null(old);
    char *text = malloc(n_text + n + 1);
    assert_non_null(text);
    snprintf(text, n_text + n + 1, "%.*s%.*s%s", (int)(old - g.text), g.text, (int)n,
             value, old + n_old);
    golden_close(&g);
    return text;
}

static struct tokenizer *open_text(char *text)
{
    struct tokenizer *t = NULL;
    struct err err;
    if (tokenizer_open(&t, text, strlen(text), "T", &err) < 0) fail_msg("%s", err.msg);
    free(text);
    return t;
}

static void every_step_of_a_pre_tokenizer_cuts_like_the_reference(void **state)
{
    (void)state;
    struct golden steps = golden_open(GOLDEN "/steps.json");
    for (struct json_iter i = json_iter(steps.root); json_next(&i);) {
        size_t n;
        const char *value = json_raw(json_get(i.value, "pre_tokenizer"), &n);
        struct tokenizer *t = open_text(with_member(
            GOLDEN "/smollm2-small/tokenizer.json", "pre_tokenizer", value, n));
        check_cases(t, json_get(i.value, "texts"), NULL);
        tokenizer_close(t);
    }
    assert_true(json_count(steps.root) > 20);
    golden_close(&steps);
}

/* ---- control tokens ---- */

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

        struct token_list injected = encode(t, text);
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
    int32_t eot = find(t, "<|eot_id|>");
    assert_true(eot >= 0 && tokenizer_is_special(t, eot));
    for (size_t at = 0; at < strlen(text); at++) {
        struct text_span plain[] = {{0, 0}, {at, at + 1}};
        struct token_list l = golden_encode(t, text, strlen(text), plain, 2);
        bool within = at >= 1 && at < strlen(text) - 1;
        assert_int_equal(count_id(&l, eot), within ? 0 : 1);
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
    assert_int_equal(count_id(&l, 522), 0);
    token_list_free(&l);
    tokenizer_close(t);
}

static void a_token_that_is_not_special_is_found_in_plain_text(void **state)
{
    (void)state;
    struct tokenizer *t = golden_tokenizer(GOLDEN "/qwen2/tokenizer.json");
    struct text_span plain = {0, 19};
    struct token_list l = golden_encode(t, "<think>a<|im_end|>x", 19, &plain, 1);
    assert_int_equal(count_id(&l, find(t, "<think>")), 1);
    assert_int_equal(count_id(&l, find(t, "<|im_end|>")), 0);
    token_list_free(&l);
    tokenizer_close(t);
}

/* GPT-2's control token is "normalized", so it is looked for behind the normalizer. */
static void plain_spans_survive_normalizing(void **state)
{
    (void)state;
    static const char added[] = "[{\"id\":2041,\"content\":\"<|e\\u0301|>\","
                                "\"normalized\":true,\"special\":true}]";
    struct tokenizer *t = open_text(with_member(
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
        assert_int_equal(count_id(&l, 2041), cases[i].found);
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
    assert_int_equal(count_id(&l, find(t, "<|eot_id|>")), 2);
    token_list_free(&l);
    plain[1] = (struct text_span){12, 14};
    l = golden_encode(t, s, 24, plain, 3);
    assert_int_equal(count_id(&l, find(t, "<|eot_id|>")), 1);
    token_list_free(&l);
    tokenizer_close(t);
}

/* ---- small files ---- */

#define SMALL(vocab, merges, more)                                                     \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{" vocab "},\"merges\":[" merges "]" more  \
    "},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"          \
    "\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\"}}"

static struct tokenizer *open_small(const char *text)
{
    char *copy = strdup(text);
    assert_non_null(copy);
    return open_text(copy);
}

static void expect_ids(const struct tokenizer *t, const char *text, const char *want)
{
    struct token_list l = encode(t, text);
    char got[256] = "";
    for (size_t i = 0, n = 0; i < l.n; i++) {
        n += (size_t)snprintf(got + n, sizeof got - n, "%s%d", i ? " " : "", l.ids[i]);
    }
    assert_string_equal(got, want);
    token_list_free(&l);
}

static void a_byte_without_a_token_vanishes_and_its_neighbours_meet(void **state)
{
    (void)state;
    struct tokenizer *t =
        open_small(SMALL("\"a\":0,\"b\":1,\"ab\":2", "\"a b\"", ",\"unk_token\":null"));
    expect_ids(t, "axb", "2");
    expect_ids(t, "xyz", "");
    tokenizer_close(t);
}

static void an_unknown_byte_becomes_the_unknown_token(void **state)
{
    (void)state;
    struct tokenizer *t =
        open_small(SMALL("\"a\":0,\"u\":1", "", ",\"unk_token\":\"u\""));
    expect_ids(t, "axxa", "0 1 1 0");
    tokenizer_close(t);
    t = open_small(
        SMALL("\"a\":0,\"u\":1", "", ",\"unk_token\":\"u\",\"fuse_unk\":true"));
    expect_ids(t, "axxa", "0 1 0");
    tokenizer_close(t);
}

static void ids_may_have_holes_and_any_id_may_be_asked_for(void **state)
{
    (void)state;
    struct tokenizer *t = open_small(SMALL("\"a\":3,\"\xc4\xa0\":70000", "", ""));
    size_t n;
    assert_int_equal(tokenizer_size(t), 70001);
    assert_memory_equal(tokenizer_bytes(t, 70000, &n), " ", 1);
    assert_int_equal(n, 1);
    static const int32_t holes[] = {0, 4, 69999, 70001, -1, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < ARRAY_LEN(holes); i++) {
        char out[8];
        struct detok d;
        detok_init(&d, false);
        assert_null(tokenizer_bytes(t, holes[i], &n));
        assert_false(tokenizer_is_special(t, holes[i]));
        assert_int_equal(detok_push(&d, t, holes[i], out), 0);
    }
    expect_ids(t, "a a", "3 70000 3");
    assert_int_equal(find(t, "a"), 3);
    assert_int_equal(find(t, "b"), -1);
    tokenizer_close(t);
}

/* ignore_merges looks a whole word up, and this word is a control token. */
static void no_word_of_a_text_is_a_control_token(void **state)
{
    (void)state;
    struct tokenizer *t = open_small(
        "{\"added_tokens\":[{\"id\":2,\"content\":\"ab\",\"special\":true}],"
        "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"],"
        "\"ignore_merges\":true},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"}}");
    struct text_span plain = {0, 2};
    struct token_list l = golden_encode(t, "ab", 2, &plain, 1);
    assert_int_equal(l.n, 2);
    token_list_free(&l);
    expect_ids(t, "ab", "2");
    tokenizer_close(t);
}

#define SMALL_WITH_ADDED(added)                                                        \
    "{\"added_tokens\":[" added                                                        \
    "],\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"\xc4\xa0\":2},"                         \
    "\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"   \
    "false},\"decoder\":{\"type\":\"ByteLevel\"}}"

static void blanks_that_a_token_has_eaten_are_no_token_again(void **state)
{
    (void)state;
    struct tokenizer *t = open_small(SMALL_WITH_ADDED(
        "{\"id\":3,\"content\":\" \",\"lstrip\":true,\"rstrip\":true}"));
    expect_ids(t, "a    b", "0 3 1");
    tokenizer_close(t);
}

static void a_raw_blank_and_the_one_of_the_alphabet_are_two_tokens(void **state)
{
    (void)state;
    struct tokenizer *t =
        open_small(SMALL_WITH_ADDED("{\"id\":3,\"content\":\"  \"},"
                                    "{\"id\":4,\"content\":\" b\",\"special\":true}"));
    expect_ids(t, "a a  a b", "0 2 0 3 0 4");
    struct text_span plain = {0, 4};
    struct token_list l = golden_encode(t, "a  b", 4, &plain, 1);
    assert_int_equal(l.n, 3);
    assert_int_equal(l.ids[1], 3);
    token_list_free(&l);
    tokenizer_close(t);
}

static void max_ids_is_a_limit(void **state)
{
    (void)state;
    struct tokenizer *t = open_small(SMALL("\"a\":0", "", ""));
    struct token_list l = {0};
    struct err err = {0};
    assert_int_equal(tokenizer_encode(t, "aaa", 3, NULL, 0, 3, &l, &err), 0);
    assert_int_equal(tokenizer_encode(t, "aaaa", 4, NULL, 0, 3, &l, &err), -E2BIG);
    assert_true(l.n <= 6);
    assert_string_not_equal(err.msg, "");
    token_list_free(&l);
    tokenizer_close(t);
}

/* ---- big texts ---- */

static void a_megabyte_of_anything_is_encoded_and_comes_back(void **state)
{
    (void)state;
    static const char *const units[] = {
        "a",         " ",   "1", "\n",           "ab", "a ",        "\xf0\x9f\x98\x80",
        " \xc2\xa0", "\n ", "'", "\xe6\x97\xa5", "<|", "<|eot_id|>"};
    static const char *const files[] = {LLAMA3, GOLDEN "/qwen2/tokenizer.json",
                                        GOLDEN "/smollm2-small/tokenizer.json"};
    size_t size = (size_t)1 << 20;
    char *text = malloc(size + 1);
    assert_non_null(text);
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        struct tokenizer *t = golden_tokenizer(files[f]);
        for (size_t u = 0; u < ARRAY_LEN(units); u++) {
            size_t most = f ? size / 4 : size, unit = strlen(units[u]);
            size_t n = most / unit * unit;
            for (size_t i = 0; i < n; i++) text[i] = units[u][i % unit];
            text[n - 1] = u == 1 ? 'x' : text[n - 1];  // blanks before a letter
            text[n] = 0;
            struct text_span plain = {0, n};
            struct token_list l = golden_encode(t, text, n, &plain, 1);
            char *back = decode(t, &l);
            assert_int_equal(strcmp(back, text), 0);
            free(back);
            token_list_free(&l);
        }
        tokenizer_close(t);
    }
    free(text);
}

static void a_pattern_that_needs_too_much_work_fails(void **state)
{
    (void)state;
    static const char *const patterns[] = {"(?:a|a)*b", "(?:a*)*b", "a(?=a*b)|a",
                                           "a*b"};
    size_t n = 1 << 15;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, 'a', n);
    for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
        char step[256];
        int n_step = snprintf(
            step, sizeof step,
            "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
            "{\"Regex\":\"%s\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":"
            "\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}",
            patterns[i]);
        struct tokenizer *t =
            open_text(with_member(LLAMA3, "pre_tokenizer", step, (size_t)n_step));
        struct token_list l = {0};
        struct err err = {0};
        assert_int_equal(tokenizer_encode(t, text, n, NULL, 0, 0, &l, &err), -E2BIG);
        assert_non_null(strstr(err.msg, "too much work"));
        token_list_free(&l);
        tokenizer_close(t);
    }
    free(text);
}

/* ---- threads ---- */

struct worker {
    const struct tokenizer *t;
    const char *text;
    struct token_list ids;
    pthread_t thread;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct err err;
    for (int i = 0; i < 5; i++) {
        w->ids.n = 0;
        if (tokenizer_encode(w->t, w->text, strlen(w->text), NULL, 0, 0, &w->ids,
                             &err)) {
            return w;
        }
    }
    return NULL;
}

static void four_threads_get_equal_ids(void **state)
{
    (void)state;
    struct tokenizer *t = golden_tokenizer(GOLDEN "/qwen2/tokenizer.json");
    char *text = files_read(GOLDEN "/strings.json", NULL);
    struct worker w[4];
    for (size_t i = 0; i < ARRAY_LEN(w); i++) {
        w[i] = (struct worker){.t = t, .text = text};
        assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(w); i++) {
        void *failed;
        assert_int_equal(pthread_join(w[i].thread, &failed), 0);
        assert_null(failed);
        assert_int_equal(w[i].ids.n, w[0].ids.n);
        assert_memory_equal(w[i].ids.ids, w[0].ids.ids, w[0].ids.n * sizeof(int32_t));
    }
    for (size_t i = 0; i < ARRAY_LEN(w); i++) token_list_free(&w[i].ids);
    free(text);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_may_be_strings_or_pairs),
        cmocka_unit_test(added_tokens_obey_their_flags),
        cmocka_unit_test(unicode_classes_are_those_of_the_reference),
        cmocka_unit_test(every_step_of_a_pre_tokenizer_cuts_like_the_reference),
        cmocka_unit_test(a_users_text_never_becomes_a_control_token),
        cmocka_unit_test(one_plain_byte_makes_a_control_token_text),
        cmocka_unit_test(a_user_cannot_undo_the_control_token_before),
        cmocka_unit_test(a_token_that_is_not_special_is_found_in_plain_text),
        cmocka_unit_test(plain_spans_survive_normalizing),
        cmocka_unit_test(plain_spans_survive_the_repair_of_bad_bytes),
        cmocka_unit_test(a_byte_without_a_token_vanishes_and_its_neighbours_meet),
        cmocka_unit_test(an_unknown_byte_becomes_the_unknown_token),
        cmocka_unit_test(ids_may_have_holes_and_any_id_may_be_asked_for),
        cmocka_unit_test(no_word_of_a_text_is_a_control_token),
        cmocka_unit_test(blanks_that_a_token_has_eaten_are_no_token_again),
        cmocka_unit_test(a_raw_blank_and_the_one_of_the_alphabet_are_two_tokens),
        cmocka_unit_test(max_ids_is_a_limit),
        cmocka_unit_test(a_megabyte_of_anything_is_encoded_and_comes_back),
        cmocka_unit_test(a_pattern_that_needs_too_much_work_fails),
        cmocka_unit_test(four_threads_get_equal_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
