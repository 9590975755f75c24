/* checksum.h - a fast checksum of bytes at rest (the only user of xxHash).
 *
 * Threads  pure functions.
 */
#ifndef KERNELS_CHECKSUM_H
#define KERNELS_CHECKSUM_H

#include "kernels/base.h"

BASE_BEGIN

uint64_t checksum_xxh3(const void *data, size_t n);  // XXH3, 64 bits, no seed

BASE_END

#endif
