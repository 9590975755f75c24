/* normalize.h - Unicode normalization form C, and what else utf8proc knows (its only
 * user).
 *
 * Bounds   O(n) time, also for long runs of combining marks in the worst order.
 * Threads  pure functions.
 */
#ifndef TOKENIZER_NORMALIZE_H
#define TOKENIZER_NORMALIZE_H

#include "tokenizer/tokenizer.h"

/* A normalized text, and which of its bytes come from plain spans of the original. */
struct normalized {
    char *text;
    size_t n, cap;
    struct text_span *plain;  // ascending, disjoint
    size_t n_plain, plain_cap;
};
void normalized_free(struct normalized *x);  // zero-initialised is fine

/* Is it all ASCII, which normalization never changes? */
bool normalize_is_ascii(const char *s, size_t n);

/* NFC of the well-formed s[0..n).  The plain spans count from `base` bytes before s.
 * Whatever is made from a plain byte, even in part, is plain.  -ENOMEM. */
NODISCARD int normalize_nfc(struct normalized *out, const char *s, size_t n,
                            const struct text_span *plain, size_t n_plain, size_t base);

/* The general category of a code point, its two letters: "Lu", "Nd" ... */
const char *normalize_category(int32_t c);

/* The simple case mappings: one code point for one, itself where there is no other. */
int32_t normalize_lower(int32_t c);
int32_t normalize_upper(int32_t c);
int32_t normalize_title(int32_t c);

#endif
