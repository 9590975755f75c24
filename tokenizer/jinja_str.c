#include "tokenizer/jinja_str.h"

#include <string.h>

#include "kernels/utf8.h"
#include "tokenizer/jinja_run.h"
#include "tokenizer/unicode.h"

/* A buffer that several strings share: each is a part of what is used of it.  Only the
 * string that ends where the used part ends may grow in place; the bytes of all others
 * stay as they are. */
struct str_buf {
    char *bytes;
    uint8_t *marks;
    size_t used, cap;
};

const struct str str_empty = {.bytes = ""};

/* ---- builder ------------------------------------------------------------------ */

void builder_init(struct builder *b, struct run *r)
{
    *b = (struct builder){.r = r};
}

static bool reserve(struct builder *b, size_t n)
{
    if (b->r->rc) return false;
    if (n <= b->cap - b->n) return true;
    if (n > b->r->max_text - b->n) {
        run_limit(b->r, "its text is longer than a render may make");
        return false;
    }
    size_t cap = b->cap < 32 ? 64 : b->cap * 2;
    if (cap < b->n + n) cap = b->n + n;
    char *bytes = run_alloc(b->r, 2 * cap);
    if (!bytes || !run_charge(b->r, b->n)) return false;
    uint8_t *marks = (uint8_t *)bytes + cap;
    if (b->n) {
        memcpy(bytes, b->bytes, b->n);
        memcpy(marks, b->marks, b->n);
    }
    b->bytes = bytes;
    b->marks = marks;
    b->cap = cap;
    return true;
}

void builder_put(struct builder *b, const char *bytes, size_t n, bool user)
{
    if (n == 0 || !reserve(b, n)) return;
    memcpy(b->bytes + b->n, bytes, n);
    memset(b->marks + b->n, user, n);
    b->n += n;
}

void builder_text(struct builder *b, const char *text)
{
    builder_put(b, text, strlen(text), false);
}

void builder_char(struct builder *b, uint32_t cp, bool user)
{
    char utf8[4];
    builder_put(b, utf8, utf8_encode((int32_t)cp, utf8), user);
}

void builder_repeat(struct builder *b, char c, size_t n)
{
    if (n == 0 || !reserve(b, n)) return;
    memset(b->bytes + b->n, c, n);
    memset(b->marks + b->n, 0, n);
    b->n += n;
}

void builder_slice(struct builder *b, const struct str *s, size_t from, size_t to)
{
    size_t n = to - from;
    if (n == 0 || !run_charge(b->r, n) || !reserve(b, n)) return;
    memcpy(b->bytes + b->n, s->bytes + from, n);
    if (s->marks)
        memcpy(b->marks + b->n, s->marks + from, n);
    else
        memset(b->marks + b->n, 0, n);
    b->n += n;
}

void builder_str(struct builder *b, const struct str *s)
{
    builder_slice(b, s, 0, s->n);
}

const struct str *builder_done(struct builder *b)
{
    if (b->n == 0) return &str_empty;
    struct str *s = run_alloc(b->r, sizeof *s);
    struct str_buf *buf = run_alloc(b->r, sizeof *buf);
    if (!s || !buf) return &str_empty;
    *buf = (struct str_buf){b->bytes, b->marks, b->n, b->cap};
    *s = (struct str){b->bytes, b->marks, b->n, unicode_count(b->bytes, b->n), buf};
    return s;
}

/* ---- strings ------------------------------------------------------------------ */

const struct str *str_of(struct run *r, const char *text, size_t n)
{
    struct builder b;
    builder_init(&b, r);
    builder_put(&b, text, n, false);
    return builder_done(&b);
}

const struct str *str_concat(struct run *r, const struct str *a, const struct str *b)
{
    if (a->n == 0) return b;
    if (b->n == 0) return a;
    struct str_buf *buf = a->buf;
    bool in_place = buf && a->bytes + a->n == buf->bytes + buf->used &&
                    b->n <= buf->cap - buf->used;
    if (!in_place) {
        struct builder all;
        builder_init(&all, r);
        if (!reserve(&all, a->n)) return &str_empty;
        builder_str(&all, a);
        builder_str(&all, b);
        return builder_done(&all);
    }
    struct str *s = run_alloc(r, sizeof *s);
    if (!s || !run_charge(r, b->n)) return &str_empty;
    if (a->n + b->n > r->max_text) {
        run_limit(r, "its text is longer than a render may make");
        return &str_empty;
    }
    memcpy(buf->bytes + buf->used, b->bytes, b->n);
    if (b->marks)
        memcpy(buf->marks + buf->used, b->marks, b->n);
    else
        memset(buf->marks + buf->used, 0, b->n);
    buf->used += b->n;
    *s = *a;
    s->n += b->n;
    s->chars += b->chars;
    return s;
}

const struct str *str_slice(struct run *r, const struct str *s, size_t from, size_t to)
{
    if (from >= to) return &str_empty;
    if (from == 0 && to == s->n) return s;
    struct str *part = run_alloc(r, sizeof *part);
    if (!part) return &str_empty;
    size_t n = to - from;
    bool ascii = s->chars == s->n;
    if (!ascii && !run_charge(r, n)) return &str_empty;
    *part = (struct str){.bytes = s->bytes + from,
                         .marks = s->marks ? s->marks + from : NULL,
                         .n = n,
                         .chars = ascii ? n : unicode_count(s->bytes + from, n),
                         .buf = s->buf};
    return part;
}

size_t str_offset(const struct str *s, size_t chars)
{
    if (chars >= s->chars) return s->n;
    if (s->chars == s->n) return chars;
    size_t i = 0;
    for (; chars > 0; chars--) {
        i++;
        while (((unsigned char)s->bytes[i] & 0xc0) == 0x80) i++;
    }
    return i;
}

bool str_equal(const struct str *a, const struct str *b)
{
    return a == b || (a->n == b->n && memcmp(a->bytes, b->bytes, a->n) == 0);
}

bool str_is(const struct str *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->bytes, text, s->n) == 0;
}

/* The order of UTF-8 bytes is the order of code points. */
int str_compare(const struct str *a, const struct str *b)
{
    int c = memcmp(a->bytes, b->bytes, a->n < b->n ? a->n : b->n);
    return c ? c : a->n < b->n ? -1 : a->n > b->n;
}

bool str_has_user(const struct str *s)
{
    return s->marks && memchr(s->marks, 1, s->n) != NULL;
}

int str_clip(const struct str *s, int max)
{
    if (s->n <= (size_t)max) return (int)s->n;
    while (max > 0 && ((unsigned char)s->bytes[max] & 0xc0) == 0x80) max--;
    return max;
}

size_t str_find(struct run *r, const struct str *s, const struct str *what, size_t from)
{
    if (from > s->n || !run_charge(r, s->n - from)) return SIZE_MAX;
    if (what->n == 0) return from;
    const char *hit = memmem(s->bytes + from, s->n - from, what->bytes, what->n);
    return hit ? (size_t)(hit - s->bytes) : SIZE_MAX;
}

size_t str_find_last(struct run *r, const struct str *s, const struct str *what)
{
    if (what->n > s->n) return SIZE_MAX;
    for (size_t i = s->n - what->n + 1; i > 0 && run_charge(r, what->n); i--) {
        if (memcmp(s->bytes + i - 1, what->bytes, what->n) == 0) return i - 1;
    }
    return SIZE_MAX;
}
