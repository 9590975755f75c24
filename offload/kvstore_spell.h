/* kvstore_spell.h - finds stored blocks by the text that their tokens spell.
 *
 * A reply's text may be encoded by other tokens than the model produced.  Where a prompt's
 * own tokens lead no further, the blocks stored behind the last match are tried: if their
 * tokens spell the same text, they are the conversation's, and the prompt may go on with
 * their tokens in place of its own.
 *
 * Bounds   at most SPELL_TRIES blocks are looked at behind one, and none behind a block
 *          that does not spell the text.
 * Threads  one; the store's owner.
 */
#ifndef OFFLOAD_KVSTORE_SPELL_H
#define OFFLOAD_KVSTORE_SPELL_H

#include "offload/kvstore.h"

#define SPELL_TRIES 64

/* The caller knows text and tokens; offload does not.  spell: the place in the text behind
 * this token, if the token spells what stands at `at` there (and may stand there at all:
 * a control token only where the text has one); -1 if not. */
struct kv_speller {
    void *arg;
    int64_t (*spell)(void *arg, int64_t at, int32_t token);
};

/* Is any block kept behind this one?  Quicker than spelling. */
bool kvstore_followed(const struct kvstore *kv, const struct block_meta *after);

/* From block `after` on, whose tokens end at *at: the blocks that go on with the text, in
 * order, at most cap of them, and in *at where they end.  Returns how many. */
uint32_t kvstore_spell(const struct kvstore *kv, const struct block_meta *after,
                       const struct kv_speller *speller, int64_t *at,
                       struct block_meta *out, uint32_t cap);

#endif
