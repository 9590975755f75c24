/* The store: conversations that take turns, and are a little more than a tier holds. */
#include "tests/offload/kvstore_world.h"

#define CONVERSATIONS 4
#define FIRST         8  // blocks of each at the beginning
#define TURNS         30

struct played {
    uint64_t fresh, computed;  // blocks: never there before; computed, those too
    uint64_t written;          // into the tier
};

/* Turn by turn around all of them, each time a token longer and all else asleep. */
static struct played play(struct world *w, uint64_t pause, enum kv_source tier)
{
    struct text t[CONVERSATIONS];
    struct played p = {0};
    uint32_t known[CONVERSATIONS] = {0};
    for (uint64_t i = 0; i < CONVERSATIONS; i++) t[i] = chat(i % 2, FIRST, 700 + i);
    for (uint64_t n = 0; n < TURNS * CONVERSATIONS; n++) {
        uint32_t i = n % CONVERSATIONS;
        struct kv_wake_report r = turn(w, &t[i], 1, n);
        p.computed += t[i].n / B - r.blocks;
        p.fresh += t[i].n / B - known[i];
        known[i] = t[i].n / B;
        world_pass(w, pause);
        sleep_now(w, &t[i]);
        kvstore_make_room(w->kv, w->pages.n, w->now);
    }
    p.written = counted(w).demoted_bytes[tier] / PAGE;
    return p;
}

static struct played over(struct sizes sizes, uint64_t pause, uint64_t quota)
{
    struct world w;
    world_open(&w, sizes);
    struct policy p = w.o.policy;
    p.keep_for = 120 * SEC;
    p.ssd_quota = quota;
    restart_with(&w, &p);
    struct played played = play(&w, pause, sizes.ssd ? KV_SSD : KV_RAM);
    world_close(&w);
    return played;
}

/* Of what they ask for each time, most is there: three of four stay whole. */
static void assert_kept(struct played p)
{
    if (p.written > 2 * p.fresh)
        fail_msg("%llu blocks were written, but %llu are new",
                 (unsigned long long)p.written, (unsigned long long)p.fresh);
    uint64_t asked = 0;
    for (uint64_t n = 0; n < TURNS; n++) asked += CONVERSATIONS * (FIRST + n / B);
    if (p.computed > asked / 2)
        fail_msg("%llu of %llu blocks were computed", (unsigned long long)p.computed,
                 (unsigned long long)asked);
}

static void those_that_fit_stay_and_are_not_written_again(void **state)
{
    (void)state;
    uint32_t three = 3 * FIRST;
    assert_kept(over((struct sizes){40, 0, three}, 20 * SEC, 0));
    assert_kept(over((struct sizes){40, three, 0}, 20 * SEC, 0));
    assert_kept(over((struct sizes){40, 8, three}, 20 * SEC, 0));
}

static void within_a_quota_they_stay_too(void **state)
{
    (void)state;  // two of each tenant, and room for one and a half of them
    assert_kept(over((struct sizes){40, 0, 60}, 20 * SEC, 3 * FIRST * PAGE / 2));
}

static void what_returns_too_late_is_written_no_more_than_it_is_computed(void **state)
{
    (void)state;
    struct played p = over((struct sizes){40, 0, 3 * FIRST}, 60 * SEC, 0);
    assert_true(p.written <= p.computed);
}

static void what_nobody_used_for_long_makes_room(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){40, 0, 8});
    struct policy p = w.o.policy;
    p.keep_for = 120 * SEC;
    restart_with(&w, &p);
    struct text old = chat(0, 8, 1), fresh = chat(1, 8, 2);
    turn(&w, &old, 0, 0);
    world_pass(&w, 70 * SEC);
    turn(&w, &fresh, 0, 0);
    world_pass(&w, 40 * SEC);
    where(&w, &old, 0, 0, 8);
    where(&w, &fresh, 8, 0, 0);
    assert_int_equal(counted(&w).kept[KV_SSD], 8);
    turn(&w, &fresh, 0, 0);
    world_pass(&w, 20 * SEC);  // old has been quiet for 130 s
    where(&w, &fresh, 8, 0, 8);
    assert_int_equal(found(&w, &old).blocks, 0);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_that_fit_stay_and_are_not_written_again),
        cmocka_unit_test(within_a_quota_they_stay_too),
        cmocka_unit_test(what_returns_too_late_is_written_no_more_than_it_is_computed),
        cmocka_unit_test(what_nobody_used_for_long_makes_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
