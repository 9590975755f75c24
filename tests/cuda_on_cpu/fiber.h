/* fiber.h - a stack of its own for every CUDA thread, and the switch between them.
 *
 * Owns     the fibers' stacks: 128 KiB each over a page that faults, kept for reuse.
 * Caller   block.c.  A fiber runs `main`, which never returns.
 * Threads  the OS thread that runs the kernel.  Under TSan each fiber is a thread of its
 *          own, and a switch orders nothing: happens-before is only what sync_release
 *          and sync_acquire say.
 */
#ifndef CUDA_ON_CPU_FIBER_H
#define CUDA_ON_CPU_FIBER_H

#include <stdbool.h>
#include <stddef.h>

struct fiber {
    void *sp, *tsan, *asan_fake;
    const void *stack;
    size_t size;
};

/* Gives f a stack and makes it ready to enter `main`; once for each fiber. */
void fiber_prepare(struct fiber *f, void (*main)(void));
/* Leaves `from` for `to` and comes back when something switches to `from`.  from_ends:
 * nothing below the caller's frame will be returned to. */
void fiber_switch(struct fiber *from, struct fiber *to, bool from_ends);
/* Under TSan, whatever f has done so far happens before what acquires the cell from now on;
 * `self` runs. */
void fiber_release(struct fiber *self, struct fiber *f, void *cell);
void fiber_entered(
    const struct fiber *self);         // the first thing that a fiber's main does
void fiber_adopt(struct fiber *host);  // the running context is `host`

#endif
