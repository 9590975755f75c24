/* What the two halves of the parser share: tokens, nodes, names and failing. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/jinja_parse.h"
#include "tokenizer/unicode.h"

void *parse_fail(struct parser *p, unsigned line, const char *fmt, ...)
{
    if (p->rc) return NULL;
    char why[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    p->rc = lex_fail(p->err, line, "%s", why);
    return NULL;
}

void *parse_alloc(struct parser *p, size_t n)
{
    void *m = p->rc ? NULL : arena_zalloc(&p->t->arena, n);
    if (!m && !p->rc) {
        p->rc =
            p->t->arena.full
                ? err_set(p->err, -E2BIG, "the chat template is too large to compile")
                : err_set(p->err, -ENOMEM, "out of memory for the chat template");
    }
    return m;
}

bool parse_enter(struct parser *p)
{
    if (p->rc) return false;
    if (p->depth >= AST_MAX_DEPTH) {
        parse_fail(p, p->at->line, "the template nests too deeply here");
        return false;
    }
    p->depth++;
    return true;
}

void parse_leave(struct parser *p)
{
    p->depth--;
}

const char *parse_describe(const struct token *t, char out[48])
{
    static const char *const names[] = {[T_END] = "end of the template",
                                        [T_DATA] = "text",
                                        [T_PRINT_BEGIN] = "'{{'",
                                        [T_PRINT_END] = "end of the print statement",
                                        [T_BLOCK_BEGIN] = "'{%'",
                                        [T_BLOCK_END] = "end of the block",
                                        [T_STRING] = "string",
                                        [T_INT] = "number",
                                        [T_FLOAT] = "number"};
    static const char *const two[] = {"**", "//", "==", "!=", ">=", "<="};
    if (t->kind == T_NAME)
        snprintf(out, 48, "'%.*s'", (int)(t->n > 40 ? 40 : t->n), t->text);
    else if (t->kind == T_OPERATOR && t->op >= TWO_POW)
        snprintf(out, 48, "'%s'", two[t->op - TWO_POW]);
    else if (t->kind == T_OPERATOR)
        snprintf(out, 48, "'%c'", t->op);
    else
        snprintf(out, 48, "%s", names[t->kind]);
    return out;
}

bool parse_at_op(const struct parser *p, uint8_t op)
{
    return p->at->kind == T_OPERATOR && p->at->op == op;
}

bool parse_at_name(const struct parser *p, const char *name)
{
    return p->at->kind == T_NAME && p->at->n == strlen(name) &&
           memcmp(p->at->text, name, p->at->n) == 0;
}

bool parse_skip_op(struct parser *p, uint8_t op)
{
    bool there = parse_at_op(p, op);
    p->at += there;
    return there;
}

bool parse_skip_name(struct parser *p, const char *name)
{
    bool there = parse_at_name(p, name);
    p->at += there;
    return there;
}

bool parse_expect_op(struct parser *p, uint8_t op)
{
    if (p->rc) return false;
    if (parse_skip_op(p, op)) return true;
    char what[48], wanted[48];
    struct token want = {.kind = T_OPERATOR, .op = op};
    parse_fail(p, p->at->line, "unexpected %s, expected %s",
               parse_describe(p->at, what), parse_describe(&want, wanted));
    return false;
}

bool parse_expect(struct parser *p, enum token_kind kind, const char *what)
{
    if (p->rc) return false;
    if (p->at->kind == kind) {
        p->at++;
        return true;
    }
    char found[48];
    parse_fail(p, p->at->line, "unexpected %s, expected %s",
               parse_describe(p->at, found), what);
    return false;
}

/* ---- names -------------------------------------------------------------------- */

const struct str **ast_name_slot(const struct jinja *t, const char *name, size_t n)
{
    uint32_t h = 2166136261u;  // FNV-1a
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)name[i]) * 16777619u;
    for (;; h++) {
        const struct str **slot = &t->names[h % AST_NAME_SLOTS];
        if (!*slot || ((*slot)->n == n && memcmp((*slot)->bytes, name, n) == 0))
            return slot;
    }
}

const struct str *ast_find_name(const struct jinja *t, const char *name, size_t n)
{
    return *ast_name_slot(t, name, n);
}

const struct str *parse_intern(struct parser *p, const char *text, size_t n)
{
    const struct str **slot = ast_name_slot(p->t, text, n);
    if (*slot) return *slot;
    if (p->t->n_names == AST_NAME_SLOTS / 2)
        return parse_fail(p, p->at->line, "more than %d different names",
                          AST_NAME_SLOTS / 2);
    struct str *s = parse_alloc(p, sizeof *s);
    char *bytes = parse_alloc(p, n + 1);
    if (!s || !bytes) return NULL;
    memcpy(bytes, text, n);
    *s = (struct str){.bytes = bytes, .n = n, .chars = unicode_count(bytes, n)};
    p->t->n_names++;
    return *slot = s;
}

const struct str *parse_name(struct parser *p)
{
    const struct token *t = p->at;
    bool digit = t->kind == T_NAME && t->text[0] >= '0' && t->text[0] <= '9';
    if (digit || !parse_expect(p, T_NAME, "a name"))
        return digit ? parse_fail(p, t->line, "a name begins with a digit") : NULL;
    return parse_intern(p, t->text, t->n);
}

/* ---- nodes -------------------------------------------------------------------- */

struct expr *parse_node(struct parser *p, enum expr_kind kind)
{
    struct expr *e = parse_alloc(p, sizeof *e);
    if (e) *e = (struct expr){.kind = (uint8_t)kind, .line = p->at->line, .height = 1};
    return e;
}

bool parse_add_item(struct parser *p, struct expr *e, struct expr *item, uint8_t op)
{
    if (p->rc || !item) return false;
    if (e->n == e->cap) {
        size_t cap = e->cap ? e->cap * 2 : 4;
        struct expr **items = parse_alloc(p, cap * (sizeof *items + 1));
        if (!items) return false;
        uint8_t *ops = (uint8_t *)(items + cap);
        if (e->n) {
            memcpy(items, e->items, e->n * sizeof *items);
            memcpy(ops, e->ops, e->n);
        }
        e->items = items;
        e->ops = ops;
        e->cap = cap;
    }
    if (e->n) e->ops[e->n - 1] = op;
    e->items[e->n++] = item;
    if (e->height <= item->height) e->height = item->height + 1;
    return true;
}
