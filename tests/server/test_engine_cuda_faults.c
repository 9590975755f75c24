/* Where the device fails or has too little memory, the server does not start and says why, or
 * requests end with an error that says so, or all is as it was: never is a token wrong, nothing
 * stays behind, and blocks on the SSD are what they were.
 *
 * Every CUDA call of a server's opening and of its turns fails once; under TSan some.  A call
 * fails as one that found no memory, or so that the device is lost; each cap of memory refuses
 * another allocation.  All this needs the device that a CPU stands in for.
 */
#include "tests/server/engine_cuda.h"

#define NO_MEMORY 2    // cudaErrorMemoryAllocation
#define FAILURE   719  // cudaErrorLaunchFailure
#define GIB       ((size_t)1 << 30)

static void need_standin(void)
{
    need_device();
    if (standin_fail) return;
    print_message("skipped: a real device cannot be made to fail\n");
    skip();
}

static uint64_t calls_made(void)
{
    struct standin_counts c;
    standin_count(&c);
    return c.calls;
}

/* What conversation "one" says to so many tokens, of a server that never slept. */
static void answer_one(struct client *right, const uint32_t *lengths, size_t n,
                       uint32_t reply)
{
    struct world_options plain = on_device(64, 0, 0);
    struct world cold;
    world_open(&cold, &plain);
    for (size_t i = 0; i < n; i++) {
        client_ask(&right[i], &cold, prompt_of(&cold, lengths[i], 1, 0, reply));
        assert_answered(&right[i], &cold);
    }
    world_close(&cold);
    standin_reset();
}

/* A turn that may fail: then with an error that says so, and never with other words. */
static bool may_answer(struct world *w, uint32_t n, uint32_t reply,
                       const struct client *right)
{
    struct err err;
    struct request *r = named(prompt_of(w, n, 1, 0, reply), "one");
    int rc = client_submit(&other, w, r, &err);
    if (rc == 0) client_read(&other);
    const struct event *end = &other.choices[0].end;
    bool answered = rc == 0 && end->reason != FINISH_ERROR;
    if (answered) {
        assert_same(right, &other);
    } else {
        const char *says = rc < 0 ? err.msg : end->text;
        assert_int_equal(rc < 0 ? rc : end->status, rc < 0 ? -EIO : 500);
        assert_non_null(strstr(says, "the backend has failed"));
        assert_true(engine_failure(w->engine, &err));
        assert_non_null(strstr(err.msg, "the CUDA device failed while"));
    }
    client_end(&other);
    return answered;
}

/* ---- calls that fail ---- */

/* Two turns, between which conversation "one" falls asleep on the SSD: a step of a prompt, one
 * that is recorded, one that is replayed, copies in both directions. */
static const uint32_t turn_tokens[] = {20, 36};
#define SHORT_REPLY 3

/* The SSD has the first turn; a server over it begins with what is there. */
static void answer_from_the_ssd(const struct world_options *o,
                                const struct client *right)
{
    struct world w;
    world_open(&w, o);
    struct kv_wake_report report = ask(
        &client, &w, named(prompt_of(&w, turn_tokens[1], 1, 0, SHORT_REPLY), "one"));
    assert_int_equal(report.loaded[KV_SSD], 1);
    assert_same(right, &client);
    world_close(&w);
    assert_int_equal(standin_reset(), 0);
}

/* The nth call fails while it opens: whether it was refused, and answers where it was not. */
static void open_with_a_failure(const struct world_options *o, unsigned n, int error)
{
    struct world w;
    struct err err = {""};
    standin_fail("any", n, error);
    int rc = world_try_open(&w, o, &err);
    if (rc < 0) {
        assert_true(rc == -ENOMEM || rc == -EIO || rc == -ENODEV);
        assert_true(strlen(err.msg) > 20);
    }
    world_close(&w);
    int left = standin_reset();
    if (error == NO_MEMORY) assert_int_equal(left, 0);  // a dead device frees nothing
}

static void whichever_call_of_opening_fails_it_says_so_and_nothing_stays(void **state)
{
    (void)state;
    static struct client right[2];
    struct world_options o = on_device(64, 8, 40);
    struct world w;
    need_standin();
    answer_one(right, turn_tokens, 2, SHORT_REPLY);
    empty_folder();
    world_open(&w, &o);
    unsigned calls = (unsigned)calls_made();
    assert_true(may_answer(&w, turn_tokens[0], SHORT_REPLY, &right[0]));
    wait_asleep(&w, "one", KV_SSD);
    world_close(&w);
    standin_reset();
    assert_true(calls > 100);
    for (unsigned n = 1; n <= calls; n += TSAN ? 37 : 1) {
        open_with_a_failure(&o, n, NO_MEMORY);
        open_with_a_failure(&o, n, FAILURE);
    }
    answer_from_the_ssd(&o, &right[1]);
}

/* Both turns, of which the nth call fails; false: they had fewer. */
static bool fail_a_call(const struct world_options *o, unsigned n,
                        const struct client *right)
{
    struct world w;
    empty_folder();
    world_open(&w, o);
    uint64_t before = calls_made();
    standin_fail("any", n, FAILURE);
    bool failed = !may_answer(&w, turn_tokens[0], SHORT_REPLY, &right[0]);
    // Where the failure was of a copy, it does not fall asleep.
    for (int i = 0; i < 200 && !failed && !is_asleep(&w, "one", KV_SSD); i++) {
        usleep(500);
        failed = engine_failure(w.engine, NULL);
    }
    failed |= !may_answer(&w, turn_tokens[1], SHORT_REPLY, &right[1]);
    failed |= engine_failure(w.engine, NULL);
    bool reached = calls_made() - before >= n;
    world_close(&w);
    standin_reset();
    return failed || reached;
}

/* Whatever then lies on the SSD is right: a server over the same folder answers as if nothing
 * had been. */
static void whichever_call_fails_requests_end_and_the_ssd_stays_right(void **state)
{
    (void)state;
    static struct client right[2];
    struct world_options o = on_device(64, 8, 40);
    struct world w;
    need_standin();
    answer_one(right, turn_tokens, 2, SHORT_REPLY);
    unsigned n = 1;
    for (; fail_a_call(&o, n, right); n += TSAN ? 3 * n : 1) {
        world_open(&w, &o);
        assert_true(may_answer(&w, turn_tokens[1], SHORT_REPLY, &right[1]));
        world_close(&w);
        assert_int_equal(standin_reset(), 0);
    }
    assert_true(n > 100);
}
/* What beginning early asks of CUDA, call by call. */
static void whichever_call_of_an_early_start_fails_no_token_is_wrong(void **state)
{
    (void)state;
    static const char *const calls[] = {"cudaMemcpy2DAsync", "cudaStreamWaitEvent",
                                        "cudaEventRecord", "cudaEventQuery"};
    static const uint32_t lengths[] = {49, 66};
    static struct client right[2];
    struct world_options o = on_device(64, 40, 0);
    struct world w;
    need_standin();
    answer_one(right, lengths, 2, SHORT_REPLY);
    uint64_t early = 0;
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        bool failed = true;
        for (unsigned n = 1; failed; n += TSAN ? 8 * n + 1 : 1) {
            standin_schedule(STANDIN_RANDOM, STANDIN_SHUFFLED, n);
            world_open(&w, &o);
            assert_true(may_answer(&w, lengths[0], SHORT_REPLY, &right[0]));
            wait_asleep(&w, "one", KV_RAM);
            standin_fail(calls[i], n, FAILURE);
            failed = !may_answer(&w, lengths[1], SHORT_REPLY, &right[1]);
            failed |= engine_failure(w.engine, NULL);
            early += begun_early(&w);
            world_close(&w);
            standin_reset();  // a dead device has freed nothing
        }
    }
    assert_true(early > 0);
}

/* ---- too little memory ---- */

static void without_enough_memory_it_says_what_there_was_none_for(void **state)
{
    (void)state;
    need_standin();
    const struct backend_options o = {.limits = {64, 4, 64, 16, 4, 64}};
    struct err err;
    for (size_t mib = 0; mib < 64; mib += 8) {
        struct backend *b = NULL;
        standin_reset();
        standin_memory(mib << 20, (size_t)1 << 30);
        int rc = backend_open(&b, "cuda", &o, &err);
        if (rc < 0) {
            assert_int_equal(rc, -ENOMEM);
            assert_non_null(strstr(err.msg, "no device memory"));
        }
        backend_close(b);
        assert_int_equal(standin_reset(), 0);
    }
    standin_memory((size_t)1 << 30, (size_t)1 << 20);
    struct backend *b = NULL;
    assert_int_equal(backend_open(&b, "cuda", &o, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "no pinned memory"));
    assert_int_equal(standin_reset(), 0);
    standin_memory(GIB, 4 * GIB);
}

/* Below 8.0 there are neither the products of tensor cores nor the copies that the kernels use. */
static void a_device_that_is_too_old_is_refused_by_its_capability(void **state)
{
    (void)state;
    need_standin();
    const struct backend_options o = {.limits = {64, 4, 64, 16, 4, 64}};
    struct backend *b = NULL;
    struct err err;
    standin_capability(75);
    assert_int_equal(backend_open(&b, "cuda", &o, &err), -ENODEV);
    assert_non_null(
        strstr(err.msg, "has compute capability 7.5; at least 8.0 is needed"));
    assert_int_equal(standin_reset(), 0);
    standin_capability(80);
    assert_int_equal(backend_open(&b, "cuda", &o, &err), 0);
    backend_close(b);
    standin_capability(90);
}

#define SHORT_HISTORY (TSAN ? 3 : 10)

/* One server after another, each with as much as the allocation that was refused last to the
 * one before needs: so each allocation of opening, pinning and recording is refused once.
 * One that starts answers rightly. */
static void under_every_cap(bool pinned)
{
    static struct turn turns[10];
    struct world_options plain = on_device(64, 0, 0), o = on_device(20, 12, 60);
    struct standin_counts c;
    struct world w;
    need_standin();
    make_history(turns, SHORT_HISTORY, 11);
    world_open(&w, &plain);
    answer_cold(&w, turns, SHORT_HISTORY);
    world_close(&w);

    unsigned refused = 0, served = 0;
    size_t cap = 0;
    do {
        struct err err = {""};
        standin_reset();
        standin_memory(pinned ? GIB : cap, pinned ? cap : GIB);
        standin_schedule(STANDIN_RANDOM, served % 3, served);
        empty_folder();
        int rc = world_try_open(&w, &o, &err);
        if (rc == 0) {
            run_history(&w, turns, SHORT_HISTORY);
            served++;
        } else {
            assert_int_equal(rc, -ENOMEM);
            assert_non_null(strstr(err.msg, "memory"));
            refused++;
        }
        world_close(&w);
        standin_count(&c);
        assert_int_equal(standin_reset(), 0);
        uint64_t wanted = pinned ? c.pinned_wanted : c.device_wanted;
        assert_true(wanted == 0 || wanted > cap);
        cap = wanted;
    } while (cap > 0);
    assert_true(refused > 5 && served > 0);
    standin_memory(GIB, 4 * GIB);
}

static void
under_any_cap_of_device_memory_it_serves_rightly_or_says_why_not(void **state)
{
    (void)state;
    under_every_cap(false);
}

static void
under_any_cap_of_pinned_memory_it_serves_rightly_or_says_why_not(void **state)
{
    (void)state;
    under_every_cap(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whichever_call_of_opening_fails_it_says_so_and_nothing_stays),
        cmocka_unit_test(whichever_call_fails_requests_end_and_the_ssd_stays_right),
        cmocka_unit_test(whichever_call_of_an_early_start_fails_no_token_is_wrong),
        cmocka_unit_test(a_device_that_is_too_old_is_refused_by_its_capability),
        cmocka_unit_test(without_enough_memory_it_says_what_there_was_none_for),
        cmocka_unit_test(
            under_any_cap_of_device_memory_it_serves_rightly_or_says_why_not),
        cmocka_unit_test(
            under_any_cap_of_pinned_memory_it_serves_rightly_or_says_why_not),
    };
    return run_in_folder(tests, ARRAY_LEN(tests));
}
