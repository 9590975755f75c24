/* file.h - opening and reading a file that somebody has named.
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

/* All bytes of an open regular file, from where it stands, in one piece of memory that
 * the caller frees and that is never moved; a NUL stands behind them.  -EFBIG: more than
 * `most`.  -EBUSY: it grew meanwhile.  path is for messages. */
NODISCARD int file_read(int fd, const char *path, size_t most, char **out,
                        size_t *out_n, struct err *err);
/* file_open(), file_read() and close. */
NODISCARD int file_load(const char *path, size_t most, char **out, size_t *out_n,
                        struct err *err);

BASE_END

#endif
