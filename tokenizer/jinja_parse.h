/* jinja_parse.h - private to jinja_parse*.c: the parser's state and its helpers.
 *
 * Owns     nothing; nodes go to the arena of the template under construction.
 * Errors   sticky: the first one is kept in rc and err, and parsing runs out quickly.
 *          Functions that return a node return NULL then.
 * Threads  one.
 */
#ifndef TOKENIZER_JINJA_PARSE_H
#define TOKENIZER_JINJA_PARSE_H

#include "tokenizer/jinja_lex.h"

struct parser {
    struct jinja *t;
    const struct token *at;
    struct macro_def *macro;  // the innermost macro around, told what its body uses
    unsigned depth, loops;
    int rc;
    struct err *err;
};

void *parse_fail(struct parser *p, unsigned line, const char *fmt, ...)
    PRINTF_LIKE(3, 4);                          // NULL
void *parse_alloc(struct parser *p, size_t n);  // zeroed
bool parse_enter(struct parser *p);  // one level deeper; no leave where false
void parse_leave(struct parser *p);
const char *parse_describe(const struct token *t, char out[48]);

bool parse_at_op(const struct parser *p, uint8_t op);
bool parse_at_name(const struct parser *p, const char *name);
bool parse_skip_op(struct parser *p, uint8_t op);
bool parse_skip_name(struct parser *p, const char *name);
bool parse_expect_op(struct parser *p, uint8_t op);
bool parse_expect(struct parser *p, enum token_kind kind, const char *what);
const struct str *parse_intern(struct parser *p, const char *text, size_t n);
const struct str *parse_name(struct parser *p);  // a T_NAME, interned

struct expr *parse_node(struct parser *p, enum expr_kind kind);
/* Put `item` into the items of e; height follows. */
bool parse_add_item(struct parser *p, struct expr *e, struct expr *item, uint8_t op);

struct expr *parse_expression(struct parser *p);
/* a or a, b: an expression or a tuple without parentheses.  Without conditions where
 * "if" belongs to the statement (a for loop). */
struct expr *parse_tuple(struct parser *p, bool conditions);
/* What can be assigned to: a name, names with commas, with_attribute also ns.name. */
struct expr *parse_target(struct parser *p, bool with_attribute);
struct expr *parse_filters(struct parser *p, struct expr *e);            // at "|"
struct expr *parse_call_of_filter(struct parser *p, struct expr *left);  // at its name
/* A name, literal, call, subscript ... with its signs, filters and tests. */
struct expr *parse_operand(struct parser *p);
struct expr *parse_tuple_of(struct parser *p, bool conditions, bool in_parens);

#endif
