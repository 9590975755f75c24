/* added_tokens.h - finds the added tokens of a tokenizer.json in a text.
 *
 * Owns     two tries: tokens looked for in the text as it is, and those looked for in the
 *          normalized text ("normalized": true), after the others.
 * Rule     the leftmost token, the longest there, as the `tokenizers` library does.  A
 *          special token that touches a plain span does not count: the longest of the
 *          others is taken.
 *          single_word: dropped where a word character stands beside it; the text it
 *          covers is then not searched again.
 *          lstrip, rstrip: the blanks beside it belong to it, plain or not: they carry no
 *          meaning that a user could forge.
 * Threads  immutable once loaded.
 */
#ifndef TOKENIZER_ADDED_TOKENS_H
#define TOKENIZER_ADDED_TOKENS_H

#include "tokenizer/regex.h"
#include "tokenizer/tokenizer.h"

#define ADDED_TOKEN_MAX 1024  // bytes of one

struct added_token {
    int32_t id;
    bool special, single_word, lstrip, rstrip, normalized;
};

struct trie_node {
    uint32_t child, sibling;  // 0: none; node 0 is the root
    uint32_t token;           // index + 1 of the token that ends here; 0: none
    unsigned char byte;
};

struct trie {
    struct trie_node *node;
    uint32_t n, cap;
    uint32_t first[256];  // the children of the root by their byte
};

struct added_tokens {
    struct added_token *token;
    uint32_t n, cap;
    struct trie raw, normalized;
    struct regex *word;  // one word character; NULL where no token asks
};

void added_tokens_free(struct added_tokens *a);

/* Add a token that is found where s[0..n) stands (normalized, where the token is).
 * -EEXIST where that text has a token already; -ENOMEM. */
NODISCARD int added_tokens_add(struct added_tokens *a, const struct added_token *token,
                               const char *s, size_t n);
/* After the last one: -ENOMEM. */
NODISCARD int added_tokens_finish(struct added_tokens *a, struct err *err);

/* A search through one text, from left to right. */
struct added_search {
    const struct added_tokens *tokens;
    const struct trie *trie;
    struct regex_run *run;
    const char *s;
    size_t n;
    const struct text_span *plain;  // ascending, disjoint
    size_t n_plain;
    size_t base;  // the plain spans count from `base` bytes before s
    size_t at;    // where the search goes on
    size_t done;  // the end of the last match, with its blanks
};

struct added_match {
    size_t from, to;
    int32_t id;
};

/* The next match: 1, or 0 when there is none any more.  The text between `done` as it
 * was before the call and `from` has no token.  Errors are those of regex_find(). */
NODISCARD int added_tokens_next(struct added_search *x, struct added_match *out,
                                struct err *err);

#endif
