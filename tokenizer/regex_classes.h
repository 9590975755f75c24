/* regex_classes.h - makes PCRE2's character classes those of Unicode 16.
 *
 * tokenizer.json files are written for an engine that knows Unicode 16, and PCRE2 10.42
 * knows Unicode 14.  Where a code point belongs to another class there, the text that
 * PCRE2 sees has a stand-in: a character of the same size in UTF-8 and of the right
 * class, so that all offsets stay what they are.
 *
 * Threads  pure functions.
 */
#ifndef TOKENIZER_REGEX_CLASSES_H
#define TOKENIZER_REGEX_CLASSES_H

#include "kernels/base.h"

/* The code point that PCRE2 is to see instead of c: c itself nearly always. */
int32_t regex_stand_in(int32_t c);

/* Is there any character in the well-formed s[0..n) that needs a stand-in? */
bool regex_needs_stand_in(const char *s, size_t n);

/* Copy s[0..n) to out (n bytes), with the stand-ins put in. */
void regex_put_stand_ins(const char *s, size_t n, char *out);

#endif
