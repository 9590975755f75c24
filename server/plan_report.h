/* plan_report.h - what a replay found, for people and for programs.
 *
 * Owns     nothing.
 * Threads  any.
 */
#ifndef SERVER_PLAN_REPORT_H
#define SERVER_PLAN_REPORT_H

#include "server/bytes.h"
#include "server/plan_replay.h"

/* The replay with the machine's tiers, and without any. */
void plan_report_text(struct bytes *out, const struct plan_machine *m,
                      const struct plan_result *with,
                      const struct plan_result *without);
/* {"block_tokens": .., "with": {..}, "without": {..}}; times in seconds. */
void plan_report_json(struct bytes *out, const struct plan_machine *m,
                      const struct plan_result *with,
                      const struct plan_result *without);

#endif
