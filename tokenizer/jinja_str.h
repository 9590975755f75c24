/* jinja_str.h - strings that remember which bytes came from the context.
 *
 * Owns     nothing: they live in the arena of a render.
 * Caller   hands over well-formed UTF-8; positions are bytes unless they say chars.
 * Growth   str_concat() appends in place where the left string is the end of its
 *          buffer, so that building a text piece by piece costs O(1) for each byte.
 * Threads  those of a render: one.
 */
#ifndef TOKENIZER_JINJA_STR_H
#define TOKENIZER_JINJA_STR_H

#include "tokenizer/jinja_value.h"

extern const struct str str_empty;

/* A text under construction.  After an error of the render it takes nothing more. */
struct builder {
    struct run *r;
    char *bytes;
    uint8_t *marks;
    size_t n, cap;
};

void builder_init(struct builder *b, struct run *r);
void builder_put(struct builder *b, const char *bytes, size_t n, bool user);
void builder_text(struct builder *b,
                  const char *text);  // the template's, up to its NUL
void builder_char(struct builder *b, uint32_t cp, bool user);
void builder_repeat(struct builder *b, char c, size_t n);
void builder_slice(struct builder *b, const struct str *s, size_t from, size_t to);
void builder_str(struct builder *b, const struct str *s);
const struct str *builder_done(struct builder *b);

/* A string of the template's own, a copy of `text`. */
const struct str *str_of(struct run *r, const char *text, size_t n);
const struct str *str_concat(struct run *r, const struct str *a, const struct str *b);
/* Bytes [from, to): shares the bytes of s. */
const struct str *str_slice(struct run *r, const struct str *s, size_t from, size_t to);
/* The byte position of a character; the end where there are not that many. */
size_t str_offset(const struct str *s, size_t chars);

bool str_equal(const struct str *a, const struct str *b);
bool str_is(const struct str *s, const char *text);
int str_compare(const struct str *a, const struct str *b);
bool str_has_user(const struct str *s);

/* How many of its bytes to quote in a message ("%.*s"): whole characters, `max` at most. */
int str_clip(const struct str *s, int max);

static inline bool str_mark(const struct str *s, size_t i)
{
    return s->marks && s->marks[i];
}

/* Where `what` begins in s at or after `from`; SIZE_MAX: nowhere. */
size_t str_find(struct run *r, const struct str *s, const struct str *what,
                size_t from);
size_t str_find_last(struct run *r, const struct str *s, const struct str *what);

/* What str() says (jinja_print.c): s itself for a string, "" for an undefined value.
 * Never NULL. */
const struct str *str_from(struct run *r, struct value v);
void builder_value(struct builder *b, struct value v);  // str(v)
void builder_repr(struct builder *b, struct value v);   // repr(v)
/* json.dumps() */
struct json_style {
    const struct str *indent;      // of one level; NULL: all on one line
    const struct str *item, *key;  // separators
    bool ascii, sort;
};
void builder_json(struct builder *b, struct value v, const struct json_style *style);
/* repr() of a float, at most 32 bytes with the NUL. */
size_t print_float(double f, char out[32]);
/* In decimal, at most 41 bytes with the NUL. */
size_t print_int(wide i, char out[41]);

#endif
