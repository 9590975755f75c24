/* chat.h - messages to prompt text, by the model's own chat template.
 *
 * Owns     the compiled template and the special-token strings it may use.
 * Source   DIR/chat_template.jinja where it exists, else "chat_template" of
 *          DIR/tokenizer_config.json: a string, or a list of named templates of which
 *          "default" is used ("tool_use" where tools are given and it exists).
 * Safety   what came from the messages is tracked through the template, byte by byte, and
 *          returned as plain spans: tokenizer_encode() makes no control token of it.
 * Bounds   a render stops with -E2BIG at a limit of steps, depth or output, so that a
 *          hostile template cannot hang or exhaust the server.
 * Threads  immutable after open; any thread may render.
 */
#ifndef TOKENIZER_CHAT_H
#define TOKENIZER_CHAT_H

#include "tokenizer/tokenizer.h"

struct chat_template;

/* -ENOENT: the model has no template.  -EINVAL: it has one that does not parse or uses
 * what is not supported, named with its line. */
NODISCARD int chat_open_dir(struct chat_template **out, const char *dir,
                            struct err *err);
/* From memory, for tests and fuzzing.  bos and eos may be NULL. */
NODISCARD int chat_open(struct chat_template **out, const char *source, size_t n,
                        const char *bos, const char *eos, struct err *err);
void chat_close(struct chat_template *t);  // NULL is fine

/* BLAKE2b-256 of all that makes text besides the context, wherever it was read from:
 * "dormouse chat 1", then for each of template, template for tools, BOS and EOS a
 * little-endian u32 1 and the BLAKE2b-256 of its bytes, or 0 where there is none. */
void chat_content_hash(const struct chat_template *t, struct crypto_hash *out);
const char *chat_source_name(const struct chat_template *t);  // for the start-up log
const char *chat_eos_token(const struct chat_template *t);    // "" where none is named

struct chat_text {
    char *text;  // n bytes and a final NUL
    size_t n;
    struct text_span *plain;  // what came from the context, ascending and disjoint
    size_t n_plain;
};
void chat_text_free(struct chat_text *c);  // zero-initialised is fine

/* Render.  `context` is a JSON object, strict (json.h): its members are the template's
 * variables, in order: "messages" (array of objects), "add_generation_prompt", perhaps
 * "tools", "documents" and others.  bos_token, eos_token and the functions of the
 * template language are added.  now: what strftime_now() tells, in seconds since 1970
 * (UTC).
 * -EINVAL: the template refused the messages (raise_exception) or failed on them; the
 * message is the template's, after "the chat template refuses: ".  -E2BIG: a limit.
 * -ENOMEM. */
NODISCARD int chat_render(const struct chat_template *t, const char *context, size_t n,
                          int64_t now, struct chat_text *out, struct err *err);

#endif
