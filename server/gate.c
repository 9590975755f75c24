#include "server/gate.h"

#include <assert.h>
#include <string.h>

/* A gate holds less than REQUEST_MAX_STOP bytes back for a stop string, and as many that
 * are certain but wait for the next token to carry them. */
#define MOST_KEPT (2 * REQUEST_MAX_STOP)

size_t gate_bytes(const struct tokenizer *t)
{
    return MOST_KEPT + detok_max_bound(t) + 3;  // and a flush
}

void gate_init(struct gate *g, const struct tokenizer *t, const struct request *r,
               char *text)
{
    g->tokenizer = t;
    g->request = r;
    detok_init(&g->detok, !r->show_special);
    g->hold = r->sampling.logprobs && r->n_stops > 0;
    g->ended = g->stopped = false;
    g->given = g->certain = g->end = 0;
    g->text = text;
    g->text_cap = gate_bytes(t);
    g->text_from = 0;
    g->first = g->n = 0;
}

/* ---- stop strings ---- */

static const char *text_at(const struct gate *g, uint64_t position)
{
    return g->text + g->text_from + (position - g->given);
}

/* The longest stop string that ends at `end`; 0: none. */
static size_t match_at(const struct gate *g, uint64_t end)
{
    const struct request *r = g->request;
    size_t longest = 0;
    for (uint32_t i = 0; i < r->n_stops; i++) {
        size_t n = r->stop_n[i];
        if (n > longest && n <= end - g->certain &&
            memcmp(text_at(g, end - n), r->stop[i], n) == 0)
            longest = n;
    }
    return longest;
}

/* The longest end of the text that begins a stop string. */
static size_t held(const struct gate *g)
{
    const struct request *r = g->request;
    size_t longest = 0;
    for (uint32_t i = 0; i < r->n_stops; i++) {
        size_t n = r->stop_n[i] - 1u;
        if (n > g->end - g->certain) n = (size_t)(g->end - g->certain);
        while (n > longest && memcmp(text_at(g, g->end - n), r->stop[i], n) != 0) n--;
        if (n > longest) longest = n;
    }
    return longest;
}

static void drop_tokens_from(struct gate *g, uint64_t position)
{
    while (g->n > 0 && g->tokens[(g->first + g->n - 1) % GATE_TOKENS].start >= position)
        g->n--;
}

/* n bytes were added to the text. */
static void take(struct gate *g, size_t n)
{
    for (uint64_t end = g->end + 1; end <= g->end + n; end++) {
        size_t stop = match_at(g, end);
        if (stop == 0) continue;
        g->stopped = true;
        g->certain = g->end = end - stop;
        if (g->hold) drop_tokens_from(g, g->certain);
        return;
    }
    g->end += n;
    g->certain = g->end - held(g);
}

/* ---- in ---- */

static char *make_room(struct gate *g, size_t n)
{
    size_t kept = (size_t)(g->end - g->given);
    if (g->text_from > 0) memmove(g->text, g->text + g->text_from, kept);
    g->text_from = 0;
    assert(kept + n <= g->text_cap);
    (void)n;
    return g->text + kept;
}

void gate_push(struct gate *g, const struct sample *token)
{
    assert(!g->ended && !g->stopped && g->n < GATE_TOKENS);
    struct gate_token *t = &g->tokens[(g->first + g->n) % GATE_TOKENS];
    t->sample = *token;
    t->start = g->end;
    g->n++;

    char *to = make_room(g, detok_bound(g->tokenizer, token->id));
    take(g, detok_push(&g->detok, g->tokenizer, token->id, to));
}

void gate_end(struct gate *g)
{
    if (g->ended) return;
    if (!g->stopped) take(g, detok_flush(&g->detok, make_room(g, 3)));
    g->certain = g->end;
    g->ended = true;
}

bool gate_stopped(const struct gate *g)
{
    return g->stopped;
}

/* ---- out ---- */

/* May the first token come?  One that began no text yet, in the middle of a character,
 * may still turn out to be the beginning of a stop string. */
static bool may_come(const struct gate *g)
{
    uint64_t start = g->tokens[g->first].start;
    if (!g->hold || g->ended || g->stopped || g->n == GATE_TOKENS) return true;
    if (start < g->certain) return true;
    return g->certain == g->end && g->detok.n_pending == 0;
}

bool gate_next(struct gate *g, struct event *e)
{
    if (g->n == 0 || !may_come(g)) return false;

    /* With `hold`, text goes with the token it came from; without, one comes for each
     * push and takes all there is. */
    uint64_t to = g->certain;
    if (g->hold && g->n > 1) {
        uint64_t next = g->tokens[(g->first + 1) % GATE_TOKENS].start;
        if (next < to) to = next;
    }
    if (to < g->given) to = g->given;
    e->sample = g->tokens[g->first].sample;
    e->text = text_at(g, g->given);
    e->text_n = (size_t)(to - g->given);
    g->first = (g->first + 1) % GATE_TOKENS;
    g->n--;
    g->text_from += e->text_n;
    g->given = to;
    return true;
}

size_t gate_tail(struct gate *g, const char **text)
{
    size_t n = (size_t)(g->certain - g->given);
    *text = text_at(g, g->given);
    g->text_from += n;
    g->given = g->certain;
    return n;
}
