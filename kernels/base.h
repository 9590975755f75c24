/* base.h - the little that every room shares: errors as values, a few macros.
 *
 * A function that can fail returns 0 or a negative errno; if the caller passed
 * an `err`, it then holds one complete sentence.  It is untouched on success.
 * A function that answers a question returns bool.  Nothing below server/ ever
 * prints or exits.
 */
#ifndef KERNELS_BASE_H
#define KERNELS_BASE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define BASE_BEGIN extern "C" {
#define BASE_END   }
#else
#define BASE_BEGIN
#define BASE_END
#endif

#define NODISCARD              __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

#define ARRAY_LEN(a)                    (sizeof(a) / sizeof((a)[0]))
#define ALIGN_UP(n, to)                 (((n) + (to)-1) / (to) * (to))
#define CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* Does a sanitizer watch this file?  gcc says so by a macro, clang by a feature. */
#ifdef __has_feature
#define BASE_FEATURE(name) __has_feature(name)
#else
#define BASE_FEATURE(name) 0
#endif
#if defined __SANITIZE_ADDRESS__ || BASE_FEATURE(address_sanitizer)
#define WATCHED_ADDRESS 1
#else
#define WATCHED_ADDRESS 0
#endif
#if defined __SANITIZE_THREAD__ || BASE_FEATURE(thread_sanitizer)
#define WATCHED_THREAD 1
#else
#define WATCHED_THREAD 0
#endif

BASE_BEGIN

struct err {
    char msg[512];
};

/* Describe the failure and hand `code` back: `return err_set(err, -EINVAL, ...)`.
 * A NULL err is fine; a long message is cut. */
int err_set(struct err *err, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* 0 to 15, or -1 where c is no hexadecimal digit. */
static inline int base_hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

BASE_END

#endif
