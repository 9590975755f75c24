/* sched_world.h - the scheduler in virtual time: no model, no thread; a step takes what
 * the test says.
 *
 * Owns     all it opens.  Errors fail the test.
 * Threads  one.
 */
#ifndef TESTS_SERVER_SCHED_WORLD_H
#define TESTS_SERVER_SCHED_WORLD_H

#include "server/sched.h"

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
    /* of drafts */
    uint32_t drafted, accepted;
    uint32_t cost;  // of a row, when last asked
    int chance;     // of 8, that one is accepted
};

static inline void open_world(struct world *w, uint32_t blocks, struct sched_options o)
{
    struct err err;
    struct backend_options b = {
        .threads = 1, .cpu_path = "portable", .limits = {64, 8, 64, 16, 1, 64}};
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

/* Drafts: whoever is asked has as many as may be, or some. */
static inline uint32_t draft_all(void *arg, uint32_t seq, uint32_t cost, uint32_t most)
{
    struct world *w = arg;
    assert_true(w->s.seqs[seq].state == SEQ_RUNNING && most > 0);
    w->cost = cost;
    return most;
}

static inline uint32_t draft_some(void *arg, uint32_t seq, uint32_t cost, uint32_t most)
{
    return (uint32_t)rand() % (1 + draft_all(arg, seq, cost, most));
}

static inline void close_world(struct world *w)
{
    sched_close(&w->s);
    assert_int_equal(w->kv.n_free, w->kv.mem.n_blocks);
    kv_pool_close(&w->kv);
    backend_close(w->backend);
}

static inline uint32_t add(struct world *w, uint32_t prompt, uint32_t choices,
                           uint32_t max)
{
    uint32_t j = sched_add(&w->s, prompt, choices, false, w->now);
    assert_int_not_equal(j, SCHED_NONE);
    w->max_tokens[j] = max;
    w->n_rows[j] = w->replied[j] = 0;
    w->first_row[j] = w->last_row[j] = 0;
    return j;
}

/* A token of a sequence was sampled; whether it was its last. */
static inline bool reply(struct world *w, uint32_t seq)
{
    struct sched_seq *q = &w->s.seqs[seq];
    uint32_t j = q->job;
    w->replied[j]++;
    bool last = q->n_known - w->s.jobs[j].n_prompt + 1 >= w->max_tokens[j];
    if (last)
        sched_end(&w->s, seq);
    else
        sched_append(&w->s, seq);
    return last;
}

/* Row after row, until chance refuses one; whether the reply ended. */
static inline bool take_drafts(struct world *w, const struct sched_item *it)
{
    struct sched *s = &w->s;
    const struct sched_seq *q = &s->seqs[it->seq];
    bool ended = false;
    assert_true(it->n == 1 + it->n_draft && it->from + 1 == q->n_known);
    assert_int_equal(it->logits_from, it->from);
    for (uint32_t i = 0; !ended; i++) {
        const struct sched_item row = {.seq = it->seq, .from = it->from + i, .n = 1};
        sched_computed(s, &row);
        ended = reply(w, it->seq);
        if (i == it->n_draft || rand() % 8 >= w->chance) break;
        w->accepted += !ended;
    }
    sched_drafted(s, it->seq);
    assert_true(ended || q->table.n_blocks <= kv_blocks_for(q->n_known));
    w->drafted += it->n_draft;
    return ended;
}

/* Compute what is planned: every rule that holds for all plans is checked here. */
static inline const struct sched_step *step(struct world *w, uint64_t ns)
{
    struct sched *s = &w->s;
    const struct sched_step *p = sched_plan(s, w->now);
    uint32_t rows = 0, logits = 0, drafts = 0, ended[16], n_ended = 0;
    assert_true(p->n_rows <= s->o.step_tokens && p->n_items <= s->o.max_running);
    w->now += ns;
    for (uint32_t i = 0; i < p->n_items; i++) {
        struct sched_item it = p->items[i];
        struct sched_seq *q = &s->seqs[it.seq];
        uint32_t j = q->job;
        assert_true(q->state == SEQ_RUNNING && it.n > 0 && it.from == q->n_computed);
        assert_true(it.from + it.n <= q->n_known + it.n_draft);
        assert_true(q->table.n_blocks >= kv_blocks_for(it.from + it.n));
        assert_false(s->jobs[j].paused);
        rows += it.n;
        drafts += it.n_draft;
        logits += it.from + it.n - it.logits_from;
        w->n_rows[j] += it.n;
        if (!w->first_row[j]) w->first_row[j] = w->now;
        w->last_row[j] = w->now;
        if (it.n_draft > 0) {
            if (take_drafts(w, &it)) ended[n_ended++] = it.seq;
            continue;
        }
        sched_computed(s, &it);
        if (q->n_computed < q->n_known) continue;
        assert_true(it.logits_from < it.from + it.n);
        if (reply(w, it.seq)) ended[n_ended++] = it.seq;
    }
    assert_true(p->n_started <= s->o.max_running);
    for (uint32_t i = 0; i < n_ended; i++) {
        uint32_t j = s->seqs[ended[i]].job;
        sched_free(s, ended[i]);
        bool over = s->jobs[j].n_ended == s->jobs[j].n_choices;
        if (over && s->jobs[j].first_seq == SCHED_NONE) sched_remove(s, j);
    }
    assert_int_equal(rows, p->n_rows);
    assert_int_equal(drafts, p->n_draft);
    assert_true(logits <= s->o.max_logits);
    sched_measured(s, ns);
    assert_true(sched_check(s));
    w->steps++;
    w->put_back += p->n_put_back;
    return p;
}

static inline void finish_all(struct world *w, uint64_t ns)
{
    for (uint32_t i = 0; w->s.oldest != SCHED_NONE; i++) {
        assert_true(i < 1000000);
        assert_true(step(w, ns)->n_rows > 0);
    }
}

/* Jobs come, go, and stop being read: at most 12, most with less than `usual` tokens. */
static inline void random_jobs(struct world *w, uint32_t usual)
{
    uint32_t capacity = w->s.o.capacity;
    if (rand() % 4 == 0) {
        uint32_t prompt = 1 + (uint32_t)rand() % (capacity - 1);
        if (rand() % 3) prompt = 1 + prompt % usual;
        if (prompt >= capacity) prompt = capacity - 1;
        uint32_t j =
            sched_add(&w->s, prompt, 1 + (uint32_t)rand() % 3, rand() % 4 == 0, w->now);
        if (j != SCHED_NONE)
            w->max_tokens[j] = 1 + (uint32_t)rand() % (capacity - prompt);
    }
    uint32_t j = (uint32_t)rand() % 12;
    if (w->s.jobs[j].used && rand() % 30 == 0) sched_remove(&w->s, j);
    if (w->s.jobs[j].used) sched_pause(&w->s, j, rand() % 3 == 0, (uint32_t)rand() % 5);
}

/* Anything may happen at any time; all that is wanted is what sched_check() says, that
 * something always moves, and that all end. */
static inline void random_traffic(struct world *w)
{
    for (int i = 0; i < 1500; i++) {
        random_jobs(w, 30);
        step(w, (uint64_t)(rand() % 300) * MS);
    }
    for (uint32_t j = 0; j < 12; j++)
        if (w->s.jobs[j].used) sched_pause(&w->s, j, false, 7);
    finish_all(w, 10 * MS);
}

#endif
