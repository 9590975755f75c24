/* Operands of expressions: names, literals, calls, subscripts, filters and tests. */
#include <string.h>

#include "tokenizer/jinja_builtin.h"
#include "tokenizer/jinja_parse.h"
#include "tokenizer/jinja_str.h"
#include "tokenizer/unicode.h"

static struct expr *constant(struct parser *p, struct value v)
{
    struct expr *e = parse_node(p, E_CONST);
    if (e) e->value = v;
    return e;
}

static struct expr *parse_word(struct parser *p)
{
    static const struct {
        const char *word;
        uint8_t kind;
        bool b;
    } words[] = {{"true", V_BOOL, true},   {"True", V_BOOL, true},
                 {"false", V_BOOL, false}, {"False", V_BOOL, false},
                 {"none", V_NONE, false},  {"None", V_NONE, false}};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (parse_skip_name(p, words[i].word))
            return constant(p, (struct value){.kind = words[i].kind, .b = words[i].b});
    }
    struct expr *e = parse_node(p, E_NAME);
    if (!e || !(e->name = parse_name(p))) return NULL;
    for (struct macro_def *m = p->macro; m; m = m->around) {
        m->uses_varargs |= str_is(e->name, "varargs");
        m->uses_kwargs |= str_is(e->name, "kwargs");
        m->uses_caller |= str_is(e->name, "caller");
    }
    return e;
}

/* Strings that follow each other are one. */
static struct expr *parse_strings(struct parser *p)
{
    size_t n = 0;
    const struct token *first = p->at;
    for (; p->at->kind == T_STRING; p->at++) n += p->at->n;
    struct str *s = parse_alloc(p, sizeof *s);
    char *bytes = parse_alloc(p, n + 1);
    if (!s || !bytes) return NULL;
    *s = (struct str){.bytes = bytes};
    for (const struct token *t = first; t < p->at; t++) {
        memcpy(bytes + s->n, t->text, t->n);
        s->n += t->n;
    }
    s->chars = unicode_count(bytes, n);
    return constant(p, value_str(s));
}

static struct expr *parse_list(struct parser *p)
{
    struct expr *e = parse_node(p, E_LIST);
    while (!p->rc && !parse_skip_op(p, ']')) {
        if (e->n) parse_expect_op(p, ',');
        if (parse_skip_op(p, ']')) break;
        parse_add_item(p, e, parse_expression(p), 0);
    }
    return e;
}

static struct expr *parse_dict(struct parser *p)
{
    struct expr *e = parse_node(p, E_DICT);
    while (!p->rc && !parse_skip_op(p, '}')) {
        if (e->n) parse_expect_op(p, ',');
        if (parse_skip_op(p, '}')) break;
        parse_add_item(p, e, parse_expression(p), 0);
        parse_expect_op(p, ':');
        parse_add_item(p, e, parse_expression(p), 0);
    }
    return e;
}

static struct expr *parse_primary(struct parser *p)
{
    const struct token *t = p->at;
    struct expr *e;
    switch (t->kind) {
    case T_NAME: return parse_word(p);
    case T_STRING: return parse_strings(p);
    case T_INT: p->at++; return constant(p, value_int(t->i));
    case T_FLOAT: p->at++; return constant(p, value_float(t->f));
    default: break;
    }
    if (parse_skip_op(p, '(')) {
        e = parse_tuple_of(p, true, true);
        parse_expect_op(p, ')');
        return e;
    }
    if (parse_skip_op(p, '[')) return parse_list(p);
    if (parse_skip_op(p, '{')) return parse_dict(p);
    char what[48];
    return parse_fail(p, t->line, "unexpected %s", parse_describe(t, what));
}

static bool add_named(struct parser *p, struct arg_list *args, const struct str *name,
                      struct expr *value)
{
    if ((args->n_named & (args->n_named + 1)) == 0) {  // room doubles at 0, 1, 3, 7 ...
        struct named_arg *more =
            parse_alloc(p, (args->n_named * 2 + 1) * sizeof *args->named);
        if (!more) return false;
        if (args->n_named) memcpy(more, args->named, args->n_named * sizeof *more);
        args->named = more;
    }
    args->named[args->n_named++] = (struct named_arg){name, value};
    return true;
}

/* The arguments of a call, at "(".  `e` is the call, whose height follows them. */
static bool parse_args(struct parser *p, struct expr *e)
{
    struct arg_list *args = parse_alloc(p, sizeof *args);
    struct expr *list = parse_node(p, E_LIST);
    if (!args || !list || !parse_expect_op(p, '(')) return false;
    for (bool first = true; !p->rc && !parse_skip_op(p, ')'); first = false) {
        if (!first && !parse_expect_op(p, ',')) break;
        if (!first && parse_skip_op(p, ')')) break;
        struct expr *value;
        if (parse_skip_op(p, '*')) {
            args->star = value = parse_expression(p);
        } else if (parse_skip_op(p, TWO_POW)) {
            args->star_star = value = parse_expression(p);
        } else if (p->at->kind == T_NAME && p->at[1].kind == T_OPERATOR &&
                   p->at[1].op == '=') {
            const struct str *name = parse_name(p);
            p->at++;
            value = parse_expression(p);
            if (!value || !add_named(p, args, name, value)) break;
        } else {
            value = parse_expression(p);
            if (args->n_named || args->star_star)
                parse_fail(p, p->at->line, "a positional argument after a named one");
            parse_add_item(p, list, value, 0);
        }
        if (value && e->height <= value->height) e->height = value->height + 1;
    }
    args->pos = list->items;
    args->n = list->n;
    e->args = args;
    return !p->rc;
}

static struct expr *parse_postfix_call(struct parser *p, struct expr *callee)
{
    static const char *const unsupported[] = {"lipsum", "cycler", "joiner"};
    struct expr *e = parse_node(p, E_CALL);
    if (!e || !callee) return NULL;
    for (size_t i = 0; i < ARRAY_LEN(unsupported); i++) {
        if (callee->kind == E_NAME && str_is(callee->name, unsupported[i]))
            return parse_fail(p, e->line, "the function '%s' is not supported",
                              unsupported[i]);
    }
    e->left = callee;
    e->height = callee->height + 1;
    return parse_args(p, e) ? e : NULL;
}

/* a[x], a[x:y:z] or a[x, y], at "[". */
static struct expr *parse_subscript(struct parser *p, struct expr *left)
{
    struct expr *e = parse_node(p, E_ITEM), *parts[3] = {0};
    size_t n = 0;
    bool slice = false;
    if (!e || !parse_expect_op(p, '[')) return NULL;
    for (; !p->rc && n < 3; n++) {
        if (!parse_at_op(p, ':') && !parse_at_op(p, ']'))
            parts[n] = parse_tuple(p, true);
        if (!parse_skip_op(p, ':')) break;
        slice = true;
    }
    if (!p->rc && !slice && !parts[0])
        return parse_fail(p, e->line, "an empty subscript");
    parse_expect_op(p, ']');
    e->kind = slice ? E_SLICE : E_ITEM;
    e->left = left;
    e->height = left->height + 1;
    e->items = parse_alloc(p, sizeof parts);
    if (p->rc) return NULL;
    memcpy(e->items, parts, sizeof parts);
    for (size_t i = 0; i < 3; i++) {
        if (parts[i] && e->height <= parts[i]->height) e->height = parts[i]->height + 1;
    }
    return e;
}

/* a.name or a.0, at ".". */
static struct expr *parse_attribute(struct parser *p, struct expr *left)
{
    struct expr *e = parse_node(p, E_ATTRIBUTE);
    p->at++;
    if (!e) return NULL;
    e->left = left;
    e->height = left->height + 1;
    if (p->at->kind == T_INT) {
        e->kind = E_ITEM;
        e->items = parse_alloc(p, sizeof *e->items);
        if (e->items) e->items[0] = constant(p, value_int(p->at++->i));
        return p->rc ? NULL : e;
    }
    e->name = parse_name(p);
    return p->rc ? NULL : e;
}

static struct expr *parse_postfix(struct parser *p, struct expr *e)
{
    while (!p->rc && e) {
        if (e->height > AST_MAX_DEPTH)
            return parse_fail(p, e->line, "an expression nests too deeply");
        if (parse_at_op(p, '.'))
            e = parse_attribute(p, e);
        else if (parse_at_op(p, '['))
            e = parse_subscript(p, e);
        else if (parse_at_op(p, '('))
            e = parse_postfix_call(p, e);
        else
            return e;
    }
    return NULL;
}

/* ---- filters and tests -------------------------------------------------------- */

/* map, select and their like name another filter or test in a constant: it must exist. */
static void check_named(struct parser *p, const struct expr *e)
{
    static const struct {
        const char *filter;
        size_t at;
        bool test;
    } names[] = {{"map", 0, false},
                 {"select", 0, true},
                 {"reject", 0, true},
                 {"selectattr", 1, true},
                 {"rejectattr", 1, true}};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(e->builtin->name, names[i].filter) != 0) continue;
        const struct expr *arg =
            e->args && e->args->n > names[i].at ? e->args->pos[names[i].at] : NULL;
        if (!arg || arg->kind != E_CONST || arg->value.kind != V_STRING) return;
        const struct str *s = arg->value.s;
        if (names[i].test ? !test_find(s->bytes, s->n) : !filter_find(s->bytes, s->n))
            parse_fail(p, e->line, "there is no %s named '%.*s' here",
                       names[i].test ? "test" : "filter", str_clip(s, 60), s->bytes);
        return;
    }
}

struct expr *parse_call_of_filter(struct parser *p, struct expr *left)
{
    struct expr *e = parse_node(p, E_FILTER);
    const struct token *name = p->at;
    if (!e || !parse_expect(p, T_NAME, "the name of a filter")) return NULL;
    e->left = left;
    e->height = left ? left->height + 1 : 1;
    e->builtin = filter_find(name->text, name->n);
    if (!e->builtin)
        return parse_fail(p, name->line, "there is no filter named '%.*s' here",
                          (int)(name->n > 60 ? 60 : name->n), name->text);
    if (parse_at_op(p, '(')) parse_args(p, e);
    if (!p->rc) check_named(p, e);
    return p->rc ? NULL : e;
}

struct expr *parse_filters(struct parser *p, struct expr *e)
{
    while (!p->rc && parse_skip_op(p, '|')) {
        e = parse_call_of_filter(p, e);
        if (e && e->height > AST_MAX_DEPTH)
            return parse_fail(p, e->line, "an expression nests too deeply");
    }
    return e;
}

/* Does an argument without parentheses follow the name of a test? */
static bool at_test_argument(const struct parser *p)
{
    switch (p->at->kind) {
    case T_NAME:
        return !parse_at_name(p, "else") && !parse_at_name(p, "or") &&
               !parse_at_name(p, "and") && !parse_at_name(p, "if") &&
               !parse_at_name(p, "in") && !parse_at_name(p, "not");
    case T_STRING:
    case T_INT:
    case T_FLOAT: return true;
    default: return parse_at_op(p, '[') || parse_at_op(p, '{');
    }
}

static struct expr *parse_test(struct parser *p, struct expr *left)
{
    struct expr *e = parse_node(p, E_TEST);
    if (!e) return NULL;
    bool negated = parse_skip_name(p, "not");
    const struct token *name = p->at;
    if (!parse_expect(p, T_NAME, "the name of a test")) return NULL;
    e->left = left;
    e->height = left->height + 1;
    e->builtin = test_find(name->text, name->n);
    if (!e->builtin)
        return parse_fail(p, name->line, "there is no test named '%.*s' here",
                          (int)(name->n > 60 ? 60 : name->n), name->text);
    if (parse_at_op(p, '(')) {
        parse_args(p, e);
    } else if (parse_at_name(p, "is")) {
        parse_fail(p, name->line, "tests cannot be chained with is");
    } else if (at_test_argument(p)) {
        struct expr *arg = parse_postfix(p, parse_primary(p));
        e->args = parse_alloc(p, sizeof *e->args + sizeof(struct expr *));
        if (!arg || !e->args) return NULL;
        e->args->pos = (struct expr **)(void *)(e->args + 1);
        e->args->pos[0] = arg;
        e->args->n = 1;
        if (e->height <= arg->height) e->height = arg->height + 1;
    }
    if (!negated || p->rc) return p->rc ? NULL : e;
    struct expr *inverse = parse_node(p, E_NOT);
    if (inverse) parse_add_item(p, inverse, e, 0);
    return p->rc ? NULL : inverse;
}

static struct expr *parse_unary(struct parser *p, bool with_filter)
{
    struct expr *e;
    if (parse_at_op(p, '-') || parse_at_op(p, '+')) {
        e = parse_node(p, parse_at_op(p, '-') ? E_NEGATE : E_PLUS);
        p->at++;
        if (!e || !parse_enter(p)) return NULL;
        parse_add_item(p, e, parse_unary(p, false), 0);
        parse_leave(p);
    } else {
        e = parse_primary(p);
    }
    e = parse_postfix(p, e);
    while (with_filter && e && !p->rc) {
        if (parse_at_op(p, '|'))
            e = parse_filters(p, e);
        else if (parse_skip_name(p, "is"))
            e = parse_test(p, e);
        else if (parse_at_op(p, '('))
            e = parse_postfix_call(p, e);
        else
            break;
        if (e && e->height > AST_MAX_DEPTH)
            return parse_fail(p, e->line, "an expression nests too deeply");
    }
    return p->rc ? NULL : e;
}

struct expr *parse_operand(struct parser *p)
{
    return parse_unary(p, true);
}
