/* jinja_ast.h - a compiled template: the tree that is evaluated.
 *
 * Owns     nothing by itself: every node lies in the arena of the template.
 * Threads  immutable once compiled; any thread may walk it.
 */
#ifndef TOKENIZER_JINJA_AST_H
#define TOKENIZER_JINJA_AST_H

#include "tokenizer/jinja_arena.h"
#include "tokenizer/jinja_value.h"

/* How deep a template may nest, in statements and expressions together. */
#define AST_MAX_DEPTH 64

enum expr_kind {
    E_CONST,
    E_NAME,
    E_LIST,     // items
    E_TUPLE,    // items
    E_DICT,     // items: key, value, key, value
    E_CHAIN,    // arithmetic of one precedence, from left to right: items and ops
    E_CONCAT,   // ~
    E_COMPARE,  // a < b < c: items and ops
    E_AND,
    E_OR,
    E_NOT,
    E_NEGATE,
    E_PLUS,
    E_COND,       // items: value, condition, otherwise (may be NULL)
    E_ATTRIBUTE,  // left.name
    E_ITEM,       // left[items[0]]
    E_SLICE,      // left[items[0]:items[1]:items[2]], each may be NULL
    E_CALL,       // left(args)
    E_FILTER,     // left | builtin(args); left is NULL for the text of a block
    E_TEST        // left is builtin(args)
};

enum op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
};

struct expr;

struct named_arg {
    const struct str *name;
    struct expr *value;
};

struct arg_list {
    struct expr **pos;
    size_t n;
    struct named_arg *named;
    size_t n_named;
    struct expr *star, *star_star;  // *args and **kwargs, or NULL
};

struct expr {
    uint8_t kind;
    unsigned line;
    unsigned height;  // of the tree below
    struct expr *left;
    struct expr **items;
    uint8_t *ops;  // ops[i] stands between items[i] and items[i + 1]
    size_t n, cap;
    const struct str *name;  // interned
    struct value value;      // E_CONST
    const struct builtin *builtin;
    struct arg_list *args;
};

enum stmt_kind {
    S_TEXT,
    S_PRINT,
    S_IF,
    S_FOR,
    S_SET,
    S_SET_BLOCK,
    S_MACRO,
    S_CALL,
    S_FILTER,
    S_WITH,
    S_SCOPE,
    S_BREAK,
    S_CONTINUE
};

struct stmt;

struct block {
    struct stmt *first;
};

struct branch {
    struct expr *condition;  // NULL: else
    struct block body;
    struct branch *next;
};

/* A macro or the body of a call block. */
struct macro_def {
    const struct str *name;
    const struct str **params;
    struct expr **defaults;  // NULL where a parameter has none
    size_t n;
    struct block body;
    bool uses_varargs, uses_kwargs, uses_caller;  // also macros defined within
    struct macro_def *around;
};

struct stmt {
    uint8_t kind;
    unsigned line;
    struct stmt *next;
    const struct str *text;    // S_TEXT
    struct expr *expr;         // what is printed, iterated, assigned or called
    struct expr *target;       // a name, a tuple of targets, or E_ATTRIBUTE of a name
    struct expr *condition;    // of a for loop
    struct branch *branches;   // S_IF
    struct block body, other;  // other: a loop's else
    struct macro_def *macro;   // S_MACRO, S_CALL
    struct expr **targets, **values;  // S_WITH
    size_t n;
    bool recursive;
};

/* Names that the evaluator itself binds. */
enum known_name { NAME_LOOP, NAME_CALLER, NAME_VARARGS, NAME_KWARGS, NAME_COUNT };

struct jinja {
    struct arena arena;
    struct block body;
    const struct str **names;  // every name there is, each once: a hash table
    size_t n_names;
    const struct str *known[NAME_COUNT];
};

#define AST_NAME_SLOTS 8192  // of the hash table; half of them may be used

/* Where the name is in the table, or the empty slot where it would be. */
const struct str **ast_name_slot(const struct jinja *t, const char *name, size_t n);
/* The interned name; NULL: the template does not use it. */
const struct str *ast_find_name(const struct jinja *t, const char *name, size_t n);

#endif
