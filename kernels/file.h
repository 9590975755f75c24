/* file.h - opening a file that somebody has named.
 *
 * Threads  any.
 */
#ifndef KERNELS_FILE_H
#define KERNELS_FILE_H

#include "kernels/base.h"

BASE_BEGIN

/* Open a regular file for reading, its descriptor in *fd.  Never waits, as a pipe would
 * for its writer; anything that is no regular file is refused with -EINVAL. */
NODISCARD int file_open(int *fd, const char *path, struct err *err);

BASE_END

#endif
