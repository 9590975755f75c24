/* plan_replay.c - the clock of a replay, and its world from beginning to end. */
#include "offload/tier_virtual.h"
#include "server/plan_build.h"
#include "server/plan_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- small things that the other files use ---- */

void plan_list_clear(struct plan_list *l)
{
    *l = (struct plan_list){PLAN_NONE, PLAN_NONE, 0};
}

void plan_list_append(struct plan_list *l, uint32_t i, uint32_t *next_of)
{
    if (l->n++)
        next_of[l->last] = i;
    else
        l->first = i;
    l->last = i;
}

/* Ids of 256 bits from those of 64 that a trace has. */
static void widen(struct block_id *id, uint64_t from)
{
    for (size_t i = 0; i < sizeof id->bytes / sizeof from; i++) {
        uint64_t word = plan_mix(from + i);
        memcpy(id->bytes + i * sizeof word, &word, sizeof word);
    }
}

struct kv_prompt plan_prompt(struct plan_world *w, uint32_t turn, uint32_t n)
{
    const struct plan_turn *x = &w->trace->turns[turn];
    const uint64_t *ids = w->trace->ids + x->first_block;
    for (uint32_t i = 0; i < n; i++) {
        struct block_meta *m = &w->meta[i];
        *m = (struct block_meta){.depth = i};
        widen(&m->id, ids[i]);
        if (i) m->parent = m[-1].id;
        memcpy(m->tokens, &ids[i], sizeof ids[i]);
    }
    struct kv_prompt p = {.meta = w->meta,
                          .n_meta = n,
                          .n_tokens = x->prompt,
                          .compute_price = 1.0 + w->prefill.n + w->waiting.n};
    snprintf(p.conversation, sizeof p.conversation, "%u", x->session);
    return p;
}

void plan_turn_over(struct plan_world *w, uint32_t turn)
{
    uint32_t next = w->trace->turns[turn].next;
    if (next == PLAN_NONE) return;
    uint64_t at = w->now + w->trace->turns[next].wait;
    if (at < w->trace->turns[next].at) at = w->trace->turns[next].at;
    plan_heap_push(&w->arrivals, at, next);
}

/* ---- the clock ---- */

static uint64_t next_landing(const struct plan_world *w)
{
    uint64_t ram = w->ram ? tier_virtual_next(w->ram) : UINT64_MAX;
    uint64_t ssd = w->ssd ? tier_virtual_next(w->ssd) : UINT64_MAX;
    return ram < ssd ? ram : ssd;
}

/* When the store has something to do; not before it may have done it. */
static uint64_t next_of_store(const struct plan_world *w)
{
    uint64_t landing = next_landing(w), due = kvstore_next(w->kv, w->now);
    if (due <= w->now) due = w->now + PLAN_MS;
    if (landing < w->now) landing = w->now;  // one step does not take all that landed
    return landing < due ? landing : due;
}

static void move_clock(struct plan_world *w, uint64_t to)
{
    for (uint64_t t; (t = next_of_store(w)) < to;) {
        if (t > w->now) w->now = t;
        kvstore_step(w->kv, w->now);
    }
    w->now = to;
    kvstore_step(w->kv, to);
}

static void take_arrivals(struct plan_world *w)
{
    while (plan_heap_next(&w->arrivals) <= w->now) {
        struct plan_event e = plan_heap_pop(&w->arrivals);
        w->arrived[e.what] = e.when;
        plan_list_append(&w->waiting, e.what, w->next_waiting);
    }
}

static int run(struct plan_world *w, struct err *err)
{
    for (;;) {
        take_arrivals(w);
        plan_admit(w);
        kvstore_step(w->kv, w->now);  // starts what was asked for
        uint64_t next = plan_heap_next(&w->arrivals);
        if (plan_compute_busy(w)) {
            if (plan_waits_for_load(w) && next_landing(w) < next)
                next = next_landing(w);
            uint64_t ns = plan_compute_begin(w, next);
            w->result->busy += ns;
            move_clock(w, w->now + ns);
            plan_compute_end(w);
            continue;
        }
        bool waits = plan_waits_for_load(w);
        if (next == UINT64_MAX && !waits) return 0;
        if (waits && next_of_store(w) < next) next = next_of_store(w);
        if (next == UINT64_MAX)
            return err_set(err, -EDEADLK, "the replay is stuck at %.3f s",
                           (double)w->now / 1e9);
        if (waits) w->result->waited_for_load += next - w->now;
        move_clock(w, next);
    }
}

/* ---- the world ---- */

static int open_tier(struct plan_world *w, struct tier **out, const char *name,
                     const struct plan_channel *c, enum cost_tier kind, struct err *err)
{
    const struct plan_machine *m = w->machine;
    uint64_t block = m->token_bytes * PLAN_BLOCK_TOKENS, n = c->bytes / block;
    if (n == 0) return 0;
    if (n > UINT32_MAX / 4)
        return err_set(err, -EINVAL, "%s of %llu bytes has too many blocks of %llu",
                       name, (unsigned long long)c->bytes, (unsigned long long)block);
    cost_set_tier(w->cost, kind, (double)c->latency, c->read);
    struct tier_virtual_options o = {.name = name,
                                     .now = &w->now,
                                     .block_bytes = block,
                                     .capacity = (uint32_t)n,
                                     .depth =
                                         m->policy.max_loads + m->policy.max_stores,
                                     .read = c->read,
                                     .write = c->write,
                                     .latency = c->latency};
    return tier_virtual_open(out, &o, err);
}

static int open_store(struct plan_world *w, struct err *err)
{
    const struct plan_machine *m = w->machine;
    int rc = cost_open(&w->cost, err);
    if (rc) return rc;
    cost_set_prefill(w->cost, m->compute.prefill_a, m->compute.prefill_b);
    rc = open_tier(w, &w->ram, "ram", &m->ram, COST_RAM, err);
    if (rc == 0) rc = open_tier(w, &w->ssd, "ssd", &m->ssd, COST_SSD, err);
    if (rc) return rc;
    struct kvstore_options o = {.pages = plan_pages_for_store(&w->pages),
                                .ram = w->ram,
                                .ssd = w->ssd,
                                .cost = w->cost,
                                .policy = m->policy,
                                .block_tokens = PLAN_BLOCK_TOKENS,
                                .max_wakes = m->max_wakes,
                                .max_conversations = m->max_conversations};
    /* No byte is moved, so any address will do. */
    o.staging = o.pages.address(o.pages.arg, 0);
    return kvstore_open(&w->kv, &o, err);
}

static int open_sequences(struct plan_world *w, uint32_t most, struct err *err)
{
    uint32_t n = w->machine->compute.max_running;
    size_t turns = w->trace->n_turns + (size_t)1;
    w->seq = calloc(n, sizeof *w->seq);
    w->tables = calloc((size_t)n * (most + 1), sizeof *w->tables);
    w->meta = calloc(most + (size_t)1, sizeof *w->meta);
    w->seq_next = calloc(n, sizeof *w->seq_next);
    w->next_waiting = calloc(turns, sizeof *w->next_waiting);
    w->arrived = calloc(turns, sizeof *w->arrived);
    w->result->ttft = calloc(turns, sizeof *w->result->ttft);
    w->result->ttft_returning = calloc(turns, sizeof *w->result->ttft_returning);
    if (!w->seq || !w->tables || !w->meta || !w->seq_next || !w->next_waiting ||
        !w->arrived || !w->result->ttft || !w->result->ttft_returning)
        return err_set(err, -ENOMEM, "there is no memory for a replay of %u turns",
                       w->trace->n_turns);
    plan_list_clear(&w->unused);
    plan_list_clear(&w->loading);
    plan_list_clear(&w->prefill);
    plan_list_clear(&w->waiting);
    for (uint32_t i = 0; i < n; i++) {
        w->seq[i].pages = w->tables + (size_t)i * (most + 1);
        plan_list_append(&w->unused, i, w->seq_next);
    }
    int rc = plan_heap_reserve(&w->decoding, n, err);
    if (rc == 0) rc = plan_heap_reserve(&w->arrivals, w->trace->n_sessions, err);
    return rc;
}

static int open_world(struct plan_world *w, struct err *err)
{
    const struct plan_machine *m = w->machine;
    uint64_t pages = m->kv_bytes / (m->token_bytes * PLAN_BLOCK_TOKENS);
    if (pages == 0 || pages > UINT32_MAX / 4)
        return err_set(err, -EINVAL,
                       "device memory of %llu bytes holds %llu blocks of %llu; 1 to %u "
                       "are possible",
                       (unsigned long long)m->kv_bytes, (unsigned long long)pages,
                       (unsigned long long)m->token_bytes * PLAN_BLOCK_TOKENS,
                       UINT32_MAX / 4);
    w->head = PLAN_NONE;
    int rc = plan_pages_open(&w->pages, (uint32_t)pages, err);
    if (rc == 0) rc = open_sequences(w, plan_trace_most_blocks(w->trace), err);
    if (rc == 0) rc = open_store(w, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < w->trace->n_sessions; i++) {
        uint32_t first = w->trace->firsts[i];
        plan_heap_push(&w->arrivals, w->trace->turns[first].at, first);
    }
    return 0;
}

/* Whatever is under way lands, so that it can be closed. */
static void close_world(struct plan_world *w)
{
    while (w->kv && kvstore_in_flight(w->kv) && next_landing(w) != UINT64_MAX) {
        if (next_landing(w) > w->now) w->now = next_landing(w);
        kvstore_step(w->kv, w->now);
    }
    kvstore_close(w->kv);
    tier_close(w->ssd);
    tier_close(w->ram);
    cost_close(w->cost);
    plan_pages_close(&w->pages);
    free(w->arrivals.at);
    free(w->decoding.at);
    free(w->seq);
    free(w->seq_next);
    free(w->tables);
    free(w->meta);
    free(w->next_waiting);
    free(w->arrived);
}

static int ascending(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

int plan_replay(struct plan_result *out, const struct plan_trace *t,
                const struct plan_machine *m, struct err *err)
{
    *out = (struct plan_result){0};
    struct plan_world w = {.trace = t, .machine = m, .result = out};
    int rc = open_world(&w, err);
    if (rc == 0) {
        uint64_t from = plan_heap_next(&w.arrivals);
        rc = run(&w, err);
        out->span = out->span > from ? out->span - from : 0;
        kvstore_count(w.kv, &out->counters);
        qsort(out->ttft, out->turns, sizeof *out->ttft, ascending);
        qsort(out->ttft_returning, out->returning, sizeof *out->ttft, ascending);
    }
    close_world(&w);
    if (rc) plan_result_free(out);
    return rc;
}

void plan_result_free(struct plan_result *r)
{
    free(r->ttft);
    free(r->ttft_returning);
    *r = (struct plan_result){0};
}

uint64_t plan_percentile(const uint64_t *ascending_values, uint32_t n, uint32_t percent)
{
    if (n == 0) return 0;
    uint64_t rank = ((uint64_t)n * percent + 99) / 100;
    return ascending_values[rank ? rank - 1 : 0];
}
