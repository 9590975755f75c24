#include "tokenizer/added_tokens.h"

#include "kernels/utf8.h"
#include "tokenizer/regex_classes.h"

#include <stdlib.h>
#include <string.h>

/* \w of the engine that the files are written for: Alphabetic, Mark, decimal Number,
 * connector Punctuation, Join_Control.  Alphabetic is L, Nl, and of the symbols the
 * letters in circles and squares. */
#define WORD                                                                           \
    "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}"          \
    "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}]"

void added_tokens_free(struct added_tokens *a)
{
    free(a->token);
    free(a->raw.node);
    free(a->normalized.node);
    regex_close(a->word);
    *a = (struct added_tokens){0};
}

/* ---- the trie ---- */

static uint32_t child_of(const struct trie *t, uint32_t node, unsigned char byte)
{
    if (node == 0) return t->first[byte];
    uint32_t i = t->node[node].child;
    while (i && t->node[i].byte != byte) i = t->node[i].sibling;
    return i;
}

/* 0: no memory. */
static uint32_t add_child(struct trie *t, uint32_t node, unsigned char byte)
{
    if (t->n + 1 >= t->cap) {
        uint32_t cap = t->cap ? t->cap * 2 : 256;
        struct trie_node *nodes = realloc(t->node, cap * sizeof *nodes);
        if (!nodes) return 0;
        t->node = nodes;
        t->cap = cap;
        if (t->n == 0) t->node[0] = (struct trie_node){0};
    }
    uint32_t i = ++t->n;
    t->node[i] = (struct trie_node){.byte = byte, .sibling = t->node[node].child};
    t->node[node].child = i;
    if (node == 0) t->first[byte] = i;
    return i;
}

int added_tokens_add(struct added_tokens *a, const struct added_token *token,
                     const char *s, size_t n)
{
    struct trie *t = token->normalized ? &a->normalized : &a->raw;
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t next = child_of(t, node, (unsigned char)s[i]);
        if (!next) next = add_child(t, node, (unsigned char)s[i]);
        if (!next) return -ENOMEM;
        node = next;
    }
    if (n == 0 || t->node[node].token) return -EEXIST;
    if (a->n == a->cap) {
        uint32_t cap = a->cap ? a->cap * 2 : 32;
        struct added_token *tokens = realloc(a->token, cap * sizeof *tokens);
        if (!tokens) return -ENOMEM;
        a->token = tokens;
        a->cap = cap;
    }
    a->token[a->n++] = *token;
    t->node[node].token = a->n;
    return 0;
}

int added_tokens_finish(struct added_tokens *a, struct err *err)
{
    bool asked = false;
    for (uint32_t i = 0; i < a->n; i++) asked |= a->token[i].single_word;
    return asked ? regex_open(&a->word, WORD, sizeof WORD - 1, false, err) : 0;
}

/* ---- searching ---- */

/* Does any byte of s[from..to) lie in a plain span? */
static bool touches_plain(const struct added_search *x, size_t from, size_t to)
{
    size_t low = 0, high = x->n_plain;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (x->plain[mid].to <= x->base + from) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < x->n_plain && x->plain[low].from < x->base + to;
}

/* The longest token that counts at x->at; its length, or 0. */
static size_t longest_at(const struct added_search *x, const struct added_token **out)
{
    uint32_t node = 0;
    size_t found = 0;
    for (size_t i = x->at; i < x->n; i++) {
        node = child_of(x->trie, node, (unsigned char)x->s[i]);
        if (!node) break;
        if (!x->trie->node[node].token) continue;
        const struct added_token *t = &x->tokens->token[x->trie->node[node].token - 1];
        if (t->special && touches_plain(x, x->at, i + 1)) continue;
        *out = t;
        found = i + 1 - x->at;
    }
    return found;
}

static int is_word(const struct added_search *x, size_t at, struct err *err)
{
    size_t size, from, to;
    char c[4];
    size = utf8_encode(regex_stand_in(utf8_decode(x->s + at, x->n - at, &size)), c);
    return regex_find(x->tokens->word, x->run, c, size, 0, &from, &to, err);
}

/* 1: a word character stands right before `from` or at `to`. */
static int within_word(const struct added_search *x, size_t from, size_t to,
                       struct err *err)
{
    int rc = from > 0 ? is_word(x, utf8_last(x->s, from), err) : 0;
    return rc == 0 && to < x->n ? is_word(x, to, err) : rc;
}

static size_t strip_left(const struct added_search *x, size_t from)
{
    size_t size;
    while (from > x->done) {
        size_t at = utf8_last(x->s, from);
        if (!utf8_is_space(utf8_decode(x->s + at, from - at, &size))) break;
        from = at;
    }
    return from > x->done ? from : x->done;
}

static size_t strip_right(const struct added_search *x, size_t to)
{
    size_t size;
    while (to < x->n && utf8_is_space(utf8_decode(x->s + to, x->n - to, &size))) {
        to += size;
    }
    return to;
}

int added_tokens_next(struct added_search *x, struct added_match *out, struct err *err)
{
    while (x->at < x->n) {
        const struct added_token *t = NULL;
        size_t from = x->at, to = from + longest_at(x, &t);
        x->at = to > from ? to : from + 1;
        if (to == from) continue;

        int rc = t->single_word ? within_word(x, from, to, err) : 0;
        if (rc < 0) return rc;
        if (rc > 0) continue;
        if (t->lstrip) from = strip_left(x, from);
        if (t->rstrip) to = strip_right(x, to);
        if (from >= to) continue;  // an earlier token has eaten it
        x->done = to;
        *out = (struct added_match){from, to, t->id};
        return 1;
    }
    return 0;
}
