/* kernels.c - opening a backend by name, and checked calls for its memory. */
#include "kernels/backend.h"

#include <string.h>

static int check_limits(const struct backend_limits *l, struct err *err)
{
    const struct {
        const char *name;
        uint32_t value, most;
    } fields[] = {
        {"max_rows", l->max_rows, 1u << 20},
        {"max_seqs", l->max_seqs, 1u << 20},
        {"max_blocks", l->max_blocks, 1u << 28},
        {"max_head_dim", l->max_head_dim, 1024},
        {"max_q_heads", l->max_q_heads, 1024},
        {"max_cols", l->max_cols, 1u << 24},
    };
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        if (fields[i].value == 0 || fields[i].value > fields[i].most) {
            return err_set(err, -EINVAL, "backend limit %s is %u; it must be 1 to %u",
                           fields[i].name, fields[i].value, fields[i].most);
        }
    }
    return 0;
}

int backend_open(struct backend **out, const char *name,
                 const struct backend_options *o, struct err *err)
{
    int rc = check_limits(&o->limits, err);
    if (rc) return rc;
    if (strcmp(name, "cpu") == 0) return cpu_open(out, o, err);
    if (strncmp(name, "cuda", 4) == 0) {
#ifdef HAVE_CUDA
        return cuda_open(out, name, o, err);
#else
        return err_set(
            err, -ENODEV,
            "this build has no CUDA backend for device \"%s\"; where nvcc is "
            "on the PATH, `make CUDA=1` makes one that has",
            name);
#endif
    }
    return err_set(err, -ENODEV,
                   "there is no backend \"%s\"; right is cpu, cuda or cuda:N", name);
}

void backend_close(struct backend *b)
{
    if (b) b->ops->close(b);
}

const char *backend_describe(const struct backend *b)
{
    return b->describe;
}

bool backend_rounds(const struct backend *b, enum dtype weights)
{
    return b->rounds[weights];
}

uint32_t backend_threads(const struct backend *b)
{
    return b->threads;
}

size_t backend_scratch_bytes(const struct backend *b)
{
    return b->scratch_bytes;
}

bool backend_device_memory(const struct backend *b, uint64_t *free_bytes)
{
    return b->ops->device_memory && b->ops->device_memory(b, free_bytes);
}

uint32_t backend_decode_rows(const struct backend *b, uint32_t n)
{
    return b->ops->decode_rows ? b->ops->decode_rows(b, n) : 0;
}

struct backend_recorded backend_recorded(const struct backend *b)
{
    return b->ops->recorded ? b->ops->recorded(b) : (struct backend_recorded){0};
}

int backend_copyq_open(struct backend *b, struct copyq **out, struct err *err)
{
    return b->ops->copyq_open(b, out, err);
}

size_t backend_matrix_bytes(const struct backend *b, enum weight_format format,
                            uint32_t rows, uint32_t cols, enum dtype type)
{
    if (format == WEIGHT_BF16)
        return b->ops->matrix_bytes(WEIGHT_OWN, rows, cols, DTYPE_BF16);
    return b->ops->matrix_bytes(format, rows, cols, type);
}

/* All of a matrix but what a backend puts there. */
static int describe(const struct backend *b, struct matrix *out,
                    enum weight_format format, uint32_t cols,
                    const struct matrix_part *parts, uint32_t n_parts, struct err *err)
{
    uint64_t rows = 0;
    uint32_t with_bias = 0;
    enum dtype type = n_parts ? parts[0].type : DTYPE_F32;
    for (uint32_t i = 0; i < n_parts; i++) {
        rows += parts[i].rows;
        with_bias += parts[i].bias != NULL;
        if (parts[i].type != type)
            type = DTYPE_F32;  // holds each of the others exactly
    }
    if (rows == 0 || rows > UINT32_MAX || cols == 0) {
        return err_set(err, -EINVAL,
                       "a matrix of %llu rows and %u columns cannot be kept",
                       (unsigned long long)rows, cols);
    }
    if (cols > b->limits.max_cols) {
        return err_set(err, -EINVAL,
                       "a matrix has %u columns; the backend was opened for %u at most",
                       cols, b->limits.max_cols);
    }
    if (with_bias != 0 && with_bias != n_parts) {
        return err_set(err, -EINVAL,
                       "%u of %u parts of a matrix have a bias; all or none must",
                       with_bias, n_parts);
    }
    if (format == WEIGHT_BF16) {
        format = WEIGHT_OWN;
        type = DTYPE_BF16;
    }
    struct matrix m = {
        .rows = (uint32_t)rows, .cols = cols, .format = format, .type = type};
    m.bytes = b->ops->matrix_bytes(format, m.rows, cols, type);
    if (m.bytes == 0) {
        return err_set(err, -EINVAL, "a matrix of %u rows and %u columns is too large",
                       m.rows, cols);
    }
    *out = m;
    return 0;
}

int backend_matrix_load(struct backend *b, struct matrix *out,
                        enum weight_format format, uint32_t cols,
                        const struct matrix_part *parts, uint32_t n_parts,
                        struct err *err)
{
    struct matrix m;
    int rc = describe(b, &m, format, cols, parts, n_parts, err);
    if (rc == 0) rc = b->ops->matrix_load(b, &m, parts, n_parts, err);
    if (rc == 0) *out = m;
    return rc;
}

int backend_matrix_reserve(struct backend *b, struct matrix *out,
                           enum weight_format format, uint32_t cols,
                           const struct matrix_part *parts, uint32_t n_parts,
                           struct err *err)
{
    if (!b->ops->matrix_layout)
        return err_set(err, -ENOTSUP, "%s has no layout of matrices to fill",
                       b->describe);
    struct matrix m;
    int rc = describe(b, &m, format, cols, parts, n_parts, err);
    if (rc == 0) rc = b->ops->matrix_reserve(b, &m, parts, n_parts, err);
    if (rc == 0) *out = m;
    return rc;
}

const char *backend_matrix_layout(const struct backend *b)
{
    return b->ops->matrix_layout;
}

void backend_matrix_free(struct backend *b, struct matrix *m)
{
    b->ops->matrix_free(b, m);
    *m = (struct matrix){0};
}

int backend_vector_load(struct backend *b, float **out, const void *src,
                        enum dtype type, uint32_t n, struct err *err)
{
    int rc = b->ops->vector_load(b, out, src, type, n);
    if (rc) return err_set(err, rc, "no memory for a vector of %u elements", n);
    return 0;
}

void backend_vector_free(struct backend *b, float *v)
{
    b->ops->free(b, v);
}

int backend_buffer_alloc(struct backend *b, struct buffer *out, uint32_t rows,
                         uint32_t cols, struct err *err)
{
    size_t bytes;
    void *p = NULL;
    if (rows && cols &&
        !__builtin_mul_overflow((size_t)rows * cols, b->activation_bytes, &bytes)) {
        p = b->ops->alloc(b, bytes);
    }
    if (!p) {
        return err_set(err, -ENOMEM,
                       "no memory for activations of %u rows by %u columns", rows,
                       cols);
    }
    *out = (struct buffer){.data = p, .rows = rows, .cols = cols};
    return 0;
}

void backend_buffer_free(struct backend *b, struct buffer *x)
{
    b->ops->free(b, x->data);
    *x = (struct buffer){0};
}

int backend_logits_alloc(struct backend *b, float **out, uint32_t rows, uint32_t cols,
                         struct err *err)
{
    size_t bytes;
    float *p = NULL;
    if (rows && cols &&
        !__builtin_mul_overflow((size_t)rows * cols, sizeof *p, &bytes)) {
        p = b->ops->host_alloc(b, bytes);
    }
    if (!p) {
        return err_set(err, -ENOMEM, "no memory for logits of %u rows by %u columns",
                       rows, cols);
    }
    *out = p;
    return 0;
}

void backend_logits_free(struct backend *b, float *p)
{
    b->ops->host_free(b, p);
}

int backend_best_alloc(struct backend *b, struct best **out, uint32_t rows,
                       struct err *err)
{
    *out = rows ? b->ops->host_alloc(b, (size_t)rows * BEST_MOST * sizeof **out) : NULL;
    return *out ? 0 : err_set(err, -ENOMEM, "no memory for the best of %u rows", rows);
}

void backend_best_free(struct backend *b, struct best *p)
{
    b->ops->host_free(b, p);
}

int backend_kv_alloc(struct backend *b, struct kv_pool_mem *out,
                     const struct kv_shape *shape, uint32_t n_blocks, struct err *err)
{
    // In 128 bits the product of four 32-bit numbers and a small one cannot overflow.
    unsigned __int128 bytes = (unsigned __int128)2 * KV_BLOCK_TOKENS * n_blocks;
    bytes = bytes * shape->layers * shape->kv_heads;
    bytes =
        bytes > SIZE_MAX ? bytes : bytes * shape->head_dim * dtype_bytes(shape->dtype);
    void *p = bytes && bytes <= SIZE_MAX / 2 ? b->ops->alloc(b, (size_t)bytes) : NULL;
    if (!p) {
        return err_set(err, -ENOMEM,
                       "no memory for %u KV blocks of %u layers, %u KV heads and "
                       "head dimension %u in %s",
                       n_blocks, shape->layers, shape->kv_heads, shape->head_dim,
                       dtype_name(shape->dtype));
    }
    *out = (struct kv_pool_mem){.shape = *shape, .n_blocks = n_blocks, .base = p};
    return 0;
}

void backend_kv_free(struct backend *b, struct kv_pool_mem *kv)
{
    b->ops->free(b, kv->base);
    *kv = (struct kv_pool_mem){0};
}
