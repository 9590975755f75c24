/* engine_metrics.c - what the store, the tiers and the wakes come to in /metrics. */
#include "server/engine_state.h"

/* ---- a prompt ---- */

void engine_count_prompt(struct engine *e, const struct request *r)
{
    struct prompt_sources s;
    request_prompt_sources(r, &s);
    for (int i = 0; i < KV_SOURCES; i++)
        metrics_count(e->o.metrics, COUNTER_FROM_DEVICE + i, s.cached[i]);
    for (int i = 0; i < KV_WHYS; i++)
        metrics_count(e->o.metrics, COUNTER_NEW + i, s.computed[i]);
}

void engine_count_wake(struct engine *e, const struct kv_wake_report *w)
{
    enum kv_source from = request_wake_source(w);
    if (from < KV_SOURCES)
        metrics_observe(e->o.metrics, HISTOGRAM_WAKE_DEVICE + from,
                        w->ready > w->began ? w->ready - w->began : 0);
}

/* ---- the store and its tiers ---- */

static void publish_counters(struct metrics *m, const struct kvstore_counters *c)
{
    const struct {
        enum counter counter;
        uint64_t total;
    } all[] = {
        {COUNTER_PROMOTED_RAM, c->promoted_bytes[KV_RAM]},
        {COUNTER_PROMOTED_SSD, c->promoted_bytes[KV_SSD]},
        {COUNTER_DEMOTED_RAM, c->demoted_bytes[KV_RAM]},
        {COUNTER_DEMOTED_SSD, c->demoted_bytes[KV_SSD]},
        {COUNTER_EVICTED_DEVICE, c->evicted[KV_DEVICE]},
        {COUNTER_EVICTED_RAM, c->evicted[KV_RAM]},
        {COUNTER_EVICTED_SSD, c->evicted[KV_SSD]},
        {COUNTER_LOST, c->lost},
        {COUNTER_UNWAITED, c->unwaited},
        {COUNTER_QUOTA_RAM, c->quota_bites[KV_RAM]},
        {COUNTER_QUOTA_SSD, c->quota_bites[KV_SSD]},
        {COUNTER_KEPT_RAM, c->kept[KV_RAM]},
        {COUNTER_KEPT_SSD, c->kept[KV_SSD]},
        {COUNTER_LOAD_FAILED, c->load_failed},
        {COUNTER_STORE_FAILED, c->store_failed},
        {COUNTER_DEADLINE, c->deadline_passed},
        {COUNTER_BUDGET, c->budget_refused},
        {COUNTER_SECOND_TOUCH, c->second_touch_refused},
        {COUNTER_BEGAN_EARLY, c->began_early},
    };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        metrics_total(m, all[i].counter, all[i].total);
}

/* ssd: 0 or 1, what lies between the RAM's metric and the SSD's. */
static void publish_tier(struct metrics *m, const struct tier *t, int ssd)
{
    if (!t) return;
    uint64_t used = slots_used(t->slots), all = slots_capacity(t->slots);
    metrics_set(m, GAUGE_USED_RAM + ssd, (int64_t)(used * t->block_bytes));
    metrics_set(m, GAUGE_FREE_RAM + ssd, (int64_t)((all - used) * t->block_bytes));
    metrics_set(m, GAUGE_WRITABLE_RAM + ssd, t->health.writable);
    metrics_set(m, GAUGE_LOADING_RAM + ssd, t->loading);
    metrics_set(m, GAUGE_STORING_RAM + ssd, t->in_flight - t->loading);
    metrics_total(m, COUNTER_DROPPED_RAM + ssd, t->dropped_bad);
}

/* Those of one group have one number: they are published for the first of them. */
static void publish_tenants(struct engine *e)
{
    if (e->now < e->tenants_at) return;
    e->tenants_at = e->now + UINT64_C(1000000000);
    const struct tier *tiers[METRICS_TENANT_TIERS] = {e->o.ram, e->o.ssd};
    for (uint32_t i = 0; i < e->o.n_tenants; i++)
        for (int t = 0; t < METRICS_TENANT_TIERS; t++)
            if (tiers[t])
                metrics_set_tenant(
                    e->o.metrics, i, t,
                    (uint64_t)slots_used_by(tiers[t]->slots, e->o.tenants[i].number) *
                        tiers[t]->block_bytes);
}

void engine_publish_store(struct engine *e)
{
    struct metrics *m = e->o.metrics;
    struct kvstore_counters c;
    const struct kv_pool *kv = e->o.kv;
    int64_t block = (int64_t)engine_block_bytes(e);
    metrics_set(m, GAUGE_WAKING, e->sched.n_waking);
    metrics_set(m, GAUGE_USED_DEVICE, (kv->mem.n_blocks - kv->n_free) * block);
    metrics_set(m, GAUGE_FREE_DEVICE, kv->n_free * block);
    if (!e->o.store) return;
    kvstore_count(e->o.store, &c);
    publish_counters(m, &c);
    metrics_set(m, GAUGE_CONVERSATIONS, kvstore_conversations(e->o.store));
    publish_tier(m, e->o.ram, 0);
    publish_tier(m, e->o.ssd, 1);
    publish_tenants(e);
}
