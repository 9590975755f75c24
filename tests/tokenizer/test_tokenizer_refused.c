/* test_tokenizer_refused.c - what would be done wrongly is refused, by name. */
#include "tests/tokenizer/golden.h"

#include <sys/stat.h>

/* A small good file, in pieces that the cases below replace. */
#define VOCAB  "{\"a\":0,\"b\":1,\"ab\":2}"
#define MERGES "[\"a b\"]"
#define ADDED  "[{\"id\":3,\"content\":\"<s>\",\"special\":true}]"
#define PRE    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define POST                                                                           \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}}" \
    ","                                                                                \
    "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[3]}}}"
#define DECODER "{\"type\":\"ByteLevel\"}"

static const char good[] =
    "{\"added_tokens\":" ADDED ",\"normalizer\":null,\"pre_tokenizer\":" PRE
    ",\"post_processor\":" POST ",\"decoder\":" DECODER
    ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
    "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
    "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,"
    "\"vocab\":" VOCAB ",\"merges\":" MERGES "}}";

static int open_bytes(const char *text, size_t n, struct err *err)
{
    struct tokenizer *t = NULL;
    int rc = tokenizer_open(&t, text, n, "T.json", err);
    assert_true((rc == 0) == (t != NULL));
    tokenizer_close(t);
    return rc;
}

struct refusal {
    const char *old, *new;  // what is replaced in the good file
    const char *says[3];    // what the message names
};

static void refuse(const struct refusal *r, size_t n)
{
    unsigned failed = 0;
    for (size_t i = 0; i < n; i++) {
        struct err err = {0};
        char *text = files_replace(good, r[i].old, r[i].new);
        int rc = open_bytes(text, strlen(text), &err);
        bool said = rc == -EINVAL && strncmp(err.msg, "T.json: ", 8) == 0;
        for (size_t k = 0; k < ARRAY_LEN(r[i].says) && r[i].says[k]; k++) {
            said &= strstr(err.msg, r[i].says[k]) != NULL;
        }
        if (!said) fprintf(stderr, "%s: %d %s\n", r[i].new, rc, err.msg);
        failed += !said;
        free(text);
    }
    assert_int_equal(failed, 0);
}

static void the_good_file_opens(void **state)
{
    (void)state;
    struct err err = {0};
    if (open_bytes(good, sizeof good - 1, &err) < 0) fail_msg("%s", err.msg);
}

static void other_models_and_options_are_named(void **state)
{
    (void)state;
    static const struct refusal r[] = {
        {"\"BPE\"", "\"Unigram\"", {"model.type", "Unigram", "BPE"}},
        {"\"dropout\":null", "\"dropout\":0.1", {"model.dropout", "0.1"}},
        {"\"byte_fallback\":false", "\"byte_fallback\":true", {"byte_fallback"}},
        {"\"fuse_unk\":false", "\"fuse_unk\":1", {"model.fuse_unk", "true or false"}},
        {"\"unk_token\":null", "\"unk_token\":\"zz\"", {"model.unk_token", "zz"}},
        {"\"unk_token\":null", "\"unk_token\":3", {"model.unk_token", "3"}},
        {"\"end_of_word_suffix\":null",
         "\"end_of_word_suffix\":\"</w>\"",
         {"model.end_of_word_suffix", "</w>"}},
        {"\"continuing_subword_prefix\":null",
         "\"continuing_subword_prefix\":\"##\"",
         {"model.continuing_subword_prefix", "##"}},
        {"\"decoder\":" DECODER,
         "\"decoder\":{\"type\":\"Metaspace\"}",
         {"decoder", "Metaspace", "ByteLevel"}},
        {"\"decoder\":" DECODER, "\"decoder\":null", {"decoder", "null"}},
        {"\"decoder\":" DECODER ",", "", {"decoder", "nothing"}},
        {"\"normalizer\":null",
         "\"normalizer\":{\"type\":\"NFKC\"}",
         {"normalizer", "NFKC"}},
        {"\"normalizer\":null",
         "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
         "{\"type\":\"Prepend\"}]}",
         {"normalizer.normalizers[1]", "Prepend"}},
    };
    refuse(r, ARRAY_LEN(r));
}

#define FOUR(x) x "," x "," x "," x
#define SEQUENCE(steps)                                                                \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" steps "]}"
#define SPLIT(pattern, behavior)                                                       \
    "{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior             \
    "\",\"invert\":false}"
#define REGEX(r) SEQUENCE(SPLIT("{\"Regex\":\"" r "\"}", "Isolated") "," PRE)

static void other_pre_tokenizers_and_patterns_are_named(void **state)
{
    (void)state;
    static const char old[] = "\"pre_tokenizer\":" PRE;
    static const struct refusal r[] = {
        {old, "\"pre_tokenizer\":null", {"pre_tokenizer", "ByteLevel"}},
        {old, SEQUENCE("{\"type\":\"Metaspace\"}"), {"pretokenizers[0]", "Metaspace"}},
        {old, SEQUENCE(PRE "," PRE), {"pretokenizers[1]", "behind ByteLevel"}},
        {old, SEQUENCE(SPLIT("{\"Regex\":\"a\"}", "Odd") "," PRE), {"Odd"}},
        {old, SEQUENCE(SPLIT("{\"Glob\":\"a\"}", "Isolated") "," PRE), {"pattern"}},
        {old,
         SEQUENCE(FOUR(FOUR(SPLIT("{\"String\":\"a\"}", "Isolated"))) "," PRE),
         {"pretokenizers[16]", "more than 16"}},
        {old, REGEX("a("), {"pretokenizers[0]", "byte 2"}},
        {old, REGEX(""), {"pretokenizers[0]", "0 bytes"}},
        {old, REGEX("\\\\w+"), {"\\w"}},
        {old, REGEX("\\\\bx"), {"\\b"}},
        {old, REGEX("\\\\h"), {"\\h"}},
        {old, REGEX("(a)\\\\1"), {"back reference"}},
        {old, REGEX("[a[bc]]"), {"class within a class"}},
        {old, REGEX("[a&&b]"), {"intersection"}},
        {old, REGEX("\\\\p{N}{1,3}+"), {"repeat count with +"}},
        {old, REGEX("a{1000}"), {"above 999"}},
        {old, REGEX("(?s:.)"), {"inline option"}},
        {old, REGEX("(?R)"), {"recursion"}},
        {old, REGEX("(*UCP)a"), {"verb"}},
        {old,
         REGEX(
             "(*UCP) a pattern so long that not all of it goes into a message, as that "
             "would be hard to read"),
         {"...: the pattern"}},
    };
    refuse(r, ARRAY_LEN(r));
}

static void other_post_processors_are_named(void **state)
{
    (void)state;
    static const char old[] = "\"post_processor\":" POST;
    static const struct refusal r[] = {
        {old, "\"post_processor\":{\"type\":\"BertProcessing\"}", {"BertProcessing"}},
        {old,
         "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[" POST "," POST
         "]}",
         {"post_processor.processors[1]", "second"}},
        {"\"ids\":[3]", "\"ids\":[4]", {"post_processor", "4"}},
        {"\"ids\":[3]", "\"ids\":[]", {"<s>"}},
        {"{\"Sequence\":{\"id\":\"A\"}}", "{\"Sequence\":{\"id\":\"B\"}}", {"\"B\""}},
        {",{\"Sequence\":{\"id\":\"A\"}}", "", {"no sequence A"}},
    };
    refuse(r, ARRAY_LEN(r));
}

static void merges_and_vocabularies_that_lie_are_named(void **state)
{
    (void)state;
    static const char merges[] = "\"merges\":" MERGES, vocab[] = "\"vocab\":" VOCAB;
    static const struct refusal r[] = {
        {merges, "\"merges\":{}", {"model.merges"}},
        {merges, "\"merges\":[\"a b\",\"a\"]", {"model.merges[1]", "\"a\""}},
        {merges, "\"merges\":[\"a b c\"]", {"model.merges[0]"}},
        {merges, "\"merges\":[[\"a\",\"b\",\"a\"]]", {"model.merges[0]"}},
        {merges, "\"merges\":[[\"a\",1]]", {"model.merges[0]"}},
        {merges, "\"merges\":[\"x b\"]", {"\"x b\"", "first part"}},
        {merges, "\"merges\":[\"a x\"]", {"\"a x\"", "second part"}},
        {merges, "\"merges\":[\"b a\"]", {"\"b a\"", "result"}},
        {vocab, "\"vocab\":{}", {"model.vocab"}},
        {vocab, "\"vocab\":[]", {"model.vocab"}},
        {vocab, "\"vocab\":{\"a\":0,\"b\":1,\"ab\":1}", {"\"ab\"", "same id"}},
        {vocab, "\"vocab\":{\"a\":0,\"b\":1,\"ab\":4194304}", {"\"ab\"", "2^22"}},
        {vocab, "\"vocab\":{\"a\":0,\"b\":1,\"ab\":-1}", {"\"ab\""}},
        {vocab, "\"vocab\":{\"a\":0,\"b\":1,\"ab\":\"2\"}", {"\"ab\""}},
        {vocab, "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\":5}", {"empty"}},
    };
    refuse(r, ARRAY_LEN(r));
}

static void added_tokens_that_contradict_are_named(void **state)
{
    (void)state;
    static const char old[] = "\"added_tokens\":" ADDED;
#define WITH(more)                                                                     \
    "\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}" more "]"
    static const struct refusal r[] = {
        {old, "\"added_tokens\":{}", {"added_tokens"}},
        {old, WITH(",{\"id\":3,\"content\":\"x\"}"), {"added_tokens[1]", "same id"}},
        {old,
         WITH(",{\"id\":4,\"content\":\"<s>\",\"normalized\":false}"),
         {"same content"}},
        {old, WITH(",{\"id\":0,\"content\":\"x\"}"), {"\"x\"", "same id"}},
        {old, WITH(",{\"id\":4,\"content\":\"a\"}"), {"\"a\"", "another id"}},
        {old, WITH(",{\"id\":4194304,\"content\":\"x\"}"), {"\"x\"", "2^22"}},
        {old, WITH(",{\"content\":\"x\"}"), {"\"x\"", "id"}},
        {old, WITH(",{\"id\":4,\"content\":\"\"}"), {"added_tokens[1]", "content"}},
        {old,
         WITH(",{\"id\":4,\"content\":\"x\",\"lstrip\":1}"),
         {"added_tokens[1].lstrip"}},
    };
    refuse(r, ARRAY_LEN(r));
}

/* Bytes without a token would become <s> here, which is a control token. */
static void an_unknown_token_that_a_user_could_forge_is_refused(void **state)
{
    (void)state;
    struct err err = {0};
    char *some = files_replace(good, "\"unk_token\":null", "\"unk_token\":\"<s>\"");
    char *text = files_replace(some, "\"ab\":2}", "\"ab\":2,\"<s>\":3}");
    assert_int_equal(open_bytes(text, strlen(text), &err), -EINVAL);
    assert_non_null(strstr(err.msg, "control token"));
    free(text);
    free(some);
}

static void a_merge_unknown_to_the_vocabulary_is_named(void **state)
{
    (void)state;
    size_t n;
    struct err err = {0};
    char *text = files_read(GOLDEN "/cases/merge_unknown.json", &n);
    assert_int_equal(open_bytes(text, n, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "model.merges["));
    assert_non_null(strstr(err.msg, "not in the vocabulary"));
    free(text);
}

static void no_prefix_of_the_file_is_accepted(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof good - 1; n++) {
        struct err err = {0};
        assert_int_equal(open_bytes(good, n, &err), -EINVAL);
    }
}

static void what_is_no_object_or_no_file_is_refused(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    struct err err = {0};
    assert_int_equal(open_bytes("[]", 2, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "object"));

    char path[256], *dir = files_temp_dir();
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(tokenizer_open_dir(&t, dir, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "not a regular file"));
    files_remove_dir(dir);
}

static void a_directory_without_the_file_says_so(void **state)
{
    (void)state;
    struct tokenizer *t = NULL;
    struct err err = {0};
    assert_int_equal(tokenizer_open_dir(&t, "tests/golden", &err), -ENOENT);
    assert_non_null(strstr(err.msg, "tests/golden/tokenizer.json"));
    assert_int_equal(tokenizer_open_dir(&t, GOLDEN "/llama3", &err), 0);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_good_file_opens),
        cmocka_unit_test(other_models_and_options_are_named),
        cmocka_unit_test(other_pre_tokenizers_and_patterns_are_named),
        cmocka_unit_test(other_post_processors_are_named),
        cmocka_unit_test(merges_and_vocabularies_that_lie_are_named),
        cmocka_unit_test(added_tokens_that_contradict_are_named),
        cmocka_unit_test(a_merge_unknown_to_the_vocabulary_is_named),
        cmocka_unit_test(no_prefix_of_the_file_is_accepted),
        cmocka_unit_test(an_unknown_token_that_a_user_could_forge_is_refused),
        cmocka_unit_test(what_is_no_object_or_no_file_is_refused),
        cmocka_unit_test(a_directory_without_the_file_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
