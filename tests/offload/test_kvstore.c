/* The store: where blocks go by themselves, and how they come back. */
#include "tests/allocs.h"
#include "tests/offload/fault_medium.h"
#include "tests/offload/kvstore_world.h"

static void a_conversation_is_copied_early_freed_late_and_wakes_whole(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 16, 16});
    struct text t = chat(0, 4, 1);
    struct kv_wake_report r = turn(&w, &t, 0, 0);
    assert_int_equal(r.blocks, 0);
    assert_int_equal(r.computed[KV_WHY_NEW], 3);  // the fourth holds the last token

    world_pass(&w, 5 * SEC - 1);
    where(&w, &t, 4, 0, 0);
    assert_true(kvstore_next(w.kv, w.now) == w.now + 1);
    world_pass(&w, 1);
    where(&w, &t, 4, 4, 0);
    world_pass(&w, 25 * SEC);
    where(&w, &t, 4, 4, 4);
    world_pass(&w, 30 * SEC - 1);
    where(&w, &t, 4, 4, 4);
    world_pass(&w, 1);
    where(&w, &t, 0, 4, 4);
    assert_int_equal(fake_free(&w.pages), 16);

    r = turn(&w, &t, 0, 0);
    assert_int_equal(r.blocks, 3);
    assert_int_equal(r.loaded[KV_RAM], 3);
    assert_int_equal(r.bytes, 3 * PAGE);
    assert_int_equal(r.computed[KV_WHY_NEW], 0);
    struct kvstore_counters c = counted(&w);
    assert_int_equal(c.demoted_bytes[KV_RAM], 4 * PAGE);
    assert_int_equal(c.promoted_bytes[KV_RAM], 3 * PAGE);
    assert_int_equal(c.hit_tokens[KV_RAM], 3 * B);
    world_close(&w);
}

static void going_back_to_sleep_writes_only_what_is_new(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 16, 32});
    struct text t = chat(0, 6, 2);
    turn(&w, &t, 0, 0);
    for (int i = 0; i < 4; i++) {
        world_pass(&w, 100 * SEC);
        text_add(&t, B, (uint64_t)i);
        turn(&w, &t, 0, 0);
    }
    world_pass(&w, 100 * SEC);
    assert_int_equal(counted(&w).demoted_bytes[KV_RAM], 10 * PAGE);
    assert_int_equal(counted(&w).demoted_bytes[KV_SSD], 10 * PAGE);
    world_close(&w);
}

static void a_quick_return_moves_nothing(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 16, 16});
    struct text t = chat(0, 4, 3);
    turn(&w, &t, 0, 0);
    world_pass(&w, 50 * SEC);
    text_add(&t, 1, 1);
    struct kv_wake_report r = turn(&w, &t, 0, 0);
    assert_int_equal(r.loaded[KV_DEVICE], 4);
    assert_int_equal(counted(&w).promoted_bytes[KV_RAM], 0);
    world_close(&w);
}

static void another_tenant_finds_nothing(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 16, 16});
    struct text t = chat(0, 4, 4), other = t;
    other.tenant = 1;
    turn(&w, &t, 0, 0);
    assert_int_equal(found(&w, &t).blocks, 4);
    assert_int_equal(found(&w, &other).blocks, 0);
    struct kv_conversation c;
    assert_false(kvstore_conversation_find(w.kv, 1, t.name, &c));
    assert_int_equal(kvstore_forget(w.kv, 1, t.name), -ENOENT);
    assert_int_equal(kvstore_sleep(w.kv, 1, t.name, w.now), -ENOENT);
    assert_int_equal(kvstore_prefetch(w.kv, 1, t.name, w.now), -ENOENT);
    assert_int_equal(kvstore_hold(w.kv, 1, t.name, w.now, w.now), -ENOENT);
    world_close(&w);
}

static void one_token_changed_anywhere_ends_the_match_before_its_block(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 16, 16});
    struct text t = chat(0, 4, 5);
    turn(&w, &t, 0, 0);
    for (uint32_t i = 0; i < 4 * B; i++) {
        struct text edited = t;
        edited.tokens[i]++;
        assert_int_equal(found(&w, &edited).blocks, i / B);
    }
    world_close(&w);
}

static void two_wakes_share_one_load_and_it_survives_the_first_to_leave(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 16});
    struct text t = chat(0, 5, 6);
    turn(&w, &t, 0, 0);
    sleep_now(&w, &t);
    where(&w, &t, 0, 0, 5);

    struct request a, b;
    request_begin(&w, &a, &t);
    request_begin(&w, &b, &t);
    assert_int_equal(a.n, 4);
    assert_memory_equal(a.blocks, b.blocks, 4 * sizeof *a.blocks);
    request_cancel(&w, &a);
    request_wait(&w, &b);
    assert_int_equal(b.n, 4);
    assert_int_equal(w.ssd->base.loaded, 4);
    assert_int_equal(b.report.loaded[KV_SSD], 4);
    assert_int_equal(b.report.bytes, 0);
    request_end(&w, &b);
    world_close(&w);
}

static void who_leaves_while_loading_leaves_nothing_behind(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 16});
    struct text t = chat(0, 10, 7);
    turn(&w, &t, 0, 0);
    sleep_now(&w, &t);
    struct policy p = w.o.policy;
    p.max_loads = 2;
    restart_with(&w, &p);
    w.ssd->max_wait = 5;

    struct request r;
    request_begin(&w, &r, &t);
    world_step(&w);
    assert_true(kvstore_in_flight(w.kv));
    request_cancel(&w, &r);
    world_settle(&w);
    assert_false(kvstore_in_flight(w.kv));
    assert_int_equal(w.ssd->base.loaded,
                     2);  // what was under way landed, no more began
    assert_int_equal(kvstore_make_room(w.kv, 16, w.now), 16);
    world_close(&w);
}

static void a_late_wake_ends_at_its_deadline_with_what_is_there(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 16});
    struct text t = chat(0, 6, 8);
    turn(&w, &t, 0, 0);
    sleep_now(&w, &t);
    struct policy p = w.o.policy;
    p.max_loads = 1;
    restart_with(&w, &p);

    struct request r;
    request_begin(&w, &r, &t);
    world_step(&w);  // starts the first
    world_step(&w);  // it lands, the second starts
    w.ssd->max_wait = UINT32_MAX;
    assert_false(request_ready(&w, &r));
    assert_true(kvstore_next(w.kv, w.now) <= w.now + p.wake_deadline);
    w.now += p.wake_deadline;
    assert_true(request_ready(&w, &r));
    assert_int_equal(r.n, 1);
    assert_int_equal(r.report.computed[KV_WHY_LATE], 4);
    assert_int_equal(counted(&w).deadline_passed, 1);
    w.ssd->max_wait = 0;
    assert_true(request_compute(&w, &r));
    request_end(&w, &r);
    for (uint32_t i = 0; i < w.ssd->n_flying; i++) w.ssd->wait[i] = 0;
    world_close(&w);
}

static void loads_in_flight_are_bounded_and_no_tenant_takes_them_all(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){32, 0, 32});
    struct text a = chat(0, 9, 9), b = chat(1, 5, 10);
    turn(&w, &a, 0, 0);
    turn(&w, &b, 0, 0);
    sleep_now(&w, &a);
    sleep_now(&w, &b);
    struct policy p = w.o.policy;
    p.max_loads_tenant = 3;
    p.max_load_bytes = 5 * PAGE;
    restart_with(&w, &p);
    w.ssd->max_wait = UINT32_MAX;

    struct request ra, rb;
    request_begin(&w, &ra, &a);
    request_begin(&w, &rb, &b);
    world_step(&w);
    assert_int_equal(w.ssd->n_flying, 5);
    uint32_t of_a = 0;
    for (uint32_t i = 0; i < 5; i++) of_a += w.ssd->flying[i]->meta.tenant == 0;
    assert_int_equal(of_a, 3);

    w.ssd->max_wait = 0;
    memset(w.ssd->wait, 0, sizeof w.ssd->wait);
    request_wait(&w, &ra);
    request_wait(&w, &rb);
    assert_int_equal(ra.n, 8);
    assert_int_equal(rb.n, 4);
    request_end(&w, &ra);
    request_end(&w, &rb);
    world_close(&w);
}

static void a_load_that_fails_in_ram_comes_from_the_ssd(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 16, 16});
    struct text t = chat(0, 5, 11);
    turn(&w, &t, 0, 0);
    world_pass(&w, 100 * SEC);
    where(&w, &t, 0, 5, 5);
    // The block is taken out of RAM between the plan and the load.
    struct request r;
    request_begin(&w, &r, &t);
    assert_int_equal(r.report.found.by[KV_RAM], 4);
    assert_int_equal(tier_drop(w.o.ram, &t.meta[1].id), 0);
    request_wait(&w, &r);
    assert_int_equal(r.n, 4);
    assert_int_equal(r.report.loaded[KV_RAM], 3);
    assert_int_equal(r.report.loaded[KV_SSD], 1);
    request_end(&w, &r);
    world_close(&w);
}

static void what_ram_fails_to_give_is_read_from_the_ssd_once(void **state)
{
    (void)state;
    struct world w;
    struct fault_medium f;
    world_open(&w, (struct sizes){16, 16, 16});
    struct text t = chat(0, 5, 11);
    turn(&w, &t, 0, 0);
    world_pass(&w, 100 * SEC);
    fault_install(&f, w.o.ram, 5, 4, -EIO);  // four loads begin, and fail to land
    struct kv_wake_report r = turn(&w, &t, 0, 0);
    assert_int_equal(r.blocks, 4);
    assert_int_equal(r.loaded[KV_SSD], 4);
    assert_int_equal(counted(&w).load_failed, 4);
    assert_int_equal(w.ssd->base.loaded, 4);
    world_close(&w);
}

static void
a_damaged_block_shortens_the_prefix_once_and_is_then_stored_anew(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 16});
    struct text t = chat(0, 6, 12);
    turn(&w, &t, 0, 0);
    sleep_now(&w, &t);
    w.ssd->damage = 1000;
    struct kv_wake_report r = turn(&w, &t, 0, 0);
    assert_int_equal(r.blocks, 0);
    assert_int_equal(r.computed[KV_WHY_FAILED], 5);
    w.ssd->damage = 0;
    assert_int_equal(counted(&w).load_failed, 5);
    sleep_now(&w, &t);
    assert_int_equal(turn(&w, &t, 0, 0).blocks, 5);
    world_close(&w);
}

static void whichever_call_of_the_ssd_fails_the_right_bytes_come_back(void **state)
{
    (void)state;
    bool passed = false;
    for (uint64_t n = 1; !passed; n++) {
        struct world w;
        world_open(&w, (struct sizes){16, 4, 32});
        struct text t = chat(0, 8, 13);
        uint64_t end = 0;
        w.ssd->fail_at = n;
        w.ssd->fail_until = n + 1;
        for (int i = 0; i < 3; i++) {
            turn(&w, &t, 5, (uint64_t)i);
            sleep_now(&w, &t);
            world_pass(&w, 200 * SEC);
            end = w.ssd->calls;
        }
        passed = end < n;
        w.ssd->fail_at = w.ssd->fail_until = 0;
        struct kv_wake_report r = turn(&w, &t, 0, 0);
        uint32_t sum = r.blocks;
        for (int y = 0; y < KV_WHYS; y++) sum += r.computed[y];
        assert_int_equal(sum, (t.n - 1) / B);
        world_close(&w);
        assert_true(n < 1000);
    }
}

static void what_is_computed_and_what_was_there_make_the_prompt(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 16, 32});
    struct text t = {.tenant = 0};
    uint64_t prompts = 0;
    for (uint32_t i = 0; i < 12; i++) {
        text_add(&t, 1 + i * 3, i);
        prompts += t.n;
        turn(&w, &t, i % 3, i);
        if (i % 3 == 0 && found(&w, &t).blocks) sleep_now(&w, &t);
        if (i % 4 == 0) world_pass(&w, 100 * SEC);
    }
    struct kvstore_counters c = counted(&w);
    uint64_t sum = 0;
    for (int l = 0; l < KV_SOURCES; l++) sum += c.hit_tokens[l];
    for (int y = 0; y < KV_WHYS; y++) sum += c.computed_tokens[y];
    assert_int_equal(sum, prompts);
    world_close(&w);
}

static void where_computing_is_cheaper_nothing_is_loaded_and_it_says_so(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 16});
    struct text t = chat(0, 5, 14);
    turn(&w, &t, 0, 0);
    sleep_now(&w, &t);
    cost_set_prefill(w.o.cost, 1, 0);
    struct kv_wake_report r = turn(&w, &t, 0, 0);
    assert_int_equal(r.computed[KV_WHY_CHEAPER], 4);
    assert_int_equal(r.blocks, 0);
    assert_true(r.predicted_ns == r.without_ns);
    world_close(&w);
}

static void a_wake_takes_no_more_pages_than_there_are(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){8, 0, 16});
    struct text t = chat(0, 7, 15);
    turn(&w, &t, 0, 0);
    sleep_now(&w, &t);
    uint32_t taken[5];
    for (int i = 0; i < 5; i++) taken[i] = fake_take(&w.pages);
    struct request r;
    request_begin(&w, &r, &t);
    assert_int_equal(r.n, 3);
    assert_int_equal(r.report.computed[KV_WHY_BUSY], 3);
    request_wait(&w, &r);
    assert_int_equal(r.n, 3);
    request_end(&w, &r);
    for (int i = 0; i < 5; i++) fake_unref(&w.pages, taken[i]);
    world_close(&w);
}

static void a_prefetch_brings_it_up_ahead_of_the_message(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 0, 16});
    struct text t = chat(0, 5, 16);
    turn(&w, &t, 0, 0);
    sleep_now(&w, &t);
    assert_int_equal(kvstore_prefetch(w.kv, 0, t.name, w.now), 0);
    struct kv_conversation c;
    assert_true(kvstore_conversation_find(w.kv, 0, t.name, &c));
    assert_int_equal(c.state, KV_WAKING);
    world_settle(&w);
    where(&w, &t, 5, 0, 5);
    struct kv_wake_report r = turn(&w, &t, 0, 0);
    assert_int_equal(r.loaded[KV_DEVICE], 4);
    world_close(&w);
}

/* kvstore_check() itself allocates, so the calls are made one by one here. */
static void nothing_allocates_after_open(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, (struct sizes){16, 12, 24});
    unsigned long before = allocs_so_far();
    for (uint32_t n = 0; n < 200; n++) {
        struct text t = chat(n % 2, 3 + n % 5, n % 7);
        struct kv_prompt p = text_prompt(&w, &t);
        struct kv_wake_report r;
        uint32_t blocks[MAX_BLOCKS], wake;
        uint32_t got = kvstore_wake(w.kv, &p, w.now, blocks, MAX_BLOCKS, &wake, &r);
        while (wake != UINT32_MAX && !kvstore_wake_poll(w.kv, wake, w.now, &got, &r))
            kvstore_step(w.kv, w.now);
        for (; got < p.n_meta; got++) {
            assert_true(kvstore_make_room(w.kv, 1, w.now) > 0);
            blocks[got] = fake_take(&w.pages);
            kvstore_seal(w.kv, blocks[got], &p.meta[got], w.now);
        }
        memcpy(p.conversation, r.conversation, sizeof p.conversation);
        p.begun = true;
        kvstore_idle(w.kv, &p, w.now);
        while (got > 0) fake_unref(&w.pages, blocks[--got]);
        w.now += (n % 9) * 20 * SEC;
        for (int i = 0; i < 30; i++) kvstore_step(w.kv, w.now);
        if (n % 3 == 0 && kvstore_sleep(w.kv, n % 2, r.conversation, w.now) < 0) fail();
        if (n % 5 == 0 && kvstore_prefetch(w.kv, n % 2, r.conversation, w.now) < 0)
            fail();
        if (n % 7 == 0) (void)!kvstore_forget(w.kv, n % 2, r.conversation);
        kvstore_drain(w.kv, w.now);
    }
    assert_int_equal(allocs_so_far(), before);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_conversation_is_copied_early_freed_late_and_wakes_whole),
        cmocka_unit_test(going_back_to_sleep_writes_only_what_is_new),
        cmocka_unit_test(a_quick_return_moves_nothing),
        cmocka_unit_test(another_tenant_finds_nothing),
        cmocka_unit_test(one_token_changed_anywhere_ends_the_match_before_its_block),
        cmocka_unit_test(two_wakes_share_one_load_and_it_survives_the_first_to_leave),
        cmocka_unit_test(who_leaves_while_loading_leaves_nothing_behind),
        cmocka_unit_test(a_late_wake_ends_at_its_deadline_with_what_is_there),
        cmocka_unit_test(loads_in_flight_are_bounded_and_no_tenant_takes_them_all),
        cmocka_unit_test(a_load_that_fails_in_ram_comes_from_the_ssd),
        cmocka_unit_test(what_ram_fails_to_give_is_read_from_the_ssd_once),
        cmocka_unit_test(
            a_damaged_block_shortens_the_prefix_once_and_is_then_stored_anew),
        cmocka_unit_test(whichever_call_of_the_ssd_fails_the_right_bytes_come_back),
        cmocka_unit_test(what_is_computed_and_what_was_there_make_the_prompt),
        cmocka_unit_test(where_computing_is_cheaper_nothing_is_loaded_and_it_says_so),
        cmocka_unit_test(a_wake_takes_no_more_pages_than_there_are),
        cmocka_unit_test(a_prefetch_brings_it_up_ahead_of_the_message),
        cmocka_unit_test(nothing_allocates_after_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
