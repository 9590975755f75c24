/* safetensors_header.h - the tensors that one safetensors file holds; private to model/.
 *
 * Owns     a list owns its array and the names in it, never the data.
 * Caller   keeps the file's bytes and both of its names alive as long as the list.
 * Threads  pure functions of bytes.
 */
#ifndef MODEL_SAFETENSORS_HEADER_H
#define MODEL_SAFETENSORS_HEADER_H

#include "model/safetensors.h"

struct tensor_list {
    struct tensor *at;  // by ascending name, as bytes
    uint32_t n;
};

/* path is for messages, file for tensor.file. -EINVAL, -ENOMEM. */
NODISCARD int safetensors_header(struct tensor_list *out, const void *data, size_t n,
                                 const char *path, const char *file, struct err *err);

void tensor_list_sort(struct tensor_list *l);
struct tensor *tensor_list_find(const struct tensor_list *l, const char *name);
void tensor_list_free(struct tensor_list *l);  // zero-initialised is fine

/* Write "[64, 128]", cut to cap, and give buf back. */
char *tensor_shape_text(char *buf, size_t cap, uint32_t n_dims, const uint64_t *dims);
#define TENSOR_SHAPE_TEXT 192  // room for every shape

#endif
