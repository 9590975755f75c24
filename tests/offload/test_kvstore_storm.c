/* The store over random schedules: many conversations, forks, edits, clients that leave,
 * few pages, tiny tiers, transfers that fail.  Whatever a wake ends with must hold the right
 * bytes, the invariants hold after every step, and at the end nothing is left. */
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
};

static uint32_t pick(struct storm *s, uint32_t n)
{
    return (uint32_t)(mix64(&s->seed) % n);
}

/* The next message: a new chat, a longer one, one edited in the middle, or a fork. */
static void next_message(struct storm *s, struct text *t)
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
    if (t->n > (MAX_BLOCKS - 12) * B) t->n = 20;
}

static void begin(struct storm *s, int i)
{
    uint32_t k = pick(s, TEXTS);
    if (s->user[k] >= 0) return;
    s->user[k] = i;
    next_message(s, &s->texts[k]);
    request_begin(&s->w, &s->requests[i], &s->texts[k]);
    s->phase[i] = WAITING;
}

static void end(struct storm *s, int i, bool whole)
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

static void act(struct storm *s, int i)
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

static void manage(struct storm *s)
{
    struct world *w = &s->w;
    const struct text *t = &s->texts[pick(s, TEXTS)];
    struct kv_conversation c;
    int rc = 0;
    switch (pick(s, 7)) {
    case 0: rc = kvstore_sleep(w->kv, t->tenant, t->name, w->now); break;
    case 1: rc = kvstore_prefetch(w->kv, t->tenant, t->name, w->now); break;
    case 2:
        rc = kvstore_hold(w->kv, t->tenant, t->name, w->now + pick(s, 30) * SEC);
        break;
    case 3: rc = kvstore_forget(w->kv, t->tenant, t->name); break;
    case 4: kvstore_make_room(w->kv, pick(s, w->pages.n), w->now); break;
    case 5:
        if (kvstore_conversation_at(w->kv, pick(s, 32), &c))
            assert_true(kvstore_conversation_find(w->kv, c.tenant, c.name, &c));
        break;
    case 6: w->ssd ? (void)(w->ssd->damage = pick(s, 4) ? 0 : 200) : (void)0; break;
    }
    assert_true(rc == 0 || rc == -ENOENT || rc == -EBUSY);
    assert_true(kvstore_check(w->kv));
}

static void quiesce(struct storm *s)
{
    for (int i = 0; i < REQUESTS; i++)
        if (s->phase[i] != IDLE) end(s, i, s->phase[i] == RUNNING);
    world_settle(&s->w);
}

/* The store and its pages begin anew; only the SSD's blocks are still there. */
static void restart(struct storm *s)
{
    struct world *w = &s->w;
    quiesce(s);
    kvstore_close(w->kv);
    assert_int_equal(fake_free(&w->pages), w->pages.n);
    if (w->o.ram) {
        struct tier_ram_options ram = {PAGE, slots_capacity(w->o.ram->slots),
                                       w->copies};
        struct err err;
        tier_close(w->o.ram);
        assert_int_equal(tier_ram_open(&w->o.ram, &ram, &err), 0);
        fault_install(&s->ram, w->o.ram, 0, 0, -EIO);
    }
    if (w->ssd) fake_give_labels(w->ssd);
    world_start(w);
    s->restarts++;
}

static void storm(struct sizes sizes, struct policy policy, bool weak, uint64_t seed,
                  uint32_t steps)
{
    struct storm *s = calloc(1, sizeof *s);
    assert_non_null(s);
    world_open(&s->w, sizes);
    kvstore_close(s->w.kv);
    s->w.o.policy = policy;
    world_start(&s->w);
    s->w.weak = weak;
    s->seed = seed;
    for (int i = 0; i < TEXTS; i++) s->user[i] = -1;
    if (s->w.ssd) s->w.ssd->max_wait = 6, s->w.ssd->depth = 3;

    if (s->w.o.ram) fault_install(&s->ram, s->w.o.ram, 0, 0, -EIO);

    for (uint32_t n = 0; n < steps; n++) {
        if (pick(s, 100) == 0) {
            s->ram.fail_at = s->ram.calls + pick(s, 20);
            s->ram.fail_until = s->ram.fail_at + pick(s, 6);
        }
        if (s->w.ssd && pick(s, 60) == 0) {
            s->w.ssd->fail_at = s->w.ssd->calls + pick(s, 20);
            s->w.ssd->fail_until = s->w.ssd->fail_at + pick(s, 6);
        }
        act(s, (int)pick(s, REQUESTS));
        if (pick(s, 10) == 0) manage(s);
        if (pick(s, 500) == 0) restart(s);
        uint64_t next = kvstore_next(s->w.kv, s->w.now);
        assert_true(next >= s->w.now);
        s->w.now += pick(s, 5) ? pick(s, 1000000) : pick(s, 4) * SEC;
        world_step(&s->w);
        assert_true(kvstore_available(s->w.kv) <= s->w.pages.n);
    }

    quiesce(s);
    struct kv_conversation c;
    while (kvstore_conversation_at(s->w.kv, 0, &c)) {
        int rc = kvstore_forget(s->w.kv, c.tenant, c.name);
        assert_true(rc == 0 || rc == -EBUSY);
        world_step(&s->w);
    }
    s->w.now += 1000 * SEC;
    world_settle(&s->w);
    assert_int_equal(kvstore_make_room(s->w.kv, s->w.pages.n, s->w.now), s->w.pages.n);
    if (sizes.ram || sizes.ssd) assert_true(s->woken > 20);
    world_close(&s->w);
    free(s);
}

static struct policy quick(void)
{
    struct policy p;
    policy_defaults(&p);
    p.copy_after = SEC;
    p.ssd_after = 2 * SEC;
    p.idle_after = 4 * SEC;
    p.residency = SEC;
    p.wake_deadline = 3 * SEC;
    p.max_loads = 4;
    p.max_stores = 3;
    p.max_load_bytes = 3 * PAGE;
    return p;
}

static void a_storm_over_three_levels_never_gives_a_wrong_byte(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++)
        storm((struct sizes){32, 24, 60}, quick(), false, seed, 3000);
}

static void a_storm_without_ram_never_gives_a_wrong_byte(void **state)
{
    (void)state;
    storm((struct sizes){28, 0, 50}, quick(), false, 11, 4000);
}

static void a_storm_without_an_ssd_never_gives_a_wrong_byte(void **state)
{
    (void)state;
    storm((struct sizes){28, 40, 0}, quick(), false, 12, 4000);
}

static void a_storm_in_g1_alone_never_gives_a_wrong_byte(void **state)
{
    (void)state;
    storm((struct sizes){40, 0, 0}, quick(), false, 13, 3000);
}

static void a_storm_with_quotas_and_budgets_never_gives_a_wrong_byte(void **state)
{
    (void)state;
    struct policy p = quick();
    p.ram_quota = 9 * PAGE;
    p.ssd_quota = 15 * PAGE;
    p.ssd_bytes_per_day = 86400 * PAGE;
    p.second_touch = true;
    p.max_loads_tenant = 2;
    storm((struct sizes){32, 24, 40}, p, false, 14, 4000);
}

static void names_of_8_bits_collide_and_never_give_a_wrong_byte(void **state)
{
    (void)state;
    for (uint64_t seed = 21; seed <= 24; seed++)
        storm((struct sizes){32, 24, 60}, quick(), true, seed, 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_storm_over_three_levels_never_gives_a_wrong_byte),
        cmocka_unit_test(a_storm_without_ram_never_gives_a_wrong_byte),
        cmocka_unit_test(a_storm_without_an_ssd_never_gives_a_wrong_byte),
        cmocka_unit_test(a_storm_in_g1_alone_never_gives_a_wrong_byte),
        cmocka_unit_test(a_storm_with_quotas_and_budgets_never_gives_a_wrong_byte),
        cmocka_unit_test(names_of_8_bits_collide_and_never_give_a_wrong_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
