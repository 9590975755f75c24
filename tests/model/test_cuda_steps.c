/* test_cuda_steps.c - what a step on a GPU costs beside its arithmetic: nothing is allocated,
 * decode is replayed, and a step that failed is the last one.
 *
 * Counted by the device that a CPU stands in for; on a real one these tests skip.
 */
#include "tests/allocs.h"
#include "tests/cuda_on_cpu/standin.h"
#include "tests/model/fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define SEQS 5

static struct kv_table tables[SEQS];
static int32_t ids[400];

static void open_model(struct fixture *f)
{
    struct fixture_options o = {
        "tests/golden/models/tiny-smollm2", "cuda", 1, DTYPE_F16, 64, 64, WEIGHT_OWN};
    if (!fixture_open(f, &o)) {
        print_message("skipped: this machine or build has no CUDA\n");
        skip();
    }
    if (!standin_node_memory) {
        fixture_close(f);
        print_message("skipped: a real device does not count its calls\n");
        skip();
    }
    for (int i = 0; i < 400; i++) ids[i] = 1 + i * 7 % 500;
    for (int i = 0; i < SEQS; i++) tables[i] = table_open(25);
}

static void close_model(struct fixture *f)
{
    for (int i = 0; i < SEQS; i++) {
        kv_table_release(&f->kv, &tables[i]);
        free(tables[i].blocks);
    }
    fixture_close(f);
}

/* Position `pos` of the first n sequences. */
static void decode(struct fixture *f, uint32_t n, uint32_t pos)
{
    for (uint32_t i = 0; i < n; i++) step_add(f, &tables[i], ids, pos, pos + 1, pos);
    step_run(f);
}

static void a_step_allocates_nothing_once_its_size_was_run(void **state)
{
    (void)state;
    struct fixture f;
    struct standin_counts before, after;
    open_model(&f);
    for (uint32_t n = 1; n <= SEQS; n++) decode(&f, n, n - 1);
    for (uint32_t i = 0; i < SEQS; i++) kv_table_release(&f.kv, &tables[i]);
    step_add(&f, &tables[0], ids, 0, 40, 39);
    step_run(&f);

    unsigned long host = allocs_so_far();
    standin_count(&before);
    for (uint32_t pos = 40; pos < 60; pos++) decode(&f, 1, pos);
    for (uint32_t i = 1; i < SEQS; i++) {
        step_add(&f, &tables[i], ids, 0, 20, 19);
        step_run(&f);
    }
    standin_count(&after);
    assert_int_equal(after.allocs - before.allocs, 0);
    assert_int_equal(after.frees - before.frees, 0);
    assert_int_equal(allocs_so_far() - host, 0);
    assert_int_equal(after.pageable_async, 0);
    close_model(&f);
}

/* Steps of decode, recorded and replayed, of a prompt, and of both at once. */
static void a_step_waits_for_the_device_once(void **state)
{
    (void)state;
    struct fixture f;
    struct standin_counts before, after;
    uint32_t steps = 0;
    open_model(&f);
    standin_count(&before);
    for (uint32_t pos = 0; pos < 12; pos++, steps++) decode(&f, 1 + pos % 4, pos / 4);
    for (uint32_t from = 0; from < 120; from += 40, steps += 2) {
        step_add(&f, &tables[4], ids, from, from + 39, from + 38);
        step_run(&f);
        step_add(&f, &tables[4], ids, from + 39, from + 40, from + 39);
        step_add(&f, &tables[0], ids, 3 + from / 40, 4 + from / 40, 3 + from / 40);
        step_run(&f);
    }
    standin_count(&after);
    assert_int_equal(after.syncs - before.syncs, steps);
    assert_int_equal(after.pageable_async, before.pageable_async);
    close_model(&f);
}

static void decode_is_replayed_after_the_first_step_of_a_size(void **state)
{
    (void)state;
    struct fixture f;
    struct standin_counts before, after;
    open_model(&f);
    standin_count(&before);
    // Of three sequences and of four: both are padded to four.
    for (uint32_t pos = 0; pos < 10; pos++) decode(&f, 3 + pos % 2, pos);
    standin_count(&after);
    assert_int_equal(after.graph_launches - before.graph_launches, 9);
    // A prompt's chunk is none of decode.
    step_add(&f, &tables[4], ids, 0, 20, 19);
    step_run(&f);
    standin_count(&before);
    assert_int_equal(before.graph_launches, after.graph_launches);
    close_model(&f);
}

static void compute(struct fixture *f, struct kv_table *t, uint32_t from, uint32_t to)
{
    for (uint32_t next; from < to; from = next) {
        next = to - from < 32 ? to : from + 32;
        step_add(f, t, ids, from, next, UINT32_MAX);
        step_run(f);
    }
}

/* Recorded for four rows when the conversations were one token long; replayed for three when
 * one of them is some segments of attention long, over the blocks that its reference had: the
 * row of padding must not have stored anything in them. */
static void a_recorded_step_serves_longer_conversations(void **state)
{
    (void)state;
    struct fixture f;
    open_model(&f);
    uint32_t vocab = f.model.config.vocab, n = 390;
    float *want = malloc(vocab * sizeof *want);
    compute(&f, &tables[4], 0, n - 1);
    step_add(&f, &tables[4], ids, n - 1, n + 1, n);
    memcpy(want, step_run(&f), vocab * sizeof *want);
    kv_table_release(&f.kv, &tables[4]);

    decode(&f, 4, 0);
    compute(&f, &tables[0], 1, n);
    step_add(&f, &tables[0], ids, n, n + 1, n);
    step_add(&f, &tables[1], ids, 1, 2, 1);
    step_add(&f, &tables[2], ids, 1, 2, 1);
    assert_memory_equal(step_run(&f), want, vocab * sizeof *want);
    free(want);
    close_model(&f);
}

/* In a second pool a conversation goes on that is longer than the first one's. */
static void a_recorded_step_serves_no_other_pool(void **state)
{
    (void)state;
    struct fixture f;
    struct kv_pool second;
    struct err err;
    enum { SHORT = 20, LONG = 30 };
    open_model(&f);
    uint32_t vocab = f.model.config.vocab;
    float *want = malloc(vocab * sizeof *want);
    compute(&f, &tables[0], 0, LONG);
    step_add(&f, &tables[0], ids, LONG, LONG + 1, LONG);
    memcpy(want, step_run(&f), vocab * sizeof *want);
    kv_table_release(&f.kv, &tables[0]);
    compute(&f, &tables[1], 0, SHORT);
    step_add(&f, &tables[1], ids, SHORT, SHORT + 1, SHORT);
    step_run(&f);
    kv_table_release(&f.kv, &tables[1]);

    struct kv_shape shape = model_kv_shape(&f.model.config, DTYPE_F16);
    assert_int_equal(kv_pool_open(&second, f.backend, &shape, 64, &err), 0);
    struct kv_pool first = f.kv;
    f.kv = second;
    compute(&f, &tables[2], 0, LONG);
    step_add(&f, &tables[2], ids, LONG, LONG + 1, LONG);
    assert_memory_equal(step_run(&f), want, vocab * sizeof *want);
    kv_table_release(&f.kv, &tables[2]);
    kv_pool_close(&f.kv);
    f.kv = first;
    free(want);
    close_model(&f);
}

static void the_first_failure_is_the_last_step_and_says_what_failed(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = {{0}};
    const float *logits;
    open_model(&f);
    decode(&f, 1, 0);
    standin_fail("kernel:matmul", 3, 719);  // cudaErrorLaunchFailure
    step_add(&f, &tables[0], ids, 1, 2, 1);
    assert_int_equal(model_forward(&f.model, &f.kv, &f.step.batch, &logits, &err),
                     -EIO);
    assert_non_null(strstr(err.msg, "the CUDA device failed while"));
    assert_int_equal(model_forward(&f.model, &f.kv, &f.step.batch, &logits, &err),
                     -EIO);
    assert_non_null(strstr(err.msg, "the CUDA device failed while"));
    step_clear(&f.step);
    close_model(&f);
    standin_reset();
}

static void a_step_for_whose_recording_memory_is_lacking_runs_as_it_is(void **state)
{
    (void)state;
    struct fixture f;
    struct standin_counts before, after;
    open_model(&f);
    standin_count(&before);
    standin_fail("cudaGraphInstantiate", 1, 2);  // cudaErrorMemoryAllocation
    for (uint32_t pos = 0; pos < 5; pos++) decode(&f, 2, pos);
    standin_count(&after);
    assert_int_equal(after.graph_launches - before.graph_launches, 0);
    close_model(&f);
    standin_reset();
}

/* Of one, two, four and five sequences, twice each: so often was a graph launched.  Of five
 * rows the last logits. */
static uint64_t decode_sizes(struct fixture *f, float *logits)
{
    static const uint32_t sizes[] = {1, 2, 4, 5};
    struct standin_counts before, after;
    standin_count(&before);
    for (int i = 0; i < 8; i++) {
        for (uint32_t s = 0; s < sizes[i / 2]; s++)
            step_add(f, &tables[s], ids, 0, 1, 0);
        memcpy(logits, step_run(f), 5 * f->model.config.vocab * sizeof *logits);
    }
    standin_count(&after);
    return after.graph_launches - before.graph_launches;
}

static void
what_is_set_aside_for_recorded_steps_is_kept_and_no_bit_depends_on_it(void **state)
{
    (void)state;
    struct fixture f;
    const size_t node = 1024;
    standin_node_memory(node);
    open_model(&f);
    size_t n = 5 * f.model.config.vocab;
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    assert_int_equal(decode_sizes(&f, want), 4);
    struct backend_recorded r = backend_recorded(f.backend);
    assert_true(r.steps == 4 && !r.full && r.taken <= r.reserve);
    size_t nodes = r.taken / 4 / node;
    assert_true(nodes > 10);
    close_model(&f);

    standin_node_memory(r.reserve * 2 / 5 / nodes);  // two find room
    open_model(&f);
    assert_int_equal(decode_sizes(&f, got), 2);
    r = backend_recorded(f.backend);
    assert_true(r.steps == 2 && r.full && r.taken <= r.reserve);
    assert_memory_equal(got, want, n * sizeof *got);
    free(want);
    free(got);
    close_model(&f);
    standin_node_memory(10 * node);
    assert_int_equal(standin_reset(), 0);
}

static void a_recording_that_fails_is_a_failure_of_the_device(void **state)
{
    (void)state;
    struct fixture f;
    struct err err = {{0}};
    const float *logits;
    open_model(&f);
    standin_fail("cudaGraphInstantiate", 1, 1);  // cudaErrorInvalidValue
    step_add(&f, &tables[0], ids, 0, 1, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(model_forward(&f.model, &f.kv, &f.step.batch, &logits, &err),
                         -EIO);
        assert_non_null(strstr(err.msg, "recording a step"));
    }
    step_clear(&f.step);
    close_model(&f);
    standin_reset();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing_once_its_size_was_run),
        cmocka_unit_test(a_step_waits_for_the_device_once),
        cmocka_unit_test(decode_is_replayed_after_the_first_step_of_a_size),
        cmocka_unit_test(a_recorded_step_serves_longer_conversations),
        cmocka_unit_test(a_recorded_step_serves_no_other_pool),
        cmocka_unit_test(the_first_failure_is_the_last_step_and_says_what_failed),
        cmocka_unit_test(a_step_for_whose_recording_memory_is_lacking_runs_as_it_is),
        cmocka_unit_test(
            what_is_set_aside_for_recorded_steps_is_kept_and_no_bit_depends_on_it),
        cmocka_unit_test(a_recording_that_fails_is_a_failure_of_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
