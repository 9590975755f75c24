/* test_cuda_best.c - the best of rows of logits, found where they were computed, in whichever
 * order threads go.
 */
#include "tests/cuda_on_cpu/sanitizers.h"
#include "tests/cuda_on_cpu/standin.h"
#include "tests/kernels/best_cases.h"
#include "tests/kernels/fixture_cuda.h"

static void in_any_order_of_threads_they_are_those_of_a_plain_search(void **state)
{
    (void)state;
    /* Under TSan, where a barrier of 512 threads takes a millisecond, a third of them. */
    const uint32_t parts = (STANDIN_SHUFFLED + 1) * (TSAN ? 3 : 1);
    struct device d = open_device();
    for (int order = STANDIN_FORWARD; order <= STANDIN_SHUFFLED; order++) {
        if (standin_schedule)
            standin_schedule(STANDIN_RANDOM, (enum standin_threads)order, 7);
        else if (order > STANDIN_FORWARD)
            break;  // a real device has its own
        check_ranking(d.b, (uint32_t)order, parts);
    }
    close_device(&d);
}

static void only_rows_that_are_asked_for_whole_come_to_the_host(void **state)
{
    (void)state;
    static struct ranking t;
    enum { ROWS = 9, WORDS = 1000 };
    struct device d = open_device();
    struct standin_counts before, after;
    float *w = new_row(TIES, WORDS, 3);
    ranking_open(&t, d.b, w, WORDS);
    for (uint32_t i = 0; i < ROWS * WORDS; i++) t.logits[i] = 77;
    for (uint32_t i = 0; i < ROWS; i++) t.n_best[i] = i % 4 == 1 ? 0 : 1;
    if (standin_count) standin_count(&before);
    ranking_run(&t, w, ROWS, true, WORDS);
    for (uint32_t i = 0; i < ROWS * WORDS; i++)
        if (t.n_best[i / WORDS] > 0) assert_true(t.logits[i] == 77);
    if (standin_count) {
        standin_count(&after);
        assert_int_equal(after.d2h_bytes - before.d2h_bytes,
                         2 * WORDS * sizeof(float) +
                             ROWS * BEST_MOST * sizeof(struct best));
    }
    ranking_close(&t);
    close_device(&d);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_any_order_of_threads_they_are_those_of_a_plain_search),
        cmocka_unit_test(only_rows_that_are_asked_for_whole_come_to_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
