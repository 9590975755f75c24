/* vocab.h - ids and the bytes they stand for, both ways.
 *
 * Owns     the bytes of all tokens in one arena, a table by id, a hash table by bytes.
 * Bounds   ids below VOCAB_MAX_IDS, so that one wrong number in a file cannot take
 *          gigabytes; ids may have holes.
 * Threads  immutable once loaded.
 */
#ifndef TOKENIZER_VOCAB_H
#define TOKENIZER_VOCAB_H

#include "kernels/base.h"

#define VOCAB_MAX_IDS   ((uint32_t)1 << 22)
#define VOCAB_MAX_TOKEN ((size_t)1 << 16)  // bytes of one token

enum vocab_flag {
    VOCAB_TOKEN = 1,    // the id has a token
    VOCAB_OUTSIDE = 2,  // not written in the byte-level alphabet: no text leads to it
    VOCAB_ADDED = 4,
    VOCAB_SPECIAL = 8,
};

struct vocab_entry {
    uint32_t at, n;  // bytes within the arena
};

struct vocab {
    char *arena;
    size_t used, cap;
    struct vocab_entry *entry;  // (size)
    uint8_t *flags;             // (size)
    uint32_t size;              // one more than the highest id
    uint32_t *table;            // id + 1, or 0 where free
    uint32_t mask;
    size_t longest;  // bytes of the longest token
};

/* Room for ids below `size` (at most VOCAB_MAX_IDS), n_tokens of them in the table by
 * bytes, and about n_bytes of text.  -ENOMEM. */
NODISCARD int vocab_init(struct vocab *v, uint32_t size, uint32_t n_tokens,
                         size_t n_bytes);
void vocab_free(struct vocab *v);

/* Give an id its bytes.  -EEXIST where it has some; -ENOMEM. */
NODISCARD int vocab_add(struct vocab *v, uint32_t id, const char *s, size_t n,
                        unsigned flags);
/* Replace the bytes that an id stands for, without making it findable by them. */
NODISCARD int vocab_set_bytes(struct vocab *v, uint32_t id, const char *s, size_t n);

/* Make an id findable by its bytes.  Of two with the same bytes the one written in the
 * alphabet is found, as only that one can come from text. */
void vocab_index(struct vocab *v, uint32_t id);

int32_t vocab_find(const struct vocab *v, const char *s, size_t n);  // -1: none

/* NULL where the id has no token. */
const char *vocab_bytes(const struct vocab *v, int64_t id, size_t *n);
unsigned vocab_flags(const struct vocab *v, int64_t id);

#endif
