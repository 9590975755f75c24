/* test_detok.c - streamed text is the whole text, in whole characters. */
#include "tests/random.h"
#include "tests/tokenizer/golden.h"
#include "tokenizer/detok.h"

/* Every byte is a token of that id; 256 is special, 257 is several bytes. */
static struct tokenizer *byte_tokenizer(void)
{
    char text[8192] = "{\"added_tokens\":[{\"id\":256,\"content\":\"<s>\",\"special\":"
                      "true},{\"id\":257,\"content\":\"\xe2\x82\xac\xc3\xa9!\"}],"
                      "\"model\":{\"vocab\":{";
    size_t n = strlen(text);
    unsigned other = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        bool self = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"\\u%04x\":%u",
                              b ? "," : "", self ? b : other, b);
        other += !self;
    }
    snprintf(text + n, sizeof text - n,
             "},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
             "\"decoder\":{\"type\":\"ByteLevel\"}}");
    struct tokenizer *t = NULL;
    struct err err;
    if (tokenizer_open(&t, text, strlen(text), "T", &err) < 0) fail_msg("%s", err.msg);
    return t;
}

/* Can s[0..n) be the beginning of a well-formed character?  Table 3-7, row by row. */
static bool begins_character(const unsigned char *s, size_t n)
{
    static const unsigned char rows[][8] = {
        {0x00, 0x7f},
        {0xc2, 0xdf, 0x80, 0xbf},
        {0xe0, 0xe0, 0xa0, 0xbf, 0x80, 0xbf},
        {0xe1, 0xec, 0x80, 0xbf, 0x80, 0xbf},
        {0xed, 0xed, 0x80, 0x9f, 0x80, 0xbf},
        {0xee, 0xef, 0x80, 0xbf, 0x80, 0xbf},
        {0xf0, 0xf0, 0x90, 0xbf, 0x80, 0xbf, 0x80, 0xbf},
        {0xf1, 0xf3, 0x80, 0xbf, 0x80, 0xbf, 0x80, 0xbf},
        {0xf4, 0xf4, 0x80, 0x8f, 0x80, 0xbf, 0x80, 0xbf},
    };
    for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
        size_t i = 0;
        while (i < n && i < 4 && s[i] >= rows[r][2 * i] && s[i] <= rows[r][2 * i + 1] &&
               (i == 0 || rows[r][2 * i])) {
            i++;
        }
        if (i == n) return true;
    }
    return false;
}

static size_t length_of(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* The text of bytes, worked out as the standard words it. */
static size_t reference(const unsigned char *s, size_t n, char *out)
{
    size_t n_out = 0, part;
    for (size_t i = 0; i < n; i += part) {
        part = 1;
        bool begins = begins_character(s + i, 1);
        while (begins && i + part < n && part < length_of(s[i]) &&
               begins_character(s + i, part + 1)) {
            part++;
        }
        bool whole = begins && part == length_of(s[i]);
        memcpy(out + n_out, whole ? (const char *)s + i : "\xef\xbf\xbd",
               whole ? part : 3);
        n_out += whole ? part : 3;
    }
    return n_out;
}

static size_t stream(const struct tokenizer *t, const unsigned char *s, size_t n,
                     char *out)
{
    struct detok d;
    size_t n_out = 0;
    detok_init(&d, false);
    for (size_t i = 0; i < n; i++) {
        size_t k = detok_push(&d, t, s[i], out + n_out);
        assert_true(k <= detok_bound(t, s[i]));
        n_out += k;
    }
    size_t k = detok_flush(&d, out + n_out);
    assert_true(k == 0 || k == 3);
    return n_out + k;
}

static void broken_bytes_are_replaced_part_by_part(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"A\xc3\xff"
         "B\xed\xa0\x80"
         "C",
         "A\xef\xbf\xbd\xef\xbf\xbd"
         "B\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
         "C"},
        {"\xf0\x9f\x98\x80\xf0\x9f", "\xf0\x9f\x98\x80\xef\xbf\xbd"},
        {"\xe2\x82\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"},
        {"\xf4\x90", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
    };
    struct tokenizer *t = byte_tokenizer();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char out[64];
        size_t n = stream(t, (const unsigned char *)cases[i].bytes,
                          strlen(cases[i].bytes), out);
        assert_int_equal(n, strlen(cases[i].text));
        assert_memory_equal(out, cases[i].text, n);
    }
    tokenizer_close(t);
}

/* Bytes that are likely to form and to break characters. */
static void random_bytes(uint64_t *seed, unsigned char *s, size_t n)
{
    static const unsigned char likely[] = {0x41, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf,
                                           0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xed, 0xef,
                                           0xf0, 0xf1, 0xf4, 0xf5, 0xff};
    for (size_t i = 0; i < n; i++) {
        bool any = random_below(seed, 8) == 0;
        s[i] = any ? (unsigned char)random_below(seed, 256)
                   : likely[random_below(seed, sizeof likely)];
    }
}

static void any_stream_of_bytes_is_what_the_standard_says(void **state)
{
    (void)state;
    struct tokenizer *t = byte_tokenizer();
    uint64_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        unsigned char bytes[24];
        char got[128], want[128];
        size_t n = random_below(&seed, sizeof bytes + 1);
        random_bytes(&seed, bytes, n);
        size_t n_got = stream(t, bytes, n, got), n_want = reference(bytes, n, want);
        assert_int_equal(n_got, n_want);
        assert_memory_equal(got, want, n_got);
    }
    tokenizer_close(t);
}

/* Only whole, well-formed characters leave, wherever the tokens are cut. */
static void every_chunk_is_well_formed(void **state)
{
    (void)state;
    struct tokenizer *t = byte_tokenizer();
    uint64_t seed = 2;
    struct detok d;
    detok_init(&d, false);
    for (int i = 0; i < 50000; i++) {
        char got[64], want[128];
        int32_t id = random_below(&seed, 20) ? 0 : 257;
        unsigned char byte;
        random_bytes(&seed, &byte, 1);
        size_t n = detok_push(&d, t, id ? id : byte, got);
        assert_true(n <= detok_bound(t, id ? id : byte));
        assert_true(n <= detok_max_bound(t));
        assert_int_equal(reference((unsigned char *)got, n, want), n);
        assert_memory_equal(got, want, n);
    }
    tokenizer_close(t);
}

static void special_tokens_are_left_out_without_breaking_what_is_pending(void **state)
{
    (void)state;
    struct tokenizer *t = byte_tokenizer();
    struct detok d, copy;
    char out[16];
    detok_init(&d, true);
    assert_int_equal(detok_push(&d, t, 0xc3, out), 0);
    copy = d;
    assert_int_equal(detok_push(&d, t, 256, out), 0);
    assert_int_equal(detok_push(&d, t, 0xa9, out), 2);
    assert_memory_equal(out, "\xc3\xa9", 2);
    assert_int_equal(detok_flush(&d, out), 0);

    copy.skip_special = false;
    assert_int_equal(detok_push(&copy, t, 256, out), 6);
    assert_memory_equal(out, "\xef\xbf\xbd<s>", 6);
    tokenizer_close(t);
}

static void the_tail_is_flushed_once(void **state)
{
    (void)state;
    struct tokenizer *t = byte_tokenizer();
    struct detok d;
    char out[16];
    detok_init(&d, false);
    assert_int_equal(detok_push(&d, t, 0xf0, out), 0);
    assert_int_equal(detok_push(&d, t, 0x9f, out), 0);
    assert_int_equal(detok_flush(&d, out), 3);
    assert_memory_equal(out, "\xef\xbf\xbd", 3);
    assert_int_equal(detok_flush(&d, out), 0);
    assert_int_equal(detok_push(&d, t, 'x', out), 1);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_bytes_are_replaced_part_by_part),
        cmocka_unit_test(any_stream_of_bytes_is_what_the_standard_says),
        cmocka_unit_test(every_chunk_is_well_formed),
        cmocka_unit_test(special_tokens_are_left_out_without_breaking_what_is_pending),
        cmocka_unit_test(the_tail_is_flushed_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
