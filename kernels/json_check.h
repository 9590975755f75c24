/* json_check.h - the strict scan under json.h; private to json.c and json_check.c.
 *
 * Owns     nothing after a call.
 * Caller   passes any bytes to json_scan(); to the others only what a scan accepted.
 * Threads  pure functions.
 */
#ifndef KERNELS_JSON_CHECK_H
#define KERNELS_JSON_CHECK_H

#include "kernels/base.h"

/* json_check(), and the number of values and keys in the text: at most max_tokens;
 * -E2BIG where there is one more.  The text is shorter than 2^31 bytes, so that a
 * token's offsets fit an int. */
NODISCARD int json_scan(const char *text, size_t n, uint32_t max_depth,
                        size_t max_tokens, size_t *n_tokens, struct err *err);

/* Decode the character at *p of a string's inside and step over it: its UTF-8 bytes go
 * to out, their number is the answer. */
size_t json_unescape(const char **p, char out[4]);

#endif
