#include "server/mailbox.h"
#include "tests/allocs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct request *make(uint32_t n_choices, size_t largest)
{
    struct request *r;
    struct err err;
    assert_int_equal(request_new(&r, largest, &err), 0);
    r->n_choices = n_choices;
    return r;
}

static void push_text(struct request *r, uint16_t choice, int32_t id, const char *text,
                      size_t n)
{
    struct event e = {.kind = EVENT_TOKEN,
                      .choice = choice,
                      .sample.id = id,
                      .text = text,
                      .text_n = n};
    request_push(r, &e);
}

static void push_finish(struct request *r, uint16_t choice, enum finish_reason why)
{
    struct event e = {.kind = EVENT_FINISH, .choice = choice, .reason = why};
    if (why == FINISH_ERROR) {
        e.text = "it broke";
        e.text_n = 8;
    }
    request_push(r, &e);
}

static void events_come_out_as_they_went_in(void **state)
{
    (void)state;
    struct request *r = make(1, 100);
    struct event e;
    char text[101];
    for (int round = 0; round < 3000; round++) {
        int n = 1 + round % 7;
        for (int i = 0; i < n; i++) {
            assert_true(request_has_room(r));
            int size = snprintf(text, sizeof text, "%0*d", 1 + (round + i) % 99, i);
            push_text(r, 0, i, text, (size_t)size);
        }
        for (int i = 0; i < n; i++) {
            int size = snprintf(text, sizeof text, "%0*d", 1 + (round + i) % 99, i);
            assert_true(request_pop(r, &e));
            assert_int_equal(e.sample.id, i);
            assert_int_equal(e.text_n, size);
            assert_memory_equal(e.text, text, e.text_n);
        }
        assert_false(request_pop(r, &e));
    }
    request_unref(r);
}

static void a_full_outbox_says_so_and_still_takes_every_last_event(void **state)
{
    (void)state;
    for (uint32_t choices = 1; choices <= REQUEST_MAX_CHOICES; choices += 21) {
        for (size_t largest = 1; largest < 5000; largest = largest * 9 + 1) {
            struct request *r = make(choices, largest);
            char *text = calloc(1, largest);
            assert_true(request_has_room(r));
            uint32_t pushed = 0;
            while (request_has_room(r))
                for (uint16_t c = 0; c < choices; c++, pushed++)
                    push_text(r, c, (int32_t)pushed, text, largest);
            assert_true(request_room(r) < choices);
            for (uint16_t c = 0; c < choices; c++) push_finish(r, c, FINISH_ERROR);

            struct event e;
            for (uint32_t i = 0; i < pushed; i++) {
                assert_true(request_pop(r, &e));
                assert_int_equal(e.sample.id, i);
                assert_int_equal(e.text_n, largest);
            }
            for (uint32_t c = 0; c < choices; c++) {
                assert_true(request_pop(r, &e));
                assert_int_equal(e.kind, EVENT_FINISH);
                assert_memory_equal(e.text, "it broke", 8);
            }
            assert_false(request_pop(r, &e));
            free(text);
            request_unref(r);
        }
    }
}

static void text_stays_valid_until_the_next_pop(void **state)
{
    (void)state;
    struct request *r = make(1, 1000);
    char text[1000];
    struct event e = {0};
    uint32_t popped = 0;
    for (uint32_t i = 0; i < 20000; i++) {
        size_t n = 1 + i * 37 % 1000;
        memset(text, 'a' + i % 26, n);
        if (!request_has_room(r) || i % 5 == 0) {
            while (request_pop(r, &e)) {
                popped++;
                if (popped % 3 == 0) break;
            }
            /* what is pushed now must not touch e.text */
        }
        if (request_has_room(r)) push_text(r, 0, (int32_t)(i % 26), text, n);
        if (popped)
            for (size_t k = 0; k < e.text_n; k++)
                assert_int_equal(e.text[k], 'a' + e.sample.id);
    }
    assert_true(popped > 5000);
    request_unref(r);
}

static void count_call(void *arg)
{
    ++*(int *)arg;
}

static void wake_is_called_once_for_each_wait_that_found_nothing(void **state)
{
    (void)state;
    struct request *r = make(1, 10);
    struct event e;
    int calls = 0;
    request_set_wake(r, count_call, &calls);
    push_text(r, 0, 1, "a", 1);
    assert_int_equal(calls, 0);
    assert_true(request_wait(r, false));
    assert_true(request_pop(r, &e));
    assert_false(request_wait(r, false));
    push_text(r, 0, 1, "a", 1);
    push_text(r, 0, 1, "a", 1);
    assert_int_equal(calls, 1);
    while (request_pop(r, &e)) continue;
    assert_false(request_wait(r, false));
    request_set_wake(r, NULL, NULL);
    push_text(r, 0, 1, "a", 1);
    assert_int_equal(calls, 1);
    request_unref(r);
}

static void
a_patient_consumer_is_woken_by_the_end_or_before_it_is_in_the_way(void **state)
{
    (void)state;
    for (uint32_t choices = 1; choices <= REQUEST_MAX_CHOICES; choices += 63) {
        struct request *r = make(choices, 600);
        int calls = 0;
        request_set_wake(r, count_call, &calls);
        assert_false(request_wait(r, true));
        while (request_has_room(r))
            for (uint16_t c = 0; c < choices; c++) push_text(r, c, 1, "abc", 3);
        assert_int_equal(calls, 1);

        struct event e;
        while (request_pop(r, &e)) continue;
        assert_false(request_wait(r, true));
        for (uint16_t c = 0; c + 1u < choices; c++) push_finish(r, c, FINISH_STOP);
        assert_int_equal(calls, 1);
        push_finish(r, (uint16_t)(choices - 1), FINISH_LENGTH);
        assert_int_equal(calls, 2);
        assert_true(request_wait(r, true));
        request_unref(r);
    }
}

static void a_push_takes_no_memory(void **state)
{
    (void)state;
    struct request *r = make(1, 10);
    unsigned long before = allocs_so_far();
    struct event e;
    for (int i = 0; i < 1000; i++) {
        push_text(r, 0, i, "0123456789", 10);
        assert_true(request_pop(r, &e));
    }
    assert_int_equal(allocs_so_far(), before);
    request_unref(r);
}

/* ---- two threads ---- */

#define MANY 100000

struct pipe {
    struct request *r;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool awake;
};

static void wake_up(void *arg)
{
    struct pipe *p = arg;
    pthread_mutex_lock(&p->lock);
    p->awake = true;
    pthread_cond_signal(&p->woken);
    pthread_mutex_unlock(&p->lock);
}

static void *produce(void *arg)
{
    struct pipe *p = arg;
    char text[32];
    for (int32_t i = 0; i < MANY;) {
        if (!request_has_room(p->r)) continue;
        int n = snprintf(text, sizeof text, "%d", i);
        push_text(p->r, 0, i++, text, (size_t)n);
    }
    push_finish(p->r, 0, FINISH_LENGTH);
    request_unref(p->r);
    return NULL;
}

static void nothing_is_lost_between_two_threads(void **state)
{
    (void)state;
    for (int patient = 0; patient < 2; patient++) {
        struct pipe p = {.r = make(1, 32)};
        pthread_mutex_init(&p.lock, NULL);
        pthread_cond_init(&p.woken, NULL);
        request_set_wake(p.r, wake_up, &p);
        request_ref(p.r);
        pthread_t t;
        pthread_create(&t, NULL, produce, &p);
        int32_t next = 0;
        for (bool over = false; !over;) {
            struct event e;
            while (request_pop(p.r, &e)) {
                over = e.kind == EVENT_FINISH;
                char text[32];
                if (over) break;
                assert_int_equal(e.sample.id, next++);
                memcpy(text, e.text, e.text_n);
                text[e.text_n] = 0;
                assert_int_equal(atoi(text), e.sample.id);
            }
            if (over || request_wait(p.r, patient)) continue;
            pthread_mutex_lock(&p.lock);
            while (!p.awake) pthread_cond_wait(&p.woken, &p.lock);
            p.awake = false;
            pthread_mutex_unlock(&p.lock);
        }
        assert_int_equal(next, MANY);
        request_set_wake(p.r, NULL, NULL);
        request_unref(p.r);
        pthread_join(t, NULL);
    }
}

/* ---- the mailbox ---- */

static void the_mailbox_turns_away_what_would_wait_too_long_a_line(void **state)
{
    (void)state;
    struct mailbox m;
    struct err err;
    assert_int_equal(mailbox_open(&m, 2, 4, &err), 0);
    struct request *one = make(1, 1), *four = make(4, 1);

    /* four can run at once, though only two may wait */
    for (int i = 0; i < 4; i++) assert_int_equal(mailbox_post(&m, one), 0);
    assert_int_equal(mailbox_post(&m, one), -EBUSY);
    for (int i = 0; i < 4; i++) {
        assert_ptr_equal(mailbox_take(&m), one);
        mailbox_started(&m);
    }
    assert_null(mailbox_take(&m));
    assert_int_equal(mailbox_post(&m, four), 0);
    assert_int_equal(mailbox_post(&m, one), 0);
    assert_int_equal(mailbox_post(&m, one), -EBUSY);
    assert_int_equal(mailbox_waiting(&m), 2);
    assert_ptr_equal(mailbox_take(&m), four);
    assert_ptr_equal(mailbox_take(&m), one);
    mailbox_left(&m, 4, false);
    assert_int_equal(mailbox_waiting(&m), 1);

    mailbox_shut(&m);
    assert_int_equal(mailbox_post(&m, one), -ESHUTDOWN);
    assert_false(mailbox_over(&m));
    mailbox_left(&m, 1, false);
    for (int i = 0; i < 4; i++) mailbox_left(&m, 1, true);
    assert_true(mailbox_over(&m));
    mailbox_close(&m);
    request_unref(one);
    request_unref(four);
}

static void *poke(void *arg)
{
    mailbox_poke(arg);
    return NULL;
}

static void a_wait_ends_by_a_poke_a_post_or_in_time(void **state)
{
    (void)state;
    struct mailbox m;
    struct err err;
    assert_int_equal(mailbox_open(&m, 2, 4, &err), 0);
    mailbox_wait(&m, 1000000);
    pthread_t t;
    pthread_create(&t, NULL, poke, &m);
    mailbox_wait(&m, -1);
    pthread_join(t, NULL);
    struct request *one = make(1, 1);
    assert_int_equal(mailbox_post(&m, one), 0);
    mailbox_wait(&m, -1);
    assert_ptr_equal(mailbox_take(&m), one);
    mailbox_left(&m, 1, false);
    mailbox_close(&m);
    request_unref(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_come_out_as_they_went_in),
        cmocka_unit_test(a_full_outbox_says_so_and_still_takes_every_last_event),
        cmocka_unit_test(text_stays_valid_until_the_next_pop),
        cmocka_unit_test(wake_is_called_once_for_each_wait_that_found_nothing),
        cmocka_unit_test(
            a_patient_consumer_is_woken_by_the_end_or_before_it_is_in_the_way),
        cmocka_unit_test(a_push_takes_no_memory),
        cmocka_unit_test(nothing_is_lost_between_two_threads),
        cmocka_unit_test(the_mailbox_turns_away_what_would_wait_too_long_a_line),
        cmocka_unit_test(a_wait_ends_by_a_poke_a_post_or_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
