/* host.h - host memory for arrays that are streamed through: KV blocks, weights, copies.
 *
 * Threads  any.
 */
#ifndef KERNELS_HOST_H
#define KERNELS_HOST_H

#include "kernels/base.h"

/* At a multiple of least_align, a power of two up to 4096; of a page (4096) where it is as
 * large as one, so that direct I/O can go there; and in huge pages where it is large.  NULL
 * where bytes is 0 or there is not so much.  Freed by free(). */
NODISCARD void *host_alloc(size_t bytes, size_t least_align);

#endif
