#include "kernels/copy.h"

#include <stdint.h>
#include <string.h>

/* What a sanitizer cannot see must not be written behind its back. */
#if defined(__SSE2__) && !WATCHED_ADDRESS && !WATCHED_THREAD

#include <emmintrin.h>

#define LINE  64
#define AHEAD 1024  // bytes: what the hardware guesses is too little for one thread

void copy_past_caches(void *dst, const void *src, size_t bytes)
{
    char *to = dst;
    const char *from = src;
    size_t head = (size_t)(-(uintptr_t)to % LINE);
    if (head > bytes) head = bytes;
    memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;

    for (; bytes >= LINE; to += LINE, from += LINE, bytes -= LINE) {
        _mm_prefetch(from + AHEAD, _MM_HINT_NTA);
        const __m128i *s = (const void *)from;
        __m128i a = _mm_loadu_si128(s), b = _mm_loadu_si128(s + 1);
        __m128i c = _mm_loadu_si128(s + 2), d = _mm_loadu_si128(s + 3);
        __m128i *t = (void *)to;
        _mm_stream_si128(t, a);
        _mm_stream_si128(t + 1, b);
        _mm_stream_si128(t + 2, c);
        _mm_stream_si128(t + 3, d);
    }
    memcpy(to, from, bytes);
    _mm_sfence();  // they are ordered with what follows by nothing else
}

#else

void copy_past_caches(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

#endif
