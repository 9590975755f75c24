/* Device memory, pinned memory, and every question about an address.
 *
 * A device allocation has pages of its own and ends within 256 bytes of one that faults; it
 * begins filled with NaN; its address is not used again for a long time, so that a stale
 * pointer is always seen.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda_on_cpu/internal.h"

enum { MAX_RANGES = 4096, MAX_VARIABLES = 256, PAGE = 4096, UNIT = 512 };
static const size_t SPACE = (size_t)64 << 30;

size_t device_capacity = (size_t)1 << 30, pinned_capacity = (size_t)4 << 30;
size_t node_bytes = (size_t)10 << 10;

/* The space as the host sees it; the bytes lie SPACE beyond. */
static char *space;
static size_t space_used;

/* In the order of their addresses, which only grow. */
static struct allocation {
    char *base, *p;  // of its pages; of what cudaMalloc answered
    size_t n, span;
    bool live;
} allocations[MAX_RANGES];
static unsigned n_allocations;

static struct range {
    char *p;
    size_t n;
    bool ours;  // by cudaHostAlloc, not cudaHostRegister
} pinned[MAX_RANGES], variables[MAX_VARIABLES];
static unsigned n_pinned, n_variables;

struct device_window device_windows[16];

/* ---- addresses ---- */

bool memory_is_device_space(const void *p)
{
    return space && (const char *)p >= space && (const char *)p < space + SPACE;
}

void *memory_bytes(const void *p)
{
    return (char *)p + (memory_is_device_space(p) ? SPACE : 0);
}

/* The allocation whose pages have p, a host's view or where the bytes lie. */
static struct allocation *allocation_near(const void *p)
{
    const char *at = p;
    if (space && at >= space + SPACE && at < space + 2 * SPACE) at -= SPACE;
    unsigned low = 0, high = n_allocations;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (allocations[middle].base <= at)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low) return NULL;
    struct allocation *a = &allocations[low - 1];
    return at < a->base + a->span ? a : NULL;
}

static struct sigaction former;

/* Says whose pointer it was.  A kernel's access ends the program, as nothing could go on with a
 * kernel half run; the host's is repeated and ends as it would have. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    const char *p = info->si_addr;
    const struct allocation *a = allocation_near(p);
    const char *where = !a        ? "outside every allocation"
                        : a->live ? "of a live allocation"
                                  : "freed already";
    if (running) device_report("device code touched %p, %s", (const void *)p, where);
    if (memory_is_device_space(p)) {
        char text[160];
        int n = snprintf(text, sizeof text,
                         "stand-in: host code touched device memory %p, %s\n",
                         (const void *)p, where);
        if (write(STDERR_FILENO, text, (size_t)n) < 0) abort();
    }
    sigaction(SIGSEGV, &former, NULL);
}

void memory_watch(void)
{
    struct sigaction now, ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, NULL, &now);
    if (now.sa_sigaction == on_fault) return;
    former = now;
    sigaction(SIGSEGV, &ours, NULL);
}

void memory_open(void)
{
    space = mmap(NULL, 2 * SPACE, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) {
        perror("stand-in: address space for the device");
        abort();
    }
}

/* The live allocation that has [p, p+n). */
static struct allocation *allocation_of(const void *p, size_t n)
{
    struct allocation *a = allocation_near(p);
    if (!a || !a->live) return NULL;
    const char *at = memory_is_device_space(p) ? p : (const char *)p - SPACE;
    return at >= a->p && at < a->p + a->n && n <= (size_t)(a->p + a->n - at) ? a : NULL;
}

static struct range *range_of(struct range *ranges, unsigned n_ranges, const void *p,
                              size_t n)
{
    const char *at = p;
    for (struct range *r = ranges; r < ranges + n_ranges; r++)
        if (at >= r->p && at < r->p + r->n && n <= (size_t)(r->p + r->n - at)) return r;
    return NULL;
}

bool memory_on_device(const void *p, size_t n)
{
    return memory_is_device_space(p) && allocation_of(p, n);
}

bool memory_pinned(const void *p, size_t n)
{
    return range_of(pinned, n_pinned, p, n);
}

void memory_touch(const void *p, size_t n, bool write)
{
    if (!n) return;
    const char *does = write ? "write" : "read";
    if (space && (char *)p >= space && (char *)p < space + 2 * SPACE &&
        !allocation_of(p, n))
        device_report("%s of %zu bytes at device address %p leaves its allocation",
                      does, n, p);
    if (ASAN && __asan_region_is_poisoned((void *)p, n))
        device_report("%s of %zu bytes at %p is out of bounds", does, n, p);
    if (!TSAN) return;
    if (write)
        __tsan_write_range((void *)p, n);
    else
        __tsan_read_range((void *)p, n);
}

void device_variable(void *p, size_t n)
{
    if (n_variables == MAX_VARIABLES)
        device_report("more than %d __device__ variables", MAX_VARIABLES);
    variables[n_variables++] = (struct range){p, n, false};
}

/* A global access that no window let pass: a new window, or a report. */
void device_check_global(uint64_t address, unsigned n, bool write, const char *file,
                         int line)
{
    const void *p = (const void *)(uintptr_t)address;
    const char *does = write ? "write" : "read";
    if (address % n)
        device_report("%s:%d: misaligned global %s of %u bytes at %p", file, line, does,
                      n, p);
    const struct allocation *a = memory_is_device_space(p) ? NULL : allocation_of(p, n);
    const struct range *r = range_of(pinned, n_pinned, p, n);
    if (!r) r = range_of(variables, n_variables, p, n);
    if (!a && !r)
        device_report("%s:%d: global %s of %u bytes at %p is outside every allocation",
                      file, line, does, n, p);
    device_windows[address >> 12 & 15] =
        a ? (struct device_window){(uintptr_t)a->p + SPACE, a->n}
          : (struct device_window){(uintptr_t)r->p, r->n};
}

/* Where programs, heaps and libraries lie, the sanitizers' shadows excepted. */
static bool looks_like_host_memory(const char *p)
{
    unsigned char present;
    return (uintptr_t)p >= 0x550000000000 && (uintptr_t)p < (uintptr_t)1 << 47 &&
           !mincore((void *)((uintptr_t)p & ~(uintptr_t)(PAGE - 1)), 1, &present);
}

void memory_shift_argument(const char *kernel, unsigned argument, void *bytes, size_t n)
{
    for (size_t at = 0; at + sizeof(char *) <= n; at += sizeof(char *)) {
        char *p;
        memcpy(&p, (char *)bytes + at, sizeof p);
        if (memory_is_device_space(p)) {
            const struct allocation *a =
                allocation_near(p - 1);  // its end is legal too
            if (!a || !a->live || p < a->p || p > a->p + a->n)
                device_report(
                    "kernel %s: argument %u has %p, which is in no live device "
                    "allocation",
                    kernel, argument, (void *)p);
            p += SPACE;
            memcpy((char *)bytes + at, &p, sizeof p);
        } else if (looks_like_host_memory(p) && !memory_pinned(p, 1)) {
            device_report(
                "kernel %s: argument %u has %p, host memory that is not pinned", kernel,
                argument, (void *)p);
        }
    }
}

/* ---- device memory ---- */

static size_t charge(size_t n)  // what a device takes for n bytes
{
    return n > SPACE ? n : (n + UNIT - 1) & ~(size_t)(UNIT - 1);
}

bool memory_take(size_t n)
{
    if (counts.device_used > device_capacity ||
        n > device_capacity - counts.device_used) {
        counts.device_wanted = counts.device_used + n;
        return false;
    }
    counts.device_used += n;
    if (counts.device_used > counts.device_peak)
        counts.device_peak = counts.device_used;
    return true;
}

void memory_give(size_t n)
{
    counts.device_used -= n;
}

cudaError_t cudaMalloc(void **out, size_t n)
{
    ENTER_UNLESS_CAPTURING(UNSAFE, NULL);
    if (!out) LEAVE(cudaErrorInvalidValue);
    *out = NULL;
    if (!n) LEAVE(cudaSuccess);
    if (n_allocations == MAX_RANGES || !memory_take(charge(n)))
        LEAVE(cudaErrorMemoryAllocation);
    size_t span = (n + 256 + PAGE - 1) & ~(size_t)(PAGE - 1);
    if (space_used + span + 2 * PAGE > SPACE)
        device_report("no device addresses are left");
    struct allocation *a = &allocations[n_allocations];
    a->base = space + space_used + PAGE;
    a->span = span;
    a->n = n;
    a->p = a->base + span - ((n + 255) & ~(size_t)255);
    if (mprotect(a->base + SPACE, span, PROT_READ | PROT_WRITE)) {
        memory_give(charge(n));
        LEAVE(cudaErrorMemoryAllocation);
    }
    madvise(a->base + SPACE, span, MADV_HUGEPAGE);  // is filled quicker
    a->live = true;
    n_allocations++;
    space_used += span + PAGE;
    char *bytes = a->p + SPACE, *end = a->base + SPACE + span;
    raw_fill(bytes, 0xff, n);
    if (ASAN) {
        __asan_poison_memory_region(a->base + SPACE, (size_t)(a->p - a->base));
        __asan_poison_memory_region(bytes + n, (size_t)(end - (bytes + n)));
        __asan_unpoison_memory_region(bytes, n);  // the address may be used again
    }
    counts.allocs++;
    *out = a->p;
    LEAVE(cudaSuccess);
}

static void release(struct allocation *a)
{
    memset(device_windows, 0, sizeof device_windows);
    a->live = false;
    memory_give(charge(a->n));
    counts.frees++;
    if (ASAN) __asan_poison_memory_region(a->base + SPACE, a->span);
    madvise(a->base + SPACE, a->span, MADV_DONTNEED);
    mprotect(a->base + SPACE, a->span, PROT_NONE);
}

cudaError_t cudaFree(void *p)
{
    ENTER_UNLESS_CAPTURING(UNSAFE, NULL);
    if (!p) LEAVE(cudaSuccess);
    struct allocation *a = memory_is_device_space(p) ? allocation_of(p, 1) : NULL;
    if (!a || a->p != p) LEAVE(cudaErrorInvalidValue);
    operations_wait_all();  // it synchronises the device
    release(a);
    LEAVE(sticky_error());
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    ENTER();
    *total = device_capacity;
    *left = device_capacity - counts.device_used;
    LEAVE(cudaSuccess);
}

/* ---- pinned memory ---- */

static bool may_pin(size_t n)
{
    if (counts.pinned_used <= pinned_capacity &&
        n <= pinned_capacity - counts.pinned_used)
        return n_pinned < MAX_RANGES;
    counts.pinned_wanted = counts.pinned_used + n;
    return false;
}

static void pin(void *p, size_t n, bool ours)
{
    pinned[n_pinned++] = (struct range){p, n, ours};
    counts.pinned_used += n;
}

cudaError_t cudaHostAlloc(void **out, size_t n, unsigned flags)
{
    (void)flags;
    ENTER_UNLESS_CAPTURING(UNSAFE, NULL);
    if (!out || !n) LEAVE(cudaErrorInvalidValue);
    *out = NULL;
    void *p = NULL;
    if (!may_pin(n) || posix_memalign(&p, PAGE, n)) LEAVE(cudaErrorMemoryAllocation);
    madvise(p, n & ~(size_t)(PAGE - 1), MADV_HUGEPAGE);
    raw_fill(p, 0xff, n);
    pin(p, n, true);
    *out = p;
    LEAVE(cudaSuccess);
}

cudaError_t cudaMallocHost(void **p, size_t n)
{
    return cudaHostAlloc(p, n, 0);
}

static cudaError_t unpin(void *p, bool ours)
{
    struct range *r = range_of(pinned, n_pinned, p, 1);
    if (!r || r->p != p || r->ours != ours) return cudaErrorInvalidValue;
    operations_wait_all();
    memset(device_windows, 0, sizeof device_windows);
    counts.pinned_used -= r->n;
    if (ours) free(p);
    *r = pinned[--n_pinned];
    return sticky_error();
}

cudaError_t cudaFreeHost(void *p)
{
    ENTER_UNLESS_CAPTURING(UNSAFE, NULL);
    LEAVE(p ? unpin(p, true) : cudaSuccess);
}

cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags)
{
    (void)flags;
    ENTER_UNLESS_CAPTURING(UNSAFE, NULL);
    if (!p || !n || memory_is_device_space(p)) LEAVE(cudaErrorInvalidValue);
    if (memory_pinned(p, 1)) LEAVE(cudaErrorHostMemoryAlreadyRegistered);
    if (!may_pin(n)) LEAVE(cudaErrorMemoryAllocation);
    pin(p, n, false);
    LEAVE(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *p)
{
    ENTER_UNLESS_CAPTURING(UNSAFE, NULL);
    LEAVE(unpin(p, false));
}

cudaError_t cudaHostGetDevicePointer(void **device, void *p, unsigned flags)
{
    (void)flags;
    ENTER();
    if (!memory_pinned(p, 1)) LEAVE(cudaErrorInvalidValue);
    *device = p;
    LEAVE(cudaSuccess);
}

int memory_free_all(void)
{
    int left = (int)n_pinned;
    for (unsigned i = 0; i < n_allocations; i++)
        if (allocations[i].live) {
            left++;
            release(&allocations[i]);
        }
    left += counts.device_used > 0;  // of graphs
    n_allocations = 0;
    if (space_used > SPACE / 2) space_used = 0;
    while (n_pinned)
        if (pinned[--n_pinned].ours) free(pinned[n_pinned].p);
    return left;
}
