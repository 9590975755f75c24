/* detok.h - token ids to text, one by one, whole UTF-8 characters only.
 *
 * Owns     at most three pending bytes; a detok is a plain value, copied freely.
 * Rule     the bytes of the tokens are decoded as one stream: an ill-formed part becomes
 *          one U+FFFD for each maximal subpart (Unicode 15, section 3.9).  A character
 *          that is not finished waits for the next token; detok_flush() turns it into
 *          U+FFFD.  What push and flush give out, joined, is the whole text: nothing is
 *          lost and nothing is given twice.
 * Threads  one at a time for each detok.
 */
#ifndef TOKENIZER_DETOK_H
#define TOKENIZER_DETOK_H

#include "tokenizer/tokenizer.h"

struct detok {
    unsigned char pending[4];
    uint8_t n_pending;
    bool skip_special;  // give nothing for special tokens (a chat's answer)
};

void detok_init(struct detok *d, bool skip_special);

/* The most bytes that detok_push() of this id, or detok_flush(), may write. */
size_t detok_bound(const struct tokenizer *t, int32_t id);

/* Write the text that becomes certain with this id to out (of detok_bound() bytes, no
 * final NUL) and return its size; an id without a token gives nothing. */
size_t detok_push(struct detok *d, const struct tokenizer *t, int32_t id, char *out);
size_t detok_flush(struct detok *d, char *out);  // at most 3 bytes (one U+FFFD)

/* The longest text of any token in t, in bytes as detok_bound() counts; for buffers
 * that are taken once. */
size_t detok_max_bound(const struct tokenizer *t);

#endif
