#include "kernels/utf8.h"

#include <string.h>

int32_t utf8_decode(const char *s, size_t n, size_t *size)
{
    const unsigned char *b = (const unsigned char *)s;
    *size = 1;
    if (b[0] < 0x80) return b[0];
    if (b[0] < 0xc2 || b[0] > 0xf4) return UTF8_BAD;

    /* Only the second byte has a range that depends on the first. */
    unsigned more = b[0] < 0xe0 ? 1 : b[0] < 0xf0 ? 2 : 3;
    unsigned char low = b[0] == 0xe0 ? 0xa0 : b[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high = b[0] == 0xed ? 0x9f : b[0] == 0xf4 ? 0x8f : 0xbf;
    int32_t c = b[0] & (0x3f >> more);
    for (unsigned i = 1; i <= more; i++) {
        if (i == n) return UTF8_CUT;
        if (b[i] < low || b[i] > high) return UTF8_BAD;
        c = c << 6 | (b[i] & 0x3f);
        low = 0x80;
        high = 0xbf;
        *size = i + 1;
    }
    return c;
}

size_t utf8_encode(int32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

size_t utf8_last(const char *s, size_t n)
{
    size_t i = n - 1;
    while (i > 0 && ((unsigned char)s[i] & 0xc0) == 0x80) i--;
    return i;
}

size_t utf8_valid_prefix(const char *s, size_t n)
{
    size_t i = 0, size;
    while (i < n) {
        uint64_t eight;
        if (n - i >= sizeof eight) {
            memcpy(&eight, s + i, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        if (utf8_decode(s + i, n - i, &size) < 0) return i;
        i += size;
    }
    return n;
}

bool utf8_is_space(int32_t c)
{
    return (c >= 0x9 && c <= 0xd) || c == ' ' || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}
