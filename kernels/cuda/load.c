/* load.c - weights on their way from mapped files to the device: row-major, each row padded
 * to whole 16 bytes, through a few pinned buffers so that reading and copying overlap.
 */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

uint32_t cuda_ld(uint32_t cols, enum dtype type)
{
    return type == DTYPE_F32 ? cols : (uint32_t)ALIGN_UP((uint64_t)cols, 8);
}

size_t cuda_matrix_bytes(enum weight_format format, uint32_t rows, uint32_t cols,
                         enum dtype type)
{
    size_t bytes;
    if (format != WEIGHT_OWN) return (size_t)rows;  // is refused when it is loaded
    if (cols > UINT32_MAX - 8 ||
        __builtin_mul_overflow((uint64_t)rows, cuda_ld(cols, type) * dtype_bytes(type),
                               &bytes))
        return 0;
    return bytes;
}

int cuda_loading_open(struct cuda *c, struct err *err)
{
    for (int i = 0; i < CUDA_STAGINGS; i++) {
        if (cudaHostAlloc(&c->staging[i], CUDA_STAGING_BYTES, cudaHostAllocDefault) !=
                cudaSuccess ||
            cudaEventCreateWithFlags(&c->staged[i], cudaEventDisableTiming) !=
                cudaSuccess) {
            (void)cudaGetLastError();
            return err_set(err, -ENOMEM,
                           "no pinned memory for %d buffers of %zu MiB to load weights "
                           "through",
                           CUDA_STAGINGS, CUDA_STAGING_BYTES >> 20);
        }
    }
    return 0;
}

void cuda_loading_close(struct cuda *c)
{
    for (int i = 0; i < CUDA_STAGINGS; i++) {
        if (c->staged[i]) (void)cudaEventDestroy(c->staged[i]);
        if (c->staging[i]) (void)cudaFreeHost(c->staging[i]);
    }
}

/* The next staging buffer, once its last copy is done; NULL where that failed. */
static void *take_staging(struct cuda *c)
{
    uint32_t i = c->next_staging;
    if (!cuda_ok(c, cudaEventSynchronize(c->staged[i]), "waiting for weights"))
        return NULL;
    return c->staging[i];
}

static void send_staging(struct cuda *c, void *to, size_t bytes)
{
    uint32_t i = c->next_staging;
    c->next_staging = (i + 1) % CUDA_STAGINGS;
    if (cuda_ok(
            c, cudaMemcpyAsync(to, c->staging[i], bytes, cudaMemcpyHostToDevice, c->up),
            "copying weights"))
        cuda_ok(c, cudaEventRecord(c->staged[i], c->up), "copying weights");
}

#define NARROWED 256  // numbers at a time

static void narrow_row(char *to, const struct matrix *m, const char *from,
                       enum dtype type)
{
    float wide[NARROWED];
    for (uint32_t i = 0, n; i < m->cols; i += n) {
        n = cuda_min(NARROWED, m->cols - i);
        dtype_to_f32(wide, from + i * dtype_bytes(type), type, n);
        dtype_from_f32(to + i * dtype_bytes(m->type), wide, m->type, n);
    }
}

/* One row of `from` as the matrix keeps it: the same type, widened or rounded. */
static void put_row(char *to, const struct matrix *m, const void *from, enum dtype type)
{
    size_t bytes = (size_t)m->cols * dtype_bytes(m->type);
    if (m->type == type)
        memcpy(to, from, bytes);
    else if (m->type == DTYPE_F32)
        dtype_to_f32((float *)(void *)to, from, type, m->cols);
    else
        narrow_row(to, m, from, type);
    memset(to + bytes, 0, (cuda_ld(m->cols, m->type) - m->cols) * dtype_bytes(m->type));
}

/* Rows as many as a buffer holds at a time.  A row longer than a buffer is refused before. */
static void send_part(struct cuda *c, const struct matrix *m, char *to,
                      const struct matrix_part *part)
{
    size_t row = cuda_ld(m->cols, m->type) * dtype_bytes(m->type);
    size_t from = (size_t)m->cols * dtype_bytes(part->type);
    uint32_t most = (uint32_t)(CUDA_STAGING_BYTES / row);
    for (uint32_t r = 0, n; r < part->rows && !c->dead; r += n) {
        n = cuda_min(most, part->rows - r);
        char *staging = take_staging(c);
        if (!staging) return;
        for (uint32_t i = 0; i < n; i++)
            put_row(staging + i * row, m, (const char *)part->data + (r + i) * from,
                    part->type);
        send_staging(c, to + r * row, n * row);
    }
}

/* f32 numbers in pieces. */
static void send_floats(struct cuda *c, float *to, const void *from, enum dtype type,
                        size_t n)
{
    const size_t most = CUDA_STAGING_BYTES / sizeof(float);
    for (size_t i = 0, k; i < n && !c->dead; i += k) {
        k = n - i < most ? n - i : most;
        float *staging = take_staging(c);
        if (!staging) return;
        dtype_to_f32(staging, (const char *)from + i * dtype_bytes(type), type, k);
        send_staging(c, to + i, k * sizeof *to);
    }
}

/* Steps wait for what has been sent. */
static void end_load(struct cuda *c)
{
    uint32_t last = (c->next_staging + CUDA_STAGINGS - 1) % CUDA_STAGINGS;
    cuda_ok(c, cudaStreamWaitEvent(c->compute, c->staged[last], 0), "loading weights");
}

int cuda_matrix_load(struct backend *b, struct matrix *m,
                     const struct matrix_part *parts, uint32_t n_parts, struct err *err)
{
    struct cuda *c = cuda_of(b);
    if (!cuda_enter(c)) return err_set(err, -EIO, "%s", c->why_dead.msg);
    if (m->format != WEIGHT_OWN)
        return err_set(err, -ENOTSUP,
                       "the CUDA backend keeps weights as the files have them or as "
                       "bf16, not as %s",
                       weight_format_name(m->format));
    size_t row = cuda_ld(m->cols, m->type) * dtype_bytes(m->type);
    if (row > CUDA_STAGING_BYTES)
        return err_set(err, -EINVAL, "a matrix of %u columns is too wide", m->cols);
    m->data = cuda_device_alloc(c, m->bytes);
    if (m->data && parts[0].bias)
        m->bias = cuda_device_alloc(c, (size_t)m->rows * sizeof *m->bias);
    if (!m->data || (parts[0].bias && !m->bias)) {
        cuda_matrix_free(b, m);
        return err_set(err, -ENOMEM,
                       "no device memory for a matrix of %u rows and %u columns in %s",
                       m->rows, m->cols, dtype_name(m->type));
    }
    size_t done = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        send_part(c, m, (char *)m->data + done * row, &parts[i]);
        if (m->bias)
            send_floats(c, m->bias + done, parts[i].bias, DTYPE_F32, parts[i].rows);
        done += parts[i].rows;
    }
    end_load(c);
    if (!c->dead) return 0;
    cuda_matrix_free(b, m);
    return err_set(err, -EIO, "%s", c->why_dead.msg);
}

void cuda_matrix_free(struct backend *b, struct matrix *m)
{
    cuda_device_free(cuda_of(b), m->data);
    cuda_device_free(cuda_of(b), m->bias);
    m->data = NULL;
    m->bias = NULL;
}

int cuda_vector_load(struct backend *b, float **out, const void *src, enum dtype type,
                     uint32_t n)
{
    struct cuda *c = cuda_of(b);
    if (!cuda_enter(c)) return -EIO;
    float *v = cuda_device_alloc(c, (size_t)n * sizeof *v);
    if (!v) return -ENOMEM;
    send_floats(c, v, src, type, n);
    end_load(c);
    if (c->dead) {
        cuda_device_free(c, v);
        return -EIO;
    }
    *out = v;
    return 0;
}
