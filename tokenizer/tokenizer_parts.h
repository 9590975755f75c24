/* tokenizer_parts.h - what a tokenizer is made of; for tokenizer.c and tokload*.c only.
 *
 * Threads  immutable once loaded.
 */
#ifndef TOKENIZER_TOKENIZER_PARTS_H
#define TOKENIZER_TOKENIZER_PARTS_H

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe;
    int32_t byte_id[256];  // the token of each byte; -1: none, the byte vanishes
    int32_t unknown;       // what such a byte becomes instead; -1: nothing
    bool fuse_unknown;     // ... once for several in a row
    bool ignore_merges;    // a word that is a token is that token
    bool nfc;
    struct added_tokens added;
    struct pretokenizer pretokenizer;
    struct token_list prefix, suffix;
    struct crypto_hash content;
};

#endif
