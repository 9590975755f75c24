/* fuzz_tokenizer.c - any file opens or is refused; any text comes back from its ids, and
 * none that is plain makes a control token.
 *
 * The first byte chooses.  A text is cut into pieces at the bytes 0xFE, which are taken
 * out; every other piece is plain.
 */
#include "kernels/utf8.h"
#include "tokenizer/detok.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Encode and decode; comes_back: what comes out has to be the text. */
static void check(const struct tokenizer *t, const char *s, size_t n,
                  const struct text_span *plain, size_t n_plain, bool comes_back)
{
    struct token_list l = {0};
    struct detok d;
    struct err err;
    size_t at = 0;
    bool all_plain = n_plain == 1 && plain[0].from == 0 && plain[0].to == n;
    detok_init(&d, false);
    int rc = tokenizer_encode(t, s, n, plain, n_plain, 0, &l, &err);
    char *out = malloc(detok_max_bound(t));
    if (!out || (rc < 0 && comes_back)) abort();
    for (size_t i = 0; rc == 0 && i <= l.n; i++) {
        if (i < l.n && all_plain && comes_back && tokenizer_is_special(t, l.ids[i])) {
            abort();
        }
        size_t k = i < l.n ? detok_push(&d, t, l.ids[i], out) : detok_flush(&d, out);
        if (comes_back && (at + k > n || memcmp(s + at, out, k) != 0)) abort();
        at += k;
    }
    if (comes_back && at != n) abort();
    free(out);
    token_list_free(&l);
}

static void one_text(const uint8_t *data, size_t size)
{
    static struct tokenizer *t;
    struct err err;
    if (!t && tokenizer_open_dir(&t, "tests/golden/tokenizers/llama3", &err)) abort();

    char *s = malloc(size + 1);
    struct text_span *plain = malloc((size / 2 + 2) * sizeof *plain);
    if (!s || !plain) abort();
    size_t n = 0, cuts = 1;
    plain[0].from = 0;
    for (size_t i = 0; i < size; i++) {
        if (data[i] != 0xfe) {
            s[n++] = (char)data[i];
            continue;
        }
        *(cuts % 2 ? &plain[cuts / 2].to : &plain[cuts / 2].from) = n;
        cuts++;
    }
    if (cuts % 2) plain[cuts / 2].to = n;
    check(t, s, n, plain, (cuts + 1) / 2, utf8_valid_prefix(s, n) == n);
    free(plain);
    free(s);
}

static void one_file(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello  w\xc3\xb6rld 123\n<|x|>'s e\xcc\x81";
    struct text_span plain = {3, 9};
    struct tokenizer *t = NULL;
    struct err err;
    if (tokenizer_open(&t, (const char *)data, size, "T", &err) < 0) return;
    check(t, text, sizeof text - 1, &plain, 1, false);
    tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    if (data[0] % 2) {
        one_file(data + 1, size - 1);
    } else {
        one_text(data + 1, size - 1);
    }
    return 0;
}
