/* Traces: two formats, strict, with file and line in each complaint. */
#include "server/plan_build.h"
#include "tests/files.h"

// cmocka needs these before it
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEADER                                                                         \
    "session_id,arrival_ms,round_idx,prefix_len,input_len,output_len,wait_after_ms\n"
#define REQUEST(ms, in, out, ids)                                                      \
    "{\"timestamp\": " #ms ", \"input_length\": " #in ", \"output_length\": " #out     \
    ", \"hash_ids\": [" ids "]}\n"

static struct plan_trace read_good(const char *text)
{
    struct plan_trace t = {0};
    struct err err = {{0}};
    int rc = plan_trace_read(&t, "T", text, strlen(text), &err);
    assert_string_equal(err.msg, "");
    assert_int_equal(rc, 0);
    return t;
}

static const uint64_t *ids_of(const struct plan_trace *t, uint32_t turn)
{
    return t->ids + t->turns[turn].first_block;
}

/* How many blocks two turns share, from the first on. */
static uint32_t shared(const struct plan_trace *t, uint32_t a, uint32_t b)
{
    uint32_t n = 0;
    while (n < t->turns[a].n_blocks && n < t->turns[b].n_blocks &&
           ids_of(t, a)[n] == ids_of(t, b)[n])
        n++;
    return n;
}

static void a_next_turn_of_the_jsonl_has_its_parents_prompt_and_reply(void **state)
{
    (void)state;
    struct plan_trace t = read_good(REQUEST(0, 1100, 600, "1, 2, 3")
                                        REQUEST(3000, 1800, 10, "1, 2, 4, 5"));
    assert_int_equal(t.n_turns, 2);
    assert_int_equal(t.n_sessions, 1);
    assert_int_equal(t.turns[0].next, 1);
    assert_true(t.turns[0].first);
    assert_false(t.turns[1].first);
    assert_int_equal(t.turns[1].at, 3 * PLAN_S);
    /* 1100 + 600 tokens, the last of them not computed: three blocks, the third being the
     * reply's in part. */
    assert_int_equal(t.turns[0].n_blocks, 3);
    assert_int_equal(t.turns[1].n_blocks, 3);
    assert_int_equal(shared(&t, 0, 1), 3);
    plan_trace_free(&t);
}

static void a_reply_that_the_next_prompt_lacks_shares_nothing_with_it(void **state)
{
    (void)state;
    struct plan_trace t = read_good(REQUEST(0, 1100, 600, "1, 2, 3")
                                        REQUEST(3000, 1600, 10, "1, 2, 4, 5"));
    assert_int_equal(t.n_sessions, 1);
    assert_int_equal(shared(&t, 0, 1), 2);
    plan_trace_free(&t);
}

static void a_shared_first_block_makes_no_session(void **state)
{
    (void)state;
    struct plan_trace t =
        read_good(REQUEST(0, 600, 5, "7, 8") REQUEST(1, 1500, 5, "7, 9, 10"));
    assert_int_equal(t.n_sessions, 2);
    assert_int_equal(shared(&t, 0, 1), 1);
    plan_trace_free(&t);
}

static void of_two_that_continue_one_the_first_does(void **state)
{
    (void)state;
    struct plan_trace t = read_good(REQUEST(0, 1100, 1, "1, 2, 3") REQUEST(
        1, 1500, 1, "1, 2, 4") REQUEST(2, 1700, 1, "1, 2, 3, 5"));
    assert_int_equal(t.n_sessions, 2);
    assert_int_equal(t.turns[0].next, 1);
    assert_int_equal(shared(&t, 0, 2), 2);
    plan_trace_free(&t);
}

static void an_id_behind_another_prefix_is_another_block(void **state)
{
    (void)state;
    struct plan_trace t =
        read_good(REQUEST(0, 1024, 1, "1, 2") REQUEST(1, 1024, 1, "3, 2"));
    assert_true(ids_of(&t, 0)[1] != ids_of(&t, 1)[1]);
    plan_trace_free(&t);
}

static void a_round_of_the_csv_keeps_the_blocks_before_its_edit(void **state)
{
    (void)state;
    struct plan_trace t = read_good(HEADER "7,100,0,0,1000,600,5000\n"
                                           "7,100,1,1600,20,100,3000\n"
                                           "7,100,2,1030,900,1,-1\r\n"
                                           "9,200,0,0,600,1,-1\n");
    assert_int_equal(t.n_turns, 4);
    assert_int_equal(t.n_sessions, 2);
    assert_int_equal(t.turns[0].at, 100 * PLAN_MS);
    assert_int_equal(t.turns[1].wait, 5 * PLAN_S);
    assert_int_equal(t.turns[1].prompt, 1620);
    assert_int_equal(shared(&t, 0, 1), 3);
    assert_int_equal(t.turns[2].n_blocks, 3);
    assert_int_equal(shared(&t, 1, 2), 2);
    assert_int_equal(shared(&t, 0, 3), 0);
    assert_int_equal(t.turns[2].next, PLAN_NONE);
    plan_trace_free(&t);
}

static void every_malformed_line_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "T is empty"},
        {"nonsense\n", "T line 1 is neither"},
        {HEADER, "T has no request"},
        {HEADER "1,2,0,0,5,5\n", "T line 2 has fewer than 7 fields"},
        {HEADER "\n", "T line 2 has fewer than 7 fields"},
        {HEADER "1,2,0,0,5,5,-1,3\n", "T line 2 has more than 7 fields"},
        {HEADER "1,2,0,0,5,5,-1\n1,2,0,0, 5,5,-1\n", "T line 3: input_len ` 5`"},
        {HEADER "1,-2,0,0,5,5,-1\n", "T line 2: arrival_ms `-2`"},
        {HEADER "1,2,0,0,5,5,-2\n", "T line 2: wait_after_ms `-2`"},
        {HEADER "1,2,0,0,5,5,\n", "T line 2: wait_after_ms ``"},
        {HEADER "1,2,0,0,99999999,5,-1\n", "T line 2: input_len `99999999`"},
        {HEADER "1,2,0,0,99999999999999999999999,5,-1\n", "T line 2: input_len"},
        {HEADER "1,2,0,0,16777216,5,-1\n", "T line 2 has more tokens"},
        {HEADER "1,2,0,0,0,5,-1\n", "T line 2 has no new token"},
        {HEADER "1,2,1,0,5,5,-1\n", "T line 2 begins a session with a round_idx"},
        {HEADER "1,2,0,3,5,5,-1\n", "T line 2 begins a session with a prefix_len"},
        {HEADER "1,2,0,0,5,5,9\n", "T ends after line 2"},
        {HEADER "1,2,0,0,5,5,9\n2,2,1,10,5,5,-1\n", "T line 3 begins another session"},
        {HEADER "1,2,0,0,5,5,9\n1,2,2,10,5,5,-1\n", "T line 3 has a round_idx"},
        {HEADER "1,2,0,0,5,5,9\n1,3,1,10,5,5,-1\n", "T line 3 has another arrival_ms"},
        {HEADER "1,2,0,0,5,5,9\n1,2,1,11,5,5,-1\n", "T line 3 keeps more tokens"},
        {"{\"timestamp\": 1\n", "T line 1:"},
        {REQUEST(1, 5, 5, "1") "\n", "T line 2:"},
        {REQUEST(1, 5, 5, "1") "[]\n", "T line 2: the line must be an object"},
        {REQUEST(5, 5, 5, "1") REQUEST(4, 5, 5, "1"), "T line 2: timestamp is before"},
        {REQUEST(-1, 5, 5, "1"), "T line 1: timestamp must be a whole number"},
        {REQUEST(1.5, 5, 5, "1"), "T line 1: timestamp must be a whole number"},
        {REQUEST(1, 0, 5, ""), "T line 1: input_length is 0"},
        {REQUEST(1, 99999999, 5, "1"), "T line 1: input_length must be"},
        {REQUEST(1, 16777216, 5, "1"), "T line 1: input_length and output_length"},
        {REQUEST(1, 513, 5, "1"), "T line 1: hash_ids has 1 ids, but input_length 513"},
        {REQUEST(1, 512, 5, "1, 2"), "T line 1: hash_ids has 2 ids"},
        {REQUEST(1, 512, 5, "-1"), "T line 1: hash_ids must hold whole numbers"},
        {REQUEST(1, 512, 5, "\"1\""), "T line 1: hash_ids must hold whole numbers"},
        {REQUEST(1, 512, 5, "9223372036854775807"), "T line 1: hash_ids must hold"},
        {"{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 5}\n",
         "T line 1: hash_ids must be an array"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct plan_trace t = {0};
        struct err err = {{0}};
        int rc = plan_trace_read(&t, "T", bad[i].text, strlen(bad[i].text), &err);
        if (rc != -EINVAL || strncmp(err.msg, bad[i].says, strlen(bad[i].says)))
            fail_msg("%s\ngives %d: %s", bad[i].text, rc, err.msg);
        plan_trace_free(&t);
    }
}

static void a_trace_is_thinned_by_whole_sessions(void **state)
{
    (void)state;
    struct plan_trace t = {0};
    struct err err;
    const struct plan_synthetic o = {.conversations = 2000,
                                     .duration = 3600 * PLAN_S,
                                     .seed = 5,
                                     .first_tokens = 800,
                                     .turn_tokens = 60,
                                     .reply_tokens = 200};
    assert_int_equal(plan_trace_make(&t, &o, &err), 0);
    assert_int_equal(t.n_sessions, 2000);
    /* 1 + .27 + .27 * .40 + ... = 1.53 turns each are expected. */
    assert_in_range(t.n_turns, 2800, 3300);
    plan_trace_thin(&t, 30, 1);
    assert_in_range(t.n_sessions, 500, 700);
    for (uint32_t i = 0; i < t.n_sessions; i++) assert_true(t.turns[t.firsts[i]].first);
    uint64_t before = t.turns[0].at;
    plan_trace_spread(&t, 3 * PLAN_S, 1);
    assert_in_range(t.turns[0].at, before, before + 3 * PLAN_S - 1);
    plan_trace_free(&t);
}

static void a_file_is_read_and_a_missing_one_named(void **state)
{
    (void)state;
    char *dir = files_temp_dir(), path[512];
    const char text[] = HEADER "1,2,0,0,5,5,-1\n";
    files_write(dir, "t.csv", text, sizeof text - 1);
    snprintf(path, sizeof path, "%s/t.csv", dir);
    struct plan_trace t = {0};
    struct err err;
    assert_int_equal(plan_trace_load(&t, path, &err), 0);
    assert_int_equal(t.n_turns, 1);
    plan_trace_free(&t);
    files_remove_dir(dir);
    assert_int_equal(plan_trace_load(&t, path, &err), -ENOENT);
    assert_non_null(strstr(err.msg, path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_next_turn_of_the_jsonl_has_its_parents_prompt_and_reply),
        cmocka_unit_test(a_reply_that_the_next_prompt_lacks_shares_nothing_with_it),
        cmocka_unit_test(a_shared_first_block_makes_no_session),
        cmocka_unit_test(of_two_that_continue_one_the_first_does),
        cmocka_unit_test(an_id_behind_another_prefix_is_another_block),
        cmocka_unit_test(a_round_of_the_csv_keeps_the_blocks_before_its_edit),
        cmocka_unit_test(every_malformed_line_is_named),
        cmocka_unit_test(a_trace_is_thinned_by_whole_sessions),
        cmocka_unit_test(a_file_is_read_and_a_missing_one_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
