/* tokenizer.h - text to token ids and back, as a Hugging Face tokenizer.json says.
 *
 * Owns     vocabulary, merges, added tokens and the compiled pre-tokenizer.
 * Caller   passes UTF-8; bytes that are not well formed count as U+FFFD, one for each
 *          maximal ill-formed part.
 * Bounds   encoding n bytes takes O(n log n), even when they are one word.
 * Refused  at open, by name: whatever this version would otherwise do wrongly.
 * Threads  immutable after open; any thread may call anything.
 */
#ifndef TOKENIZER_TOKENIZER_H
#define TOKENIZER_TOKENIZER_H

#include "kernels/crypto.h"

struct tokenizer;

/* A growing list of ids: zero-initialise, free with token_list_free(). */
struct token_list {
    int32_t *ids;
    size_t n, cap;
};
void token_list_free(struct token_list *l);

/* Bytes [from, to) of a text. */
struct text_span {
    size_t from, to;
};

/* Read dir/tokenizer.json. -ENOENT where there is none. */
NODISCARD int tokenizer_open_dir(struct tokenizer **out, const char *dir,
                                 struct err *err);
/* The same from memory; `name` is used in messages.  Nothing of data is kept. */
NODISCARD int tokenizer_open(struct tokenizer **out, const char *data, size_t n,
                             const char *name, struct err *err);
void tokenizer_close(struct tokenizer *t);  // NULL is fine

/* BLAKE2b-256 of the bytes of the file it was read from.  Borrowed. */
const struct crypto_hash *tokenizer_content_hash(const struct tokenizer *t);

/* One more than the highest id that has a token. */
uint32_t tokenizer_size(const struct tokenizer *t);

/* Append the ids of text[0..n) to out.  Added tokens in the text are recognised, but a
 * special one (a control token) only where no byte of it lies within one of the `plain`
 * spans (ascending, disjoint): there, text stays text.  So what a user wrote is handed
 * over as a plain span and can never become a control token.
 * Nothing is put in front or behind; see tokenizer_prefix().  -ENOMEM; -EOVERFLOW when
 * more than `max_ids` ids would be appended (0: no limit), told as soon as it is certain;
 * -E2BIG when the file's patterns take more work than any real one does; out then holds
 * some of the ids. */
NODISCARD int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n,
                               const struct text_span *plain, size_t n_plain,
                               size_t max_ids, struct token_list *out, struct err *err);

/* What the post-processor puts before and after one sequence (BOS, EOS).  Borrowed,
 * lives as long as t. */
const int32_t *tokenizer_prefix(const struct tokenizer *t, size_t *n);
const int32_t *tokenizer_suffix(const struct tokenizer *t, size_t *n);

/* The bytes a token stands for (an added token: its content).  NULL where `id` has no
 * token; ids come from outside, every value is fine.  Borrowed. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n);
/* The most bytes of text that one id of tokenizer_encode() can come from, but for white
 * space around an added token that takes it along; SIZE_MAX: any number.  Bytes without a
 * token of their own do not count: they may vanish, or share one with those beside them. */
size_t tokenizer_most_bytes(const struct tokenizer *t);
bool tokenizer_has_byte(const struct tokenizer *t, unsigned char c);
/* Is it an added token marked special: shown only where control tokens are wanted. */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* The id of an added token or vocabulary entry of exactly this content; -1: none. */
int32_t tokenizer_find(const struct tokenizer *t, const char *content, size_t n);

#endif
