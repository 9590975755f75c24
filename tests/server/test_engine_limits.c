/* What the engine does when something runs out, leaves, breaks or ends. */
#include "tests/server/engine_fixture.h"

static struct client client, other;

static void a_client_that_leaves_gives_its_blocks_back(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &(struct world_options){
                       .model = "tiny-abc", .max_running = 2, .blocks = 512});
    /* running, and waiting behind it */
    client_begin(&client, &w, world_chat(&w, "x", 8000));
    wait_until(scrape(&w, "num_requests_running") == 1);
    client_begin(&other, &w, world_chat(&w, "y", 8000));
    request_cancel(other.r);
    request_cancel(client.r);
    engine_wake(w.engine);
    client_read(&client);
    client_read(&other);
    assert_int_equal(client.choices[0].end.reason, FINISH_CANCELLED);
    assert_int_equal(client.choices[0].end.status, 0);
    assert_int_equal(other.choices[0].end.reason, FINISH_CANCELLED);
    assert_true(scrape(&w, "kv_blocks_used") == 0);
    assert_int_equal(metrics_counter(w.metrics, COUNTER_GENERATION_TOKENS), 0);
    client_end(&client);
    client_end(&other);
    world_close(&w);
}

static void one_that_waits_for_its_start_can_leave_too(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-abc", .max_running = 1});
    client_begin(&client, &w, world_chat(&w, "x", 8000));
    wait_until(scrape(&w, "num_requests_running") == 1);
    client_begin(&other, &w, world_chat(&w, "y", 10));
    wait_until(scrape(&w, "num_requests_waiting") == 1);
    request_cancel(other.r);
    engine_wake(w.engine);
    client_read(&other);
    assert_int_equal(other.choices[0].end.reason, FINISH_CANCELLED);
    assert_int_equal(other.choices[0].end.completion_tokens, 0);
    request_cancel(client.r);
    client_end(&client);
    client_end(&other);
    world_close(&w);
}

static void a_client_that_does_not_read_is_ended_and_slows_nobody(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-abc", .stall_ms = 300});
    client_begin(&client, &w, world_chat(&w, "x", 8000));
    for (int i = 0; i < 10; i++)
        assert_int_equal(strlen(client_ask(&other, &w, world_chat(&w, "y", 30))), 30);
    wait_until(scrape(&w, "num_requests_running") == 0);
    assert_true(scrape(&w, "kv_blocks_used") == 0);
    client_read(&client);
    assert_int_equal(client.choices[0].end.reason, FINISH_CANCELLED);
    assert_int_equal(client.choices[0].end.status, 408);
    assert_in_range(client.choices[0].events, 16, 8000 - 1);
    client_end(&client);
    world_close(&w);
}

static void a_slow_client_gets_everything(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-abc"});
    struct request *r = world_chat(&w, "x", 700);
    r->n_choices = 3;
    client_begin(&client, &w, r);
    usleep(50000);  // long enough for the outbox to fill
    struct event e;
    for (uint32_t i = 0; client.n_over < 3; i++) {
        if (request_pop(r, &e))
            client_take(&client, &e);
        else if (!request_wait(r, true))
            sem_wait(&client.awake);
        if (i % 500 == 0) usleep(5000);
    }
    for (int c = 0; c < 3; c++) {
        assert_int_equal(client.choices[c].n, 700);
        for (size_t i = 0; i < 700; i++)
            assert_int_equal(client.choices[c].text[i], 'A' + i % 26);
        assert_int_equal(client.choices[c].events, 700);
    }
    client_end(&client);
    world_close(&w);
}

/* `n` tokens, of which all but the first are the same. */
static struct request *long_request(const struct world *w, uint32_t n, uint32_t max)
{
    struct request *r = world_request(w, "a", max);
    r->ids = realloc(r->ids, n * sizeof *r->ids);
    for (uint32_t i = 1; i < n; i++) r->ids[i] = 287;
    r->n_ids = n;
    return r;
}

static void what_can_never_fit_is_refused_with_both_sizes(void **state)
{
    (void)state;
    struct world w;
    struct err err;
    world_open(&w, &(struct world_options){
                       .model = "tiny-abc", .blocks = 64, .context = 131072});
    assert_int_equal(engine_capacity(w.engine), 1024);
    static const uint32_t sizes[] = {1007, 1008, 1009, 1023, 1024, 1025};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        uint32_t n = sizes[i], fits = n < 1024 ? 1024 - n : 1;
        struct request *r = long_request(&w, n, fits);
        if (n < 1024) {
            client_ask(&client, &w, r);
            assert_int_equal(client.choices[0].end.completion_tokens, fits);
            assert_int_equal(client.choices[0].end.reason, FINISH_LENGTH);
        } else {
            char size[16];
            snprintf(size, sizeof size, "%u", n);
            assert_int_equal(client_submit(&client, &w, r, &err), -E2BIG);
            assert_non_null(strstr(err.msg, size));
            assert_non_null(strstr(err.msg, "1024"));
            client_end(&client);
        }
        assert_int_equal(client_submit(&client, &w, long_request(&w, 1000, 64), &err),
                         -E2BIG);
        client_end(&client);
        assert_int_equal(strlen(client_ask(&client, &w, world_chat(&w, "x", 8))), 8);
        assert_true(scrape(&w, "kv_blocks_used") == 0);
    }
    world_close(&w);
}

static void ids_that_the_model_lacks_are_refused(void **state)
{
    (void)state;
    struct world w;
    struct err err;
    world_open(&w, &(struct world_options){.model = "tiny-abc"});
    static const int32_t bad[] = {-1, 520, INT32_MAX};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct request *r = world_chat(&w, "x", 8);
        r->ids[3] = bad[i];
        assert_int_equal(client_submit(&client, &w, r, &err), -EINVAL);
        client_end(&client);
    }
    world_close(&w);
}

static void a_full_queue_and_a_long_wait_are_told(void **state)
{
    (void)state;
    struct world w;
    struct err err;
    world_open(&w, &(struct world_options){.model = "tiny-abc",
                                           .max_running = 1,
                                           .max_waiting = 1,
                                           .max_wait_ms = 50,
                                           .stall_ms = 600000});
    client_begin(&client, &w, world_chat(&w, "x", 8000));
    wait_until(scrape(&w, "num_requests_running") == 1);
    client_begin(&other, &w, world_chat(&w, "y", 8));
    struct request *third = world_chat(&w, "z", 8);
    int rc = engine_submit(w.engine, third, &err);
    /* either the second still waits, or it has already been given up */
    assert_true(rc == -EBUSY || rc == 0);
    request_unref(third);
    assert_true(engine_retry_after(w.engine) >= 1);
    client_read(&other);
    assert_int_equal(other.choices[0].end.reason, FINISH_ERROR);
    assert_int_equal(other.choices[0].end.status, 503);
    assert_int_equal(other.choices[0].events, 0);
    request_cancel(client.r);
    client_end(&client);
    client_end(&other);
    world_close(&w);
}

/* ---- the end ---- */

struct drainer {
    struct world *w;
    uint32_t ms;
};

static void *drain(void *arg)
{
    struct drainer *d = arg;
    engine_drain(d->w->engine, d->ms);
    return NULL;
}

static void a_drain_lets_replies_end_and_takes_no_more(void **state)
{
    (void)state;
    struct world w;
    struct err err;
    world_open(&w, &(struct world_options){.model = "tiny-abc"});
    client_begin(&client, &w, world_chat(&w, "x", 200));
    struct drainer d = {&w, 600000};
    pthread_t t;
    pthread_create(&t, NULL, drain, &d);
    int rc;
    do {  // until the thread has shut the door
        usleep(1000);
        rc = client_submit(&other, &w, world_chat(&w, "y", 1), &err);
        client_end(&other);
    } while (rc == 0 || rc == -EBUSY);
    assert_int_equal(rc, -ESHUTDOWN);
    client_read(&client);
    assert_int_equal(client.choices[0].end.reason, FINISH_LENGTH);
    assert_int_equal(client.choices[0].n, 200);
    pthread_join(t, NULL);
    client_end(&client);
    world_close(&w);
}

static void a_drain_ends_what_takes_too_long(void **state)
{
    (void)state;
    for (int now = 0; now < 2; now++) {
        struct world w;
        world_open(&w, &(struct world_options){.model = "tiny-abc"});
        client_begin(&client, &w, world_chat(&w, "x", 8000));
        wait_until(scrape(&w, "num_requests_running") == 1);
        struct drainer d = {&w, now ? 600000 : 10};
        pthread_t t;
        pthread_create(&t, NULL, drain, &d);
        if (now) engine_drain_now(w.engine);
        client_read(&client);
        assert_int_equal(client.choices[0].end.reason, FINISH_ERROR);
        assert_int_equal(client.choices[0].end.status, 503);
        pthread_join(t, NULL);
        client_end(&client);
        world_close(&w);
    }
}

static void an_engine_that_never_ran_answers_what_it_was_given(void **state)
{
    (void)state;
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-abc", .stopped = true});
    client_begin(&client, &w, world_chat(&w, "x", 8));
    engine_drain(w.engine, 0);
    client_read(&client);
    assert_int_equal(client.choices[0].end.status, 503);
    client_end(&client);
    world_close(&w);
}

/* ---- what is broken ---- */

static void a_backend_that_fails_is_told_to_all_and_ends_nothing_else(void **state)
{
    (void)state;
    struct world w;
    struct err err;
    world_open(&w, &(struct world_options){.model = "tiny-abc", .stopped = true});
    w.model.options.max_rows = 4;  // so that the first prompt is too much for it
    assert_int_equal(engine_start(w.engine, &err), 0);
    assert_false(engine_failure(w.engine, &err));
    client_begin(&client, &w, world_chat(&w, "x", 8));
    client_read(&client);
    assert_int_equal(client.choices[0].end.reason, FINISH_ERROR);
    assert_int_equal(client.choices[0].end.status, 500);
    client_end(&client);
    assert_true(engine_failure(w.engine, NULL));
    assert_true(engine_failure(w.engine, &err));
    assert_int_equal(client_submit(&client, &w, world_chat(&w, "x", 8), &err), -EIO);
    client_end(&client);
    world_close(&w);
}

/* tiny-rand with NaN in the embedding of one token, in a folder of its own. */
static void copy_with_nan(const char *to, int32_t token)
{
    static const char *const names[] = {"config.json", "tokenizer.json",
                                        "tokenizer_config.json", "model.safetensors"};
    char path[256], *data = malloc(1 << 22);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "tests/golden/models/tiny-rand/%s", names[i]);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        size_t n = fread(data, 1, 1 << 22, f);
        fclose(f);
        if (i == 3) {
            uint64_t head, from;
            memcpy(&head, data, sizeof head);
            char *name = memmem(data, n, "\"model.embed_tokens.weight\"", 27);
            char *at =
                memmem(name, n - (size_t)(name - data), "\"data_offsets\":[", 16);
            from = strtoull(at + 16, NULL, 10);
            bool wide = memmem(name, (size_t)(at - name), "F32", 3) != NULL;
            size_t row = 64 * (wide ? 4 : 2);
            memset(data + 8 + head + from + (size_t)token * row, 0xff, row);
        }
        snprintf(path, sizeof path, "%s/%s", to, names[i]);
        f = fopen(path, "wb");
        assert_int_equal(fwrite(data, 1, n, f), n);
        fclose(f);
    }
    free(data);
}

static void numbers_that_are_none_end_one_request_only(void **state)
{
    (void)state;
    char dir[] = "/tmp/dormouse-nan-XXXXXX", path[256];
    assert_non_null(mkdtemp(dir));
    copy_with_nan(dir, 80);
    struct world w;
    world_open(&w, &(struct world_options){.model = "tiny-rand"});
    char expected[CLIENT_TEXT];
    strcpy(expected, client_ask(&client, &w, world_chat(&w, "hello", 12)));
    world_close(&w);

    world_open(&w, &(struct world_options){.model = dir});
    client_begin(&client, &w, world_chat(&w, "hello", 12));
    struct request *r = world_chat(&w, "hello", 12);
    r->ids[2] = 80;
    r->n_choices = 3;
    client_begin(&other, &w, r);
    client_read(&client);
    client_read(&other);
    assert_string_equal(client.choices[0].text, expected);
    for (int c = 0; c < 3; c++) {
        assert_int_equal(other.choices[c].end.reason, FINISH_ERROR);
        assert_int_equal(other.choices[c].end.status, 500);
    }
    assert_true(scrape(&w, "kv_blocks_used") == 0);
    client_end(&client);
    client_end(&other);
    world_close(&w);
    static const char *const names[] = {"config.json", "tokenizer.json",
                                        "tokenizer_config.json", "model.safetensors"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_that_leaves_gives_its_blocks_back),
        cmocka_unit_test(one_that_waits_for_its_start_can_leave_too),
        cmocka_unit_test(a_client_that_does_not_read_is_ended_and_slows_nobody),
        cmocka_unit_test(a_slow_client_gets_everything),
        cmocka_unit_test(what_can_never_fit_is_refused_with_both_sizes),
        cmocka_unit_test(ids_that_the_model_lacks_are_refused),
        cmocka_unit_test(a_full_queue_and_a_long_wait_are_told),
        cmocka_unit_test(a_drain_lets_replies_end_and_takes_no_more),
        cmocka_unit_test(a_drain_ends_what_takes_too_long),
        cmocka_unit_test(an_engine_that_never_ran_answers_what_it_was_given),
        cmocka_unit_test(a_backend_that_fails_is_told_to_all_and_ends_nothing_else),
        cmocka_unit_test(numbers_that_are_none_end_one_request_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
