#include "kernels/host.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE      ((size_t)4096)
#define HUGE_PAGE ((size_t)2 << 20)

void *host_alloc(size_t bytes, size_t least_align)
{
    size_t align = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE
                   : bytes >= PAGE        ? PAGE
                                          : least_align;
    if (bytes == 0 || bytes > SIZE_MAX - align) return NULL;
    void *p = aligned_alloc(align, ALIGN_UP(bytes, align));
    // Only advice: where it is refused, pages are small and all else is the same.
    if (p && align == HUGE_PAGE) (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}
