#include "tests/cuda_on_cpu/fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/cuda_on_cpu/sanitizers.h"

enum { STACK = 128 << 10, GUARD = 4096 };

void standin_fiber_swap(void **save, void *to) __attribute__((visibility("hidden")));
#if defined(__x86_64__)
__asm__(".text\n.globl standin_fiber_swap\n.hidden standin_fiber_swap\n"
        ".type standin_fiber_swap,@function\n"
        "standin_fiber_swap:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size standin_fiber_swap,.-standin_fiber_swap\n");
#else
#error "the context switch is written for x86-64"
#endif

static void make_stack(struct fiber *f)
{
    char *m = mmap(NULL, STACK + GUARD, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED || mprotect(m, GUARD, PROT_NONE)) {
        perror("stand-in: the stack of a CUDA thread");
        abort();
    }
    f->stack = m + GUARD;
    f->size = STACK;
    if (TSAN) f->tsan = __tsan_create_fiber(0);
}

void fiber_prepare(struct fiber *f, void (*main)(void))
{
    make_stack(f);
    /* Stacks begin at different places of a page, or the lanes of a warp would share a few
     * sets of the cache. */
    static unsigned made;
    void **sp = (void **)((uintptr_t)f->stack + STACK - made++ % 32 * 128);
    *--sp = NULL;  // main's return address, never used; keeps the stack aligned
    *--sp = (void *)(uintptr_t)main;
    for (int i = 0; i < 6; i++) *--sp = NULL;
    f->sp = sp;
}

void fiber_adopt(struct fiber *host)
{
    if (TSAN) host->tsan = __tsan_get_current_fiber();
}

/* Who switched last: the context that is entered learns its stack. */
static struct fiber *previous;

static void arrived(const struct fiber *at)
{
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(at->asan_fake, &previous->stack,
                                        &previous->size);
}

void fiber_switch(struct fiber *from, struct fiber *to, bool from_ends)
{
    from->asan_fake = NULL;
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(from_ends ? NULL : &from->asan_fake, to->stack,
                                       to->size);
    if (TSAN) __tsan_switch_to_fiber(to->tsan, TSAN_NO_SYNC);
    previous = from;
    standin_fiber_swap(&from->sp, to->sp);
    arrived(from);
}

void fiber_release(struct fiber *self, struct fiber *f, void *cell)
{
    if (!TSAN) return;
    __tsan_switch_to_fiber(f->tsan, TSAN_NO_SYNC);
    sync_release(cell);
    __tsan_switch_to_fiber(self->tsan, TSAN_NO_SYNC);
}

void fiber_entered(const struct fiber *self)
{
    arrived(self);
}
