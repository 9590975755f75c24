/* bpe.h - byte pair encoding of one word.
 *
 * Owns     the merge table: pair of ids -> rank and the id of the two joined.
 * Rule     of all neighbours that merge, those of the lowest rank are joined first, the
 *          leftmost first among equals, until none is left.  A heap whose outdated
 *          entries are skipped makes this O(n log n) for a word of n symbols.
 * Threads  the table is immutable once loaded; a scratch is one thread's.
 */
#ifndef TOKENIZER_BPE_H
#define TOKENIZER_BPE_H

#include "kernels/base.h"

struct bpe_merge {
    uint32_t left, right, rank;
    uint32_t id;  // of the joined token, plus 1; 0 where the slot is free
};

struct bpe {
    struct bpe_merge *slot;
    uint32_t mask;
};

NODISCARD int bpe_init(struct bpe *b, uint32_t n_merges);  // -ENOMEM
void bpe_free(struct bpe *b);

/* At most n_merges times; a pair that is given again takes the new rank. */
void bpe_add(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);

struct bpe_symbol {
    int32_t id;  // -1: joined to the one before
    int32_t prev, next;
};
struct bpe_candidate {
    uint32_t rank, at, id;
};

/* Working memory, kept from word to word: zero-initialise, free with
 * bpe_scratch_free().  The caller fills symbol[0..n).id. */
struct bpe_scratch {
    struct bpe_symbol *symbol;
    size_t cap;
    struct bpe_candidate *heap;
    size_t n_heap, heap_cap;
};
void bpe_scratch_free(struct bpe_scratch *s);
NODISCARD int bpe_scratch_reserve(struct bpe_scratch *s, size_t n);  // -ENOMEM

/* Takes an id of the result; what it returns but 0 ends the joining and is returned. */
typedef int bpe_give(void *to, int32_t id);

/* A long word, a window of so many symbols after the other, so that memory and cache hold
 * it: n bytes, of each the symbol byte_id[byte], none of them below 0.  1: it cannot be done
 * so, and what was given is nothing worth; else all is as bpe_join() does it.
 *
 * Why: what is joined within some neighbouring tokens of a result depends on these alone, since
 * nothing was joined across their ends.  So of a result any two neighbours are what both alone
 * would become; and where that holds for all neighbours, nothing is ever joined across any end,
 * and they are the result.  The next window begins with a token of the one before, far from
 * its end: where that token comes out again, all neighbours have been neighbours in a window. */
NODISCARD int bpe_join_windows(const struct bpe *b, struct bpe_scratch *s,
                               const int32_t byte_id[256], const char *text, size_t n,
                               size_t window, bpe_give *give, void *to);

/* Join the n symbols (at most INT32_MAX) as far as the merges say.  The result is read
 * from symbol 0 on along `next`, until -1.  -ENOMEM. */
NODISCARD int bpe_join(const struct bpe *b, struct bpe_scratch *s, size_t n);

#endif
