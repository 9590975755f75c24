#include "tokenizer/jinja_lex.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/utf8.h"
#include "tokenizer/jinja_literal.h"
#include "tokenizer/unicode.h"

#define MAX_BRACKETS 128

struct lexer {
    struct arena *arena;
    const char *at, *end;  // of the source
    const char *begin;
    unsigned line;
    struct token *tokens;
    size_t n, cap;
    struct err *err;
    char brackets[MAX_BRACKETS];  // the closing ones that are due
    size_t n_brackets;
};

int lex_fail(struct err *err, unsigned line, const char *fmt, ...)
{
    char why[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return err_set(err, -EINVAL, "the chat template is wrong on line %u: %s", line,
                   why);
}

static int out_of_memory(struct lexer *l)
{
    return l->arena->full
               ? err_set(l->err, -E2BIG, "the chat template is too large to compile")
               : err_set(l->err, -ENOMEM, "out of memory for the chat template");
}

static struct token *add(struct lexer *l, enum token_kind kind)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 256;
        struct token *t = arena_alloc(l->arena, cap * sizeof *t);
        if (!t) return NULL;
        if (l->n) memcpy(t, l->tokens, l->n * sizeof *t);
        l->tokens = t;
        l->cap = cap;
    }
    struct token *t = &l->tokens[l->n++];
    *t = (struct token){.kind = (uint8_t)kind, .line = l->line};
    return t;
}

static void count_lines(struct lexer *l, const char *from, const char *to)
{
    for (; from < to; from++) l->line += *from == '\n';
}

/* Newlines become \n, and one at the very end goes. */
static const char *normalise(struct arena *a, const char *source, size_t n,
                             size_t *out_n)
{
    char *s = arena_alloc(a, n + 1), *at = s;
    if (!s) return NULL;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            *at++ = '\n';
            if (i + 1 < n && source[i + 1] == '\n') i++;
        } else {
            *at++ = source[i];
        }
    }
    if (at > s && at[-1] == '\n') at--;
    *at = 0;
    *out_n = (size_t)(at - s);
    return s;
}

/* ---- between the tags --------------------------------------------------------- */

static const char *skip_spaces(const char *p, const char *end)
{
    while (p < end) {
        const char *next = p;
        if (!unicode_is_space(unicode_next(&next))) break;
        p = next;
    }
    return p;
}

/* The end of p..end without the white space at its end. */
static const char *strip_end(const char *p, const char *end)
{
    while (end > p) {
        const char *last = end - 1;
        while (last > p && ((unsigned char)*last & 0xc0) == 0x80) last--;
        const char *next = last;
        if (!unicode_is_space(unicode_next(&next))) break;
        end = last;
    }
    return end;
}

/* Text from `from` up to a tag whose sign is '-', '+' or none.  With lstrip_blocks the
 * blanks between the last newline and a block or comment go, if nothing else is there. */
static int add_data(struct lexer *l, const char *from, const char *to, char sign,
                    bool lstrip)
{
    const char *end = to;
    if (sign == '-') {
        end = strip_end(from, to);
    } else if (sign != '+' && lstrip) {
        const char *line = to;
        while (line > from && line[-1] != '\n') line--;
        bool whole = line > from || from == l->begin || from[-1] == '\n';
        if (whole && skip_spaces(line, to) == to) end = line;
    }
    if (end > from) {
        struct token *t = add(l, T_DATA);
        if (!t) return out_of_memory(l);
        t->text = from;
        t->n = (size_t)(end - from);
    }
    count_lines(l, from, to);
    return 0;
}

static char sign_at(const char *p)
{
    return *p == '-' || *p == '+' ? *p : 0;
}

/* Past a closing delimiter at p (after its sign): what it swallows behind it. */
static const char *past_close(struct lexer *l, const char *p, char sign,
                              bool trim_newline)
{
    const char *after = p + 2;
    if (sign == '-')
        after = skip_spaces(after, l->end);
    else if (sign != '+' && trim_newline && after < l->end && *after == '\n')
        after++;
    return after;
}

static int lex_comment(struct lexer *l)
{
    unsigned line = l->line;
    const char *p = l->at + 2;
    while (p + 1 < l->end && !(p[0] == '#' && p[1] == '}')) p++;
    if (p + 1 >= l->end) return lex_fail(l->err, line, "a comment has no end");
    char sign = p > l->at + 2 ? sign_at(p - 1) : 0;
    const char *after = past_close(l, p, sign, true);
    count_lines(l, l->at, after);
    l->at = after;
    return 0;
}

/* Is p (behind "{%" and its sign) `word` and the end of the block?  Then where the block
 * ends, else NULL. */
static const char *lone_block(struct lexer *l, const char *p, const char *word,
                              bool trim_newline)
{
    p = skip_spaces(p, l->end);
    size_t n = strlen(word);
    if ((size_t)(l->end - p) < n || memcmp(p, word, n) != 0) return NULL;
    p = skip_spaces(p + n, l->end);
    char sign = sign_at(p);
    if (sign == '+' && !trim_newline) return NULL;
    if (sign) p++;
    if (l->end - p < 2 || p[0] != '%' || p[1] != '}') return NULL;
    return past_close(l, p, sign, trim_newline);
}

/* Everything up to {% endraw %} is text. */
static int lex_raw(struct lexer *l, const char *body)
{
    unsigned line = l->line;
    count_lines(l, l->at, body);
    for (const char *p = body; p + 1 < l->end; p++) {
        if (p[0] != '{' || p[1] != '%') continue;
        char sign = sign_at(p + 2);
        const char *after = lone_block(l, p + 2 + (sign != 0), "endraw", true);
        if (!after) continue;
        int rc = add_data(l, body, p, sign, true);
        count_lines(l, p, after);
        l->at = after;
        return rc;
    }
    return lex_fail(l->err, line, "a raw block has no endraw");
}

/* ---- within the tags ---------------------------------------------------------- */

static int lex_operator(struct lexer *l)
{
    static const struct {
        char text[3];
        uint8_t op;
    } two[] = {{"**", TWO_POW}, {"//", TWO_FLOORDIV}, {"==", TWO_EQ},
               {"!=", TWO_NE},  {">=", TWO_GE},       {"<=", TWO_LE}};
    uint8_t op = 0;
    size_t n = 1;
    for (size_t i = 0; i < ARRAY_LEN(two) && l->end - l->at > 1; i++) {
        if (memcmp(l->at, two[i].text, 2) == 0) op = two[i].op, n = 2;
    }
    char c = *l->at;
    if (!op && c && strchr("+-/*%~[](){}><=.:|,;", c)) op = (uint8_t)c;
    if (!op)
        return lex_fail(l->err, l->line, "unexpected character '%.*s'",
                        (unsigned char)c < 0x80 ? 1 : 0, l->at);
    if (strchr("([{", c)) {
        if (l->n_brackets == MAX_BRACKETS)
            return lex_fail(l->err, l->line, "brackets nest too deeply");
        l->brackets[l->n_brackets++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (l->n_brackets == 0 || l->brackets[l->n_brackets - 1] != c)
            return lex_fail(l->err, l->line, "unexpected '%c'", c);
        l->n_brackets--;
    }
    struct token *t = add(l, T_OPERATOR);
    if (!t) return out_of_memory(l);
    t->op = op;
    l->at += n;
    return 0;
}

static bool is_name_byte(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '_' || c >= 0x80;
}

static int lex_name(struct lexer *l)
{
    const char *from = l->at;
    while (l->at < l->end && is_name_byte((unsigned char)*l->at)) l->at++;
    struct token *t = add(l, T_NAME);
    if (!t) return out_of_memory(l);
    t->text = from;
    t->n = (size_t)(l->at - from);
    return 0;
}

static int lex_number(struct lexer *l)
{
    struct token *t = add(l, T_INT);
    if (!t) return out_of_memory(l);
    bool after_dot = l->n > 1 && l->tokens[l->n - 2].kind == T_OPERATOR &&
                     l->tokens[l->n - 2].op == '.';
    size_t n = literal_number(l->at, l->end, after_dot, t);
    if (n == 0) return lex_fail(l->err, l->line, "a number that is too large");
    l->at += n;
    return 0;
}

static int lex_string(struct lexer *l)
{
    const char *from = l->at + 1, *p = from;
    while (p < l->end && *p != *l->at) p += *p == '\\' && p + 1 < l->end ? 2 : 1;
    if (p >= l->end) return lex_fail(l->err, l->line, "a string has no end");
    struct token *t = add(l, T_STRING);
    char *text = arena_alloc(l->arena, (size_t)(p - from) + 1);
    if (!t || !text) return out_of_memory(l);
    t->text = text;
    if (!literal_string(from, p, text, &t->n))
        return lex_fail(l->err, l->line, "a string has an escape that is no character");
    count_lines(l, from, p);
    l->at = p + 1;
    return 0;
}

/* Tokens of one tag up to its end, which is `close` twice over: "}}" or "%}". */
static int lex_tag(struct lexer *l, bool block)
{
    unsigned line = l->line;
    const char *closing = block ? "%}" : "}}";
    l->n_brackets = 0;
    for (;;) {
        const char *p = skip_spaces(l->at, l->end);
        count_lines(l, l->at, p);
        l->at = p;
        if (p >= l->end) return lex_fail(l->err, line, "a tag has no '%s'", closing);
        char sign = *p == '-' || (block && *p == '+') ? *p : 0;
        const char *close = p + (sign != 0);
        if (l->n_brackets == 0 && l->end - close >= 2 &&
            memcmp(close, closing, 2) == 0) {
            if (!add(l, block ? T_BLOCK_END : T_PRINT_END)) return out_of_memory(l);
            l->at = past_close(l, close, sign, block);
            count_lines(l, p, l->at);
            return 0;
        }
        unsigned char c = (unsigned char)*p;
        int rc = c >= '0' && c <= '9'    ? lex_number(l)
                 : is_name_byte(c)       ? lex_name(l)
                 : c == '\'' || c == '"' ? lex_string(l)
                                         : lex_operator(l);
        if (rc) return rc;
    }
}

static int lex_next(struct lexer *l)
{
    const char *from = l->at, *p = from;
    while (p + 1 < l->end && !(p[0] == '{' && strchr("{%#", p[1]) && p[1])) p++;
    if (p + 1 >= l->end) {
        l->at = l->end;
        return add_data(l, from, l->end, 0, false);
    }
    char sign = sign_at(p + 2);
    int rc = add_data(l, from, p, sign, p[1] != '{');
    if (rc) return rc;
    l->at = p;
    if (p[1] == '#') return lex_comment(l);
    const char *inside = p + 2 + (sign != 0);
    const char *raw = p[1] == '%' ? lone_block(l, inside, "raw", false) : NULL;
    if (raw) return lex_raw(l, raw);
    if (!add(l, p[1] == '%' ? T_BLOCK_BEGIN : T_PRINT_BEGIN)) return out_of_memory(l);
    l->at = inside;
    return lex_tag(l, p[1] == '%');
}

int lex(struct arena *a, const char *source, size_t n, struct token **out,
        struct err *err)
{
    if (utf8_valid_prefix(source, n) != n)
        return err_set(err, -EINVAL, "the chat template is not well-formed UTF-8");
    struct lexer l = {.arena = a, .line = 1, .err = err};
    size_t size;
    l.begin = l.at = normalise(a, source, n, &size);
    if (!l.begin) return out_of_memory(&l);
    l.end = l.begin + size;
    while (l.at < l.end) {
        int rc = lex_next(&l);
        if (rc) return rc;
    }
    if (!add(&l, T_END)) return out_of_memory(&l);
    *out = l.tokens;
    return 0;
}
