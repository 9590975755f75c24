/* Statements, and the two functions that make and drop a compiled template. */
#include "tokenizer/jinja_parse.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer/jinja.h"

#define MAX_SOURCE ((size_t)1 << 20)
#define MAX_MEMORY ((size_t)256 << 20)

static struct stmt *parse_stmt(struct parser *p);

static struct stmt *new_stmt(struct parser *p, enum stmt_kind kind, unsigned line)
{
    struct stmt *s = parse_alloc(p, sizeof *s);
    if (s) *s = (struct stmt){.kind = (uint8_t)kind, .line = line};
    return s;
}

static struct stmt *parse_data(struct parser *p)
{
    struct stmt *s = new_stmt(p, S_TEXT, p->at->line);
    struct str *text = parse_alloc(p, sizeof *text);
    if (!s || !text) return NULL;
    *text = (struct str){.bytes = p->at->text, .n = p->at->n};
    s->text = text;
    p->at++;
    return s;
}

static struct stmt *parse_print(struct parser *p)
{
    struct stmt *s = new_stmt(p, S_PRINT, p->at->line);
    p->at++;
    if (!s) return NULL;
    s->expr = parse_tuple(p, true);
    return parse_expect(p, T_PRINT_END, "end of the print statement") ? s : NULL;
}

/* Does the block at hand begin with one of these words ("a b c")? */
static bool at_block_of(const struct parser *p, const char *words)
{
    const struct token *t = &p->at[1];
    if (p->at->kind != T_BLOCK_BEGIN || t->kind != T_NAME) return false;
    for (const char *w = words; *w;) {
        size_t n = strcspn(w, " ");
        if (t->n == n && memcmp(t->text, w, n) == 0) return true;
        w += n + (w[n] == ' ');
    }
    return false;
}

/* Statements up to a block that begins with one of the words of `ends`; that block's
 * first word is then the current token.  Its own "%}" first. */
static struct block parse_body(struct parser *p, const char *ends)
{
    struct block body = {0};
    struct stmt **tail = &body.first;
    parse_skip_op(p, ':');
    if (!parse_expect(p, T_BLOCK_END, "end of the block") || !parse_enter(p))
        return body;
    unsigned line = p->at->line;
    while (!p->rc && !at_block_of(p, ends)) {
        if (p->at->kind == T_END) {
            parse_fail(p, line, "a block that begins here has no '%s'", ends);
            break;
        }
        struct stmt *s = parse_stmt(p);
        if (!s) break;
        *tail = s;
        tail = &s->next;
    }
    if (!p->rc) p->at++;
    parse_leave(p);
    return body;
}

static bool end_block(struct parser *p)
{
    return parse_expect(p, T_BLOCK_END, "end of the block");
}

static struct stmt *parse_if(struct parser *p, struct stmt *s)
{
    struct branch **tail = &s->branches;
    bool more = true;
    while (more && !p->rc) {
        struct branch *b = parse_alloc(p, sizeof *b);
        if (!b) return NULL;
        *tail = b;
        tail = &b->next;
        if (!parse_skip_name(p, "else")) {
            p->at++;  // if or elif
            b->condition = parse_tuple_of(p, false, false);
            b->body = parse_body(p, "elif else endif");
        } else {
            b->body = parse_body(p, "endif");
        }
        more = !p->rc && !parse_at_name(p, "endif");
    }
    if (p->rc) return NULL;
    p->at++;
    return end_block(p) ? s : NULL;
}

static struct stmt *parse_for(struct parser *p, struct stmt *s)
{
    p->at++;
    s->target = parse_target(p, false);
    if (!p->rc && !parse_skip_name(p, "in"))
        return parse_fail(p, s->line, "a for loop without 'in'");
    s->expr = parse_tuple(p, false);
    if (parse_skip_name(p, "if")) s->condition = parse_expression(p);
    s->recursive = parse_skip_name(p, "recursive");
    p->loops++;
    s->body = parse_body(p, "else endfor");
    p->loops--;
    if (!p->rc && parse_skip_name(p, "else")) s->other = parse_body(p, "endfor");
    if (p->rc) return NULL;
    p->at++;
    return end_block(p) ? s : NULL;
}

static struct stmt *parse_set(struct parser *p, struct stmt *s)
{
    p->at++;
    s->target = parse_target(p, true);
    if (p->rc) return NULL;
    if (parse_skip_op(p, '=')) {
        s->expr = parse_tuple(p, true);
        return end_block(p) ? s : NULL;
    }
    s->kind = S_SET_BLOCK;
    s->expr = parse_filters(p, NULL);
    s->body = parse_body(p, "endset");
    if (p->rc) return NULL;
    p->at++;
    return end_block(p) ? s : NULL;
}

/* (a, b='x'), at "(". */
static bool parse_params(struct parser *p, struct macro_def *m)
{
    struct expr *params = parse_node(p, E_LIST), *defaults = parse_node(p, E_LIST);
    struct expr *none = parse_node(p, E_CONST);
    if (!parse_expect_op(p, '(')) return false;
    while (!p->rc && !parse_skip_op(p, ')')) {
        if (params->n && !parse_expect_op(p, ',')) break;
        if (params->n && parse_skip_op(p, ')')) break;
        struct expr *name = parse_node(p, E_NAME), *value = none;
        if (!name || !(name->name = parse_name(p))) break;
        if (parse_skip_op(p, '='))
            value = parse_expression(p);
        else if (params->n && defaults->items[params->n - 1] != none)
            parse_fail(p, p->at->line,
                       "a parameter without a default after one with it");
        parse_add_item(p, params, name, 0);
        parse_add_item(p, defaults, value, 0);
    }
    if (p->rc) return false;
    m->n = params->n;
    m->defaults = defaults->items;
    m->params = parse_alloc(p, (m->n + 1) * sizeof *m->params);
    for (size_t i = 0; m->params && i < m->n; i++) {
        m->params[i] = params->items[i]->name;
        if (m->defaults[i] == none) m->defaults[i] = NULL;
    }
    return !p->rc;
}

static bool parse_macro_body(struct parser *p, struct macro_def *m, const char *end)
{
    unsigned loops = p->loops;
    m->around = p->macro;
    p->macro = m;
    p->loops = 0;
    m->body = parse_body(p, end);
    p->macro = m->around;
    p->loops = loops;
    if (p->rc) return false;
    p->at++;
    return end_block(p);
}

static struct stmt *parse_macro(struct parser *p, struct stmt *s)
{
    p->at++;
    struct macro_def *m = s->macro = parse_alloc(p, sizeof *m);
    if (!m || !(m->name = parse_name(p)) || !parse_params(p, m)) return NULL;
    return parse_macro_body(p, m, "endmacro") ? s : NULL;
}

static struct stmt *parse_call_block(struct parser *p, struct stmt *s)
{
    p->at++;
    struct macro_def *m = s->macro = parse_alloc(p, sizeof *m);
    if (!m || !(m->name = parse_intern(p, "anonymous", 9))) return NULL;
    if (parse_at_op(p, '(') && !parse_params(p, m)) return NULL;
    s->expr = parse_expression(p);
    if (!p->rc && s->expr->kind != E_CALL)
        return parse_fail(p, s->line, "a call block without a call");
    return parse_macro_body(p, m, "endcall") ? s : NULL;
}

static struct stmt *parse_filter_block(struct parser *p, struct stmt *s)
{
    p->at++;
    s->expr = parse_filters(p, parse_call_of_filter(p, NULL));
    s->body = parse_body(p, "endfilter");
    if (p->rc) return NULL;
    p->at++;
    return end_block(p) ? s : NULL;
}

static struct stmt *parse_with(struct parser *p, struct stmt *s)
{
    struct expr *targets = parse_node(p, E_LIST), *values = parse_node(p, E_LIST);
    p->at++;
    while (!p->rc && p->at->kind != T_BLOCK_END) {
        if (targets->n && !parse_expect_op(p, ',')) break;
        // One name at a time: a comma here begins the next assignment.
        struct expr *name = parse_node(p, E_NAME);
        if (!name || !(name->name = parse_name(p)) || !parse_expect_op(p, '=')) break;
        parse_add_item(p, targets, name, 0);
        parse_add_item(p, values, parse_expression(p), 0);
    }
    if (p->rc) return NULL;
    s->targets = targets->items;
    s->values = values->items;
    s->n = targets->n;
    s->body = parse_body(p, "endwith");
    if (p->rc) return NULL;
    p->at++;
    return end_block(p) ? s : NULL;
}

static struct stmt *parse_generation(struct parser *p, struct stmt *s)
{
    p->at++;
    s->body = parse_body(p, "endgeneration");
    if (p->rc) return NULL;
    p->at++;
    return end_block(p) ? s : NULL;
}

static struct stmt *parse_jump(struct parser *p, struct stmt *s)
{
    if (p->loops == 0)
        return parse_fail(p, s->line, "'%s' outside of a loop",
                          s->kind == S_BREAK ? "break" : "continue");
    p->at++;
    return end_block(p) ? s : NULL;
}

static struct stmt *parse_tag(struct parser *p)
{
    static const struct {
        const char *word;
        enum stmt_kind kind;
        struct stmt *(*parse)(struct parser *, struct stmt *);
    } tags[] = {{"if", S_IF, parse_if},
                {"for", S_FOR, parse_for},
                {"set", S_SET, parse_set},
                {"macro", S_MACRO, parse_macro},
                {"call", S_CALL, parse_call_block},
                {"filter", S_FILTER, parse_filter_block},
                {"with", S_WITH, parse_with},
                {"generation", S_SCOPE, parse_generation},
                {"break", S_BREAK, parse_jump},
                {"continue", S_CONTINUE, parse_jump}};
    unsigned line = p->at->line;
    p->at++;
    for (size_t i = 0; i < ARRAY_LEN(tags); i++) {
        if (!parse_at_name(p, tags[i].word)) continue;
        struct stmt *s = new_stmt(p, tags[i].kind, line);
        return s ? tags[i].parse(p, s) : NULL;
    }
    char what[48];
    bool stray = p->at->n > 2 && (memcmp(p->at->text, "end", 3) == 0 ||
                                  memcmp(p->at->text, "els", 3) == 0 ||
                                  memcmp(p->at->text, "eli", 3) == 0);
    return parse_fail(p, line, stray ? "a stray %s" : "the tag %s is not supported",
                      parse_describe(p->at, what));
}

static struct stmt *parse_stmt(struct parser *p)
{
    switch (p->at->kind) {
    case T_DATA: return parse_data(p);
    case T_PRINT_BEGIN: return parse_print(p);
    default: return parse_tag(p);
    }
}

static int parse_template(struct parser *p)
{
    static const char *const known[NAME_COUNT] = {[NAME_LOOP] = "loop",
                                                  [NAME_CALLER] = "caller",
                                                  [NAME_VARARGS] = "varargs",
                                                  [NAME_KWARGS] = "kwargs"};
    p->t->names = parse_alloc(p, AST_NAME_SLOTS * sizeof *p->t->names);
    for (int i = 0; i < NAME_COUNT && !p->rc; i++)
        p->t->known[i] = parse_intern(p, known[i], strlen(known[i]));
    struct stmt **tail = &p->t->body.first;
    while (!p->rc && p->at->kind != T_END) {
        struct stmt *s = parse_stmt(p);
        if (!s) break;
        *tail = s;
        tail = &s->next;
    }
    return p->rc;
}

int jinja_compile(struct jinja **out, const char *source, size_t n, struct err *err)
{
    if (n > MAX_SOURCE)
        return err_set(err, -E2BIG,
                       "the chat template has %zu bytes; at most %zu are compiled", n,
                       MAX_SOURCE);
    struct jinja *t = calloc(1, sizeof *t);
    if (!t) return err_set(err, -ENOMEM, "out of memory for the chat template");
    arena_init(&t->arena, MAX_MEMORY);
    struct token *tokens;
    int rc = lex(&t->arena, source, n, &tokens, err);
    if (!rc) {
        struct parser p = {.t = t, .at = tokens, .err = err};
        rc = parse_template(&p);
    }
    if (rc) {
        jinja_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void jinja_free(struct jinja *t)
{
    if (!t) return;
    arena_free(&t->arena);
    free(t);
}
