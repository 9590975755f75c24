/* pretokenize.h - cuts a text into the words that are then encoded one by one.
 *
 * Owns     the steps of tokenizer.json's "pre_tokenizer", flattened: each cuts the pieces
 *          that the one before has made, and sees nothing beyond its piece.
 * Threads  immutable once loaded.
 */
#ifndef TOKENIZER_PRETOKENIZE_H
#define TOKENIZER_PRETOKENIZE_H

#include "tokenizer/regex.h"

#define PRETOKENIZE_MAX_STEPS 16

enum split_behavior {
    SPLIT_ISOLATED,     // a match is a piece, and so is what lies between two
    SPLIT_REMOVED,      // a match is left out
    SPLIT_CONTIGUOUS,   // as isolated, but neighbouring matches are one piece
    SPLIT_MERGED_PREV,  // a match belongs to the piece before it
    SPLIT_MERGED_NEXT,  // ... after it
};

struct pretokenize_step {
    bool add_space;  // put a blank before a piece that does not begin with one; else:
    struct regex *pattern;
    enum split_behavior behavior;
    bool invert;  // what is no match counts as one
};

struct pretokenizer {
    struct pretokenize_step step[PRETOKENIZE_MAX_STEPS];
    unsigned n_steps;
};

void pretokenizer_free(struct pretokenizer *p);

/* Called with each word, in order; an answer other than 0 ends the cutting. */
typedef int pretokenize_word(void *to, const char *s, size_t n);

/* Cut the well-formed s[0..n).  Errors are those of regex_find(), and what `word`
 * answered. */
NODISCARD int pretokenize(const struct pretokenizer *p, struct regex_run *run,
                          const char *s, size_t n, pretokenize_word *word, void *to,
                          struct err *err);

#endif
