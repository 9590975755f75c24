/* Any traffic, three bytes an act, with a store below or without: the scheduler keeps its
 * invariants, and whatever came ends when no more comes. */
#include "tests/server/sched_store.h"

#include <stdlib.h>

static void must(bool holds)
{
    if (!holds) abort();
}

static void step(struct sched *s, uint64_t *now, uint64_t ns)
{
    const struct sched_step *p = sched_plan(s, *now);
    for (uint32_t i = 0; i < p->n_items; i++) {
        const struct sched_seq *q = &s->seqs[p->items[i].seq];
        sched_computed(s, &p->items[i]);
        if (q->n_computed < q->n_known) continue;
        if (q->n_known + 1 >= s->o.capacity || q->n_known % 7 == 0)
            sched_end(s, p->items[i].seq);
        else
            sched_append(s, p->items[i].seq);
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
        .step_tokens = 24,
        .max_logits = 6,
        .step_ns = 50000000,
        .max_wait_ns = 1000000000,
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
