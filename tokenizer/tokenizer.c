/* tokenizer.c - encoding: repair, find added tokens, normalize, cut into words, join. */
#include "tokenizer/tokenizer_parts.h"

#include "kernels/utf8.h"
#include "tokenizer/normalize.h"

#include <stdlib.h>
#include <string.h>

/* Work of the patterns for each byte of text.  Those that models use need at most 7 for
 * each step. */
#define WORK_PER_BYTE 128u
#define WORK_AT_LEAST ((uint64_t)1 << 16)

#define LONG_WORD ((size_t)64 << 10)  // bytes; a longer one is joined window by window

void token_list_free(struct token_list *l)
{
    free(l->ids);
    *l = (struct token_list){0};
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t) return;
    vocab_free(&t->vocab);
    bpe_free(&t->bpe);
    added_tokens_free(&t->added);
    pretokenizer_free(&t->pretokenizer);
    token_list_free(&t->prefix);
    token_list_free(&t->suffix);
    free(t);
}

/* ---- questions ---- */

const struct crypto_hash *tokenizer_content_hash(const struct tokenizer *t)
{
    return &t->content;
}

uint32_t tokenizer_size(const struct tokenizer *t)
{
    return t->vocab.size;
}

const int32_t *tokenizer_prefix(const struct tokenizer *t, size_t *n)
{
    *n = t->prefix.n;
    return t->prefix.ids;
}

const int32_t *tokenizer_suffix(const struct tokenizer *t, size_t *n)
{
    *n = t->suffix.n;
    return t->suffix.ids;
}

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n)
{
    return vocab_bytes(&t->vocab, id, n);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return vocab_flags(&t->vocab, id) & VOCAB_SPECIAL;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *content, size_t n)
{
    for (uint32_t i = 0; i < t->added.n; i++) {
        size_t n_there;
        const char *there = vocab_bytes(&t->vocab, t->added.token[i].id, &n_there);
        if (n_there == n && memcmp(there, content, n) == 0) return t->added.token[i].id;
    }
    return vocab_find(&t->vocab, content, n);
}

/* ---- encoding ---- */

struct encoder {
    const struct tokenizer *t;
    struct token_list *out;
    size_t left;  // ids that may still be appended
    struct regex_run *run;
    struct bpe_scratch scratch;
    struct err *err;
};

/* A stretch of text and the plain spans, which count from `base` bytes before it. */
struct stretch {
    const char *s;
    size_t n;
    const struct text_span *plain;
    size_t n_plain, base;
};

static int no_memory(const struct encoder *e)
{
    return err_set(e->err, -ENOMEM, "no memory to tokenize");
}

static int too_many(const struct encoder *e)
{
    return err_set(e->err, -EOVERFLOW, "the text has more tokens than are allowed");
}

static int append(struct encoder *e, int32_t id)
{
    struct token_list *l = e->out;
    if (e->left == 0) return too_many(e);
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        int32_t *ids = realloc(l->ids, cap * sizeof *ids);
        if (!ids) return no_memory(e);
        l->ids = ids;
        l->cap = cap;
    }
    l->ids[l->n++] = id;
    e->left--;
    return 0;
}

/* The word as one symbol a byte; returns how many. */
static size_t put_symbols(struct encoder *e, const char *s, size_t n)
{
    const struct tokenizer *t = e->t;
    size_t k = 0;
    bool unknown = false;
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[(unsigned char)s[i]];
        bool fused = unknown && t->fuse_unknown;
        unknown = id < 0;
        if (unknown && fused) continue;
        if (unknown) id = t->unknown;
        if (id >= 0) e->scratch.symbol[k++].id = id;
    }
    return k;
}

static int give_id(void *to, int32_t id)
{
    return append(to, id);
}

/* 1: it has to be joined in one piece. */
static int encode_long_word(struct encoder *e, const char *s, size_t n)
{
    const struct tokenizer *t = e->t;
    size_t had = e->out->n, left = e->left;
    for (size_t i = 0; i < n; i++)
        if (t->byte_id[(unsigned char)s[i]] < 0) return 1;
    if (n / t->vocab.longest > left) return too_many(e);
    int rc =
        bpe_join_windows(&t->bpe, &e->scratch, t->byte_id, s, n, LONG_WORD, give_id, e);
    if (rc == 1) {
        e->out->n = had;
        e->left = left;
    }
    return rc == -ENOMEM ? no_memory(e) : rc;
}

static int encode_word(void *to, const char *s, size_t n)
{
    struct encoder *e = to;
    const struct tokenizer *t = e->t;
    if (t->ignore_merges) {
        int32_t id = vocab_find(&t->vocab, s, n);
        if (id >= 0 &&
            !(vocab_flags(&t->vocab, id) & (VOCAB_SPECIAL | VOCAB_OUTSIDE))) {
            return append(e, id);
        }
    }
    if (n > LONG_WORD) {
        int done = encode_long_word(e, s, n);
        if (done <= 0) return done;
    }
    if (bpe_scratch_reserve(&e->scratch, n) < 0) return no_memory(e);
    size_t k = put_symbols(e, s, n);
    // A token joins no more symbols than it has bytes; joining megabytes takes seconds.
    if (k / t->vocab.longest > e->left) return too_many(e);
    if (bpe_join(&t->bpe, &e->scratch, k) < 0) return no_memory(e);

    int rc = 0;
    for (int32_t i = k ? 0 : -1; i >= 0 && rc == 0; i = e->scratch.symbol[i].next) {
        rc = append(e, e->scratch.symbol[i].id);
    }
    return rc;
}

typedef int encode_rest(struct encoder *e, const struct stretch *x);

/* Append the ids of the added tokens in x, and let `rest` encode what is between. */
static int encode_added(struct encoder *e, const struct stretch *x,
                        const struct trie *trie, encode_rest *rest)
{
    struct added_search search = {.tokens = &e->t->added,
                                  .trie = trie,
                                  .run = e->run,
                                  .s = x->s,
                                  .n = x->n,
                                  .plain = x->plain,
                                  .n_plain = x->n_plain,
                                  .base = x->base};
    struct added_match m;
    int rc;
    do {
        size_t from = search.done;
        rc = added_tokens_next(&search, &m, e->err);
        if (rc < 0) return rc;
        size_t to = rc ? m.from : x->n;
        if (from < to) {
            struct stretch between = {x->s + from, to - from, x->plain, x->n_plain,
                                      x->base + from};
            int failed = rest(e, &between);
            if (failed) return failed;
        }
        if (rc) {
            int failed = append(e, m.id);
            if (failed) return failed;
        }
    } while (rc);
    return 0;
}

static int encode_words(struct encoder *e, const struct stretch *x)
{
    return pretokenize(&e->t->pretokenizer, e->run, x->s, x->n, encode_word, e, e->err);
}

static int encode_normalized(struct encoder *e, const struct stretch *x)
{
    const struct trie *trie = &e->t->added.normalized;
    if (!e->t->nfc || normalize_is_ascii(x->s, x->n)) {
        return encode_added(e, x, trie, encode_words);
    }
    struct normalized y = {0};
    int rc = normalize_nfc(&y, x->s, x->n, x->plain, x->n_plain, x->base) < 0
                 ? no_memory(e)
                 : 0;
    if (rc == 0) {
        struct stretch z = {y.text, y.n, y.plain, y.n_plain, 0};
        rc = encode_added(e, &z, trie, encode_words);
    }
    normalized_free(&y);
    return rc;
}

/* ---- repair of ill-formed text ---- */

struct repaired {
    char *s;
    size_t n;
    struct text_span *plain;
};

static void repaired_free(struct repaired *r)
{
    free(r->s);
    free(r->plain);
}

/* x with one U+FFFD for each maximal ill-formed part; a plain span that begins or ends
 * within a character or part grows to hold all of it. */
static int repair(struct repaired *r, const struct stretch *x)
{
    size_t size, from = 0, to = 0;  // the spans whose begin and end are still to be put
    r->s = malloc(x->n * UTF8_REPLACEMENT_SIZE);
    r->plain = malloc((x->n_plain + 1) * sizeof *r->plain);
    if (!r->s || !r->plain) return -ENOMEM;
    for (size_t i = 0; i < x->n; i += size) {
        int32_t c = utf8_decode(x->s + i, x->n - i, &size);
        for (; from < x->n_plain && x->plain[from].from < i + size; from++) {
            r->plain[from].from = r->n;
        }
        memcpy(r->s + r->n, c < 0 ? UTF8_REPLACEMENT : x->s + i,
               c < 0 ? UTF8_REPLACEMENT_SIZE : size);
        r->n += c < 0 ? UTF8_REPLACEMENT_SIZE : size;
        for (; to < x->n_plain && x->plain[to].to <= i + size; to++) {
            r->plain[to].to = r->n;
        }
    }
    for (; from < x->n_plain; from++) r->plain[from].from = r->n;
    for (; to < x->n_plain; to++) r->plain[to].to = r->n;
    return 0;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n,
                     const struct text_span *plain, size_t n_plain, size_t max_ids,
                     struct token_list *out, struct err *err)
{
    if (n > INT32_MAX / UTF8_REPLACEMENT_SIZE) {
        return err_set(err, -E2BIG, "a text of %zu bytes is too long to tokenize", n);
    }
    struct encoder e = {
        .t = t, .out = out, .left = max_ids ? max_ids : SIZE_MAX, .err = err};
    struct stretch x = {text, n, plain, n_plain, 0};
    struct repaired r = {0};
    int rc = regex_run_open(&e.run, WORK_AT_LEAST + (uint64_t)n * WORK_PER_BYTE);
    if (rc == 0 && utf8_valid_prefix(text, n) < n) {
        rc = repair(&r, &x);
        x = (struct stretch){r.s, r.n, r.plain, n_plain, 0};
    }
    rc =
        rc < 0 ? no_memory(&e) : encode_added(&e, &x, &t->added.raw, encode_normalized);
    repaired_free(&r);
    regex_run_close(e.run);
    bpe_scratch_free(&e.scratch);
    return rc;
}

size_t tokenizer_most_bytes(const struct tokenizer *t)
{
    if (!t->nfc) return t->vocab.longest;
    /* NFC makes a third of a syllable's three letters, of the sign for kelvin, never less;
     * but of other bytes, which may have no token. */
    for (int i = 0; i < 256; i++)
        if (t->byte_id[i] < 0) return SIZE_MAX;
    return t->vocab.longest * 3;
}

bool tokenizer_has_byte(const struct tokenizer *t, unsigned char c)
{
    return t->byte_id[c] >= 0;
}
