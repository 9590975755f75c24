#include "server/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048

/* The one setting of the process that is not an argument: a line may be written from
 * anywhere in this room. */
static atomic_int most = LOG_INFO;

static const char *const names[] = {"error", "warn", "info", "debug"};

void log_open(const char *level)
{
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(names[i], level) == 0) atomic_store(&most, (int)i);
}

/* Control characters as \xNN, so that one call is one line whatever it was given. */
static size_t escape(char *out, size_t cap, const char *text)
{
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p && n + 4 < cap; p++) {
        if (*p < 0x20 || *p == 0x7f)
            n += (size_t)snprintf(out + n, cap - n, "\\x%02x", *p);
        else
            out[n++] = (char)*p;
    }
    return n;
}

void log_line(enum log_level level, const char *fmt, ...)
{
    if ((int)level > atomic_load_explicit(&most, memory_order_relaxed)) return;

    char text[LINE_MAX_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);

    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);

    char line[LINE_MAX_BYTES * 2];
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %-5s ",
                          now.tv_nsec / 1000000, names[level]);
    n += escape(line + n, sizeof line - n - 1, text);
    line[n++] = '\n';
    /* One write a line, so that lines of several threads do not mix.  A log that cannot
     * be written must not stop the server. */
    ssize_t ignored = write(STDERR_FILENO, line, n);
    (void)ignored;
}
