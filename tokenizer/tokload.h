/* tokload.h - reads the sections of a tokenizer.json into a tokenizer.
 *
 * Every refusal names the file, the field by its path and the value.
 *
 * Threads  one at a time for each loader.
 */
#ifndef TOKENIZER_TOKLOAD_H
#define TOKENIZER_TOKLOAD_H

#include "kernels/json.h"
#include "tokenizer/tokenizer_parts.h"

#define TOKLOAD_MAX_DEPTH 8  // of a Sequence within a Sequence ...

struct loader {
    struct tokenizer *t;
    struct json_value root;
    const char *name;  // of the file, for messages
    struct err *err;
};

/* All answer 0, -EINVAL or -ENOMEM.  The order matters: the merges need the vocabulary
 * and have to know the special tokens, the added tokens are normalized. */
NODISCARD int tokload_vocab(struct loader *l);
NODISCARD int tokload_normalizer(struct loader *l);
NODISCARD int tokload_added_tokens(struct loader *l);
NODISCARD int tokload_model_options(struct loader *l);
NODISCARD int tokload_merges(struct loader *l);
NODISCARD int tokload_pre_tokenizer(struct loader *l);
NODISCARD int tokload_post_processor(struct loader *l);
NODISCARD int tokload_decoder(struct loader *l);

/* ---- shared by them ---- */

/* A value as it stands in the file, cut where it is long, for messages.  The text lives
 * until the next call with the same buffer. */
struct tokload_text {
    char s[80];
};
const char *tokload_quote(struct json_value v, struct tokload_text *out);

/* What is at `path` is refused, with its value and the reason. */
NODISCARD int tokload_refuse(const struct loader *l, const char *path,
                             struct json_value v, const char *why);

/* A member that may be absent or null and else has to be a bool. */
NODISCARD int tokload_bool(const struct loader *l, const char *path,
                           struct json_value of, const char *key, bool absent,
                           bool *out);

/* Load each element of the array `key` of `of`, which lies at `path`; `depth` counts the
 * arrays around it and is handed on increased. */
typedef int tokload_element(struct loader *l, struct json_value v, const char *path,
                            unsigned depth, void *state);
NODISCARD int tokload_each(struct loader *l, struct json_value of, const char *key,
                           const char *path, unsigned depth, tokload_element *element,
                           void *state);

/* A token id below VOCAB_MAX_IDS. */
bool tokload_id(struct json_value v, uint32_t *out);

/* A string of up to `cap` bytes to buf; false where it is none or longer. */
bool tokload_string(struct json_value v, char *buf, size_t cap, size_t *n);

#endif
