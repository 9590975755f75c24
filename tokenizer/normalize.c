/* normalize.c - NFC, stretch by stretch.
 *
 * An ASCII character never composes with what stands before it.  So the text is cut
 * before each one: stretches of ASCII are copied, and only a non-ASCII stretch together
 * with the one ASCII character before it needs to be normalized.
 */
#include "tokenizer/normalize.h"

#include "kernels/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define MAX_DECOMPOSITION                                                              \
    4  // code points of one in NFD (Unicode 15: U+1F82 and others)
#define SHORT_RUN 32

void normalized_free(struct normalized *x)
{
    free(x->text);
    free(x->plain);
    *x = (struct normalized){0};
}

bool normalize_is_ascii(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)s[i] >= 0x80) return false;
    }
    return true;
}

static int append(struct normalized *out, const char *s, size_t n)
{
    if (out->cap - out->n < n) {
        size_t cap = (out->n + n) * 2;
        char *text = realloc(out->text, cap);
        if (!text) return -ENOMEM;
        out->text = text;
        out->cap = cap;
    }
    if (n) memcpy(out->text + out->n, s, n);
    out->n += n;
    return 0;
}

static int append_plain(struct normalized *out, size_t from, size_t to)
{
    struct text_span *last = out->n_plain ? &out->plain[out->n_plain - 1] : NULL;
    if (last && last->to >= from) {
        last->to = to;
        return 0;
    }
    if (out->n_plain == out->plain_cap) {
        size_t cap = out->plain_cap ? out->plain_cap * 2 : 8;
        struct text_span *plain = realloc(out->plain, cap * sizeof *plain);
        if (!plain) return -ENOMEM;
        out->plain = plain;
        out->plain_cap = cap;
    }
    out->plain[out->n_plain++] = (struct text_span){from, to};
    return 0;
}

static unsigned combining_class(int32_t c)
{
    return (unsigned)utf8proc_get_property(c)->combining_class;
}

/* Stable sort of a run of combining marks by their class.  spare has room for n. */
static void sort_run(int32_t *c, size_t n, int32_t *spare)
{
    if (n <= SHORT_RUN) {
        for (size_t i = 1; i < n; i++) {
            int32_t x = c[i];
            size_t j = i;
            for (; j > 0 && combining_class(c[j - 1]) > combining_class(x); j--) {
                c[j] = c[j - 1];
            }
            c[j] = x;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[combining_class(c[i]) + 1]++;
    for (size_t k = 1; k < 257; k++) start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++) spare[start[combining_class(c[i])]++] = c[i];
    memcpy(c, spare, n * sizeof *c);
}

/* Canonical order: each run of characters of class other than 0 is sorted. */
static void order(int32_t *c, size_t n, int32_t *spare)
{
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (combining_class(c[i]) == 0) continue;
        while (end < n && combining_class(c[end]) != 0) end++;
        sort_run(c + i, end - i, spare);
    }
}

/* Append the NFC of one stretch. */
static int append_nfc(struct normalized *out, const char *s, size_t n)
{
    size_t cap = n * MAX_DECOMPOSITION, n_c = 0, size;
    int32_t *c = malloc(2 * cap * sizeof *c);
    if (!c) return -ENOMEM;
    for (size_t i = 0; i < n; i += size) {
        int boundary = 0;
        utf8proc_ssize_t k = utf8proc_decompose_char(
            utf8_decode(s + i, n - i, &size), c + n_c, (utf8proc_ssize_t)(cap - n_c),
            UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
        n_c += k > 0 ? (size_t)k : 0;
    }
    order(c, n_c, c + cap);
    utf8proc_ssize_t composed = utf8proc_normalize_utf32(
        c, (utf8proc_ssize_t)n_c, UTF8PROC_STABLE | UTF8PROC_COMPOSE);

    int rc = 0;
    for (utf8proc_ssize_t i = 0; i < composed && rc == 0; i++) {
        char bytes[4];
        rc = append(out, bytes, utf8_encode(c[i], bytes));
    }
    free(c);
    return rc;
}

/* The end of the stretch that begins at i: ASCII to be copied, or what is normalized as
 * a whole. */
static size_t stretch_end(const char *s, size_t n, size_t i, bool *copied)
{
    size_t end = i;
    while (end < n && (unsigned char)s[end] < 0x80) end++;
    *copied = end == n || end > i + 1;
    if (end == n) return n;
    if (end > i + 1) return end - 1;
    while (end < n && (unsigned char)s[end] >= 0x80) end++;
    return end;
}

int normalize_nfc(struct normalized *out, const char *s, size_t n,
                  const struct text_span *plain, size_t n_plain, size_t base)
{
    bool copied;
    size_t p = 0;
    int rc = 0;
    for (size_t i = 0, end; i < n && rc == 0; i = end) {
        end = stretch_end(s, n, i, &copied);
        size_t at = out->n;
        rc = copied ? append(out, s + i, end - i) : append_nfc(out, s + i, end - i);

        while (p < n_plain && plain[p].to <= base + i) p++;
        for (size_t k = p; rc == 0 && k < n_plain && plain[k].from < base + end; k++) {
            size_t from = plain[k].from > base + i ? plain[k].from - base - i : 0;
            size_t to = plain[k].to < base + end ? plain[k].to - base - i : end - i;
            if (from == to) continue;
            rc = copied ? append_plain(out, at + from, at + to)
                        : append_plain(out, at, out->n);
        }
    }
    return rc;
}

const char *normalize_category(int32_t c)
{
    return utf8proc_category_string(c);
}

int32_t normalize_lower(int32_t c)
{
    return utf8proc_tolower(c);
}

int32_t normalize_upper(int32_t c)
{
    return utf8proc_toupper(c);
}

int32_t normalize_title(int32_t c)
{
    return utf8proc_totitle(c);
}
