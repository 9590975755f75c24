/* safetensors.h - named tensors of a model directory, mapped, never copied.
 *
 * Format   https://github.com/huggingface/safetensors: u64 little-endian header size,
 *          JSON header, data.  Read strictly: every name, dtype, shape and offset is
 *          checked before use; ranges must cover the data without hole or overlap.
 * Owns     the mappings; tensors borrow from them until safetensors_close().
 * Caller   does not change or cut the files while they are open.
 * Threads  immutable after open.
 */
#ifndef MODEL_SAFETENSORS_H
#define MODEL_SAFETENSORS_H

#include "kernels/dtype.h"

#define TENSOR_MAX_DIMS 8

struct tensor {
    const char *name;        // NUL-terminated; owned by the set
    const char *file;        // base name of the file it lies in
    const char *dtype_name;  // as in the header: "BF16", "I64" ...
    bool float_type;         // dtype is valid: F32, F16 or BF16
    enum dtype dtype;
    uint32_t n_dims;
    uint64_t dims[TENSOR_MAX_DIMS];
    uint64_t bytes;
    const void *data;  // any alignment
};

struct tensor_set;

/* model.safetensors.index.json and its shards where the index exists (it decides, and a
 * stray model.safetensors is ignored), else model.safetensors.  A shard that is missing,
 * a tensor that the index places where it is not, a path that leaves dir: -EINVAL. */
NODISCARD int safetensors_open_dir(struct tensor_set **out, const char *dir,
                                   struct err *err);
/* One file that is already in memory and outlives the set: for tests and fuzzing. */
NODISCARD int safetensors_parse(struct tensor_set **out, const void *data, size_t n,
                                const char *name, struct err *err);
void safetensors_close(struct tensor_set *s);  // NULL is fine

const struct tensor *safetensors_find(const struct tensor_set *s, const char *name);
uint32_t safetensors_count(const struct tensor_set *s);
const struct tensor *safetensors_at(const struct tensor_set *s, uint32_t i);

/* The tensor, if it exists, is of a float type and has exactly this shape; NULL with a
 * message that names file, tensor, what was expected and what was found. */
const struct tensor *safetensors_expect(const struct tensor_set *s, const char *name,
                                        uint32_t n_dims, const uint64_t *dims,
                                        struct err *err);

/* Tell the system that all of it has been read and its pages may go. */
void safetensors_release_pages(const struct tensor_set *s);

#endif
