/* A block's shared memory, and the copies into it that a thread waits for later. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/cuda_on_cpu/internal.h"

/* Two areas: `dynamic` has a translated kernel's static part and the part that the launch
 * asks for; `variables` has the source tier's __shared__ variables, each between red
 * zones. */
enum { SIZE = 256 << 10, RED_ZONE = 64, MAX_VARIABLES = 64, MAX_COPIES = 512 };
static unsigned char *dynamic, *variables;
static size_t variables_used;
static struct {
    const void *site;
    void *p;
} variable[MAX_VARIABLES];
static unsigned n_variables;

uint32_t device_shared_bytes;

/* Where the caller is ignored, TSan forgets who touched the pages; else it would take the
 * mapping for a write by this stream, which blocks of other streams race with wherever
 * blocks in between use less. */
static void map(unsigned char **area, size_t n)
{
    int fixed = *area ? MAP_FIXED : 0;
    if (TSAN) __tsan_ignore_thread_begin();
    *area = mmap(*area, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed,
                 -1, 0);
    if (TSAN) __tsan_ignore_thread_end();
    if (*area == MAP_FAILED) {
        perror("stand-in: shared memory");
        abort();
    }
}

void shared_start(size_t n)
{
    if (!dynamic) {
        map(&dynamic, SIZE);
        map(&variables, SIZE);
    }
    if (TSAN) {  // fresh pages: it forgets who touched them in the block before
        if (n) map(&dynamic, n);
        if (variables_used) map(&variables, variables_used + RED_ZONE);
    }
    if (ASAN) {
        size_t end = (n + 7) & ~(size_t)7;
        __asan_unpoison_memory_region(dynamic, n);
        __asan_poison_memory_region(dynamic + end, SIZE - end);
        __asan_poison_memory_region(variables, SIZE);
    }
    raw_fill(dynamic, 0xff, n);  // NaN in every float format: unwritten memory shows
    n_variables = 0;
    variables_used = 0;
}

void *device_shared(void)
{
    return dynamic;
}

void *device_dynamic_shared(size_t says)
{
    if (says != device_shared_bytes)
        device_report("a kernel that says %zu bytes of shared memory was given %u",
                      says, device_shared_bytes);
    return dynamic;
}

void *device_shared_variable(size_t n, const void *site)
{
    for (unsigned i = 0; i < n_variables; i++)
        if (variable[i].site == site) return variable[i].p;
    size_t room = (n + 2 * RED_ZONE - 1) & ~(size_t)(RED_ZONE - 1);
    if (n_variables == MAX_VARIABLES || variables_used + room + RED_ZONE > SIZE)
        device_report("more static shared memory than %d bytes or %d variables", SIZE,
                      MAX_VARIABLES);
    void *p = variables + RED_ZONE + variables_used;
    variables_used += room;
    if (ASAN) __asan_unpoison_memory_region(p, n);
    raw_fill(p, 0xff, n);
    variable[n_variables].site = site;
    variable[n_variables++].p = p;
    return p;
}

void device_refuse_shared(uint32_t a, unsigned n, bool write, const char *file,
                          int line)
{
    device_report("%s:%d: shared %s of %u bytes at offset %u of %u: %s", file, line,
                  write ? "write" : "read", n, a, device_shared_bytes,
                  a % n ? "misaligned" : "out of bounds");
}

/* ---- cp.async ---- */

/* A copy lands at the wait that covers it and not before; until then the destination
 * holds NaN, so that a forgotten wait shows. */
void device_cp_async(void *shared, const void *global, unsigned n, unsigned n_source)
{
    struct thread *t = running;
    if ((uintptr_t)shared % n || (n_source && (uintptr_t)global % n))
        device_report("cp.async of %u bytes is misaligned (%p from %p)", n, shared,
                      global);
    memory_touch(shared, n, true);
    raw_fill(shared, 0xff, n);
    if (!t->copies) t->copies = raw_alloc(MAX_COPIES * sizeof *t->copies);
    if (t->n_copies == MAX_COPIES)
        device_report("more than %d cp.async on their way in one thread", MAX_COPIES);
    t->copies[t->n_copies++] =
        (struct pending_copy){shared, global, n, n_source, t->group};
}

void device_cp_async_commit(void)
{
    running->group++;
}

void device_cp_async_wait(unsigned pending_groups)
{
    struct thread *t = running;
    unsigned kept = 0;
    for (unsigned i = 0; i < t->n_copies; i++) {
        struct pending_copy c = t->copies[i];
        if (c.group + pending_groups >= t->group) {
            t->copies[kept++] = c;
            continue;
        }
        if (c.n_source) memory_touch(c.from, c.n_source, false);
        memory_touch(c.to, c.n, true);
        raw_copy(c.to, c.from, c.n_source);
        raw_fill((char *)c.to + c.n_source, 0, c.n - c.n_source);
    }
    t->n_copies = kept;
}
