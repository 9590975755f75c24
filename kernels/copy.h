/* copy.h - copies of much memory that nobody reads again at once.
 *
 * Threads  any.
 */
#ifndef KERNELS_COPY_H
#define KERNELS_COPY_H

#include "kernels/base.h"

BASE_BEGIN

/* memcpy past the caches: dst does not push out what others work with, and is not read
 * first in order to be written.  Both are equally good at any address. */
void copy_past_caches(void *dst, const void *src, size_t bytes);

BASE_END

#endif
