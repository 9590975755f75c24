#include "server/bytes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bytes_free(struct bytes *b)
{
    free(b->data);
    *b = (struct bytes){0};
}

void bytes_clear(struct bytes *b)
{
    b->n = 0;
    b->failed = false;
}

/* Make room for n more bytes and a final NUL. */
static bool grow(struct bytes *b, size_t n)
{
    if (b->failed) return false;
    size_t want;
    if (__builtin_add_overflow(b->n, n, &want) || want >= SIZE_MAX / 4) {
        b->failed = true;
        return false;
    }
    if (want < b->cap) return true;

    size_t cap = b->cap ? b->cap : 256;
    while (cap <= want) cap *= 2;
    char *data = realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void bytes_add(struct bytes *b, const void *data, size_t n)
{
    if (!grow(b, n)) return;
    if (n) memcpy(b->data + b->n, data, n);
    b->n += n;
    b->data[b->n] = 0;
}

void bytes_add_text(struct bytes *b, const char *text)
{
    bytes_add(b, text, strlen(text));
}

void bytes_printf(struct bytes *b, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) b->failed = true;
    if (n >= 0 && grow(b, (size_t)n)) {
        vsnprintf(b->data + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}
