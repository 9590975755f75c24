/* kvstore_storm.h - the store under any traffic: many conversations, forks, edits, clients that
 * leave, few pages, tiny tiers, transfers that fail.  Whatever a wake ends with must hold the
 * right bytes, the invariants hold after every step, and at the end nothing is left.
 *
 * The choices come from a seed, or from bytes that somebody gives. */
#ifndef TESTS_OFFLOAD_KVSTORE_STORM_H
#define TESTS_OFFLOAD_KVSTORE_STORM_H

#include "tests/offload/fault_medium.h"
#include "tests/offload/kvstore_world.h"

#define TEXTS    10
#define REQUESTS 5

struct storm {
    struct world w;
    struct text texts[TEXTS];
    struct request requests[REQUESTS];
    enum { IDLE, WAITING, RUNNING } phase[REQUESTS];
    int user[TEXTS];  // the request that has it, or -1
    uint64_t seed, restarts, woken;
    struct fault_medium ram;
    bool calm;  // no transfer fails, so that all invariants hold to the end
    const uint8_t *choices;  // (n_choices), borrowed; or NULL
    size_t n_choices;
};

/* Below n: by the bytes given, two at a time, and when they are used up by the seed. */
static inline uint32_t pick(struct storm *s, uint32_t n)
{
    if (s->n_choices < 2) return (uint32_t)(mix64(&s->seed) % n);
    uint32_t x = s->choices[0] | (uint32_t)s->choices[1] << 8;
    s->choices += 2;
    s->n_choices -= 2;
    return x % n;
}

/* The next message: a new chat, a longer one, one edited in the middle, or a fork. */
static inline void next_message(struct storm *s, struct text *t)
{
    const struct text *other = &s->texts[pick(s, TEXTS)];
    switch (pick(s, 8)) {
    case 0: *t = (struct text){.tenant = pick(s, 2)}; break;
    case 1: t->n = pick(s, t->n + 1); break;
    case 2:
        *t = *other;
        t->name[0] = 0;
        t->n = pick(s, t->n + 1);
        break;
    default: break;
    }
    if (t->n == 0) {
        *t = (struct text){.tenant = t->tenant};
        if (pick(s, 2)) snprintf(t->name, sizeof t->name, "chat %u", pick(s, 6));
        text_add(t, pick(s, 3) * B, t->tenant);  // a prompt that all share
    }
    text_add(t, 1 + pick(s, 40), s->seed);
    if (t->n > 28 * B) t->n = 20;
}

static inline void begin(struct storm *s, int i)
{
    uint32_t k = pick(s, TEXTS);
    if (s->user[k] >= 0) return;
    s->user[k] = i;
    next_message(s, &s->texts[k]);
    request_begin(&s->w, &s->requests[i], &s->texts[k]);
    s->phase[i] = WAITING;
}

static inline void end(struct storm *s, int i, bool whole)
{
    struct request *r = &s->requests[i];
    struct text *t = r->text;
    if (whole) {
        request_end(&s->w, r);
    } else {
        request_cancel(&s->w, r);
    }
    memcpy(t->name, r->report.conversation, sizeof t->name);
    s->user[t - s->texts] = -1;
    s->phase[i] = IDLE;
}

static inline void act(struct storm *s, int i)
{
    struct request *r = &s->requests[i];
    switch (s->phase[i]) {
    case IDLE: begin(s, i); break;
    case WAITING:
        if (pick(s, 12) == 0) {
            end(s, i, false);
        } else if (request_ready(&s->w, r)) {
            s->woken += r->report.loaded[KV_RAM] + r->report.loaded[KV_SSD];
            s->phase[i] = RUNNING;
        }
        break;
    case RUNNING:
        for (uint32_t b = 0; b < r->n; b++)
            assert_true(page_right(&s->w, r->blocks[b], r->text, b));
        text_add(r->text, pick(s, 20), s->seed);
        text_chain(&s->w, r->text, r->text->n / B);
        if (!request_compute(&s->w, r) || pick(s, 3) == 0) end(s, i, true);
        break;
    }
}

static inline void manage(struct storm *s)
{
    struct world *w = &s->w;
    const struct text *t = &s->texts[pick(s, TEXTS)];
    struct kv_conversation c;
    int rc = 0;
    switch (pick(s, 8)) {
    case 0: rc = kvstore_sleep(w->kv, t->tenant, t->name, w->now); break;
    case 1: rc = kvstore_prefetch(w->kv, t->tenant, t->name, w->now); break;
    case 2:
        rc =
            kvstore_hold(w->kv, t->tenant, t->name, w->now + pick(s, 30) * SEC, w->now);
        break;
    case 3: rc = kvstore_forget(w->kv, t->tenant, t->name); break;
    case 4: kvstore_make_room(w->kv, pick(s, w->pages.n), w->now); break;
    case 7: kvstore_end_holds(w->kv, pick(s, w->pages.n), w->now); break;
    case 5:
        if (kvstore_conversation_at(w->kv, pick(s, 32), NULL, &c))
            assert_true(kvstore_conversation_find(w->kv, c.tenant, c.name, &c));
        break;
    case 6:
        if (w->ssd && !s->calm) w->ssd->damage = pick(s, 4) ? 0 : 200;
        break;
    }
    assert_true(rc == 0 || rc == -ENOENT || rc == -EBUSY || rc == -EDQUOT);
    assert_true(kvstore_check(w->kv));
}

static inline void quiesce(struct storm *s)
{
    for (int i = 0; i < REQUESTS; i++)
        if (s->phase[i] != IDLE) end(s, i, s->phase[i] == RUNNING);
    world_settle(&s->w);
}

/* Whoever was in the table of names is called so again. */
static inline void expect_names(const struct world *w, const struct kept_name *before)
{
    for (uint32_t i = 0; i < FAKE_NAMES; i++) {
        struct kv_conversation c;
        if (!before[i].name[0]) continue;
        if (!kvstore_conversation_find(w->kv, before[i].tenant, before[i].name, &c))
            fail_msg("%s has lost its name", before[i].name);
        assert_true(c.blocks[KV_SSD] > before[i].depth);
    }
}

/* The store and its pages begin anew; only what is on the SSD is still there. */
static inline void restart(struct storm *s)
{
    struct world *w = &s->w;
    struct kept_name names[FAKE_NAMES] = {0};
    quiesce(s);
    if (w->ssd) memcpy(names, w->ssd->names, sizeof names);
    kvstore_close(w->kv);
    assert_int_equal(fake_free(&w->pages), w->pages.n);
    if (w->o.ram) {
        struct tier_ram_options ram = {PAGE, slots_capacity(w->o.ram->slots), w->copies,
                                       0};
        struct err err;
        tier_close(w->o.ram);
        assert_int_equal(tier_ram_open(&w->o.ram, &ram, &err), 0);
        fault_install(&s->ram, w->o.ram, 0, 0, -EIO);
    }
    world_start(w);
    if (s->calm && !w->weak) expect_names(w, names);
    s->restarts++;
}

static inline void storm_open(struct storm *s, struct sizes sizes,
                              const struct policy *policy, bool weak, uint64_t seed)
{
    *s = (struct storm){.seed = seed};
    world_open(&s->w, sizes);
    restart_with(&s->w, policy);
    s->w.weak = weak;
    for (int i = 0; i < TEXTS; i++) s->user[i] = -1;
    if (s->w.ssd) s->w.ssd->max_wait = 6, s->w.ssd->depth = 3;
    if (s->w.o.ram) fault_install(&s->ram, s->w.o.ram, 0, 0, -EIO);
}

static inline void let_fail(struct storm *s)
{
    if (pick(s, 100) == 0) {
        s->ram.fail_at = s->ram.calls + pick(s, 20);
        s->ram.fail_until = s->ram.fail_at + pick(s, 6);
    }
    if (s->w.ssd && pick(s, 60) == 0) {
        s->w.ssd->fail_at = s->w.ssd->calls + pick(s, 20);
        s->w.ssd->fail_until = s->w.ssd->fail_at + pick(s, 6);
    }
}

static inline void storm_step(struct storm *s)
{
    if (!s->calm) let_fail(s);
    act(s, (int)pick(s, REQUESTS));
    if (pick(s, 10) == 0) manage(s);
    if (pick(s, 500) == 0) restart(s);
    uint64_t next = kvstore_next(s->w.kv, s->w.now);
    assert_true(next >= s->w.now);
    s->w.now += pick(s, 5) ? pick(s, 1000000) : pick(s, 4) * SEC;
    world_step(&s->w);
    assert_true(kvstore_available(s->w.kv) <= s->w.pages.n);
}

/* Everything is forgotten, and then all is free. */
static inline void storm_close(struct storm *s)
{
    s->n_choices = 0;
    quiesce(s);
    struct kv_conversation c;
    while (kvstore_conversation_at(s->w.kv, 0, NULL, &c)) {
        int rc = kvstore_forget(s->w.kv, c.tenant, c.name);
        assert_true(rc == 0 || rc == -EBUSY);
        world_step(&s->w);
    }
    s->w.now += 1000 * SEC;
    world_settle(&s->w);
    assert_int_equal(kvstore_make_room(s->w.kv, s->w.pages.n, s->w.now), s->w.pages.n);
    world_close(&s->w);
}

static inline struct policy storm_policy(void)
{
    struct policy p;
    policy_defaults(&p);
    p.copy_after = SEC;
    p.ssd_after = 2 * SEC;
    p.idle_after = 4 * SEC;
    p.residency = SEC;
    p.keep_for = 3 * SEC;
    p.wake_deadline = 3 * SEC;
    p.max_loads = 4;
    p.max_stores = 3;
    p.max_load_bytes = 3 * PAGE;
    return p;
}

#endif
