/* engine_recall.c - finds a reply's own blocks where its text is encoded by other tokens.
 *
 * A client sends back text, and the tokenizer may spell it by other tokens than the model
 * produced.  Where the prompt's own tokens lead no further into what is kept, blocks behind
 * the last match are tried that spell the same text; then the prompt goes on with their
 * tokens, and only what follows them is encoded anew.
 *
 * The text's control tokens stay what they are: a control token spells only a control
 * token of the prompt, and nothing else spells a part of one.
 *
 * Memory   this alone of what the engine does may allocate, before a request is
 *          scheduled and only for one that a kept reply goes on from.
 */
#include "server/engine_state.h"

#include "offload/kvstore_spell.h"

#include <stdlib.h>
#include <string.h>

struct spelling {
    const struct tokenizer *tokenizer;
    const char *text;
    size_t n;
    struct text_span *control;  // where the prompt's control tokens stand, ascending
    size_t n_control;
};

/* Place behind the token's bytes, if they stand at `at`; -1 if not. */
static int64_t behind(const struct spelling *s, int64_t at, int32_t token)
{
    size_t n;
    const char *bytes = tokenizer_bytes(s->tokenizer, token, &n);
    if (!bytes || n == 0 || n > s->n - (size_t)at) return -1;
    if (memcmp(s->text + at, bytes, n) != 0) return -1;
    return at + (int64_t)n;
}

/* The first control token that ends behind `at`; n_control: none. */
static size_t control_after(const struct spelling *s, size_t at)
{
    size_t low = 0, high = s->n_control;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (s->control[mid].to > at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static int64_t spell(void *arg, int64_t at, int32_t token)
{
    const struct spelling *s = arg;
    int64_t end = behind(s, at, token);
    if (end < 0) return -1;
    size_t i = control_after(s, (size_t)at);
    bool meets = i < s->n_control && s->control[i].from < (size_t)end;
    bool is_it =
        meets && s->control[i].from == (size_t)at && s->control[i].to == (size_t)end;
    return tokenizer_is_special(s->tokenizer, token) == meets && (is_it || !meets) ? end
                                                                                   : -1;
}

/* Note the control tokens of the prompt, and in *at where its first `n` tokens end.  False
 * where its tokens do not spell its text, as behind a normalizer. */
static bool note_controls(struct spelling *s, const struct request *r, uint32_t n,
                          int64_t *at)
{
    int64_t place = 0;
    for (uint32_t i = 0; i < r->n_ids; i++) {
        if (i == n) *at = place;
        int64_t end = behind(s, place, r->ids[i]);
        if (end < 0) return false;
        if (tokenizer_is_special(s->tokenizer, r->ids[i]))
            s->control[s->n_control++] = (struct text_span){(size_t)place, (size_t)end};
        place = end;
    }
    return (size_t)place == s->n;
}

/* The ids of the text from `at` on, appended; its plain spans are the text's. */
static int encode_rest(const struct request *r, const struct tokenizer *t, size_t at,
                       struct token_list *ids)
{
    struct text_span *plain = malloc((r->n_plain + 1) * sizeof *plain);
    size_t n = 0;
    if (!plain) return -ENOMEM;
    for (size_t i = 0; i < r->n_plain; i++) {
        if (r->plain[i].to <= at) continue;
        size_t from = r->plain[i].from > at ? r->plain[i].from - at : 0;
        plain[n++] = (struct text_span){from, r->plain[i].to - at};
    }
    int rc = tokenizer_encode(t, r->text + at, r->n_text - at, plain, n, 0, ids, NULL);
    free(plain);
    return rc;
}

static bool append(struct token_list *l, const int32_t *ids, size_t n)
{
    if (l->n + n > l->cap) {
        int32_t *more = realloc(l->ids, (l->n + n) * sizeof *more);
        if (!more) return false;
        l->ids = more;
        l->cap = l->n + n;
    }
    memcpy(l->ids + l->n, ids, n * sizeof *ids);
    l->n += n;
    return true;
}

/* Put the found blocks in place of the prompt's own from block `kept` on.  Whatever fails,
 * the request stays as it came. */
static void replace(struct engine *e, struct request *r, uint32_t kept,
                    const struct block_meta *chain, uint32_t n, size_t at)
{
    struct token_list ids = {0};
    bool good = append(&ids, r->ids, (size_t)kept * KV_BLOCK_TOKENS);
    for (uint32_t i = 0; i < n && good; i++)
        good = append(&ids, chain[i].tokens, KV_BLOCK_TOKENS);
    good = good && encode_rest(r, e->o.tokenizer, at, &ids) == 0;
    if (!good || ids.n >= engine_capacity(e)) {
        token_list_free(&ids);
        return;
    }
    int32_t *own_ids = r->ids;
    uint32_t n_own_ids = r->n_ids, n_own_blocks = r->n_blocks;
    struct block_meta *own_blocks = r->blocks;
    r->ids = ids.ids;
    r->n_ids = (uint32_t)ids.n;
    r->blocks = NULL;
    r->n_blocks = 0;
    if (engine_name_blocks(e, r, NULL) == 0) {
        uint32_t left = engine_capacity(e) - r->n_ids;
        if (r->max_tokens > left) r->max_tokens = left;
        free(own_ids);
        free(own_blocks);
        return;
    }
    r->ids = own_ids;
    r->n_ids = n_own_ids;
    r->blocks = own_blocks;
    r->n_blocks = n_own_blocks;
    token_list_free(&ids);
}

void engine_recall(struct engine *e, struct request *r)
{
    if (!e->o.store || !r->text || !r->blocks || r->prompt_logprobs) return;
    struct kv_prompt p = {.meta = r->blocks,
                          .n_meta = (r->n_ids - 1) / KV_BLOCK_TOKENS,
                          .n_tokens = r->n_ids,
                          .tenant = e->o.tenants[r->tenant].number};
    struct kv_found found;
    kvstore_match(e->o.store, &p, &found);
    uint32_t kept = found.blocks;
    if (kept == 0 || kept == p.n_meta) return;
    if (!kvstore_followed(e->o.store, &r->blocks[kept - 1])) return;

    struct spelling s = {.tokenizer = e->o.tokenizer, .text = r->text, .n = r->n_text};
    s.control = malloc(r->n_ids * sizeof *s.control);
    int64_t at = 0;
    if (s.control && note_controls(&s, r, kept * KV_BLOCK_TOKENS, &at)) {
        /* A token has a byte at least. */
        size_t cap = (s.n - (size_t)at) / KV_BLOCK_TOKENS;
        uint32_t most = engine_capacity(e) / KV_BLOCK_TOKENS - kept;
        if (cap > most) cap = most;
        struct block_meta *chain = cap ? malloc(cap * sizeof *chain) : NULL;
        const struct kv_speller speller = {&s, spell};
        uint32_t n = chain ? kvstore_spell(e->o.store, &r->blocks[kept - 1], &speller,
                                           &at, chain, (uint32_t)cap)
                           : 0;
        if (n > 0) replace(e, r, kept, chain, n, (size_t)at);
        free(chain);
    }
    free(s.control);
}
