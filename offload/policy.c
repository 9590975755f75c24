#include "offload/policy.h"

#define SECOND UINT64_C(1000000000)
#define DAY_NS (86400.0 * 1e9)

void policy_defaults(struct policy *p)
{
    *p = (struct policy){
        .copy_after = 5 * SECOND,
        .idle_after = 60 * SECOND,
        .ssd_after = 30 * SECOND,
        .residency = 10 * SECOND,
        .keep_for = 120 * SECOND,  // half of those who return have done so by then
        .high = 0.90,
        .low = 0.80,
        .max_loads = 32,
        .max_stores = 8,
        .max_load_bytes = UINT64_C(256) << 20,
        .wake_deadline = 10 * SECOND,
        .overlap_gain = 50000,
        .room_wait = 2 * SECOND,
    };
}

int policy_check(const struct policy *p, struct err *err)
{
    if (p->idle_after == 0)
        return err_set(err, -EINVAL, "idle_after is 0; expected at least 1 ns");
    if (p->copy_after > p->idle_after)
        return err_set(err, -EINVAL,
                       "copy_after is %.1f s; expected at most idle_after, which is "
                       "%.1f s",
                       (double)p->copy_after / 1e9, (double)p->idle_after / 1e9);
    if (!(p->low > 0 && p->low <= p->high && p->high <= 1))
        return err_set(err, -EINVAL,
                       "the watermarks are low at %g per cent and high at %g; expected "
                       "low above 0, and high from there to 100",
                       100 * p->low, 100 * p->high);
    if (p->max_loads == 0 || p->max_loads > POLICY_MAX_TRANSFERS)
        return err_set(err, -EINVAL, "max_loads is %u; expected 1 to %d", p->max_loads,
                       POLICY_MAX_TRANSFERS);
    if (p->max_stores == 0 || p->max_stores > POLICY_MAX_TRANSFERS)
        return err_set(err, -EINVAL, "max_stores is %u; expected 1 to %d",
                       p->max_stores, POLICY_MAX_TRANSFERS);
    if (p->max_load_bytes == 0)
        return err_set(err, -EINVAL, "max_load_bytes is 0; expected at least 1");
    if (p->wake_deadline == 0)
        return err_set(err, -EINVAL, "wake_deadline is 0; expected at least 1 ns");
    return 0;
}

static bool quiet_for(const struct policy_block *b, uint64_t ns, uint64_t now)
{
    return now >= b->last_used && now - b->last_used >= ns;
}

enum policy_copy policy_copy(const struct policy *p, const struct policy_block *b,
                             enum policy_way way, uint64_t now, bool pressure)
{
    uint64_t quiet = way == RAM_TO_SSD ? p->ssd_after : p->copy_after;
    if (b->lower) return COPY_NOT;
    if (b->needed) return COPY_NOW;
    if (b->active) return COPY_NOT;
    if (way != G1_TO_RAM && p->second_touch && b->uses < 2) return COPY_UNUSED;
    return pressure || quiet_for(b, quiet, now) ? COPY_NOW : COPY_LATER;
}

bool policy_may_free(const struct policy *p, const struct policy_block *b, uint64_t now,
                     bool pressure, bool last)
{
    if (b->active || b->held) return false;
    bool resident =
        b->promoted != 0 && (now < b->promoted || now - b->promoted < p->residency);
    if (resident && !last) return false;
    return pressure || (b->lower && quiet_for(b, p->idle_after, now));
}

bool policy_may_displace(const struct policy *p, const struct policy_block *b,
                         uint64_t now)
{
    if (b->active || b->held || b->needed) return false;
    return b->lower || quiet_for(b, p->keep_for, now);
}

uint32_t policy_excess(const struct policy *p, uint32_t used, uint32_t capacity)
{
    if (used <= p->high * capacity) return 0;
    return used - (uint32_t)(p->low * capacity);
}

bool policy_spend(const struct policy *p, struct policy_budget *b, uint64_t bytes,
                  uint64_t now)
{
    if (p->ssd_bytes_per_day == 0) return true;
    double day = (double)p->ssd_bytes_per_day;
    if (now > b->since) b->bytes += day * ((double)(now - b->since) / DAY_NS);
    if (b->bytes > day) b->bytes = day;
    if (now > b->since) b->since = now;
    if (b->bytes < (double)bytes) return false;
    b->bytes -= (double)bytes;
    return true;
}
