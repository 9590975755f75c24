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

void log_open(enum log_level most);  // once, before any other thread runs
void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
