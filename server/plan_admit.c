/* plan_admit.c - from waiting to prefill: pages for prompt and reply, and the prefix. */
#include "server/plan_world.h"

#include <string.h>

/* Take pages until the sequence has all it needs; false: some are still missing. */
static bool fill(struct plan_world *w, struct plan_sequence *s)
{
    uint32_t missing = s->need - s->n_pages;
    if (w->pages.n_free < missing) kvstore_make_room(w->kv, missing, w->now);
    while (s->n_pages < s->need && w->pages.n_free)
        s->pages[s->n_pages++] = plan_pages_take(&w->pages);
    return s->n_pages == s->need;
}

static void start_prefill(struct plan_world *w, uint32_t i)
{
    struct plan_sequence *s = &w->seq[i];
    s->at = s->prefix * PLAN_BLOCK_TOKENS;
    s->sealed = s->prefix;
    plan_list_append(&w->prefill, i, w->seq_next);
}

/* A load is over: what it did not bring is gone from the middle of the pages. */
static void take_prefix(struct plan_sequence *s, uint32_t n)
{
    uint32_t own = s->n_pages - s->prefix;
    memmove(s->pages + n, s->pages + s->prefix, own * sizeof *s->pages);
    s->prefix = n;
    s->n_pages = n + own;
    s->wake = UINT32_MAX;
}

/* True: somebody still lacks pages, and nobody else may take any. */
static bool go_on(struct plan_world *w)
{
    struct plan_list old = w->loading;
    bool lacks = false;
    plan_list_clear(&w->loading);
    for (uint32_t i = old.first, next; old.n--; i = next) {
        struct plan_sequence *s = &w->seq[i];
        next = w->seq_next[i];
        uint32_t n;
        struct kv_wake_report report;
        if (s->wake != UINT32_MAX &&
            kvstore_wake_poll(w->kv, s->wake, w->now, &n, &report))
            take_prefix(s, n);
        bool ready = s->wake == UINT32_MAX;
        if (ready && fill(w, s)) {
            start_prefill(w, i);
            continue;
        }
        lacks |= ready;
        plan_list_append(&w->loading, i, w->seq_next);
    }
    return lacks;
}

static uint32_t pages_for(const struct plan_turn *turn)
{
    return (turn->prompt + turn->reply + PLAN_BLOCK_TOKENS - 1) / PLAN_BLOCK_TOKENS;
}

static bool fits(const struct plan_world *w, const struct plan_turn *turn)
{
    return turn->prompt + turn->reply <= w->machine->context &&
           pages_for(turn) <= w->pages.capacity;
}

static void refuse(struct plan_world *w, uint32_t turn)
{
    for (; turn != PLAN_NONE; turn = w->trace->turns[turn].next) w->result->refused++;
}

static bool has_room(struct plan_world *w, uint32_t turn)
{
    if (w->unused.n == 0 || w->loading.n == w->machine->max_wakes) return false;
    const struct plan_turn *x = &w->trace->turns[turn];
    struct kv_found mine = {0};
    if (kvstore_has_room(w->kv, pages_for(x), &mine, w->now)) return true;
    struct kv_prompt p = plan_prompt(w, turn, (x->prompt - 1) / PLAN_BLOCK_TOKENS);
    kvstore_match(w->kv, &p, &mine);
    return kvstore_wait_room(w->kv, pages_for(x), &mine, w->now) == KV_NOW;
}

static uint32_t take_unused(struct plan_world *w)
{
    uint32_t i = w->unused.first;
    w->unused.first = w->seq_next[i];
    w->unused.n--;
    return i;
}

static void begin(struct plan_world *w, uint32_t turn)
{
    const struct plan_turn *x = &w->trace->turns[turn];
    w->head = take_unused(w);
    struct plan_sequence *s = &w->seq[w->head];
    s->turn = turn;
    s->arrived = w->arrived[turn];
    s->need = pages_for(x);
    struct kv_prompt p = plan_prompt(w, turn, (x->prompt - 1) / PLAN_BLOCK_TOKENS);
    struct kv_wake_report report;
    s->prefix = kvstore_wake(w->kv, &p, w->now, s->pages, p.n_meta, &s->wake, &report);
    s->n_pages = s->prefix;
    s->begun = report.conversation[0] != 0;
}

void plan_admit(struct plan_world *w)
{
    if (go_on(w)) return;
    for (;;) {
        if (w->head == PLAN_NONE) {
            if (w->waiting.n == 0) return;
            uint32_t turn = w->waiting.first;
            bool fit = fits(w, &w->trace->turns[turn]);
            if (fit && !has_room(w, turn)) return;
            w->waiting.first = w->next_waiting[turn];
            w->waiting.n--;
            if (!fit) {
                refuse(w, turn);
                continue;
            }
            begin(w, turn);
        }
        uint32_t i = w->head;
        struct plan_sequence *s = &w->seq[i];
        if (!fill(w, s)) return;
        w->head = PLAN_NONE;
        if (s->wake == UINT32_MAX)
            start_prefill(w, i);
        else
            plan_list_append(&w->loading, i, w->seq_next);
    }
}

bool plan_waits_for_load(const struct plan_world *w)
{
    return w->loading.n || w->waiting.n || w->head != PLAN_NONE;
}
