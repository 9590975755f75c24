/* utf8.h - one UTF-8 character at a time, with Unicode's rule for ill-formed parts.
 *
 * Source   Unicode 15, table 3-7 (well-formed byte sequences) and section 3.9
 *          (substitution of maximal subparts).
 * Threads  pure functions.
 */
#ifndef KERNELS_UTF8_H
#define KERNELS_UTF8_H

#include "kernels/base.h"

#define UTF8_BAD (-1)  // an ill-formed part
#define UTF8_CUT                                                                       \
    (-2)  // well formed so far, but the text ends before the character does

#define UTF8_REPLACEMENT      "\xef\xbf\xbd"  // U+FFFD
#define UTF8_REPLACEMENT_SIZE 3

/* The code point at s (n > 0 bytes of text) and the bytes it takes; UTF8_BAD or UTF8_CUT
 * and the size of the maximal subpart, which is at least 1. */
int32_t utf8_decode(const char *s, size_t n, size_t *size);

/* Write a code point (no surrogate, at most U+10FFFF) and return its size, 1 to 4. */
size_t utf8_encode(int32_t c, char *out);

/* Where the well-formed text s[0..n) has its last character.  n > 0. */
size_t utf8_last(const char *s, size_t n);

/* The end of the well-formed beginning of s. */
size_t utf8_valid_prefix(const char *s, size_t n);

/* White_Space of Unicode: 25 code points, the same since Unicode 6.3. */
bool utf8_is_space(int32_t c);

#endif
