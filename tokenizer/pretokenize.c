#include "tokenizer/pretokenize.h"

#include "kernels/utf8.h"
#include "tokenizer/regex_classes.h"

#include <stdlib.h>
#include <string.h>

/* A piece of the text, and the same as PCRE2 is to see it (regex_classes.h). */
struct piece {
    const char *s, *seen;
    size_t n;
};

struct cutting {
    const struct pretokenizer *p;
    struct regex_run *run;
    pretokenize_word *word;
    void *to;
    struct err *err;
};

void pretokenizer_free(struct pretokenizer *p)
{
    for (unsigned i = 0; i < p->n_steps; i++) regex_close(p->step[i].pattern);
    *p = (struct pretokenizer){0};
}

/* ---- the matches of a pattern and the gaps between them ---- */

struct part {
    size_t from, to;
    bool match;
};

struct parts {
    const struct cutting *c;
    const struct pretokenize_step *step;
    const struct piece *piece;
    size_t given;        // everything before was given out
    size_t at;           // where the next search begins
    size_t empty_at;     // an empty match is not taken here: the last one ended here
    bool any, finished;  // any: there was a match
    struct part ahead;   // a match found behind the gap that was given out first
    bool has_ahead;
};

/* 1 and the next match, 0 at the end.  An empty match right behind another is none. */
static int next_match(struct parts *x, size_t *from, size_t *to)
{
    while (x->at <= x->piece->n) {
        int rc = regex_find(x->step->pattern, x->c->run, x->piece->seen, x->piece->n,
                            x->at, from, to, x->c->err);
        if (rc <= 0) return rc;
        if (*from < *to || !x->any || x->empty_at != *to) {
            x->any = true;
            x->at = x->empty_at = *to;
            return 1;
        }
        size_t size = 1;
        if (x->at < x->piece->n) {
            utf8_decode(x->piece->seen + x->at, x->piece->n - x->at, &size);
        }
        x->at += size;
    }
    return 0;
}

/* 1 and the next part, 0 at the end. */
static int next_part(struct parts *x, struct part *out)
{
    if (x->has_ahead) {
        x->has_ahead = false;
        *out = x->ahead;
        return 1;
    }
    if (x->finished) return 0;

    size_t from, to;
    int rc = next_match(x, &from, &to);
    if (rc < 0) return rc;
    x->finished = rc == 0;
    if (rc == 0) from = to = x->piece->n;

    struct part match = {from, to, !x->step->invert};
    struct part gap = {x->given, from, x->step->invert};
    x->given = to;
    if (gap.from == gap.to) {
        *out = match;
        return rc;
    }
    if (rc == 1) {
        x->ahead = match;
        x->has_ahead = true;
    }
    *out = gap;
    return 1;
}

/* ---- the steps ---- */

static int cut(const struct cutting *c, unsigned step, struct piece piece);

static int give(const struct cutting *c, unsigned step, const struct piece *piece,
                struct part part)
{
    if (part.from == part.to) return 0;
    return cut(c, step + 1,
               (struct piece){piece->s + part.from, piece->seen + part.from,
                              part.to - part.from});
}

/* Does part b, which follows a, become one piece with it? */
static bool joined(enum split_behavior behavior, const struct part *a,
                   const struct part *b)
{
    switch (behavior) {
    case SPLIT_CONTIGUOUS: return a->match == b->match;
    case SPLIT_MERGED_PREV: return b->match && !a->match;
    case SPLIT_MERGED_NEXT: return a->match && !b->match;
    default: return false;
    }
}

static int split(const struct cutting *c, unsigned step, const struct piece *piece)
{
    struct parts parts = {.c = c, .step = &c->p->step[step], .piece = piece};
    enum split_behavior behavior = parts.step->behavior;
    struct part held = {0},
                part = {0};  // held: not given out, the next part may join it
    bool holds = false;
    int rc;

    while ((rc = next_part(&parts, &part)) > 0) {
        if (behavior == SPLIT_REMOVED && part.match) continue;
        if (holds && joined(behavior, &held, &part)) {
            held.to = part.to;
            held.match = part.match;
            continue;
        }
        if (holds && (rc = give(c, step, piece, held)) != 0) return rc;
        held = part;
        holds = true;
    }
    if (rc == 0 && holds) rc = give(c, step, piece, held);
    return rc;
}

static int add_space(const struct cutting *c, unsigned step, struct piece piece)
{
    if (piece.s[0] == ' ') return cut(c, step + 1, piece);
    char *s = malloc(2 * (piece.n + 1));
    if (!s) return err_set(c->err, -ENOMEM, "no memory for %zu bytes of text", piece.n);
    char *seen = s + piece.n + 1;
    s[0] = seen[0] = ' ';
    memcpy(s + 1, piece.s, piece.n);
    memcpy(seen + 1, piece.seen, piece.n);
    int rc = cut(c, step + 1, (struct piece){s, seen, piece.n + 1});
    free(s);
    return rc;
}

/* As deep as there are steps: PRETOKENIZE_MAX_STEPS at most. */
static int cut(const struct cutting *c, unsigned step, struct piece piece)
{
    if (step == c->p->n_steps) return c->word(c->to, piece.s, piece.n);
    if (c->p->step[step].add_space) return add_space(c, step, piece);
    return split(c, step, &piece);
}

int pretokenize(const struct pretokenizer *p, struct regex_run *run, const char *s,
                size_t n, pretokenize_word *word, void *to, struct err *err)
{
    if (n == 0) return 0;
    struct cutting c = {p, run, word, to, err};
    if (!regex_needs_stand_in(s, n)) return cut(&c, 0, (struct piece){s, s, n});

    char *seen = malloc(n);
    if (!seen) return err_set(err, -ENOMEM, "no memory for %zu bytes of text", n);
    regex_put_stand_ins(s, n, seen);
    int rc = cut(&c, 0, (struct piece){s, seen, n});
    free(seen);
    return rc;
}
