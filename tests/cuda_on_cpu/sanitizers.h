/* sanitizers.h - what the sanitizers offer to a runtime with threads and memory of its own.
 *
 * Owns     nothing.  Every function is weak: one object file serves all builds, and the
 *          stand-in itself is never instrumented.
 *
 * Under TSan the stand-in must be invisible: its own reads and writes would count as the
 * program's.  So it copies with raw_copy and takes memory from raw_alloc, which no
 * sanitizer intercepts, and tells what the device did by memory_touch (internal.h).
 */
#ifndef CUDA_ON_CPU_SANITIZERS_H
#define CUDA_ON_CPU_SANITIZERS_H

#include <stddef.h>

#define WEAK __attribute__((weak))
void __sanitizer_start_switch_fiber(void **, const void *, size_t) WEAK;
void __sanitizer_finish_switch_fiber(void *, const void **, size_t *) WEAK;
void __asan_poison_memory_region(void const volatile *, size_t) WEAK;
void __asan_unpoison_memory_region(void const volatile *, size_t) WEAK;
void *__asan_region_is_poisoned(void *, size_t) WEAK;
void *__tsan_get_current_fiber(void) WEAK;
void *__tsan_create_fiber(unsigned) WEAK;
void __tsan_switch_to_fiber(void *, unsigned) WEAK;
void __tsan_ignore_thread_begin(void) WEAK;
void __tsan_ignore_thread_end(void) WEAK;
void __tsan_acquire(void *) WEAK;
void __tsan_release(void *) WEAK;
void __tsan_read_range(void *, unsigned long) WEAK;
void __tsan_write_range(void *, unsigned long) WEAK;

#define TSAN (__tsan_create_fiber != NULL)
#define ASAN (__asan_poison_memory_region != NULL)
enum { TSAN_NO_SYNC = 1 };

static inline void sync_release(void *p)
{
    if (TSAN) __tsan_release(p);
}
static inline void sync_acquire(void *p)
{
    if (TSAN) __tsan_acquire(p);
}

static inline void raw_copy(void *d, const void *s, size_t n)
{
    __asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n) : : "memory");
}
static inline void raw_fill(void *d, int v, size_t n)
{
    __asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(v) : "memory");
}
void *raw_alloc(size_t n);  // zeroed; never NULL
void raw_free(void *p);     // NULL is fine

#endif
