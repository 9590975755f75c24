/* Operations on text that filters and methods share. */
#include <string.h>

#include "tokenizer/jinja_builtin.h"
#include "tokenizer/jinja_run.h"
#include "tokenizer/unicode.h"

const struct str *str_escape(struct run *r, const struct str *s)
{
    struct builder b;
    builder_init(&b, r);
    for (size_t i = 0, from = 0; i <= s->n && !r->rc; i++) {
        char c = i < s->n ? s->bytes[i] : 0;
        const char *as = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '"'  ? "&#34;"
                         : c == '\'' ? "&#39;"
                                     : NULL;
        if (!as && i < s->n) continue;
        builder_slice(&b, s, from, i);
        if (as) builder_put(&b, as, strlen(as), str_mark(s, i));
        from = i + 1;
    }
    return builder_done(&b);
}

/* Is cp one of the characters, or white space where there are none? */
static bool is_stripped(uint32_t cp, const struct str *chars)
{
    if (!chars) return unicode_is_space(cp);
    for (const char *p = chars->bytes; p < chars->bytes + chars->n;) {
        if (unicode_next(&p) == cp) return true;
    }
    return false;
}

const struct str *str_strip(struct run *r, const struct str *s, struct value chars,
                            bool left, bool right)
{
    const struct str *set = NULL;
    if (arg_given(chars)) set = str_from(r, chars);
    const char *from = s->bytes, *to = s->bytes + s->n;
    while (left && from < to) {
        const char *p = from;
        if (!is_stripped(unicode_next(&p), set) || !run_charge(r, set ? set->n : 0))
            break;
        from = p;
    }
    while (right && to > from) {
        const char *last = to - 1;
        while (last > from && ((unsigned char)*last & 0xc0) == 0x80) last--;
        const char *p = last;
        if (!is_stripped(unicode_next(&p), set) || !run_charge(r, set ? set->n : 0))
            break;
        to = last;
    }
    return str_slice(r, s, (size_t)(from - s->bytes), (size_t)(to - s->bytes));
}

/* An empty `old` stands before every character and at the end. */
static const struct str *replace_empty(struct run *r, const struct str *s,
                                       const struct str *with, wide count)
{
    struct builder b;
    builder_init(&b, r);
    size_t i = 0;
    while (count != 0 && run_charge(r, 0)) {
        builder_str(&b, with);
        count--;
        if (i >= s->n) break;
        size_t from = i++;
        while (i < s->n && ((unsigned char)s->bytes[i] & 0xc0) == 0x80) i++;
        builder_slice(&b, s, from, i);
    }
    builder_slice(&b, s, i < s->n ? i : s->n, s->n);
    return builder_done(&b);
}

const struct str *str_replace(struct run *r, const struct str *s, const struct str *old,
                              const struct str *with, wide count)
{
    if (old->n == 0) return replace_empty(r, s, with, count);
    struct builder b;
    builder_init(&b, r);
    size_t from = 0;
    if (!run_charge(r, s->n)) return &str_empty;
    for (; count != 0 && run_charge(r, 0); count--) {
        const char *hit = memmem(s->bytes + from, s->n - from, old->bytes, old->n);
        if (!hit) break;
        builder_slice(&b, s, from, (size_t)(hit - s->bytes));
        builder_str(&b, with);
        from = (size_t)(hit - s->bytes) + old->n;
    }
    if (from == 0 && !r->rc) return s;
    builder_slice(&b, s, from, s->n);
    return builder_done(&b);
}

/* A capital sigma at the end of a word has a small form of its own (Unicode 15, table
 * 3-17, Final_Sigma): a cased letter before it and none after it, whatever is
 * case-ignorable in between. */
static bool is_final_sigma(struct run *r, const struct str *s, const char *at,
                           const char *after)
{
    bool before = false;
    for (const char *p = at; p > s->bytes && run_charge(r, 0);) {
        do {
            p--;
        } while (p > s->bytes && ((unsigned char)*p & 0xc0) == 0x80);
        const char *q = p;
        uint32_t cp = unicode_next(&q);
        if (unicode_is_case_ignorable(cp)) continue;
        before = unicode_is_cased(cp);
        break;
    }
    while (before && after < s->bytes + s->n && run_charge(r, 0)) {
        uint32_t cp = unicode_next(&after);
        if (unicode_is_case_ignorable(cp)) continue;
        return !unicode_is_cased(cp);
    }
    return before;
}

static void put_mapped(struct builder *b, const struct str *s, const char **at,
                       enum unicode_case to)
{
    const char *begin = *at;
    bool user = str_mark(s, (size_t)(begin - s->bytes));
    uint32_t cp = unicode_next(at), out[3];
    if (cp < 0x80) {
        bool upper = cp >= 'A' && cp <= 'Z', lower = cp >= 'a' && cp <= 'z';
        char c = (char)(to == UNICODE_LOWER ? (upper ? cp + 32 : cp)
                                            : (lower ? cp - 32 : cp));
        builder_put(b, &c, 1, user);
        return;
    }
    if (to == UNICODE_LOWER && cp == 0x3a3) {
        builder_char(b, is_final_sigma(b->r, s, begin, *at) ? 0x3c2 : 0x3c3, user);
        return;
    }
    unsigned n = unicode_map(cp, to, out);
    for (unsigned i = 0; i < n; i++) builder_char(b, out[i], user);
}

const struct str *str_case(struct run *r, const struct str *s, enum unicode_case to)
{
    struct builder b;
    builder_init(&b, r);
    if (!run_charge(r, s->n * 2)) return &str_empty;
    bool after_cased = false;
    for (const char *p = s->bytes; p < s->bytes + s->n && !r->rc;) {
        const char *q = p;
        uint32_t cp = unicode_next(&q);
        if (to == UNICODE_TITLE) {
            put_mapped(&b, s, &p, after_cased ? UNICODE_LOWER : UNICODE_TITLE);
            after_cased = unicode_is_cased(cp);
        } else {
            put_mapped(&b, s, &p, to);
        }
    }
    return builder_done(&b);
}

const struct str *str_capitalize(struct run *r, const struct str *s)
{
    struct builder b;
    builder_init(&b, r);
    if (!run_charge(r, s->n * 2)) return &str_empty;
    for (const char *p = s->bytes; p < s->bytes + s->n && !r->rc;)
        put_mapped(&b, s, &p, p == s->bytes ? UNICODE_TITLE : UNICODE_LOWER);
    return builder_done(&b);
}
