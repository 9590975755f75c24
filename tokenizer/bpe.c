#include "tokenizer/bpe.h"

#include <stdlib.h>

static uint32_t hash_pair(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

int bpe_init(struct bpe *b, uint32_t n_merges)
{
    uint64_t slots = 2;
    while (slots < (uint64_t)n_merges + n_merges / 2 + 1) slots *= 2;
    b->mask = (uint32_t)(slots - 1);
    b->slot = calloc(slots, sizeof *b->slot);
    return b->slot ? 0 : -ENOMEM;
}

void bpe_free(struct bpe *b)
{
    free(b->slot);
    *b = (struct bpe){0};
}

static struct bpe_merge *slot_of(const struct bpe *b, uint32_t left, uint32_t right)
{
    uint32_t i = hash_pair(left, right) & b->mask;
    while (b->slot[i].id && (b->slot[i].left != left || b->slot[i].right != right)) {
        i = (i + 1) & b->mask;
    }
    return &b->slot[i];
}

void bpe_add(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    *slot_of(b, left, right) = (struct bpe_merge){left, right, rank, id + 1};
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    free(s->symbol);
    free(s->heap);
    *s = (struct bpe_scratch){0};
}

int bpe_scratch_reserve(struct bpe_scratch *s, size_t n)
{
    if (n <= s->cap) return 0;
    size_t cap = n < 64 ? 64 : n + n / 2;
    struct bpe_symbol *symbol = realloc(s->symbol, cap * sizeof *symbol);
    if (!symbol) return -ENOMEM;
    s->symbol = symbol;
    s->cap = cap;
    return 0;
}

static bool before(const struct bpe_candidate *a, const struct bpe_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static int heap_push(struct bpe_scratch *s, struct bpe_candidate c)
{
    if (s->n_heap == s->heap_cap) {
        size_t cap = s->heap_cap ? s->heap_cap * 2 : 64;
        struct bpe_candidate *heap = realloc(s->heap, cap * sizeof *heap);
        if (!heap) return -ENOMEM;
        s->heap = heap;
        s->heap_cap = cap;
    }
    size_t i = s->n_heap++;
    for (; i > 0 && before(&c, &s->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        s->heap[i] = s->heap[(i - 1) / 2];
    }
    s->heap[i] = c;
    return 0;
}

static struct bpe_candidate heap_pop(struct bpe_scratch *s)
{
    struct bpe_candidate top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_heap) break;
        if (child + 1 < s->n_heap && before(&s->heap[child + 1], &s->heap[child])) {
            child++;
        }
        if (!before(&s->heap[child], &last)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* Put the pair that begins at symbol i on the heap, where it merges. */
static int offer(const struct bpe *b, struct bpe_scratch *s, int32_t i)
{
    if (i < 0 || s->symbol[i].next < 0) return 0;
    const struct bpe_merge *m = slot_of(b, (uint32_t)s->symbol[i].id,
                                        (uint32_t)s->symbol[s->symbol[i].next].id);
    if (!m->id) return 0;
    return heap_push(s, (struct bpe_candidate){m->rank, (uint32_t)i, m->id - 1});
}

/* Does the pair at c still make the token it was put on the heap for? */
static bool holds(const struct bpe *b, const struct bpe_scratch *s,
                  struct bpe_candidate c)
{
    const struct bpe_symbol *x = &s->symbol[c.at];
    if (x->id < 0 || x->next < 0) return false;
    const struct bpe_merge *m =
        slot_of(b, (uint32_t)x->id, (uint32_t)s->symbol[x->next].id);
    return m->id == c.id + 1;
}

int bpe_join(const struct bpe *b, struct bpe_scratch *s, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n; i++) {
        s->symbol[i].prev = (int32_t)i - 1;
        s->symbol[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    s->n_heap = 0;
    for (size_t i = 0; i + 1 < n && rc == 0; i++) rc = offer(b, s, (int32_t)i);

    while (rc == 0 && s->n_heap > 0) {
        struct bpe_candidate c = heap_pop(s);
        if (!holds(b, s, c)) continue;

        struct bpe_symbol *x = &s->symbol[c.at], *gone = &s->symbol[x->next];
        x->id = (int32_t)c.id;
        x->next = gone->next;
        gone->id = -1;
        if (x->next >= 0) s->symbol[x->next].prev = (int32_t)c.at;

        rc = offer(b, s, x->prev);
        if (rc == 0) rc = offer(b, s, (int32_t)c.at);
    }
    return rc;
}

/* Give the tokens that begin before symbol `until`; *next: where the one behind them does, or
 * -1. */
static int give_tokens(const struct bpe_scratch *s, size_t until, int32_t *next,
                       bpe_give *give, void *to)
{
    int rc = 0;
    *next = 0;
    while (rc == 0 && *next >= 0 && (size_t)*next < until) {
        rc = give(to, s->symbol[*next].id);
        *next = s->symbol[*next].next;
    }
    return rc;
}

int bpe_join_windows(const struct bpe *b, struct bpe_scratch *s,
                     const int32_t byte_id[256], const char *text, size_t n,
                     size_t window, bpe_give *give, void *to)
{
    int32_t first = 0;  // token of this window, as the one before has it
    if (bpe_scratch_reserve(s, window) < 0) return -ENOMEM;
    for (size_t at = 0;;) {
        size_t length = n - at < window ? n - at : window;
        for (size_t i = 0; i < length; i++)
            s->symbol[i].id = byte_id[(unsigned char)text[at + i]];
        int rc = bpe_join(b, s, length);
        if (rc < 0) return rc;
        if (at > 0 && s->symbol[0].id != first) return 1;

        int32_t next;
        bool last = at + length == n;
        rc = give_tokens(s, last ? length : length - length / 4, &next, give, to);
        if (rc != 0 || last) return rc;
        if (next < 0) return 1;
        first = s->symbol[next].id;
        at += (size_t)next;
    }
}
