#include "server/policy_options.h"

#define MS UINT64_C(1000000)

struct policy policy_of(const struct policy_settings *s)
{
    struct policy p;
    policy_defaults(&p);
    p.copy_after = s->copy_after_ms * MS;
    p.idle_after = s->idle_after_ms * MS;
    p.ssd_after = s->ssd_after_ms * MS;
    p.residency = s->residency_ms * MS;
    p.keep_for = s->keep_for_ms * MS;
    p.high = s->high / 100.0;
    p.low = s->low / 100.0;
    p.second_touch = s->second_touch;
    p.ssd_bytes_per_day = s->ssd_per_day;
    p.max_loads = s->max_loads;
    p.max_stores = s->max_stores;
    p.wake_deadline = s->wake_deadline_ms * MS;
    return p;
}
