/* log.h - one line an event on standard error: time, level, message with key=value.
 *
 * Secrets and prompts never go here: callers pass counts, names and reasons.  Control
 * characters are escaped, so that no input can forge a line.
 * Threads  any.
 */
#ifndef SERVER_LOG_H
#define SERVER_LOG_H

#include "kernels/base.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Once, before any other thread runs: the name of the least important level that is still
 * written, "error", "warn", "info" or "debug".  Without this call it is info. */
void log_open(const char *level);
void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
