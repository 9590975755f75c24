/* What comes back as a stream: frames, errors and wakes, from events that the test pushes. */
#include "tests/server/api_shared.h"

#include <sched.h>
#include <semaphore.h>

/* ---- streams ---- */

static void a_stream_is_role_text_reason_usage_and_done(void **state)
{
    (void)state;
    struct api_call *c =
        prepare(&f, API_CHAT,
                BODY(",\"stream\":true,\"stream_options\":{\"include_usage\":true}"));
    struct bytes out = {0};
    struct api_error e;
    assert_int_equal(read_on(c, &out, &e), API_WAIT);
    assert_int_equal(out.n, 0);  // until the first event a status can still be chosen

    push_token(c, 0, 0, id_of("A"), "A");
    assert_int_equal(read_on(c, &out, &e), API_WAIT);
    assert_int_equal(count_frames(&out), 2);
    push_token(c, 0, 0, id_of("B"), "");  // held back: no frame
    push_finish(c, 0, 0, FINISH_LENGTH, "B", 2);
    assert_int_equal(read_on(c, &out, &e), API_DONE);
    assert_int_equal(count_frames(&out), 6);

    static const char *const deltas[] = {
        "{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null}",
        "{\"content\":\"A\"}", "{\"content\":\"B\"}", "{}"};
    for (int i = 0; i < 4; i++) {
        struct json *j = frame_of(&out, i);
        assert_json(j, "object", "\"chat.completion.chunk\"");
        assert_json(j, "model", "\"tiny-rand\"");
        assert_json(j, "choices/0/index", "0");
        assert_json(j, "choices/0/delta", deltas[i]);
        assert_json(j, "choices/0/logprobs", "null");
        assert_json(j, "choices/0/finish_reason", i == 3 ? "\"length\"" : "null");
        assert_json(j, "usage", "null");
        json_close(j);
    }
    struct json *j = frame_of(&out, 4);
    char total[16];
    snprintf(total, sizeof total, "%u", c->part[0].n_ids + 2);
    assert_json(j, "choices", "[]");
    assert_json(j, "usage/completion_tokens", "2");
    assert_json(j, "usage/total_tokens", total);
    assert_json(j, "usage/prompt_tokens_details/cached_tokens", "0");
    json_close(j);
    assert_string_equal(out.data + out.n - 14, "data: [DONE]\n\n");
    assert_int_equal(api_call_read(c, &out, 1, &e), API_DONE);
    bytes_free(&out);
    api_call_free(c);
}

static void a_completion_streams_its_own_shape(void **state)
{
    (void)state;
    struct api_call *c =
        prepare(&f, API_COMPLETION,
                "{\"prompt\":[\"x\",\"y\"],\"stream\":true,\"echo\":true,"
                "\"stream_options\":{\"include_usage\":true}}");
    struct bytes out = {0};
    struct api_error e;
    push_token(c, 1, 0, id_of("A"), "A");
    push_finish(c, 1, 0, FINISH_STOP, "", 2);
    push_finish(c, 0, 0, FINISH_STOP, "", 1);
    assert_int_equal(read_on(c, &out, &e), API_DONE);
    /* The prompts take turns: y, A and the reason of the second, x and the reason of the
     * first, in whatever order; then usage and the end. */
    assert_int_equal(count_frames(&out), 7);
    bool prompt[2] = {false, false}, token = false;
    for (int i = 0; i < 5; i++) {
        struct json *j = frame_of(&out, i);
        struct json_value v = json_root(j);
        struct json_value text = json_at(v, "choices/0/text");
        uint64_t index;
        assert_json(j, "object", "\"text_completion\"");
        assert_true(json_u64(json_at(v, "choices/0/index"), &index) && index < 2);
        if (json_equals(text, index ? "y" : "x")) prompt[index] = true;
        if (json_equals(text, "A")) token = index == 1;
        json_close(j);
    }
    assert_true(prompt[0] && prompt[1] && token);
    struct json *j = frame_of(&out, 5);
    assert_json(j, "choices", "[]");
    assert_json(j, "usage/prompt_tokens", "4");
    assert_json(j, "usage/completion_tokens", "3");
    json_close(j);
    bytes_free(&out);
    api_call_free(c);
}

static void every_choice_has_its_role_index_and_reason(void **state)
{
    (void)state;
    struct api_call *c = prepare(&f, API_CHAT, BODY(",\"stream\":true,\"n\":3"));
    struct bytes out = {0};
    struct api_error e;
    for (uint16_t i = 0; i < 3; i++) push_token(c, 0, i, id_of("A"), "A");
    for (uint16_t i = 0; i < 3; i++) push_finish(c, 0, i, FINISH_STOP, "", 1);
    assert_int_equal(read_on(c, &out, &e), API_DONE);
    assert_int_equal(count_frames(&out), 3 * 3 + 1);
    int roles[3] = {0}, reasons[3] = {0};
    for (int k = 0; k < 9; k++) {
        struct json *j = frame_of(&out, k);
        uint64_t index = 9;
        struct json_value choice = json_at(json_root(j), "choices/0");
        assert_true(json_u64(json_get(choice, "index"), &index) && index < 3);
        roles[index] += json_exists(json_at(choice, "delta/role"));
        reasons[index] += json_is(json_get(choice, "finish_reason"), JSON_STRING);
        json_close(j);
    }
    for (int i = 0; i < 3; i++) assert_true(roles[i] == 1 && reasons[i] == 1);
    bytes_free(&out);
    api_call_free(c);
}

static void a_reader_gets_no_more_than_it_asked_for(void **state)
{
    (void)state;
    struct api_call *c = prepare(&f, API_CHAT, BODY(",\"stream\":true"));
    struct bytes out = {0};
    struct api_error e;
    for (int i = 0; i < 50; i++) push_token(c, 0, 0, id_of("A"), "A");
    int frames = 0;
    while (api_call_read(c, &out, 1, &e) == API_MORE) {
        assert_true(count_frames(&out) <=
                    2);  // one event: the role comes with the first
        frames += count_frames(&out);
        bytes_clear(&out);
        out.data[0] = 0;
    }
    assert_int_equal(frames, 51);
    bytes_free(&out);
    api_call_free(c);
}

static void prompts_of_one_call_take_turns(void **state)
{
    (void)state;
    struct api_call *c =
        prepare(&f, API_COMPLETION, "{\"prompt\":[\"x\",\"y\"],\"stream\":true}");
    struct bytes out = {0};
    struct api_error e;
    for (int i = 0; i < 5; i++) push_token(c, 0, 0, id_of("A"), "A");
    for (int i = 0; i < 5; i++) push_token(c, 1, 0, id_of("A"), "A");
    assert_int_equal(read_on(c, &out, &e), API_WAIT);
    for (int i = 0; i < 10; i++) {
        struct json *j = frame_of(&out, i);
        assert_json(j, "choices/0/index", i % 2 ? "1" : "0");
        json_close(j);
    }
    bytes_free(&out);
    api_call_free(c);
}

/* ---- errors ---- */

static void an_error_before_the_first_byte_is_a_status(void **state)
{
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        struct api_call *c =
            prepare(&f, API_CHAT, stream ? BODY(",\"stream\":true") : BODY(""));
        struct bytes out = {0};
        struct api_error e = {0};
        push_token(c, 0, 0, id_of("A"), "A");
        push_error(c, 503, "waited too long");
        assert_int_equal(read_on(c, &out, &e), API_FAILED);
        assert_int_equal(out.n, 0);
        assert_int_equal(e.status, 503);
        assert_string_equal(e.message, "waited too long");
        assert_int_equal(api_call_read(c, &out, 1, &e), API_DONE);
        bytes_free(&out);
        api_call_free(c);
    }
}

static void an_error_in_mid_stream_is_one_frame_and_the_end(void **state)
{
    (void)state;
    struct api_call *c = prepare(&f, API_CHAT, BODY(",\"stream\":true"));
    struct bytes out = {0};
    struct api_error e = {0};
    push_token(c, 0, 0, id_of("A"), "A");
    assert_int_equal(read_on(c, &out, &e), API_WAIT);
    push_error(c, 500, "a logit is not a number");
    assert_int_equal(read_on(c, &out, &e), API_DONE);
    assert_int_equal(count_frames(&out), 3);
    struct json *j = frame_of(&out, 2);
    assert_json(j, "error/message", "\"a logit is not a number\"");
    assert_json(j, "error/type", "\"server_error\"");
    json_close(j);
    assert_null(strstr(out.data, "[DONE]"));
    char line[256];
    api_call_summary(c, line, sizeof line);
    assert_non_null(strstr(line, "outcome=error"));
    bytes_free(&out);
    api_call_free(c);
}

static void a_client_that_does_not_read_is_told_from_one_that_left(void **state)
{
    (void)state;
    char line[512];
    struct event cancelled = {.kind = EVENT_FINISH, .reason = FINISH_CANCELLED};
    for (int way = 0; way < 4; way++) {
        struct api_call *c = prepare(&f, API_CHAT, BODY(",\"stream\":true"));
        push_token(c, 0, 0, id_of("A"), "A");
        if (way == 0) {
            struct bytes out = {0};
            struct api_error e;
            assert_int_equal(read_on(c, &out, &e), API_WAIT);
            bytes_free(&out);
        }
        if (way == 1) request_push(request_of(c, 0), &cancelled);
        if (way == 2) {
            struct event stalled = cancelled;
            stalled.status = 408;
            request_push(request_of(c, 0), &stalled);
        }
        while (way == 3 && request_has_room(request_of(c, 0))) {
            push_token(c, 0, 0, id_of("A"), "A");
        }
        api_call_summary(c, line, sizeof line);
        const char *wanted = way < 2 ? "outcome=cancelled" : "outcome=stalled";
        if (!strstr(line, wanted)) fail_msg("%d: %s", way, line);
        if (way == 0 && !strstr(line, "completion=1 ")) fail_msg("%s", line);
        api_call_free(c);
    }
}

/* ---- waking ---- */

static void count_wake(void *arg)
{
    ++*(int *)arg;
}

static void a_reader_that_waits_is_woken_once(void **state)
{
    (void)state;
    struct api_call *c =
        prepare(&f, API_COMPLETION, "{\"prompt\":[\"x\",\"y\"],\"stream\":true}");
    struct bytes out = {0};
    struct api_error e;
    int wakes = 0;
    api_call_listen(c, count_wake, &wakes);
    push_token(c, 0, 0, id_of("A"), "A");
    assert_int_equal(wakes, 0);  // nobody waits yet
    assert_int_equal(read_on(c, &out, &e), API_WAIT);
    push_token(c, 0, 0, id_of("A"), "A");
    push_token(c, 1, 0, id_of("A"), "A");
    push_token(c, 0, 0, id_of("A"), "A");
    assert_int_equal(wakes, 1);
    assert_int_equal(read_on(c, &out, &e), API_WAIT);
    push_finish(c, 0, 0, FINISH_STOP, "", 1);
    assert_int_equal(wakes, 2);
    assert_int_equal(read_on(c, &out, &e), API_WAIT);
    push_finish(c, 1, 0, FINISH_STOP, "", 1);
    assert_int_equal(wakes, 3);
    assert_int_equal(read_on(c, &out, &e), API_DONE);
    bytes_free(&out);
    api_call_free(c);
}

static void a_reader_of_a_whole_answer_is_woken_for_the_whole(void **state)
{
    (void)state;
    struct api_call *c = prepare(&f, API_CHAT, BODY(""));
    struct bytes out = {0};
    struct api_error e;
    int wakes = 0;
    api_call_listen(c, count_wake, &wakes);
    assert_int_equal(read_on(c, &out, &e), API_WAIT);
    for (int i = 0; i < 20; i++) push_token(c, 0, 0, id_of("A"), "A");
    assert_int_equal(wakes, 0);
    push_finish(c, 0, 0, FINISH_STOP, "", 20);
    assert_int_equal(wakes, 1);
    assert_int_equal(read_on(c, &out, &e), API_DONE);
    bytes_free(&out);
    api_call_free(c);
}

struct producer {
    struct api_call *call;
    uint32_t part;
};

/* An engine's part of it: pushes where there is room. */
static void *produce(void *arg)
{
    const struct producer *p = arg;
    for (int i = 0; i < 3000; i++) {
        while (!request_has_room(request_of(p->call, p->part))) sched_yield();
        push_token(p->call, p->part, 0, 32, "A");
    }
    while (!request_has_room(request_of(p->call, p->part))) sched_yield();
    push_finish(p->call, p->part, 0, FINISH_LENGTH, "", 3000);
    return NULL;
}

static void post(void *arg)
{
    sem_post(arg);
}

static void nothing_is_lost_between_an_engine_and_a_reader_that_sleeps(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\":[\"x\",\"y\"],\"max_tokens\":3000,\"stream\":true}",
        "{\"prompt\":[\"x\",\"y\"],\"max_tokens\":3000}"};
    for (int whole = 0; whole < 2; whole++) {
        struct api_call *c = prepare(&f, API_COMPLETION, bodies[whole]);
        struct bytes out = {0};
        struct api_error e;
        sem_t woken;
        sem_init(&woken, 0, 0);
        api_call_listen(c, post, &woken);
        struct producer p[2] = {{c, 0}, {c, 1}};
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, produce, &p[i]);
        while (read_on(c, &out, &e) != API_DONE) sem_wait(&woken);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        if (whole) {
            struct json *j = json_of(out.data, out.n);
            assert_json(j, "usage/completion_tokens", "6000");
            for (int i = 0; i < 2; i++) {
                struct json_value v =
                    json_at(json_root(j), i ? "choices/1/text" : "choices/0/text");
                assert_int_equal(json_string_size(v), 3000);
            }
            json_close(j);
        } else {
            assert_int_equal(count_frames(&out), 2 * 3001 + 1);
        }
        bytes_free(&out);
        api_call_free(c);
        sem_destroy(&woken);
    }
}

static void a_cancel_reaches_every_request(void **state)
{
    (void)state;
    struct api_call *c = prepare(&f, API_COMPLETION, "{\"prompt\":[\"x\",\"y\"]}");
    api_call_cancel(c);
    assert_true(atomic_load(&request_of(c, 0)->cancelled));
    assert_true(atomic_load(&request_of(c, 1)->cancelled));
    api_call_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_is_role_text_reason_usage_and_done),
        cmocka_unit_test(a_completion_streams_its_own_shape),
        cmocka_unit_test(every_choice_has_its_role_index_and_reason),
        cmocka_unit_test(a_reader_gets_no_more_than_it_asked_for),
        cmocka_unit_test(prompts_of_one_call_take_turns),
        cmocka_unit_test(an_error_before_the_first_byte_is_a_status),
        cmocka_unit_test(an_error_in_mid_stream_is_one_frame_and_the_end),
        cmocka_unit_test(a_client_that_does_not_read_is_told_from_one_that_left),
        cmocka_unit_test(a_reader_that_waits_is_woken_once),
        cmocka_unit_test(a_reader_of_a_whole_answer_is_woken_for_the_whole),
        cmocka_unit_test(nothing_is_lost_between_an_engine_and_a_reader_that_sleeps),
        cmocka_unit_test(a_cancel_reaches_every_request),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
