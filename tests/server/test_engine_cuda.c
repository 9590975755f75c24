/* Sleep is invisible on a GPU: what has gone down from its memory and come back answers as
 * what never left, bit for bit; and where the device fails, requests end and blocks on the SSD
 * stay what they were.
 *
 * Steps have at most 32 rows, so that own kernels compute all of them and the promise of
 * kernels.h holds whole.  Where a CPU stands in for the device, its streams run in any legal
 * order, and its calls can be made to fail.  Under TSan, where a CUDA thread costs a hundred
 * times as much, there is less of each, and as what synchronises costs in proportion to all
 * threads that ever were, no two worlds that compute are open at a time.
 */
#include "tests/cuda_on_cpu/sanitizers.h"
#include "tests/cuda_on_cpu/standin.h"
#include "tests/server/engine_sleep.h"

#define REPLY 6  // tokens of a reply here

static struct client other;

static struct world_options on_device(uint32_t blocks, uint32_t ram, uint32_t ssd)
{
    struct world_options o = sleeping(ram, ssd);
    o.device = "cuda";
    o.f16 = true;
    o.blocks = blocks;
    o.context = 512;
    o.max_running = 4;
    o.step_tokens = 32;
    o.keeps = ram || ssd;
    return o;
}

/* Ends the test where there is no device. */
static void need_device(void)
{
    struct backend *b = NULL;
    struct err err = {{0}};
    const struct backend_options o = {.limits = {1, 1, 1, 16, 1, 1}};
    int rc = backend_open(&b, "cuda", &o, &err);
    if (rc == -ENODEV) {
        print_message("skipped: %s\n", err.msg);
        skip();
    }
    if (rc < 0) fail_msg("%s", err.msg);
    backend_close(b);
}

static void every_length_comes_back_from(uint32_t ram, uint32_t ssd,
                                         enum kv_source source)
{
    static const uint32_t lengths[] = {16, 17, 33, 49, 113};
    const size_t first = TSAN ? 3 : 0, end = ARRAY_LEN(lengths) - TSAN;
    need_device();
    struct world_options cold_options = on_device(64, 0, 0),
                         o = on_device(64, ram, ssd);
    static struct client right[ARRAY_LEN(lengths)];
    struct world w;
    world_open(&w, &cold_options);
    for (size_t i = first; i < end; i++)
        client_ask(&right[i], &w, prompt_of(&w, lengths[i], lengths[i], 0, REPLY));
    world_close(&w);

    empty_folder();
    world_open(&w, &o);
    for (size_t i = first; i < end; i++) {
        uint32_t n = lengths[i], blocks = (n - 1) / 16;
        char name[16];
        snprintf(name, sizeof name, "of %u", n);
        for (int again = 0; again < 2; again++) {
            struct kv_wake_report report =
                ask(&other, &w, named(prompt_of(&w, n, n, 0, REPLY), name));
            assert_same(&right[i], &other);
            if (again) assert_int_equal(report.loaded[source], blocks);
            wait_asleep(&w, name, source);
        }
    }
    world_close(&w);
}

static void every_length_comes_back_from_pinned_memory(void **state)
{
    (void)state;
    every_length_comes_back_from(64, 0, KV_RAM);
}

static void every_length_comes_back_from_the_ssd(void **state)
{
    (void)state;
    every_length_comes_back_from(0, 64, KV_SSD);
}

/* ---- any history, over any mixture of tiers ---- */

#define CONVERSATIONS 6
#define ROUNDS        24

static uint32_t random_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

static void assert_answered(const struct client *c, const struct world *w)
{
    struct err why = {{0}};
    const struct event *end = &c->choices[0].end;
    if (end->reason == FINISH_LENGTH) return;
    engine_failure(w->engine, &why);
    fail_msg("a reply ended by %d, status %d: %s", end->reason, end->status, why.msg);
}

/* Conversations grow in any order: each turn's prompt is the beginning of one endless text,
 * a little longer than before.  Beside it another one's is asked again, where it is another. */
struct turn {
    uint32_t talk[2], length[2], n;
    struct client right[2];  // of one that never slept
};

static void make_history(struct turn *turns, uint32_t n, uint64_t seed)
{
    uint32_t length[CONVERSATIONS];
    for (uint32_t i = 0; i < CONVERSATIONS; i++) length[i] = 10 + 7 * i;
    for (struct turn *t = turns; t < turns + n; t++) {
        uint32_t i = random_below(&seed, CONVERSATIONS);
        uint32_t j = random_below(&seed, CONVERSATIONS);
        length[i] += random_below(&seed, 25);
        if (length[i] > 120) length[i] = 120;
        t->n = i == j ? 1 : 2;
        t->talk[0] = i;
        t->talk[1] = j;
        t->length[0] = length[i];
        t->length[1] = length[j];
    }
}

static struct request *request_of(const struct world *w, const struct turn *t,
                                  uint32_t k)
{
    char name[16];
    snprintf(name, sizeof name, "talk %u", t->talk[k]);
    return named(prompt_of(w, t->length[k], t->talk[k], 0, REPLY), name);
}

static void answer_cold(struct world *w, struct turn *turns, uint32_t n)
{
    for (struct turn *t = turns; t < turns + n; t++)
        for (uint32_t k = 0; k < t->n; k++) {
            client_ask(&t->right[k], w,
                       prompt_of(w, t->length[k], t->talk[k], 0, REPLY));
            assert_answered(&t->right[k], w);
        }
}

/* Over a pool that holds two of them. */
static void run_history(struct world *w, const struct turn *turns, uint32_t n)
{
    static struct client reply[2];
    for (const struct turn *t = turns; t < turns + n; t++) {
        for (uint32_t k = 0; k < t->n; k++)
            client_begin(&reply[k], w, request_of(w, t, k));
        for (uint32_t k = 0; k < t->n; k++) {
            client_read(&reply[k]);
            client_end(&reply[k]);
            assert_answered(&reply[k], w);
            assert_same(&t->right[k], &reply[k]);
        }
    }
}

/* Wakes that began while blocks were arriving, of an engine that is not asked any more. */
static uint64_t begun_early(struct world *w)
{
    struct kvstore_counters c;
    engine_drain(w->engine, 0);
    kvstore_count(w->tiers.store, &c);
    return c.began_early;
}

static void any_history_over_any_tiers_reads_as_one_that_never_slept(void **state)
{
    (void)state;
    static const struct {
        uint32_t ram, ssd;
    } tiers[] = {{40, 0}, {0, 60}, {12, 60}};
    static struct turn turns[ROUNDS];
    const uint32_t rounds = TSAN ? 5 : ROUNDS;
    uint64_t early = 0;
    need_device();
    for (uint32_t i = 0; i < ARRAY_LEN(tiers); i++) {
        struct world_options plain = on_device(64, 0, 0);
        struct world_options o = on_device(20, tiers[i].ram, tiers[i].ssd);
        struct world w;
        make_history(turns, rounds, 5 + i);
        world_open(&w, &plain);
        answer_cold(&w, turns, rounds);
        world_close(&w);
        if (standin_schedule) standin_schedule(STANDIN_RANDOM, i % 3, 100 + i);
        empty_folder();
        world_open(&w, &o);
        run_history(&w, turns, rounds);
        early += begun_early(&w);
        world_close(&w);
    }
    if (standin_schedule) assert_true(early > 0);
}

/* ---- drafts ---- */

static struct request *alphabet(const struct world *w)
{
    struct request *r = world_chat(w, "x", TSAN ? 32 : 80);
    r->ignore_eos = r->sampling.logprobs = true;
    return r;
}

/* Steps of one row are recorded, those with drafts are not. */
static void a_reply_with_drafts_has_the_bits_of_one_without(void **state)
{
    (void)state;
    need_device();
    struct world_options plain = on_device(64, 0, 0), o;
    struct world w;
    plain.model = "tiny-abc";
    o = plain;
    o.prompt_lookup = 6;
    o.max_logits = 12;
    world_open(&w, &plain);
    client_ask(&client, &w, alphabet(&w));
    world_close(&w);
    world_open(&w, &o);
    client_ask(&other, &w, alphabet(&w));
    assert_same(&client, &other);
    assert_true(metrics_counter(w.metrics, COUNTER_ACCEPTED_TOKENS) > 0);
    world_close(&w);
}

/* ---- failures ---- */

#define FAILURE 719  // cudaErrorLaunchFailure

/* The call that fails after the n-th has: with STORMS in the environment each, else fewer and
 * fewer. */
static unsigned next_call(unsigned n, unsigned part)
{
    return getenv("STORMS") ? n + 1 : n + 1 + n / part;
}

/* A turn that may fail: then with an error that says so, and never with other words. */
static bool may_answer(struct world *w, uint32_t n, const struct client *right)
{
    struct err err;
    int rc = client_submit(&other, w, named(prompt_of(w, n, 1, 0, REPLY), "one"), &err);
    if (rc < 0) {
        assert_int_equal(rc, -EIO);
        client_end(&other);
        return false;
    }
    client_read(&other);
    bool ended = other.choices[0].end.reason != FINISH_ERROR;
    if (ended)
        assert_same(right, &other);
    else
        assert_int_equal(other.choices[0].end.status, 500);
    client_end(&other);
    return ended;
}

/* Of one answered turn after another, the n-th CUDA call fails; whatever then lies on the
 * SSD is right: a server over the same folder answers as if nothing had been. */
static void whichever_call_fails_requests_end_and_the_ssd_stays_right(void **state)
{
    (void)state;
    need_device();
    if (!standin_fail) {
        print_message("skipped: a real device cannot be made to fail\n");
        skip();
    }
    struct world_options plain = on_device(64, 0, 0), o = on_device(64, 8, 40);
    struct world cold, w;
    world_open(&cold, &plain);
    static struct client right[2];
    client_ask(&right[0], &cold, prompt_of(&cold, 40, 1, 0, REPLY));
    client_ask(&right[1], &cold, prompt_of(&cold, 70, 1, 0, REPLY));
    world_close(&cold);

    bool failed = true;
    for (unsigned n = 1; failed; n = TSAN ? 4 * n + 1 : next_call(n, 3)) {
        empty_folder();
        world_open(&w, &o);
        standin_fail("any", n, FAILURE);
        failed = !may_answer(&w, 40, &right[0]);
        // Where the failure was of a copy, it does not fall asleep.
        for (int i = 0; i < 200 && !failed && !is_asleep(&w, "one", KV_SSD); i++)
            usleep(1000);
        failed |= !may_answer(&w, 70, &right[1]);
        failed |= engine_failure(w.engine, NULL);
        world_close(&w);
        standin_reset();

        world_open(&w, &o);
        assert_true(may_answer(&w, 70, &right[1]));
        world_close(&w);
        assert_int_equal(standin_reset(), 0);
    }
}

/* What beginning early asks of CUDA, call by call. */
static void whichever_call_of_an_early_start_fails_no_token_is_wrong(void **state)
{
    (void)state;
    static const char *const calls[] = {"cudaMemcpy2DAsync", "cudaStreamWaitEvent",
                                        "cudaEventRecord", "cudaEventQuery"};
    need_device();
    if (!standin_fail) {
        print_message("skipped: a real device cannot be made to fail\n");
        skip();
    }
    struct world_options plain = on_device(64, 0, 0), o = on_device(64, 40, 0);
    struct world cold, w;
    world_open(&cold, &plain);
    static struct client right[2];
    client_ask(&right[0], &cold, prompt_of(&cold, 100, 1, 0, REPLY));
    client_ask(&right[1], &cold, prompt_of(&cold, 120, 1, 0, REPLY));
    world_close(&cold);

    uint64_t early = 0;
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        bool failed = true;
        for (unsigned n = 1; failed; n = TSAN ? 9 * n + 1 : next_call(n, 2)) {
            standin_schedule(STANDIN_RANDOM, STANDIN_SHUFFLED, n);
            world_open(&w, &o);
            assert_true(may_answer(&w, 100, &right[0]));
            wait_asleep(&w, "one", KV_RAM);
            standin_fail(calls[i], n, FAILURE);
            failed = !may_answer(&w, 120, &right[1]);
            failed |= engine_failure(w.engine, NULL);
            early += begun_early(&w);
            world_close(&w);
            standin_reset();  // a dead device has freed nothing
        }
    }
    assert_true(early > 0);
}

static void without_enough_memory_it_says_what_there_was_none_for(void **state)
{
    (void)state;
    need_device();
    if (!standin_memory) {
        print_message("skipped: a real device's memory is what it is\n");
        skip();
    }
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_comes_back_from_pinned_memory),
        cmocka_unit_test(every_length_comes_back_from_the_ssd),
        cmocka_unit_test(any_history_over_any_tiers_reads_as_one_that_never_slept),
        cmocka_unit_test(a_reply_with_drafts_has_the_bits_of_one_without),
        cmocka_unit_test(whichever_call_fails_requests_end_and_the_ssd_stays_right),
        cmocka_unit_test(whichever_call_of_an_early_start_fails_no_token_is_wrong),
        cmocka_unit_test(without_enough_memory_it_says_what_there_was_none_for),
    };
    return run_in_folder(tests, ARRAY_LEN(tests));
}
