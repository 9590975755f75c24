/* normalize.h - Unicode normalization form C (the only user of utf8proc).
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

#endif
