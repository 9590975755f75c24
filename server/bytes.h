/* bytes.h - a growing run of bytes for answers on their way out.
 *
 * Owns     its memory; zero-initialise, bytes_free() when done.
 * Errors   sticky: after one failed growth nothing more is added and `failed` is set, so
 *          that a chain of additions is checked once, at its end.
 * Threads  one at a time for each.
 */
#ifndef SERVER_BYTES_H
#define SERVER_BYTES_H

#include "kernels/base.h"

struct bytes {
    char *data;
    size_t n, cap;
    bool failed;
};

void bytes_free(struct bytes *b);
void bytes_clear(struct bytes *b);  // empty and good again; keeps the memory
void bytes_add(struct bytes *b, const void *data, size_t n);
void bytes_add_text(struct bytes *b, const char *text);
void bytes_printf(struct bytes *b, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
