#include "server/lookup.h"

#define NOWHERE UINT32_MAX
#define STRIDE  16  // tokens that are compared at a time

void lookup_begin(struct lookup *l)
{
    *l = (struct lookup){.share = LOOKUP_ONE / 2};
}

static int32_t token_at(const struct lookup_text *t, uint32_t i)
{
    return i < t->n_prompt ? t->prompt[i] : t->reply[i - t->n_prompt];
}

/* ---- search ---- */

/* Without a branch, so that compilers vectorise it. */
static bool among(const int32_t x[STRIDE], int32_t id)
{
    uint32_t any = 0;
    for (int i = 0; i < STRIDE; i++) any |= x[i] == id;
    return any;
}

/* The last place of id in x[from, end). */
static uint32_t last_place(const int32_t *x, uint32_t from, uint32_t end, int32_t id)
{
    while (end >= from + STRIDE && !among(x + end - STRIDE, id)) end -= STRIDE;
    while (end > from && x[end - 1] != id) end--;
    return end > from ? end - 1 : NOWHERE;
}

/* The same of the text's [from, end), which may lie in both parts. */
static uint32_t place_before(const struct lookup_text *t, uint32_t from, uint32_t end,
                             int32_t id)
{
    uint32_t n = t->n_prompt;
    if (end > n) {
        uint32_t i = last_place(t->reply, from > n ? from - n : 0, end - n, id);
        if (i != NOWHERE) return i + n;
        end = n;
    }
    return from < end ? last_place(t->prompt, from, end, id) : NOWHERE;
}

void lookup_find(struct lookup *l, const struct lookup_text *t)
{
    uint32_t n = t->n_prompt + t->n_reply;
    if (l->next > 0 || n < 3) return;
    const int32_t last = token_at(t, n - 1), second = token_at(t, n - 2),
                  third = token_at(t, n - 3);
    uint32_t from = n > LOOKUP_SCAN ? n - LOOKUP_SCAN : 1, at = n - 1;
    for (int tries = 0; tries < LOOKUP_TRIES; tries++) {
        at = place_before(t, from, at, last);
        if (at == NOWHERE) return;
        if (token_at(t, at - 1) != second) continue;
        bool three = at > 1 && token_at(t, at - 2) == third;
        if (three || l->next == 0) l->next = at + 1;
        if (three) return;
    }
}

/* ---- drafts ---- */

uint32_t lookup_worth(const struct lookup *l, uint32_t cost, uint32_t most)
{
    uint32_t n = 0;
    uint64_t chance = l->share;
    for (; l->next > 0 && n < most && chance > cost; n++)
        chance = chance * l->share / LOOKUP_ONE;
    return n;
}

void lookup_draft(const struct lookup *l, const struct lookup_text *t, int32_t *out,
                  uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) out[i] = token_at(t, l->next + i);
}

void lookup_learn(struct lookup *l, const struct lookup_text *t)
{
    if (l->next == 0) return;
    uint32_t last = t->n_prompt + t->n_reply - 1;
    bool came_true = token_at(t, l->next) == token_at(t, last);
    l->share -= l->share / 8;
    if (came_true) l->share += LOOKUP_ONE / 8;
    l->next = came_true ? l->next + 1 : 0;
}
