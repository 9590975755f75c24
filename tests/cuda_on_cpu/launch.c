/* Kernels by name, launches, and what nvcc's host code calls at the start of a program. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_on_cpu/internal.h"

enum { MAX_STUBS = 1024, MAX_PARAMS = 32, SHARED_DEFAULT = 48 << 10 };

static struct kernel *kernels;

/* What a launch names: nvcc's host stub of a kernel, or in the source tier the kernel
 * itself. */
static struct stub {
    const void *stub;
    const char *name;  // mangled
    const struct kernel *kernel;
    int shared_limit;  // 0: the default
} stubs[MAX_STUBS];
static unsigned n_stubs;

/* ---- names ---- */

void device_register(struct kernel *k)
{
    for (const struct kernel *other = kernels; other; other = other->next)
        if (!strcmp(other->name, k->name))
            device_report("two kernels are named %s", k->name);
    k->next = kernels;
    kernels = k;
}

static struct stub *stub_add(const void *stub, const char *name)
{
    if (n_stubs == MAX_STUBS) device_report("more than %d kernels", MAX_STUBS);
    stubs[n_stubs] = (struct stub){.stub = stub, .name = name};
    return &stubs[n_stubs++];
}

/* The libraries of translated kernels register what they have as they are loaded. */
static void load_kernels(void)
{
    static bool loaded;
    if (loaded) return;
    loaded = true;
    char names[4096], *state, *name;
    const char *given = getenv("STANDIN_KERNELS");
    Dl_info self;
    if (given) {
        snprintf(names, sizeof names, "%s", given);
    } else if (dladdr(&kernels, &self)) {
        const char *slash = strrchr(self.dli_fname, '/');
        int n = slash ? (int)(slash - self.dli_fname) : 0;
        snprintf(names, sizeof names, "%.*s/kernels.so", n, self.dli_fname);
    }
    for (name = strtok_r(names, ":", &state); name; name = strtok_r(NULL, ":", &state))
        if (!dlopen(name, RTLD_NOW | RTLD_LOCAL))
            device_report("kernels cannot be loaded: %s", dlerror());
}

static struct stub *stub_of(const void *fn)
{
    struct stub *s = stubs, *end = stubs + n_stubs;
    while (s < end && s->stub != fn) s++;
    if (s == end) {
        s = stub_add(fn, "");  // not nvcc's: the source tier's
        for (s->kernel = kernels; s->kernel && s->kernel->fn != fn;)
            s->kernel = s->kernel->next;
    }
    if (*s->name && !s->kernel) {
        load_kernels();
        for (s->kernel = kernels; s->kernel && strcmp(s->kernel->name, s->name);)
            s->kernel = s->kernel->next;
    }
    if (!s->kernel) device_report("no kernel of the CPU is named %s", s->name);
    return s;
}

void launch_forget(void)
{
    for (unsigned i = 0; i < n_stubs; i++) stubs[i].shared_limit = 0;
}

/* ---- launches ---- */

struct launch {
    const struct kernel *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    unsigned identity;
    _Alignas(16) char params[];  // each at a multiple of 16
};

static size_t padded(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

static void run_launch(void *argument)
{
    struct launch *l = argument;
    cudaError_t e = cudaSuccess;
    if (kernel_fails(l->kernel->name, &e)) {
        kill_device(e);
        return;
    }
    static void *args[MAX_PARAMS];  // not on the host's stack: kernels read it
    char *p = l->params;
    for (unsigned i = 0; i < l->kernel->n_params; i++) {
        args[i] = p;
        p += padded(l->kernel->size[i]);
    }
    device_shared_bytes = (uint32_t)l->shared_bytes;
    kernel_run(l->kernel, l->grid, l->block, l->shared_bytes, args, l->identity);
}

static bool shape_is_legal(dim3 g, dim3 b)
{
    uint64_t n = (uint64_t)b.x * b.y * b.z;
    return n && n <= 1024 && b.z <= 64 && g.x && g.y && g.z && g.x <= INT32_MAX &&
           g.y <= 65535 && g.z <= 65535;
}

cudaError_t cudaLaunchKernel(const void *fn, dim3 grid, dim3 block, void **args,
                             size_t shared_bytes, cudaStream_t stream)
{
    ENTER();
    const struct stub *stub = stub_of(fn);
    const struct kernel *k = stub->kernel;
    if (!shape_is_legal(grid, block)) LEAVE(cudaErrorInvalidConfiguration);
    size_t limit = stub->shared_limit ? (size_t)stub->shared_limit : SHARED_DEFAULT;
    if (shared_bytes > limit || k->static_shared + shared_bytes > shared_optin())
        LEAVE(cudaErrorInvalidValue);
    if (k->n_params > MAX_PARAMS)
        device_report("kernel %s has more than %d parameters", k->name, MAX_PARAMS);
    struct CUstream_st *s = stream_of(stream);
    size_t n = 0;
    for (unsigned i = 0; i < k->n_params; i++) n += padded(k->size[i]);
    struct operation *o = operation_new(k->name, run_launch, NULL,
                                        sizeof(struct launch) + n, s->identity);
    struct launch *l = o->argument;
    l->kernel = k;
    l->grid = grid;
    l->block = block;
    l->shared_bytes = k->static_shared + shared_bytes;
    l->identity = s->identity;
    char *p = l->params;
    for (unsigned i = 0; i < k->n_params; i++) {
        raw_copy(p, args[i], k->size[i]);
        memory_shift_argument(k->name, i, p, k->size[i]);
        p += padded(k->size[i]);
    }
    LEAVE(stream_push(s, o));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *fn,
                                void **args)
{
    return cudaLaunchKernel(fn, c->gridDim, c->blockDim, args, c->dynamicSmemBytes,
                            c->stream);
}

cudaError_t cudaFuncSetAttribute(const void *fn, enum cudaFuncAttribute a, int value)
{
    ENTER();
    struct stub *s = stub_of(fn);
    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize) LEAVE(cudaSuccess);
    if (value < 0 || s->kernel->static_shared + (size_t)value > shared_optin())
        LEAVE(cudaErrorInvalidValue);
    s->shared_limit = value;
    LEAVE(cudaSuccess);
}

/* ---- what nvcc's host code calls; it has no public header ---- */

void **__cudaRegisterFatBinary(void *fat);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
char __cudaInitModule(void **handle);
void __cudaRegisterFunction(void **handle, const char *stub, char *device,
                            const char *name, int limit, void *, void *, void *, void *,
                            int *);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int,
                       size_t, int, int);
unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t shared, cudaStream_t s);
cudaError_t __cudaPopCallConfiguration(dim3 *g, dim3 *b, size_t *shared,
                                       cudaStream_t *s);
cudaError_t __cudaGetKernel(cudaKernel_t *k, const void *fn);
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void **args,
                               size_t shared, cudaStream_t s);

static void *fat_binary;

void **__cudaRegisterFatBinary(void *fat)
{
    (void)fat;
    return &fat_binary;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

char __cudaInitModule(void **handle)
{
    (void)handle;
    return 1;
}

void __cudaRegisterFunction(void **handle, const char *stub, char *device,
                            const char *name, int limit, void *thread, void *block,
                            void *block_dim, void *grid_dim, int *size)
{
    (void)handle, (void)device, (void)limit, (void)thread, (void)block, (void)block_dim;
    (void)grid_dim, (void)size;
    stub_add(stub, name);
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name,
                       int ext, size_t n, int constant, int global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)ext, (void)n,
        (void)constant;
    (void)global;
}

static __thread struct {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
} configured;

unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t shared, cudaStream_t s)
{
    configured.grid = g;
    configured.block = b;
    configured.shared_bytes = shared;
    configured.stream = s;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *g, dim3 *b, size_t *shared,
                                       cudaStream_t *s)
{
    *g = configured.grid;
    *b = configured.block;
    *shared = configured.shared_bytes;
    *s = configured.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *k, const void *fn)
{
    *k = (cudaKernel_t)(uintptr_t)fn;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void **args,
                               size_t shared, cudaStream_t s)
{
    return cudaLaunchKernel((const void *)(uintptr_t)k, g, b, args, shared, s);
}
