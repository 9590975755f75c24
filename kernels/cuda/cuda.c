/* cuda.c - opening the CUDA backend, and its errors and memory. */
#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLAS_WORKSPACE                                                                 \
    ((size_t)32 << 20)  // what cuBLAS asks for on the largest devices
#define LEAST_CAPABILITY 80

/* ---- errors ---- */

static bool died(struct cuda *c, const char *doing, const char *name, const char *why)
{
    if (!c->dead) {
        snprintf(c->why_dead.msg, sizeof c->why_dead.msg,
                 "the CUDA device failed while %s: %s, %s", doing, name, why);
        c->dead = true;
    }
    if (!c->base.rc) {
        c->base.rc = -EIO;
        c->base.why = c->why_dead;
    }
    return false;
}

bool cuda_ok(struct cuda *c, cudaError_t e, const char *doing)
{
    if (e == cudaSuccess) return true;
    return died(c, doing, cudaGetErrorName(e), cudaGetErrorString(e));
}

bool cuda_blas_ok(struct cuda *c, cublasStatus_t s, const char *doing)
{
    char number[32];
    if (s == CUBLAS_STATUS_SUCCESS) return true;
    snprintf(number, sizeof number, "status %d", (int)s);
    return died(c, doing, "cuBLAS", number);
}

bool cuda_enter(struct cuda *c)
{
    if (!c->dead) cuda_ok(c, cudaSetDevice(c->device), "choosing the device");
    return !c->dead;
}

/* ---- memory ---- */

/* A place in the list of what has been taken; NULL: no memory for the list. */
static struct cuda_range *add_range(struct cuda *c)
{
    if (c->n_ranges == c->cap_ranges) {
        uint32_t cap = c->cap_ranges ? 2 * c->cap_ranges : 256;
        struct cuda_range *r = realloc(c->ranges, cap * sizeof *r);
        if (!r) return NULL;
        c->ranges = r;
        c->cap_ranges = cap;
    }
    return &c->ranges[c->n_ranges];
}

void *cuda_device_alloc(struct cuda *c, size_t bytes)
{
    void *p = NULL;
    struct cuda_range *r = bytes > 0 ? add_range(c) : NULL;
    if (!r) return NULL;
    if (cudaMalloc(&p, bytes) != cudaSuccess) {
        (void)cudaGetLastError();  // is answered by NULL, and must not be found later
        return NULL;
    }
    *r = (struct cuda_range){p, bytes};
    c->n_ranges++;
    return p;
}

void cuda_device_free(struct cuda *c, void *p)
{
    for (uint32_t i = c->n_ranges; p && i-- > 0;) {
        if (c->ranges[i].start != p) continue;
        (void)cudaFree(p);
        c->ranges[i] = c->ranges[--c->n_ranges];
        return;
    }
}

bool cuda_on_device(const struct cuda *c, const void *p)
{
    for (uint32_t i = c->n_ranges; i-- > 0;) {
        const struct cuda_range *r = &c->ranges[i];
        if ((uintptr_t)p - (uintptr_t)r->start < r->bytes) return true;
    }
    return false;
}

/* ---- opening ---- */

/* "cuda" or "cuda:N" */
static int read_name(const char *name, int *device, struct err *err)
{
    const char *p = name + strlen("cuda");
    *device = 0;
    if (*p == 0) return 0;
    char *end = NULL;
    long n = *p == ':' && p[1] >= '0' && p[1] <= '9' ? strtol(p + 1, &end, 10) : -1;
    if (n < 0 || n > 1023 || *end)
        return err_set(err, -EINVAL,
                       "there is no device \"%s\"; right is cuda, or cuda:N for the "
                       "N-th device",
                       name);
    *device = (int)n;
    return 0;
}

static int find_device(struct cuda *c, struct err *err)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0)
        return err_set(err, -ENODEV, "there is no CUDA device here (%s)",
                       e == cudaSuccess ? "the driver lists none"
                                        : cudaGetErrorString(e));
    if (c->device >= n)
        return err_set(err, -ENODEV, "there is no CUDA device %d; the last one is %d",
                       c->device, n - 1);
    return 0;
}

/* All but the device's number decides the bits that it computes: the compiler's version is
 * that of the toolkit this was built with, whatever runtime it finds.  server/ relies on
 * the comma. */
static int describe(struct cuda *c, struct err *err)
{
    struct cudaDeviceProp p;
    if (!cuda_ok(c, cudaGetDeviceProperties(&p, c->device),
                 "asking for its properties"))
        return err_set(err, -EIO, "%s", c->why_dead.msg);
    int capability = 10 * p.major + p.minor;
    if (capability < LEAST_CAPABILITY)
        return err_set(err, -ENODEV,
                       "CUDA device %d (%.64s) has compute capability %d.%d; at least "
                       "%d.%d is needed",
                       c->device, p.name, p.major, p.minor, LEAST_CAPABILITY / 10,
                       LEAST_CAPABILITY % 10);
    c->processors = (uint32_t)p.multiProcessorCount;
    snprintf(c->base.describe, sizeof c->base.describe,
             "cuda (%.16s sm_%u nvcc %u.%u%s, device %u)", p.name, (unsigned)capability,
             CUDART_VERSION / 1000u, CUDART_VERSION % 1000u / 10u,
             c->exact ? " exact" : "", (unsigned)c->device);
    return 0;
}

static int open_streams(struct cuda *c, struct err *err)
{
    const unsigned flags = cudaStreamNonBlocking;
    if (cuda_ok(c, cudaStreamCreateWithFlags(&c->compute, flags), "opening a stream") &&
        cuda_ok(c, cudaStreamCreateWithFlags(&c->up, flags), "opening a stream") &&
        cuda_blas_ok(c, cublasCreate(&c->blas), "opening cuBLAS") &&
        cuda_blas_ok(c, cublasSetStream(c->blas, c->compute), "opening cuBLAS"))
        return 0;
    return err_set(err, -EIO, "%s", c->why_dead.msg);
}

static int open_memory(struct cuda *c, struct err *err)
{
    const struct backend_limits *l = &c->base.limits;
    c->blas_workspace = cuda_device_alloc(c, BLAS_WORKSPACE);
    c->ops = calloc(CUDA_MAX_OPS, sizeof *c->ops);
    if (!c->blas_workspace || !c->ops || cuda_input_open(c))
        return err_set(err, -ENOMEM,
                       "no device memory for the scratch of %u rows of %u columns and "
                       "%u KV blocks",
                       l->max_rows, l->max_cols, l->max_blocks);
    if (!cuda_blas_ok(c, cublasSetWorkspace(c->blas, c->blas_workspace, BLAS_WORKSPACE),
                      "opening cuBLAS"))
        return err_set(err, -EIO, "%s", c->why_dead.msg);
    return cuda_loading_open(c, err);
}

void cuda_close(struct backend *b)
{
    struct cuda *c = cuda_of(b);
    (void)cudaSetDevice(c->device);
    if (c->compute) (void)cudaStreamSynchronize(c->compute);
    if (c->up) (void)cudaStreamSynchronize(c->up);
    cuda_graphs_close(c);
    cuda_loading_close(c);
    cuda_input_close(c);
    if (c->blas) (void)cublasDestroy(c->blas);
    cuda_device_free(c, c->blas_workspace);
    if (c->compute) (void)cudaStreamDestroy(c->compute);
    if (c->up) (void)cudaStreamDestroy(c->up);
    free(c->ops);
    free(c->ranges);
    free(c);
}

int cuda_open(struct backend **out, const char *name, const struct backend_options *o,
              struct err *err)
{
    if (o->limits.max_head_dim > CUDA_MAX_HEAD_DIM)
        return err_set(err, -EINVAL,
                       "the CUDA backend computes heads of at most %d, not of %u",
                       CUDA_MAX_HEAD_DIM, o->limits.max_head_dim);
    struct cuda *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, -ENOMEM, "no memory for the CUDA backend");
    c->base.ops = &cuda_ops;
    c->base.limits = o->limits;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);  // for what the host does itself
    c->base.threads = o->threads ? o->threads : cpus > 0 ? (uint32_t)cpus : 1;
    c->base.activation_bytes = sizeof(float);
    c->base.rounds[DTYPE_F16] = c->base.rounds[DTYPE_BF16] = true;
    c->exact = o->exact;
    cuda_graphs_open(c, o->layers);

    int rc = read_name(name, &c->device, err);
    if (rc == 0) rc = find_device(c, err);
    if (rc < 0) {
        free(c);
        return rc;
    }
    if (!cuda_enter(c)) rc = err_set(err, -EIO, "%s", c->why_dead.msg);
    if (rc == 0) rc = describe(c, err);
    if (rc == 0) rc = open_streams(c, err);
    if (rc == 0) rc = open_memory(c, err);
    if (rc < 0) {
        cuda_close(&c->base);
        return rc;
    }
    for (uint32_t i = 0; i < c->n_ranges; i++)
        c->base.scratch_bytes += c->ranges[i].bytes;
    *out = &c->base;
    return 0;
}
