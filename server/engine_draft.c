/* engine_draft.c - speculative decoding: what replies may go on with, by their own text. */
#include "server/engine_state.h"

static struct lookup_text text_of(const struct engine *e, uint32_t seq)
{
    const struct request *r = e->orders[e->sched.seqs[seq].job].r;
    const struct voice *v = &e->voices[seq];
    return (struct lookup_text){
        .prompt = r->ids,
        .reply = v->generated,
        .n_prompt = r->n_ids,
        .n_reply = v->n_generated,
    };
}

/* The drafts lie behind the reply, where make_batch() looks for them and the tokens that are
 * chosen will be; the last token of a reply is of no use to draft behind. */
static uint32_t find(void *arg, uint32_t seq, uint32_t cost, uint32_t most)
{
    struct engine *e = arg;
    struct voice *v = &e->voices[seq];
    const struct request *r = e->orders[e->sched.seqs[seq].job].r;
    struct lookup_text text = text_of(e, seq);
    uint32_t left = r->max_tokens - v->n_generated - 1;
    lookup_find(&v->lookup, &text);
    uint32_t n = lookup_worth(&v->lookup, cost, most < left ? most : left);
    lookup_draft(&v->lookup, &text, v->generated + v->n_generated, n);
    return n;
}

void engine_learn(struct engine *e, uint32_t seq)
{
    struct lookup_text text = text_of(e, seq);
    lookup_learn(&e->voices[seq].lookup, &text);
}

struct sched_draft engine_sched_draft(struct engine *e)
{
    return (struct sched_draft){e, find, e->o.prompt_lookup, e->o.step_rows};
}
