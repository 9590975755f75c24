/* jinja_lex.h - a template's source as tokens, white space control already done.
 *
 * Owns     nothing: tokens and their texts live in the caller's arena.
 * Source   the lexer of Jinja 3.1 with trim_blocks and lstrip_blocks on and
 *          keep_trailing_newline off, as chat templates are rendered.
 * Threads  one at a time for an arena.
 */
#ifndef TOKENIZER_JINJA_LEX_H
#define TOKENIZER_JINJA_LEX_H

#include "tokenizer/jinja_ast.h"

enum token_kind {
    T_END,  // of the template
    T_DATA,
    T_PRINT_BEGIN,
    T_PRINT_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OPERATOR
};

/* Operators are named by their first character, and by these where they have two. */
enum { TWO_POW = 128, TWO_FLOORDIV, TWO_EQ, TWO_NE, TWO_GE, TWO_LE };

struct token {
    uint8_t kind;
    uint8_t op;  // T_OPERATOR
    unsigned line;
    const char *text;  // T_DATA, T_NAME, T_STRING (unescaped)
    size_t n;
    union {
        wide i;
        double f;
    };
};

/* All tokens of source[0..n), the last of them T_END.  -EINVAL with the line. */
NODISCARD int lex(struct arena *a, const char *source, size_t n, struct token **out,
                  struct err *err);

/* -EINVAL and "the chat template is wrong on line N: ..." */
int lex_fail(struct err *err, unsigned line, const char *fmt, ...) PRINTF_LIKE(3, 4);

#endif
