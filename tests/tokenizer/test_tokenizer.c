/* test_tokenizer.c - what a file says is followed, for texts of any size, by any thread. */
#include "tests/random.h"
#include "tests/tokenizer/golden.h"
#include "tokenizer/detok.h"
#include "tokenizer/tokenizer_parts.h"

#include <pthread.h>

#define CASES     GOLDEN "/cases"
#define TINY_RAND "tests/golden/models/tiny-rand/tokenizer.json"
#define LLAMA3    GOLDEN "/llama3/tokenizer.json"

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

static void every_step_of_a_pre_tokenizer_cuts_like_the_reference(void **state)
{
    (void)state;
    struct golden steps = golden_open(GOLDEN "/steps.json");
    for (struct json_iter i = json_iter(steps.root); json_next(&i);) {
        size_t n;
        const char *value = json_raw(json_get(i.value, "pre_tokenizer"), &n);
        struct tokenizer *t = golden_open_text(golden_with_member(
            GOLDEN "/smollm2-small/tokenizer.json", "pre_tokenizer", value, n));
        check_cases(t, json_get(i.value, "texts"), NULL);
        tokenizer_close(t);
    }
    assert_true(json_count(steps.root) > 20);
    golden_close(&steps);
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
    return golden_open_text(copy);
}

static void expect_ids(const struct tokenizer *t, const char *text, const char *want)
{
    struct token_list l = golden_encode(t, text, strlen(text), NULL, 0);
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
    assert_int_equal(golden_find(t, "a"), 3);
    assert_int_equal(golden_find(t, "b"), -1);
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
    assert_int_equal(tokenizer_encode(t, "aaaa", 4, NULL, 0, 3, &l, &err), -EOVERFLOW);
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

/* In one piece, whatever the tokenizer does with long ones. */
static size_t join_word(const struct tokenizer *t, struct bpe_scratch *s,
                        const char *word, size_t n)
{
    size_t k = 0;
    assert_int_equal(bpe_scratch_reserve(s, n), 0);
    for (size_t i = 0; i < n; i++) s->symbol[i].id = t->byte_id[(unsigned char)word[i]];
    assert_int_equal(bpe_join(&t->bpe, s, n), 0);
    for (int32_t i = 0; i >= 0; i = s->symbol[i].next) k++;
    return k;
}

static void a_word_of_any_length_has_the_tokens_that_it_has_in_one_piece(void **state)
{
    (void)state;
    static const char *const letters[] = {"a", "ab", "aab", "hello",
                                          "abcdefghijklmnopqrstuvwxyz"};
    struct tokenizer *t = golden_tokenizer(LLAMA3);
    struct bpe_scratch s = {0};
    size_t most = 300000;
    char *word = malloc(most);
    uint64_t seed = 1;
    for (size_t kind = 0; kind < 2 * ARRAY_LEN(letters); kind++) {
        const char *of = letters[kind / 2];
        size_t n = most - 4097 * kind;
        for (size_t i = 0; i < n; i++) {
            uint64_t any = random_step(&seed) >> 33;
            word[i] = of[(kind % 2 ? any : i) % strlen(of)];
        }
        struct token_list got = golden_encode(t, word, n, NULL, 0);
        assert_int_equal(got.n, join_word(t, &s, word, n));
        int32_t at = 0;
        for (size_t i = 0; i < got.n; i++, at = s.symbol[at].next)
            assert_int_equal(got.ids[i], s.symbol[at].id);
        token_list_free(&got);
    }
    bpe_scratch_free(&s);
    tokenizer_close(t);
    free(word);
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
        struct tokenizer *t = golden_open_text(
            golden_with_member(LLAMA3, "pre_tokenizer", step, (size_t)n_step));
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
        cmocka_unit_test(a_byte_without_a_token_vanishes_and_its_neighbours_meet),
        cmocka_unit_test(an_unknown_byte_becomes_the_unknown_token),
        cmocka_unit_test(ids_may_have_holes_and_any_id_may_be_asked_for),
        cmocka_unit_test(blanks_that_a_token_has_eaten_are_no_token_again),
        cmocka_unit_test(a_raw_blank_and_the_one_of_the_alphabet_are_two_tokens),
        cmocka_unit_test(max_ids_is_a_limit),
        cmocka_unit_test(a_megabyte_of_anything_is_encoded_and_comes_back),
        cmocka_unit_test(a_word_of_any_length_has_the_tokens_that_it_has_in_one_piece),
        cmocka_unit_test(a_pattern_that_needs_too_much_work_fails),
        cmocka_unit_test(four_threads_get_equal_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
