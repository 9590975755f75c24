/* files.h - files for tests: read, written to a temporary directory, and mutated.
 *
 * Everything that cannot be done ends the program: a test that lacks its input has
 * failed.  Pointers that come back are from malloc.
 */
#ifndef TESTS_FILES_H
#define TESTS_FILES_H

#include <stddef.h>

char *files_read(const char *path, size_t *out_n);  // a NUL follows the n bytes
void files_write(const char *dir, const char *name, const void *data, size_t n);
void files_copy(const char *from_dir, const char *name, const char *to_dir);

char *files_temp_dir(void);
void files_remove_dir(char *dir);  // with the files in it; frees dir

/* The text with the one occurrence of `old` in it replaced. */
char *files_replace(const char *text, const char *old, const char *new);

/* A safetensors file of these tensors, whose data follow each other in this order. */
struct files_tensor {
    const char *name, *dtype, *shape;  // "w", "BF16", "[2,3]"
    const void *data;
    size_t bytes;
};
char *files_safetensors(const struct files_tensor *t, size_t n, size_t *out_n);
void files_write_safetensors(const char *dir, const char *name,
                             const struct files_tensor *t, size_t n);

/* The same with a header that is given, which may claim anything. */
char *files_safetensors_raw(const char *header, const void *data, size_t bytes,
                            size_t *out_n);

#endif
