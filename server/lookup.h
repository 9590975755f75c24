/* lookup.h - speculative decoding by prompt lookup: what a conversation's own text says
 * comes next, and whether computing that ahead pays.
 *
 * Where the last three tokens (or else the last two) stood before, a reply often goes on as
 * the text did there: when it quotes, edits or repeats (A. Saxena, "Prompt Lookup Decoding",
 * 2023; vLLM's "ngram").  These tokens are drafted: computed in the same step as the last
 * known one, and kept as far as the sampler chooses the very same.
 *
 * Owns     what one reply remembers: where its guess goes on, and how often guesses came true.
 * Exact    a guess decides what is computed together, never what is chosen.
 * Cheap    a guess is looked for at every token and compared with what comes, also while none
 *          is computed: so that copying is seen at once where it begins, for the price of a
 *          bounded search.  Nothing allocates.
 * Threads  pure functions of their arguments.
 */
#ifndef SERVER_LOOKUP_H
#define SERVER_LOOKUP_H

#include "kernels/base.h"

#define LOOKUP_SCAN  65536  // the latest tokens that are searched
#define LOOKUP_TRIES 512    // places of the last token that are looked at more closely
#define LOOKUP_ONE   65536  // 1 in shares and costs

struct lookup {
    uint32_t next;   // place in the text of the token that is guessed; 0: none is
    uint32_t share;  // of guesses that came true, the late ones counting most
};

/* All that is known: the prompt, then the reply, the latest token at its end. */
struct lookup_text {
    const int32_t *prompt;  // (n_prompt)
    const int32_t *reply;   // (n_reply), then what lookup_draft() wrote
    uint32_t n_prompt, n_reply;
};

void lookup_begin(struct lookup *l);

/* Find a guess where there is none yet. */
void lookup_find(struct lookup *l, const struct lookup_text *t);

/* How many drafts pay, at most `most`.  The i-th comes true where all before it did, with
 * the share's i-th power as its chance; that must be more than `cost`: what one more row
 * adds to the step's time, over the time the step takes for each of its tokens. */
uint32_t lookup_worth(const struct lookup *l, uint32_t cost, uint32_t most);

/* The next n tokens by the guess, which there is, to `out`: that is where the reply ends, so
 * that what repeats itself goes on repeating. */
void lookup_draft(const struct lookup *l, const struct lookup_text *t, int32_t *out,
                  uint32_t n);

/* The text's last token was chosen.  Where it was the guess, the guess goes on. */
void lookup_learn(struct lookup *l, const struct lookup_text *t);

#endif
