/* result.c - what a step computes for the host: logits, and the best of them. */
#include "kernels/cuda/cuda.h"

/* ---- memory ---- */

void cuda_result_free(struct backend *b, void *p)
{
    struct cuda *c = cuda_of(b);
    for (int i = 0; i < CUDA_MAX_RESULTS && p; i++) {
        if (c->results[i].host != p) continue;
        (void)cudaFreeHost(p);
        cuda_device_free(c, c->results[i].device);
        c->results[i] = (struct cuda_result){0};
    }
}

void *cuda_result_alloc(struct backend *b, size_t bytes)
{
    struct cuda *c = cuda_of(b);
    int i = 0;
    while (i < CUDA_MAX_RESULTS && c->results[i].host) i++;
    if (i == CUDA_MAX_RESULTS || !cuda_enter(c)) return NULL;
    void *host = NULL;
    if (cudaHostAlloc(&host, bytes, cudaHostAllocDefault) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    c->results[i] = (struct cuda_result){
        .host = host, .device = cuda_device_alloc(c, bytes), .room = bytes};
    if (c->results[i].device) return host;
    cuda_result_free(b, host);
    return NULL;
}

/* ---- of a step ---- */

struct cuda_result *cuda_result_at(struct backend *b, const void *host, size_t row)
{
    struct cuda *c = cuda_of(b);
    for (int i = 0; i < CUDA_MAX_RESULTS; i++) {
        struct cuda_result *r = &c->results[i];
        if (r->host != host) continue;
        if (r->room / row < c->room) c->room = (uint32_t)(r->room / row);
        r->row = row;
        return r;
    }
    cuda_fail(c, -EINVAL, "logits were not allocated by this backend");
    return NULL;
}

static void send_rows(struct cuda *c, const struct cuda_result *r, uint32_t first,
                      uint32_t end)
{
    size_t at = first * r->row;
    if (first < end)
        cuda_ok(c,
                cudaMemcpyAsync(r->host + at, r->device + at, (end - first) * r->row,
                                cudaMemcpyDeviceToHost, c->compute),
                "copying logits");
}

static void send_result(struct cuda *c, const struct cuda_result *r)
{
    const struct batch *t = c->base.batch;
    uint32_t first = 0;
    for (uint32_t i = 0; i < t->n_logits && r->reduced; i++) {
        if (t->n_best[i] == 0) continue;
        send_rows(c, r, first, i);
        first = i + 1;
    }
    send_rows(c, r, first, t->n_logits);
}

void cuda_results_send(struct cuda *c)
{
    for (int i = 0; i < CUDA_MAX_RESULTS; i++)
        if (c->results[i].row > 0) send_result(c, &c->results[i]);
}

void cuda_results_forget(struct cuda *c)
{
    for (int i = 0; i < CUDA_MAX_RESULTS; i++) {
        c->results[i].row = 0;
        c->results[i].reduced = false;
    }
}
