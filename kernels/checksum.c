/* checksum.c - xxHash behind checksum.h.
 *
 * The library's portable entry: the one that chooses among instruction sets at run time
 * gains little on a block, and leaves the vector registers so that SSE code after it
 * runs at a quarter of its speed.
 */
#include "kernels/checksum.h"

#include <xxhash.h>

uint64_t checksum_xxh3(const void *data, size_t n)
{
    return XXH3_64bits(data, n);
}
