/* policy_options.h - the settings of the policy, which `dormouse serve` and `dormouse plan`
 * share: what the one will do, the other foretells by the same names.
 *
 * Owns     nothing: struct policy_settings is a plain value.
 * Threads  pure functions.
 */
#ifndef SERVER_POLICY_OPTIONS_H
#define SERVER_POLICY_OPTIONS_H

#include "offload/policy.h"

struct policy_settings {
    uint32_t copy_after_ms, idle_after_ms, ssd_after_ms, residency_ms, keep_for_ms;
    uint32_t high, low;  // per cent of a tier
    bool second_touch;
    uint64_t ssd_per_day;  // bytes; 0: no limit
    uint32_t max_loads, max_stores;
    uint32_t wake_deadline_ms;
};

/* The policy of these settings; what they do not name is as policy_defaults() says. */
struct policy policy_of(const struct policy_settings *s);

/* Their rows in a table of options (options_table.h), whose struct holds the settings as
 * `policy`.  The defaults are those of policy_defaults(). */
#define POLICY_FIELD(of, name)                                                         \
    offsetof(struct of, policy.name), sizeof(((struct of *)0)->policy.name)
#define POLICY_DAY_MS (24 * 3600u * 1000)
/* clang-format off */
#define POLICY_OPTIONS(of, group)                                                         \
    {"copy_after", OPTION_DURATION, POLICY_FIELD(of, copy_after_ms), "5s", 1,             \
     POLICY_DAY_MS, NULL, group,                                                          \
     "A conversation that has been quiet for this long is copied down, in the "           \
     "background; its blocks in the KV pool stay usable."},                               \
    {"idle_after", OPTION_DURATION, POLICY_FIELD(of, idle_after_ms), "60s", 1,            \
     POLICY_DAY_MS, NULL, group,                                                          \
     "After this long its blocks in the KV pool are freed, or before when others need "   \
     "them."},                                                                            \
    {"ssd_after", OPTION_DURATION, POLICY_FIELD(of, ssd_after_ms), "30s", 1,              \
     POLICY_DAY_MS, NULL, group,                                                          \
     "After this long it is copied from host memory to the SSD."},                        \
    {"residency", OPTION_DURATION, POLICY_FIELD(of, residency_ms), "10s", 0,              \
     POLICY_DAY_MS, NULL, group,                                                          \
     "A conversation that has woken stays up at least this long, unless nothing else "    \
     "can make room."},                                                                   \
    {"keep_for", OPTION_DURATION, POLICY_FIELD(of, keep_for_ms), "120s", 0,               \
     POLICY_DAY_MS, NULL, group,                                                          \
     "In a full tier, what was used less long ago than this makes room for nobody; what " \
     "is new stays out. Keeps conversations that take turns from pushing each other "     \
     "out."},                                                                             \
    {"high", OPTION_COUNT, POLICY_FIELD(of, high), "90", 1, 100, NULL, group,             \
     "When a tier is fuller than this, in per cent, blocks are freed."},                  \
    {"low", OPTION_COUNT, POLICY_FIELD(of, low), "80", 1, 100, NULL, group,               \
     "Then it is emptied down to this, in per cent."},                                    \
    {"ssd_per_day", OPTION_SIZE, POLICY_FIELD(of, ssd_per_day), "0", 0, 1ull << 50, NULL, \
     group,                                                                               \
     "Most bytes written to the SSD in a day, counted anew from each start. 0: no limit."},\
    {"second_touch", OPTION_BOOL, POLICY_FIELD(of, second_touch), "false", 0, 0, NULL,    \
     group, "Only blocks that were used at least twice go to the SSD."},                  \
    {"max_loads", OPTION_COUNT, POLICY_FIELD(of, max_loads), "32", 1,                     \
     POLICY_MAX_TRANSFERS, NULL, group, "Most blocks on their way up."},                  \
    {"max_stores", OPTION_COUNT, POLICY_FIELD(of, max_stores), "8", 1,                    \
     POLICY_MAX_TRANSFERS, NULL, group, "Most blocks on their way down."},                \
    {"wake_deadline", OPTION_DURATION, POLICY_FIELD(of, wake_deadline_ms), "10s", 1,      \
     POLICY_DAY_MS / 24, NULL, group,                                                     \
     "Longest wait of a request for its blocks; what has not come then is computed."}
/* clang-format on */

#endif
