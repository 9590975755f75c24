/* The scheduler in virtual time: no model, no thread; a step takes what the test says. */
#include "server/sched.h"
#include "tests/allocs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS UINT64_C(1000000)

struct world {
    struct backend *backend;
    struct kv_pool kv;
    struct sched s;
    uint64_t now;
    uint32_t n_rows[64], max_tokens[64];  // by job
    uint32_t replied[64];                 // tokens, of all choices
    uint64_t first_row[64], last_row[64];
    uint32_t steps, put_back;
};

static void open_world(struct world *w, uint32_t blocks, struct sched_options o)
{
    struct err err;
    struct backend_options b = {
        .threads = 1, .cpu_path = "portable", .limits = {64, 8, 64, 16, 1}};
    struct kv_shape shape = {1, 1, 2, DTYPE_F32};
    *w = (struct world){.now = 1000 * MS};
    assert_int_equal(backend_open(&w->backend, "cpu", &b, &err), 0);
    assert_int_equal(kv_pool_open(&w->kv, w->backend, &shape, blocks, &err), 0);
    o.kv = &w->kv;
    if (!o.capacity) o.capacity = blocks * KV_BLOCK_TOKENS;
    if (!o.max_jobs) o.max_jobs = 64;
    if (!o.max_logits) o.max_logits = o.max_running;
    if (!o.step_ns) o.step_ns = 50 * MS;
    if (!o.max_wait_ns) o.max_wait_ns = 60000 * MS;
    assert_int_equal(sched_open(&w->s, &o, &err), 0);
}

static void close_world(struct world *w)
{
    sched_close(&w->s);
    assert_int_equal(w->kv.n_free, w->kv.mem.n_blocks);
    kv_pool_close(&w->kv);
    backend_close(w->backend);
}

static uint32_t add(struct world *w, uint32_t prompt, uint32_t choices, uint32_t max)
{
    uint32_t j = sched_add(&w->s, prompt, choices, false, w->now);
    assert_int_not_equal(j, SCHED_NONE);
    w->max_tokens[j] = max;
    w->n_rows[j] = w->replied[j] = 0;
    w->first_row[j] = w->last_row[j] = 0;
    return j;
}

/* Compute what is planned: every rule that holds for all plans is checked here. */
static const struct sched_step *step(struct world *w, uint64_t ns)
{
    struct sched *s = &w->s;
    const struct sched_step *p = sched_plan(s, w->now);
    uint32_t rows = 0, logits = 0, ended[16], n_ended = 0;
    assert_true(p->n_rows <= s->o.step_tokens && p->n_items <= s->o.max_running);
    w->now += ns;
    for (uint32_t i = 0; i < p->n_items; i++) {
        struct sched_item it = p->items[i];
        struct sched_seq *q = &s->seqs[it.seq];
        uint32_t j = q->job;
        assert_true(q->state == SEQ_RUNNING && it.n > 0 && it.from == q->n_computed);
        assert_true(it.from + it.n <= q->n_known);
        assert_true(q->table.n_blocks >= kv_blocks_for(it.from + it.n));
        assert_false(s->jobs[j].paused);
        rows += it.n;
        logits += it.from + it.n - it.logits_from;
        w->n_rows[j] += it.n;
        if (!w->first_row[j]) w->first_row[j] = w->now;
        w->last_row[j] = w->now;
        sched_computed(s, &it);
        if (q->n_computed < q->n_known) continue;
        assert_true(it.logits_from < it.from + it.n);
        w->replied[j]++;
        if (q->n_known - s->jobs[j].n_prompt + 1 >= w->max_tokens[j]) {
            sched_end(s, it.seq);
            ended[n_ended++] = it.seq;
        } else {
            sched_append(s, it.seq);
        }
    }
    assert_true(p->n_started <= s->o.max_running);
    for (uint32_t i = 0; i < n_ended; i++) {
        uint32_t j = s->seqs[ended[i]].job;
        sched_free(s, ended[i]);
        bool over = s->jobs[j].n_ended == s->jobs[j].n_choices;
        if (over && s->jobs[j].first_seq == SCHED_NONE) sched_remove(s, j);
    }
    assert_int_equal(rows, p->n_rows);
    assert_true(logits <= s->o.max_logits);
    sched_measured(s, ns);
    assert_true(sched_check(s));
    w->steps++;
    w->put_back += p->n_put_back;
    return p;
}

static void finish_all(struct world *w, uint64_t ns)
{
    for (uint32_t i = 0; w->s.oldest != SCHED_NONE; i++) {
        assert_true(i < 1000000);
        assert_true(step(w, ns)->n_rows > 0);
    }
}

static void
one_request_is_prefilled_in_one_step_and_then_gives_a_token_a_step(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, (struct sched_options){.max_running = 4, .step_tokens = 128});
    uint32_t j = add(&w, 100, 1, 5);
    assert_int_equal(step(&w, MS)->n_rows, 100);
    for (int i = 0; i < 4; i++) assert_int_equal(step(&w, MS)->n_rows, 1);
    assert_int_equal(w.s.oldest, SCHED_NONE);
    assert_int_equal(w.replied[j], 5);
    assert_int_equal(step(&w, MS)->n_rows, 0);
    close_world(&w);
}

static void a_long_prompt_never_stops_a_running_reply(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4096, (struct sched_options){.max_running = 4, .step_tokens = 1024});
    uint32_t stream = add(&w, 10, 1, 2000);
    step(&w, MS);
    uint32_t big = add(&w, 40000, 1, 1);
    uint64_t worst = 0;
    while (w.s.jobs[big].used) {
        const struct sched_step *p = sched_plan(&w.s, w.now);
        uint32_t before = w.replied[stream];
        /* A token of the prompt takes 1 ms, so that about 50 fit. */
        uint64_t ns = MS / 2 + (p->n_rows - p->n_decode) * MS;
        step(&w, ns);
        assert_int_equal(w.replied[stream], before + 1);
        if (w.steps > 40 && ns > worst) worst = ns;
    }
    assert_true(worst <= 60 * MS);
    assert_int_equal(w.n_rows[big], 40000);
    close_world(&w);
}

static void prefill_never_falls_below_its_least_however_slow_replies_are(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4096, (struct sched_options){.max_running = 4, .step_tokens = 1024});
    add(&w, 10, 1, 1000);
    step(&w, MS);
    add(&w, 30000, 1, 1);
    for (int i = 0; i < 20; i++) {
        const struct sched_step *p = step(&w, 5000 * MS);
        assert_true(p->n_rows >= 1 + SCHED_MIN_CHUNK);
    }
    /* A step of replies alone takes 200 ms; with prefill, 0.1 ms more a token. */
    uint32_t most = 0;
    for (int i = 0; i < 400; i++) {
        const struct sched_step *p = sched_plan(&w.s, w.now);
        uint32_t rows = p->n_rows;
        if (rows > most) most = rows;
        w.s.decode_ns = 200.0 * MS;
        step(&w, 200 * MS + (rows - p->n_decode) * (MS / 10));
        if (w.s.youngest == w.s.oldest) break;
    }
    assert_true(most > 100);
    close_world(&w);
}

static void
short_prompts_do_not_wait_for_a_long_one_nor_the_long_one_for_them(void **state)
{
    (void)state;
    for (uint32_t tokens = 24; tokens <= 512; tokens *= 4) {
        struct world w;
        open_world(&w, 4096,
                   (struct sched_options){.max_running = 8, .step_tokens = tokens});
        uint32_t big = add(&w, 10000, 1, 1), worst = 0;
        while (w.s.jobs[big].used) {
            uint32_t s = add(&w, 40, 1, 1), from = w.steps;
            while (w.s.jobs[s].used) step(&w, MS);
            if (w.steps - from > worst) worst = w.steps - from;
        }
        /* half of a step, or every second one, of whole chunks: a quarter at least */
        assert_true(worst <= 40 / (tokens / 4) + 3);
        assert_true(w.steps <= 10000 / (tokens / 4) + 3);
        finish_all(&w, MS);
        close_world(&w);
    }
}

static void choices_share_the_prompt_and_its_blocks(void **state)
{
    (void)state;
    for (uint32_t prompt = 1; prompt < 70; prompt++) {
        struct world w;
        open_world(&w, 64,
                   (struct sched_options){.max_running = 8, .step_tokens = 128});
        uint32_t j = add(&w, prompt, 4, 20);
        step(&w, MS);
        step(&w, MS);
        if (prompt == 64) {
            /* three full ones shared, and one each for the last token of the prompt
             * and what follows: the first choice has begun a new one */
            assert_int_equal(w.kv.mem.n_blocks - w.kv.n_free, 3 + 4 + 1);
        }
        finish_all(&w, MS);
        assert_int_equal(w.replied[j], 4 * 20);
        /* the prompt once, its last token thrice more, and the replies but for their last */
        assert_int_equal(w.n_rows[j], prompt + 3 + 4 * 19);
        close_world(&w);
    }
}

static void a_prompt_is_computed_once_though_replies_end_at_once(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, (struct sched_options){.max_running = 8, .step_tokens = 128});
    uint32_t j = add(&w, 500, 4, 1);
    finish_all(&w, MS);
    assert_int_equal(w.n_rows[j], 500 + 3);
    assert_int_equal(w.replied[j], 4);
    close_world(&w);
}

static void a_job_of_more_choices_than_places_ends_too(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, (struct sched_options){.max_running = 3, .step_tokens = 128});
    add(&w, 5, 1, 30);
    uint32_t j = add(&w, 40, 8, 10);
    finish_all(&w, MS);
    assert_int_equal(w.replied[j], 80);
    close_world(&w);
}

static void what_the_pool_just_holds_runs_to_its_end(void **state)
{
    (void)state;
    const uint32_t prompts[] = {1007, 1008, 1009, 1022, 1023};
    for (size_t i = 0; i < ARRAY_LEN(prompts); i++) {
        struct world w;
        open_world(&w, 64,
                   (struct sched_options){.max_running = 4, .step_tokens = 256});
        uint32_t max = 1024 - prompts[i];
        uint32_t big = add(&w, prompts[i], 1, max), small = add(&w, 4, 1, 8);
        finish_all(&w, MS);
        assert_int_equal(w.replied[big], max);
        assert_int_equal(w.replied[small], 8);
        close_world(&w);
    }
}

static void the_youngest_gives_way_and_everyone_ends(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, (struct sched_options){.max_running = 8, .step_tokens = 64});
    uint32_t j[6];
    for (int i = 0; i < 6; i++) j[i] = add(&w, 20, 1, 200);
    while (w.s.jobs[j[0]].used) {
        step(&w, MS);
        /* the oldest has lost nothing */
        assert_true(w.n_rows[j[0]] == w.replied[j[0]] + 19);
    }
    assert_true(w.put_back > 0);
    finish_all(&w, MS);
    for (int i = 0; i < 6; i++) assert_int_equal(w.replied[j[i]], 200);
    close_world(&w);
}

static void one_whose_client_does_not_read_gives_way_first(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, (struct sched_options){.max_running = 8, .step_tokens = 64});
    uint32_t old = add(&w, 100, 1, 100), young = add(&w, 20, 1, 200);
    step(&w, MS);
    step(&w, MS);
    sched_pause(&w.s, old, true, 0);
    while (w.s.jobs[young].used) step(&w, MS);
    assert_int_equal(w.replied[young], 200);
    assert_int_equal(w.put_back, 1);
    sched_pause(&w.s, old, false, 0);
    finish_all(&w, MS);
    assert_int_equal(w.replied[old], 100);
    close_world(&w);
}

/* Four small ones at a time, for ever; how long until the big one starts. */
static uint64_t wait_of_the_big_one(struct world *w, uint32_t *overtakers)
{
    uint32_t small[4], big = SCHED_NONE;
    for (int i = 0; i < 4; i++) small[i] = add(w, 300, 1, 20 + 10 * (uint32_t)i);
    for (int i = 0; i < 3; i++) step(w, 10 * MS);
    big = add(w, 1100, 1, 8);
    uint64_t came = w->now;
    for (int n = 0; !w->first_row[big]; n++) {
        assert_true(n < 100000);
        for (int i = 0; i < 4; i++) {
            if (w->s.jobs[small[i]].used) continue;
            small[i] = add(w, 200, 1, 20 + 10 * (uint32_t)i);
            *overtakers += 1;
        }
        step(w, 10 * MS);
    }
    return w->first_row[big] - came;
}

static void a_big_one_is_passed_for_a_bounded_time_only(void **state)
{
    (void)state;
    struct world w;
    uint32_t overtakers = 0;
    open_world(&w, 80, (struct sched_options){.max_running = 8, .step_tokens = 1024});
    uint64_t waited = wait_of_the_big_one(&w, &overtakers);
    assert_true(overtakers > 4);
    assert_true(waited >= SCHED_PASS_NS && waited <= SCHED_BUMP_NS + 100 * MS);
    finish_all(&w, 10 * MS);
    close_world(&w);
}

static void younger_replies_are_put_back_for_one_that_waited_long(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, (struct sched_options){.max_running = 8, .step_tokens = 1024});
    uint32_t first = add(&w, 600, 1, 10);
    step(&w, 10 * MS);
    uint32_t big = add(&w, 800, 1, 8), endless = add(&w, 20, 1, 300);
    while (!w.first_row[big]) step(&w, 100 * MS);
    assert_false(w.s.jobs[first].used);
    assert_true(w.s.jobs[endless].used);
    finish_all(&w, 10 * MS);
    assert_int_equal(w.replied[endless], 300);
    close_world(&w);
}

static void prompt_scores_keep_to_the_rows_of_logits_and_the_readers_room(void **state)
{
    (void)state;
    struct world w;
    open_world(
        &w, 256,
        (struct sched_options){.max_running = 4, .step_tokens = 256, .max_logits = 12});
    uint32_t other = add(&w, 900, 1, 50);
    uint32_t j = sched_add(&w.s, 300, 2, true, w.now);
    w.max_tokens[j] = 3;
    w.n_rows[j] = w.replied[j] = 0;
    for (uint32_t scored = 0; w.s.jobs[j].used;) {
        if (w.s.jobs[j].n_scored < 100)
            sched_pause(&w.s, j, false, 5);
        else
            sched_pause(&w.s, j, false, 100);
        bool low = w.s.jobs[j].n_scored < 100;
        step(&w, MS);
        if (!w.s.jobs[j].used) break;
        assert_true(w.s.jobs[j].n_scored - scored <= (low ? 5u : 12u));
        scored = w.s.jobs[j].n_scored;
    }
    assert_int_equal(w.replied[j], 6);
    finish_all(&w, MS);
    assert_int_equal(w.replied[other], 50);
    close_world(&w);
}

static void waiting_too_long_for_a_start_is_told(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64,
               (struct sched_options){
                   .max_running = 1, .step_tokens = 64, .max_wait_ns = 500 * MS});
    add(&w, 10, 1, 500);
    uint32_t late = add(&w, 10, 1, 5);
    while (w.now < 1500 * MS) {
        assert_int_equal(sched_expired(&w.s, w.now), SCHED_NONE);
        step(&w, MS);
    }
    assert_int_equal(sched_expired(&w.s, w.now), late);
    sched_remove(&w.s, late);
    finish_all(&w, MS);
    close_world(&w);
}

/* Anything may happen at any time; all that is wanted is what sched_check() says, that
 * something always moves, and that all end. */
static void random_traffic_keeps_every_invariant_and_ends(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 60; seed++) {
        struct world w;
        srand(seed);
        uint32_t blocks = 8 + (uint32_t)rand() % 60;
        open_world(&w, blocks,
                   (struct sched_options){.max_running = 1 + (uint32_t)rand() % 8,
                                          .step_tokens = 24 + (uint32_t)rand() % 100,
                                          .max_logits = 8 + (uint32_t)rand() % 20,
                                          .max_jobs = 12});
        uint32_t capacity = w.s.o.capacity;
        for (int i = 0; i < 1500; i++) {
            if (rand() % 4 == 0) {
                uint32_t prompt = 1 + (uint32_t)rand() % (capacity - 1);
                if (rand() % 3) prompt = 1 + prompt % 30;
                uint32_t j = sched_add(&w.s, prompt, 1 + (uint32_t)rand() % 3,
                                       rand() % 4 == 0, w.now);
                if (j != SCHED_NONE)
                    w.max_tokens[j] = 1 + (uint32_t)rand() % (capacity - prompt);
            }
            uint32_t j = (uint32_t)rand() % 12;
            if (w.s.jobs[j].used && rand() % 30 == 0) sched_remove(&w.s, j);
            if (w.s.jobs[j].used)
                sched_pause(&w.s, j, rand() % 3 == 0, (uint32_t)rand() % 5);
            step(&w, (uint64_t)(rand() % 300) * MS);
        }
        for (uint32_t j = 0; j < 12; j++)
            if (w.s.jobs[j].used) sched_pause(&w.s, j, false, 7);
        finish_all(&w, 10 * MS);
        assert_int_equal(w.kv.n_free, blocks);
        close_world(&w);
    }
}

static void a_plan_takes_no_memory(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, (struct sched_options){.max_running = 8, .step_tokens = 64});
    unsigned long before = allocs_so_far();
    for (int i = 0; i < 6; i++) add(&w, 20, 2, 100);
    finish_all(&w, MS);
    assert_int_equal(allocs_so_far(), before);
    close_world(&w);
}

static void impossible_options_are_refused_with_the_numbers(void **state)
{
    (void)state;
    struct world w;
    struct err err;
    open_world(&w, 16, (struct sched_options){.max_running = 8, .step_tokens = 64});
    struct sched s;
    struct sched_options o = w.s.o;
    o.step_tokens = 20;
    assert_int_equal(sched_open(&s, &o, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "at least 24"));
    o = w.s.o;
    o.capacity = 16 * 16 + 1;
    assert_int_equal(sched_open(&s, &o, &err), -EINVAL);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            one_request_is_prefilled_in_one_step_and_then_gives_a_token_a_step),
        cmocka_unit_test(a_long_prompt_never_stops_a_running_reply),
        cmocka_unit_test(prefill_never_falls_below_its_least_however_slow_replies_are),
        cmocka_unit_test(
            short_prompts_do_not_wait_for_a_long_one_nor_the_long_one_for_them),
        cmocka_unit_test(choices_share_the_prompt_and_its_blocks),
        cmocka_unit_test(a_prompt_is_computed_once_though_replies_end_at_once),
        cmocka_unit_test(a_job_of_more_choices_than_places_ends_too),
        cmocka_unit_test(what_the_pool_just_holds_runs_to_its_end),
        cmocka_unit_test(the_youngest_gives_way_and_everyone_ends),
        cmocka_unit_test(one_whose_client_does_not_read_gives_way_first),
        cmocka_unit_test(a_big_one_is_passed_for_a_bounded_time_only),
        cmocka_unit_test(younger_replies_are_put_back_for_one_that_waited_long),
        cmocka_unit_test(prompt_scores_keep_to_the_rows_of_logits_and_the_readers_room),
        cmocka_unit_test(waiting_too_long_for_a_start_is_told),
        cmocka_unit_test(random_traffic_keeps_every_invariant_and_ends),
        cmocka_unit_test(a_plan_takes_no_memory),
        cmocka_unit_test(impossible_options_are_refused_with_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
