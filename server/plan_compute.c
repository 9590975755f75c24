/* plan_compute.c - one compute server: chunks of prefill in order, every reply a token. */
#include "server/plan_world.h"

bool plan_compute_busy(const struct plan_world *w)
{
    return w->prefill.n || w->decoding.n;
}

static double step_ns(const struct plan_world *w, uint32_t tokens, double positions)
{
    const struct plan_compute *c = &w->machine->compute;
    double products = (tokens + (double)w->decoding.n) * c->prefill_a;
    return (products > c->weights ? products : c->weights) + positions * c->prefill_b +
           (double)w->context * c->context + c->overhead;
}

static uint64_t prefill_step(struct plan_world *w)
{
    uint32_t left = w->machine->compute.step_tokens, tokens = 0;
    double positions = 0;
    uint32_t i = w->prefill.first;
    for (uint32_t k = 0; k < w->prefill.n && left; k++, i = w->seq_next[i]) {
        struct plan_sequence *s = &w->seq[i];
        uint32_t n = w->trace->turns[s->turn].prompt - s->at;
        if (n > left) n = left;
        positions += (double)n * (s->at + n / 2.0);
        s->at += n;
        tokens += n;
        left -= n;
    }
    double ns = step_ns(w, tokens, positions);
    w->step++;
    w->context += w->decoding.n;
    return (uint64_t)ns;
}

/* Steps of decode alone until the first reply ends, or the first step that ends at `until`
 * or later. */
static uint64_t decode_steps(struct plan_world *w, uint64_t until)
{
    double first = step_ns(w, 0, 0);
    double more =
        w->decoding.n * w->machine->compute.context;  // each step, than the last
    uint64_t n = plan_heap_next(&w->decoding) - w->step;
    double left = until > w->now ? (double)(until - w->now) : 0;
    if (first * (double)n > left) {
        uint64_t fit = (uint64_t)(left / first) + 1;
        if (fit < n) n = fit;
    }
    double k = (double)n;
    w->step += n;
    w->context += n * w->decoding.n;
    return (uint64_t)(k * first + k * (k - 1) / 2 * more);
}

uint64_t plan_compute_begin(struct plan_world *w, uint64_t until)
{
    uint64_t ns = w->prefill.n ? prefill_step(w) : decode_steps(w, until);
    return ns ? ns : 1;
}

/* ---- what a step gave ---- */

static void seal(struct plan_world *w, struct plan_sequence *s, uint32_t blocks)
{
    if (s->sealed >= blocks) return;
    (void)plan_prompt(w, s->turn, blocks);
    for (; s->sealed < blocks; s->sealed++)
        (void)kvstore_seal(w->kv, s->pages[s->sealed], &w->meta[s->sealed], w->now);
}

static void finish(struct plan_world *w, uint32_t i)
{
    struct plan_sequence *s = &w->seq[i];
    const struct plan_turn *turn = &w->trace->turns[s->turn];
    seal(w, s, turn->n_blocks);
    struct kv_prompt p = plan_prompt(w, s->turn, turn->n_blocks);
    p.n_tokens = turn->prompt + turn->reply;
    p.begun = s->begun;
    kvstore_idle(w->kv, &p, w->now);
    while (s->n_pages) plan_pages_unref(&w->pages, s->pages[--s->n_pages]);
    w->result->reply_tokens += turn->reply;
    w->result->span = w->now;
    plan_turn_over(w, s->turn);
    plan_list_append(&w->unused, i, w->seq_next);
}

/* The prefill is done, and with it the first token of the reply. */
static void first_token(struct plan_world *w, uint32_t i)
{
    struct plan_sequence *s = &w->seq[i];
    struct plan_result *r = w->result;
    const struct plan_turn *turn = &w->trace->turns[s->turn];
    uint64_t ttft = w->now - s->arrived;
    r->ttft[r->turns++] = ttft;
    r->prompt_tokens += turn->prompt;
    if (!turn->first) r->ttft_returning[r->returning++] = ttft;
    if (turn->reply <= 1) {
        finish(w, i);
        return;
    }
    w->context += turn->prompt;
    plan_heap_push(&w->decoding, w->step + turn->reply - 1, i);
}

void plan_compute_end(struct plan_world *w)
{
    while (plan_heap_next(&w->decoding) <= w->step) {
        uint32_t i = plan_heap_pop(&w->decoding).what;
        const struct plan_turn *turn = &w->trace->turns[w->seq[i].turn];
        w->context -= turn->prompt + turn->reply - 1;
        finish(w, i);
    }
    while (w->prefill.n) {
        uint32_t i = w->prefill.first;
        struct plan_sequence *s = &w->seq[i];
        seal(w, s, s->at / PLAN_BLOCK_TOKENS);
        if (s->at < w->trace->turns[s->turn].prompt) break;
        w->prefill.first = w->seq_next[i];
        w->prefill.n--;
        first_token(w, i);
    }
}
