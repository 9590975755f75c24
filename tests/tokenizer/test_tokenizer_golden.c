/* test_tokenizer_golden.c - the same ids and texts as the `tokenizers` library gives.
 *
 * The chunks of the goldens that are compared are `utf8_chunks`, where it is given: what
 * an incremental decoder says for each id, and a last item, the flush.  Where it is not
 * given it is `chunks` and an empty flush.  (`chunks` alone is another rule: it holds
 * text back while it ends in U+FFFD, and never flushes.)  One thing differs: the decoder
 * that made the goldens waits for the third byte of an encoded surrogate, although it is
 * known at the second that none can follow; there only the whole text is compared.
 */
#include "tests/tokenizer/golden.h"
#include "tokenizer/detok.h"

#define SMOLLM2 "models/smollm2-135m-instruct/tokenizer.json"

struct set {
    struct tokenizer *t;
    struct golden golden, strings;
};

static struct set open_set(const char *name, const char *tokenizer_path)
{
    struct set s;
    char path[256];
    s.t = golden_tokenizer(tokenizer_path);
    snprintf(path, sizeof path, GOLDEN "/%s.json", name);
    s.golden = golden_open(path);
    s.strings = golden_open(GOLDEN "/strings.json");
    return s;
}

static void close_set(struct set *s)
{
    tokenizer_close(s->t);
    golden_close(&s->golden);
    golden_close(&s->strings);
}

/* The raw input of a string of strings.json; free it. */
static char *input_of(struct json_value string, size_t *n)
{
    struct json_value hex = json_get(string, "hex");
    if (!json_exists(hex)) return json_string_dup(json_get(string, "text"), n);
    char *s = json_string_dup(hex, n);
    assert_non_null(s);
    *n /= 2;
    for (size_t i = 0; i < *n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(s + 2 * i, "%2x", &byte), 1);
        s[i] = (char)byte;
    }
    return s;
}

static bool equals(struct json_value want, const char *s, size_t n)
{
    size_t n_want;
    char *text = json_string_dup(want, &n_want);
    assert_non_null(text);
    bool same = n == n_want && memcmp(text, s, n) == 0;
    if (!same) fprintf(stderr, "got \"%.*s\", want \"%s\"\n", (int)n, s, text);
    free(text);
    return same;
}

/* Do the bytes of these ids hold the first two of an encoded surrogate? */
static bool has_surrogate(const struct tokenizer *t, const struct token_list *l)
{
    unsigned char before = 0;
    for (size_t i = 0; i < l->n; i++) {
        size_t n = 0;
        const char *bytes = tokenizer_bytes(t, l->ids[i], &n);
        for (size_t k = 0; k < n; k++) {
            unsigned char b = (unsigned char)bytes[k];
            if (before == 0xed && b >= 0xa0 && b <= 0xbf) return true;
            before = b;
        }
    }
    return false;
}

/* Decode as a stream; compare the whole, and each piece where `chunks` is given. */
static bool decodes_to(const struct tokenizer *t, struct json_value ids, bool skip,
                       struct json_value whole, struct json_value chunks)
{
    struct token_list l = golden_ids(ids);
    char *text = malloc((l.n + 1) * detok_max_bound(t));
    assert_non_null(text);
    if (has_surrogate(t, &l)) chunks = (struct json_value){0};
    struct json_iter chunk = json_iter(chunks);
    struct detok d;
    size_t n = 0;
    bool same = true;
    detok_init(&d, skip);
    for (size_t i = 0; i <= l.n; i++) {
        size_t k =
            i < l.n ? detok_push(&d, t, l.ids[i], text + n) : detok_flush(&d, text + n);
        assert_true(k <= (i < l.n ? detok_bound(t, l.ids[i]) : 3));
        if (json_next(&chunk)) {
            same &= equals(chunk.value, text + n, k);
        } else if (json_exists(chunks)) {
            same &= i == l.n && k == 0;
        }
        n += k;
    }
    same &= equals(whole, text, n);
    free(text);
    token_list_free(&l);
    return same;
}

static struct json_value chunks_of(struct json_value entry)
{
    struct json_value utf8 = json_get(entry, "utf8_chunks");
    return json_exists(utf8) ? utf8 : json_get(entry, "chunks");
}

/* All of one golden: the prefix, the texts both ways, and the lists of ids. */
static void check(const char *name, const char *path)
{
    struct set s = open_set(name, path);
    struct json_iter string = json_iter(s.strings.root);
    unsigned failed = 0, count = 0;

    size_t n_prefix, n_suffix;
    const int32_t *prefix = tokenizer_prefix(s.t, &n_prefix);
    struct token_list want = golden_ids(json_get(s.golden.root, "prefix_ids"));
    assert_int_equal(n_prefix, want.n);
    for (size_t i = 0; i < n_prefix; i++) assert_int_equal(prefix[i], want.ids[i]);
    token_list_free(&want);
    tokenizer_suffix(s.t, &n_suffix);
    assert_int_equal(n_suffix, 0);

    uint64_t size;
    assert_true(json_u64(json_get(s.golden.root, "vocab_size"), &size));
    assert_int_equal(tokenizer_size(s.t), size);

    for (struct json_iter i = json_iter(json_get(s.golden.root, "strings"));
         json_next(&i) && json_next(&string); count++) {
        size_t n;
        char *text = input_of(string.value, &n);
        struct json_value ids = json_get(i.value, "ids");
        struct json_value safe = json_get(i.value, "ids_no_special_parsing");
        struct json_value kept = json_get(i.value, "decoded");
        struct json_value skipped = json_get(i.value, "decoded_skip_special");
        if (!json_exists(safe)) safe = ids;
        if (!json_exists(kept)) kept = json_get(string.value, "text");
        if (!json_exists(skipped)) skipped = kept;

        struct text_span all = {0, n};
        failed += !golden_same(s.t, text, n, NULL, 0, ids);
        failed += !golden_same(s.t, text, n, &all, 1, safe);
        failed += !decodes_to(s.t, ids, false, kept, chunks_of(i.value));
        failed += !decodes_to(s.t, ids, true, skipped, (struct json_value){0});
        free(text);
    }
    assert_int_equal(count, 207);

    count = 0;
    for (struct json_iter i = json_iter(json_get(s.golden.root, "decode"));
         json_next(&i); count++) {
        struct json_value ids = json_get(i.value, "ids");
        struct json_value kept = json_get(i.value, "decoded");
        struct json_value skipped = json_get(i.value, "decoded_skip_special");
        if (!json_exists(skipped)) skipped = kept;
        failed += !decodes_to(s.t, ids, false, kept, chunks_of(i.value));
        failed += !decodes_to(s.t, ids, true, skipped, (struct json_value){0});
    }
    assert_true(count >= 40);
    assert_int_equal(failed, 0);
    close_set(&s);
}

static void llama3_is_reproduced(void **state)
{
    (void)state;
    check("llama3", GOLDEN "/llama3/tokenizer.json");
}

static void qwen2_with_nfc_is_reproduced(void **state)
{
    (void)state;
    check("qwen2", GOLDEN "/qwen2/tokenizer.json");
}

static void smollm2_in_small_is_reproduced(void **state)
{
    (void)state;
    check("smollm2-small", GOLDEN "/smollm2-small/tokenizer.json");
}

static void the_real_smollm2_is_reproduced(void **state)
{
    (void)state;
    FILE *there = fopen(SMOLLM2, "r");
    if (!there) {
        print_message("skipped: " SMOLLM2 " does not exist: run `make model`\n");
        skip();
    }
    fclose(there);
    check("smollm2", SMOLLM2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama3_is_reproduced),
        cmocka_unit_test(qwen2_with_nfc_is_reproduced),
        cmocka_unit_test(smollm2_in_small_is_reproduced),
        cmocka_unit_test(the_real_smollm2_is_reproduced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
