/* Guesses from a text, and how many of them pay. */
#include "server/lookup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST 70000

static int32_t prompt[MOST], reply[MOST];

/* The text, of which the first n_prompt letters are the prompt. */
static struct lookup_text text_of(const char *letters, uint32_t n_prompt)
{
    uint32_t n = (uint32_t)strlen(letters);
    for (uint32_t i = 0; i < n; i++)
        *(i < n_prompt ? &prompt[i] : &reply[i - n_prompt]) = letters[i];
    return (struct lookup_text){prompt, reply, n_prompt, n - n_prompt};
}

static void the_guess_is_what_followed_the_same_three_tokens_or_two(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t next;
    } cases[] = {
        {"", 0},
        {"a", 0},
        {"aa", 0},
        {"aaa", 2},
        {"abab", 2},
        {"abcd", 0},
        {"xabyab", 3},
        {"abcxabc", 3},
        {"abcxzbcyabc", 3},  // three before the later two
        {"abcxabcyabc", 7},  // of three, the latest
        {"xbcyzbcyqbc", 7},  // of two, the latest
        {"babyab", 3},       // at the very beginning
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t n = (uint32_t)strlen(cases[i].text);
        for (uint32_t at = 0; at <= n; at++) {
            struct lookup_text t = text_of(cases[i].text, at);
            struct lookup l;
            lookup_begin(&l);
            lookup_find(&l, &t);
            assert_int_equal(l.next, cases[i].next);
        }
    }
}

/* What it must find, told the slow way. */
static uint32_t search(const int32_t *x, uint32_t n)
{
    for (uint32_t gram = 3; gram >= 2; gram--)
        for (uint32_t end = n - 1; end >= gram; end--)
            if (memcmp(x + end - gram, x + n - gram, gram * sizeof *x) == 0) return end;
    return 0;
}

static void any_text_is_searched_right_wherever_the_prompt_ends(void **state)
{
    (void)state;
    srand(1);
    for (int round = 0; round < 3000; round++) {
        static int32_t x[200];
        uint32_t n = 3 + (uint32_t)rand() % 197, at = (uint32_t)rand() % (n + 1);
        int kinds = 2 + rand() % 60;
        for (uint32_t i = 0; i < n; i++) x[i] = rand() % kinds;
        memcpy(prompt, x, at * sizeof *x);
        memcpy(reply, x + at, (n - at) * sizeof *x);
        struct lookup l;
        lookup_begin(&l);
        lookup_find(&l, &(struct lookup_text){prompt, reply, at, n - at});
        assert_int_equal(l.next, search(x, n));
    }
}

static void a_search_ends_after_the_latest_tokens_and_some_places(void **state)
{
    (void)state;
    struct lookup l;
    for (uint32_t i = 0; i < MOST; i++) prompt[i] = 1000 + (int32_t)i;
    struct lookup_text t = {prompt, reply, MOST, 2};
    for (uint32_t at = MOST - LOOKUP_SCAN - 2; at < MOST - LOOKUP_SCAN + 6; at++) {
        lookup_begin(&l);
        reply[0] = prompt[at];
        reply[1] = prompt[at + 1];
        lookup_find(&l, &t);
        assert_int_equal(l.next, at + 1 >= MOST + 2 - LOOKUP_SCAN ? at + 2 : 0);
    }

    /* 5 stands everywhere, behind 4 only at the beginning. */
    for (uint32_t places = LOOKUP_TRIES - 2; places < LOOKUP_TRIES + 2; places++) {
        prompt[0] = 4;
        prompt[1] = 5;
        for (uint32_t i = 1; i < places; i++) {
            prompt[2 * i] = 6;
            prompt[2 * i + 1] = 5;
        }
        t = (struct lookup_text){prompt, reply, 2 * places, 2};
        reply[0] = 4;
        reply[1] = 5;
        lookup_begin(&l);
        lookup_find(&l, &t);
        assert_int_equal(l.next, places <= LOOKUP_TRIES ? 2 : 0);
    }
}

static void drafts_go_on_through_themselves_where_the_text_repeats(void **state)
{
    (void)state;
    struct lookup_text t = text_of("xabab", 2);
    struct lookup l;
    lookup_begin(&l);
    lookup_find(&l, &t);
    assert_int_equal(l.next, 3);
    lookup_draft(&l, &t, reply + t.n_reply, 7);
    const char *rest = "abababa";
    for (int i = 0; i < 7; i++) assert_int_equal(reply[t.n_reply + i], rest[i]);
}

/* Append what the guess says, or something else. */
static void grow(struct lookup *l, struct lookup_text *t, bool as_guessed)
{
    int32_t token = 1000000 + (int32_t)t->n_reply;
    if (as_guessed) lookup_draft(l, t, &token, 1);
    reply[t->n_reply++] = token;
    lookup_learn(l, t);
}

static void a_guess_goes_on_while_it_comes_true(void **state)
{
    (void)state;
    struct lookup_text t = text_of("abcdefxab", 7);
    struct lookup l;
    lookup_begin(&l);
    lookup_find(&l, &t);
    for (uint32_t next = 2; next < 7; next++) {
        assert_int_equal(l.next, next);
        grow(&l, &t, true);
    }
    grow(&l, &t, false);
    assert_int_equal(l.next, 0);
    uint32_t share = l.share;
    grow(&l, &t, false);  // nothing was guessed, so nothing is learnt
    assert_int_equal(l.share, share);
}

static void drafts_are_worth_what_their_chance_says(void **state)
{
    (void)state;
    struct lookup l = {.next = 1, .share = LOOKUP_ONE / 2};
    assert_int_equal(lookup_worth(&l, LOOKUP_ONE / 3, 8), 1);
    assert_int_equal(lookup_worth(&l, LOOKUP_ONE / 5, 8), 2);
    assert_int_equal(lookup_worth(&l, LOOKUP_ONE / 9, 8), 3);
    assert_int_equal(lookup_worth(&l, LOOKUP_ONE / 9, 2), 2);
    assert_int_equal(lookup_worth(&l, LOOKUP_ONE / 2, 8), 0);
    l.share = LOOKUP_ONE;
    assert_int_equal(lookup_worth(&l, LOOKUP_ONE - 1, 8), 8);
    assert_int_equal(lookup_worth(&l, LOOKUP_ONE, 8), 0);
    l.next = 0;
    assert_int_equal(lookup_worth(&l, 0, 8), 0);
}

static void what_does_not_come_true_is_not_drafted_and_what_does_is_again(void **state)
{
    (void)state;
    struct lookup_text t = text_of("abcdefghijklmnopqrstuvwxyzab", 26);
    struct lookup l;
    uint32_t cost = LOOKUP_ONE / 6, before = 100;
    lookup_begin(&l);
    assert_int_equal(lookup_worth(&l, cost, 8), 0);
    for (int i = 0; i < 12; i++) {
        l.next = 2;
        uint32_t n = lookup_worth(&l, cost, 8);
        assert_true(n <= before);
        before = n;
        grow(&l, &t, false);
    }
    assert_int_equal(before, 0);
    l.next = 2;
    for (int i = 0; i < 20; i++) {
        uint32_t n = lookup_worth(&l, cost, 8);
        assert_true(n >= before);
        before = n;
        grow(&l, &t, true);
    }
    assert_int_equal(before, 8);
    for (int i = 0; i < 1000; i++) grow(&l, &t, true);
    assert_true(l.share <= LOOKUP_ONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_guess_is_what_followed_the_same_three_tokens_or_two),
        cmocka_unit_test(any_text_is_searched_right_wherever_the_prompt_ends),
        cmocka_unit_test(a_search_ends_after_the_latest_tokens_and_some_places),
        cmocka_unit_test(drafts_go_on_through_themselves_where_the_text_repeats),
        cmocka_unit_test(a_guess_goes_on_while_it_comes_true),
        cmocka_unit_test(drafts_are_worth_what_their_chance_says),
        cmocka_unit_test(what_does_not_come_true_is_not_drafted_and_what_does_is_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
