/* byte_level.h - the alphabet in which byte-level BPE files write their tokens.
 *
 * Source   GPT-2: each byte is written as one printable character.  The bytes that are
 *          printable in Latin-1 (21-7E, A1-AC, AE-FF) stand for themselves, the 68 others
 *          for U+0100, U+0101 and so on, in ascending order.
 * Threads  pure functions.
 */
#ifndef TOKENIZER_BYTE_LEVEL_H
#define TOKENIZER_BYTE_LEVEL_H

#include "kernels/base.h"

/* The bytes that the well-formed text s[0..n) stands for, to out (n bytes are enough).
 * Text with a character outside the alphabet stands for itself: it is copied, and
 * *outside says so. */
size_t byte_level_decode(const char *s, size_t n, char *out, bool *outside);

#endif
