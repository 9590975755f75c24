/* Copies and fills, pinned and pageable.
 *
 * An asynchronous copy out of pageable memory reads it before the call returns, one into
 * pageable memory has ended when the call returns: as CUDA has it, and the second is why
 * such copies are counted.  Pinned memory is read and written when the copy runs.
 */
#include "tests/cuda_on_cpu/internal.h"

struct copy {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, width, height;
    bool staged;  // the bytes are behind this struct
};

static void run_copy(void *argument)
{
    const struct copy *c = argument;
    const char *from = c->staged ? (const char *)(c + 1) : memory_bytes(c->from);
    char *to = memory_bytes(c->to);
    for (size_t row = 0; row < c->height; row++) {
        if (!c->staged) memory_touch(from + row * c->from_pitch, c->width, false);
        memory_touch(to + row * c->to_pitch, c->width, true);
        raw_copy(to + row * c->to_pitch, from + row * c->from_pitch, c->width);
    }
}

/* Whether n bytes at p are all of one kind: of the device, or of the host. */
static bool range_is(const void *p, size_t n, bool device)
{
    if (device) return memory_on_device(p, n);
    if (memory_is_device_space(p)) return false;
    return !memory_pinned(p, 1) || memory_pinned(p, n);
}

static void count_copy(enum cudaMemcpyKind kind, uint64_t n)
{
    counts.copies++;
    switch (kind) {
    case cudaMemcpyHostToDevice: counts.h2d_bytes += n; break;
    case cudaMemcpyDeviceToHost: counts.d2h_bytes += n; break;
    case cudaMemcpyDeviceToDevice: counts.d2d_bytes += n; break;
    default: counts.h2h_bytes += n; break;
    }
}

static enum cudaMemcpyKind kind_of(const struct copy *c, enum cudaMemcpyKind kind)
{
    if (kind != cudaMemcpyDefault) return kind;
    bool to = memory_is_device_space(c->to), from = memory_is_device_space(c->from);
    if (to) return from ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice;
    return from ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost;
}

/* The copy with its source's bytes taken now. */
static struct operation *stage(const struct copy *c, unsigned identity)
{
    size_t n = c->width * c->height;
    struct operation *o =
        operation_new("copy", run_copy, NULL, sizeof *c + n, identity);
    struct copy *staged = o->argument;
    *staged = *c;
    staged->staged = true;
    staged->from_pitch = c->width;
    for (size_t row = 0; row < c->height; row++) {
        const char *from = c->from + row * c->from_pitch;
        memory_touch(from, c->width, false);
        raw_copy((char *)(staged + 1) + row * c->width, from, c->width);
    }
    return o;
}

static cudaError_t copy(struct copy c, enum cudaMemcpyKind kind, struct CUstream_st *s,
                        bool wait)
{
    if (!c.width || !c.height) return cudaSuccess;
    if (c.to_pitch < c.width || c.from_pitch < c.width)
        return cudaErrorInvalidPitchValue;
    kind = kind_of(&c, kind);
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device =
        kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (!range_is(c.to, c.to_pitch * (c.height - 1) + c.width, to_device) ||
        !range_is(c.from, c.from_pitch * (c.height - 1) + c.width, from_device))
        return cudaErrorInvalidValue;
    count_copy(kind, c.width * c.height);
    bool pageable_to = !to_device && !memory_pinned(c.to, 1);
    bool pageable_from = !from_device && !memory_pinned(c.from, 1);
    if ((pageable_to || pageable_from) && !wait) counts.pageable_async++;
    struct operation *o =
        pageable_from && !s->capture
            ? stage(&c, s->identity)
            : operation_new("copy", run_copy, &c, sizeof c, s->identity);
    operation_ref(o);
    cudaError_t e = stream_push(s, o);
    if (!e && !s->capture && (wait || pageable_to)) {
        operation_wait(o);
        e = sticky_error();
    }
    operation_unref(o);
    return e;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n,
                            enum cudaMemcpyKind kind, cudaStream_t s)
{
    ENTER();
    LEAVE(copy((struct copy){to, from, n, n, n, 1, false}, kind, stream_of(s), false));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind)
{
    ENTER_UNLESS_CAPTURING(WAITS_FOR_ALL, NULL);
    counts.syncs++;
    LEAVE(
        copy((struct copy){to, from, n, n, n, 1, false}, kind, stream_of(NULL), true));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from,
                              size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t s)
{
    ENTER();
    LEAVE(copy((struct copy){to, from, to_pitch, from_pitch, width, height, false},
               kind, stream_of(s), false));
}

struct fill {
    void *to;
    int value;
    size_t n;
};

static void run_fill(void *argument)
{
    const struct fill *f = argument;
    memory_touch(memory_bytes(f->to), f->n, true);
    raw_fill(memory_bytes(f->to), f->value, f->n);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t s)
{
    ENTER();
    if (!n) LEAVE(cudaSuccess);
    if (!memory_on_device(to, n)) LEAVE(cudaErrorInvalidValue);
    struct fill f = {to, value, n};
    LEAVE(stream_enqueue(stream_of(s), "memset", run_fill, &f, sizeof f));
}

cudaError_t cudaMemset(void *to, int value, size_t n)
{
    return cudaMemsetAsync(to, value, n, NULL);
}
