/* metrics_table.h - the names of what is counted; private to server/metrics*.c.
 *
 * Threads  constants.
 */
#ifndef SERVER_METRICS_TABLE_H
#define SERVER_METRICS_TABLE_H

#include "server/metrics.h"

#define METRICS_BUCKETS 28

/* Those of one name stand side by side and differ in their label; the first has the help,
 * the others NULL. */
struct series {
    const char *name, *help;
    const char *label;  // "tier=\"ram\""; NULL: none but the model's
    bool seconds;       // counted in nanoseconds
};

#define RAM "tier=\"ram\""
#define SSD "tier=\"ssd\""

struct histogram_series {
    struct series s;
    const double *bounds;  // seconds, ascending, ended by 0
};

extern const struct series metrics_counters[COUNTERS], metrics_gauges[GAUGES];
extern const char *const metrics_outcomes[OUTCOMES];
extern const struct histogram_series metrics_histograms[HISTOGRAMS];

#endif
