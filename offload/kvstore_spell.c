#include "offload/kvstore_spell.h"

#include "offload/kvstore_state.h"

/* Where the block's tokens end if they spell the text from `at` on, or -1. */
static int64_t spell_block(const struct kv_speller *speller,
                           const struct block_meta *block, int64_t at)
{
    for (uint32_t i = 0; i < KV_BLOCK_TOKENS && at >= 0; i++)
        at = speller->spell(speller->arg, at, block->tokens[i]);
    return at;
}

/* The block behind `after` that reaches furthest into the text; false: none spells it.
 * All spell the same text: whichever reaches furthest has fewest bytes left to encode. */
static bool spell_next(const struct kvstore *kv, const struct block_meta *after,
                       const struct kv_speller *speller, int64_t *at,
                       struct block_meta *out)
{
    int64_t best = -1;
    uint32_t tries = 0;
    for (int l = 0; l < KV_SOURCES; l++) {
        const struct slots *s = kv->level[l].slots;
        uint32_t i = s ? slots_child(s, &after->id, SLOT_NONE) : SLOT_NONE;
        for (; i != SLOT_NONE && tries < SPELL_TRIES; tries++) {
            const struct slot *slot = slots_at(s, i);
            const struct block_meta *m = &slot->meta;
            if (slot->state == SLOT_READY && m->depth == after->depth + 1 &&
                m->tenant == after->tenant) {
                int64_t end = spell_block(speller, m, *at);
                if (end > best) {
                    best = end;
                    *out = *m;
                }
            }
            i = slots_child(s, &after->id, i);
        }
    }
    if (best < 0) return false;
    *at = best;
    return true;
}

uint32_t kvstore_spell(const struct kvstore *kv, const struct block_meta *after,
                       const struct kv_speller *speller, int64_t *at,
                       struct block_meta *out, uint32_t cap)
{
    uint32_t n = 0;
    while (n < cap && spell_next(kv, after, speller, at, &out[n])) after = &out[n++];
    return n;
}

bool kvstore_followed(const struct kvstore *kv, const struct block_meta *after)
{
    for (int l = 0; l < KV_SOURCES; l++) {
        const struct slots *s = kv->level[l].slots;
        if (s && slots_child(s, &after->id, SLOT_NONE) != SLOT_NONE) return true;
    }
    return false;
}
