/* Any traffic, three bytes an act, with a store below or without, with drafts or without: the
 * scheduler keeps its invariants, and whatever came ends when no more comes. */
#include "tests/server/sched_store.h"

#include <stdlib.h>

static void must(bool holds)
{
    if (!holds) abort();
}

/* A token was sampled; false: it was the last. */
static bool go_on(struct sched *s, uint32_t seq)
{
    const struct sched_seq *q = &s->seqs[seq];
    if (q->n_known + 1 < s->o.capacity && q->n_known % 7 != 0) {
        sched_append(s, seq);
        return true;
    }
    sched_end(s, seq);
    return false;
}

/* How many of its drafts are accepted is as good as by chance. */
static void take_drafts(struct sched *s, const struct sched_item *it)
{
    struct sched_item row = {.seq = it->seq, .from = it->from, .n = 1};
    uint32_t end = it->from + 1 + (it->from * 5 + it->seq) % (it->n_draft + 1);
    do sched_computed(s, &row);
    while (go_on(s, it->seq) && ++row.from < end);
    sched_drafted(s, it->seq);
}

static uint32_t find(void *arg, uint32_t seq, uint32_t cost, uint32_t most)
{
    const struct sched *s = arg;
    must(most > 0 && cost <= 65536);
    return s->seqs[seq].n_known * 3 % (most + 1);
}

static void step(struct sched *s, uint64_t *now, uint64_t ns)
{
    const struct sched_step *p = sched_plan(s, *now);
    for (uint32_t i = 0; i < p->n_items; i++) {
        const struct sched_item *it = &p->items[i];
        if (it->n_draft > 0) {
            take_drafts(s, it);
            continue;
        }
        sched_computed(s, it);
        if (s->seqs[it->seq].n_computed == s->seqs[it->seq].n_known) go_on(s, it->seq);
    }
    for (uint32_t i = 0; i < s->o.max_running; i++)
        if (s->seqs[i].state == SEQ_ENDED) sched_free(s, i);
    for (uint32_t i = 0; i < s->o.max_jobs; i++)
        if (s->jobs[i].used && s->jobs[i].n_ended == s->jobs[i].n_choices)
            sched_remove(s, i);
    *now += ns;
    sched_measured(s, ns);
    must(sched_check(s));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct backend *b;
    struct kv_pool kv;
    struct sched s;
    const struct backend_options bo = {
        .threads = 1, .cpu_path = "portable", .limits = {64, 8, 64, 16, 1, 64}};
    const struct kv_shape shape = {1, 1, 2, DTYPE_F32};
    must(backend_open(&b, "cpu", &bo, NULL) == 0);
    must(kv_pool_open(&kv, b, &shape, 12, NULL) == 0);
    const struct sched_options o = {
        .kv = &kv,
        .capacity = 192,
        .max_running = 4,
        .max_jobs = 8,
        .step_tokens = 28,
        .max_logits = 12,
        .step_ns = 50000000,
        .max_wait_ns = 1000000000,
        .draft = {&s, size > 0 && data[0] & 2 ? find : NULL, 20, 6},
    };
    must(sched_open(&s, &o, NULL) == 0);
    bool stores = size > 0 && data[0] & 1;
    struct sched_world_store store;
    if (stores) store_open(&store, &s, &kv, data[0]);

    uint64_t now = 1;
    for (; size >= 3; data += 3, size -= 3) {
        if (stores) store_step(&store, now);
        uint32_t job = data[1] % 8;
        bool there = s.jobs[job].used;
        switch (data[0] % 5) {
        case 0:
            (void)sched_add(&s, 1 + data[1] % 191, 1 + data[2] % 3, data[2] & 8, now);
            break;
        case 1:
            if (there) sched_pause(&s, job, data[2] & 1, data[2] % 5);
            break;
        case 2:
            if (there && data[2] % 8 == 0) sched_remove(&s, job);
            break;
        default: step(&s, &now, (uint64_t)(data[1] * 256 + data[2]) * 100000);
        }
    }
    for (uint32_t i = 0; i < 8; i++)
        if (s.jobs[i].used) sched_pause(&s, i, false, 3);
    for (int i = 0; s.oldest != SCHED_NONE; i++, must(i < 20000)) {
        if (stores) store_step(&store, now);
        step(&s, &now, 10000000);
    }
    if (stores) store_close(&store);
    must(kv.n_free == 12);
    sched_close(&s);
    kv_pool_close(&kv);
    backend_close(b);
    return 0;
}
