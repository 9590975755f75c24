/* Expressions, by the grammar of jinja2/parser.py 3.1.  One loop over precedences stands
 * for its eight levels, so that a parenthesis costs little stack. */
#include <string.h>

#include "tokenizer/jinja_parse.h"

enum level {
    LEVEL_NONE,
    LEVEL_OR,
    LEVEL_AND,
    LEVEL_NOT,
    LEVEL_COMPARE,
    LEVEL_SUM,
    LEVEL_CONCAT,
    LEVEL_PRODUCT,
    LEVEL_POWER
};

struct infix {
    enum level level;
    enum expr_kind kind;
    uint8_t op;
    unsigned tokens;
};

/* The operator between two operands at the current token; LEVEL_NONE: none. */
static struct infix peek_infix(const struct parser *p)
{
    static const struct {
        uint8_t token;
        struct infix infix;
    } table[] = {{'+', {LEVEL_SUM, E_CHAIN, OP_ADD, 1}},
                 {'-', {LEVEL_SUM, E_CHAIN, OP_SUB, 1}},
                 {'~', {LEVEL_CONCAT, E_CONCAT, 0, 1}},
                 {'*', {LEVEL_PRODUCT, E_CHAIN, OP_MUL, 1}},
                 {'/', {LEVEL_PRODUCT, E_CHAIN, OP_DIV, 1}},
                 {TWO_FLOORDIV, {LEVEL_PRODUCT, E_CHAIN, OP_FLOORDIV, 1}},
                 {'%', {LEVEL_PRODUCT, E_CHAIN, OP_MOD, 1}},
                 {TWO_POW, {LEVEL_POWER, E_CHAIN, OP_POW, 1}},
                 {TWO_EQ, {LEVEL_COMPARE, E_COMPARE, OP_EQ, 1}},
                 {TWO_NE, {LEVEL_COMPARE, E_COMPARE, OP_NE, 1}},
                 {'<', {LEVEL_COMPARE, E_COMPARE, OP_LT, 1}},
                 {TWO_LE, {LEVEL_COMPARE, E_COMPARE, OP_LE, 1}},
                 {'>', {LEVEL_COMPARE, E_COMPARE, OP_GT, 1}},
                 {TWO_GE, {LEVEL_COMPARE, E_COMPARE, OP_GE, 1}}};
    if (p->at->kind == T_OPERATOR) {
        for (size_t i = 0; i < ARRAY_LEN(table); i++) {
            if (p->at->op == table[i].token) return table[i].infix;
        }
    }
    if (parse_at_name(p, "or")) return (struct infix){LEVEL_OR, E_OR, 0, 1};
    if (parse_at_name(p, "and")) return (struct infix){LEVEL_AND, E_AND, 0, 1};
    if (parse_at_name(p, "in"))
        return (struct infix){LEVEL_COMPARE, E_COMPARE, OP_IN, 1};
    if (parse_at_name(p, "not") && p->at[1].kind == T_NAME && p->at[1].n == 2 &&
        memcmp(p->at[1].text, "in", 2) == 0)
        return (struct infix){LEVEL_COMPARE, E_COMPARE, OP_NOT_IN, 2};
    return (struct infix){LEVEL_NONE, E_CONST, 0, 0};
}

/* Operands and operators that bind at least as strongly as `least`.  Operators of one
 * level make one node with many operands, so that a long sum is a flat tree. */
static struct expr *parse_level(struct parser *p, enum level least)
{
    if (!parse_enter(p)) return NULL;
    struct expr *left;
    enum level open = LEVEL_NONE;  // the level of `left`, where it was built here
    if (parse_at_name(p, "not")) {
        left = parse_node(p, E_NOT);
        p->at++;
        if (left) parse_add_item(p, left, parse_level(p, LEVEL_NOT), 0);
    } else {
        left = parse_operand(p);
    }
    for (;;) {
        struct infix in = peek_infix(p);
        if (p->rc || in.level == LEVEL_NONE || in.level < least) break;
        p->at += in.tokens;
        if (in.level != open) {
            struct expr *chain = parse_node(p, in.kind);
            if (!chain || !parse_add_item(p, chain, left, 0)) break;
            left = chain;
            open = in.level;
        }
        if (!parse_add_item(p, left, parse_level(p, in.level + 1), in.op)) break;
    }
    parse_leave(p);
    return p->rc ? NULL : left;
}

/* a if b else c, as often as written. */
struct expr *parse_expression(struct parser *p)
{
    if (!parse_enter(p)) return NULL;
    struct expr *e = parse_level(p, LEVEL_OR);
    while (!p->rc && parse_skip_name(p, "if")) {
        struct expr *cond = parse_node(p, E_COND);
        if (!cond) break;
        parse_add_item(p, cond, e, 0);
        parse_add_item(p, cond, parse_level(p, LEVEL_OR), 0);
        if (!p->rc && parse_skip_name(p, "else"))
            parse_add_item(p, cond, parse_expression(p), 0);
        e = cond;
    }
    parse_leave(p);
    return p->rc ? NULL : e;
}

static bool at_tuple_end(const struct parser *p)
{
    return p->at->kind == T_PRINT_END || p->at->kind == T_BLOCK_END ||
           p->at->kind == T_END || parse_at_op(p, ')') ||
           parse_at_name(p, "recursive") || parse_at_name(p, "if") ||
           parse_at_op(p, '=');
}

struct expr *parse_tuple_of(struct parser *p, bool conditions, bool in_parens)
{
    struct expr *tuple = NULL;
    if (in_parens && parse_at_op(p, ')')) return parse_node(p, E_TUPLE);
    struct expr *e = conditions ? parse_expression(p) : parse_level(p, LEVEL_OR);
    while (!p->rc && parse_skip_op(p, ',')) {
        if (!tuple) {
            tuple = parse_node(p, E_TUPLE);
            if (!tuple || !parse_add_item(p, tuple, e, 0)) return NULL;
        }
        if (at_tuple_end(p)) break;
        e = conditions ? parse_expression(p) : parse_level(p, LEVEL_OR);
        parse_add_item(p, tuple, e, 0);
    }
    return p->rc ? NULL : tuple ? tuple : e;
}

struct expr *parse_tuple(struct parser *p, bool conditions)
{
    return parse_tuple_of(p, conditions, false);
}

struct expr *parse_target(struct parser *p, bool with_attribute)
{
    struct expr *tuple = NULL, *e = NULL;
    do {
        if (tuple && !(p->at->kind == T_NAME && !parse_at_name(p, "in")) &&
            !parse_at_op(p, '('))
            break;  // a comma at the end
        if (parse_skip_op(p, '(')) {
            if (!parse_enter(p)) return NULL;
            e = parse_target(p, false);
            parse_leave(p);
            parse_expect_op(p, ')');
        } else {
            e = parse_node(p, E_NAME);
            if (e) e->name = parse_name(p);
            if (with_attribute && !p->rc && parse_skip_op(p, '.')) {
                struct expr *attribute = parse_node(p, E_ATTRIBUTE);
                if (!attribute) return NULL;
                attribute->left = e;
                attribute->name = parse_name(p);
                e = attribute;
            }
        }
        if (p->rc) return NULL;
        if (!tuple && parse_at_op(p, ',')) tuple = parse_node(p, E_TUPLE);
        if (tuple && !parse_add_item(p, tuple, e, 0)) return NULL;
    } while (parse_skip_op(p, ','));
    return p->rc ? NULL : tuple ? tuple : e;
}
