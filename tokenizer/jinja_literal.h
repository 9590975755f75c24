/* jinja_literal.h - numbers and strings as a template writes them.
 *
 * Owns     nothing.
 * Threads  any.
 */
#ifndef TOKENIZER_JINJA_LITERAL_H
#define TOKENIZER_JINJA_LITERAL_H

#include "tokenizer/jinja_lex.h"

/* The number at p, which begins with a digit: fills t and returns its length, 0 where it
 * is too large.  After a dot (a.0.1) there are no fractions. */
size_t literal_number(const char *p, const char *end, bool after_dot, struct token *t);

/* Python's escapes of p..end to `out`, which has room for as many bytes.  False: an
 * escape that names no character. */
bool literal_string(const char *p, const char *end, char *out, size_t *out_n);

/* A decimal integer with an optional sign, as int() reads one; false: it is none or does
 * not fit. */
bool literal_int(const char *p, size_t n, unsigned base, wide *out);

#endif
