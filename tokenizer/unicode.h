/* unicode.h - code points and their properties, as Python's str methods see them.
 *
 * Owns     nothing.
 * Caller   passes well-formed UTF-8 where a text is read; utf8.h tells.
 * Threads  any.
 */
#ifndef TOKENIZER_UNICODE_H
#define TOKENIZER_UNICODE_H

#include "kernels/base.h"

/* The code point at *at, which moves past it. */
uint32_t unicode_next(const char **at);
/* The number of code points in n bytes. */
size_t unicode_count(const char *text, size_t n);

/* str.isspace(), str.splitlines(), str.isprintable(), str.isalpha(), str.isdigit(). */
bool unicode_is_space(uint32_t cp);
bool unicode_is_line_end(uint32_t cp);
bool unicode_is_printable(uint32_t cp);
bool unicode_is_alpha(uint32_t cp);
bool unicode_is_digit(uint32_t cp);
/* Alphabetic, decimal, digit or otherwise numeric: str.isalnum(). */
bool unicode_is_alnum(uint32_t cp);
bool unicode_is_upper(uint32_t cp);
bool unicode_is_lower(uint32_t cp);
bool unicode_is_cased(uint32_t cp);
/* Passed over when looking for what surrounds a sigma (Unicode 15, D136). */
bool unicode_is_case_ignorable(uint32_t cp);

enum unicode_case { UNICODE_LOWER, UNICODE_UPPER, UNICODE_TITLE };

/* The full case mapping without conditions (SpecialCasing.txt): returns how many code
 * points it wrote, 1 to 3. */
unsigned unicode_map(uint32_t cp, enum unicode_case to, uint32_t out[3]);

#endif
