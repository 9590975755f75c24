/* file_map.h - a whole file as read-only memory; private to model/.
 *
 * Owns     the mapping, until file_map_close().
 * Caller   neither changes nor cuts the file while it is mapped.
 * Threads  immutable after open.
 */
#ifndef MODEL_FILE_MAP_H
#define MODEL_FILE_MAP_H

#include "kernels/base.h"

struct file_map {
    const void *data;  // never NULL after open
    size_t size;
};

/* -ENOENT where there is none; otherwise the message names path and reason.  Only a
 * regular file, or a link to one, is opened. */
NODISCARD int file_map_open(struct file_map *out, const char *path, struct err *err);
void file_map_close(struct file_map *m);  // zero-initialised is fine

/* The pages have been read and may leave memory; they come back when touched. */
void file_map_release_pages(const struct file_map *m);

/* "dir/name", from malloc, or NULL. */
char *file_path(const char *dir, const char *name);

#endif
