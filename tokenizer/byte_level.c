#include "tokenizer/byte_level.h"

#include "kernels/utf8.h"

#include <string.h>

static bool printable(int32_t c)
{
    return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) ||
           (c >= 0xae && c <= 0xff);
}

/* The byte that a character of the alphabet stands for; -1 for any other. */
static int byte_of(int32_t c)
{
    if (printable(c)) return c;
    if (c >= 0x100 && c <= 0x120) return c - 0x100;         // 00-20
    if (c >= 0x121 && c <= 0x142) return c - 0x121 + 0x7f;  // 7F-A0
    return c == 0x143 ? 0xad : -1;
}

size_t byte_level_decode(const char *s, size_t n, char *out, bool *outside)
{
    size_t n_out = 0, size;
    for (size_t i = 0; i < n; i += size) {
        int b = byte_of(utf8_decode(s + i, n - i, &size));
        if (b < 0) {
            memcpy(out, s, n);
            *outside = true;
            return n;
        }
        out[n_out++] = (char)b;
    }
    *outside = false;
    return n_out;
}
