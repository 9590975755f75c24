/* test_best.c - the best of a row of logits against a plain search, and the operation that
 * finds them on the CPU.
 */
#include "tests/allocs.h"
#include "tests/kernels/best_cases.h"

static void the_best_are_in_order_and_ties_go_to_the_lowest_id(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(vocabularies) * ROW_KINDS; i++) {
        uint32_t n = vocabularies[i / ROW_KINDS];
        float *x = new_row((enum row_kind)(i % ROW_KINDS), n, i);
        for (uint32_t k = 1; k <= n && k <= BEST_MOST; k += 1 + k / 2) {
            struct best got[BEST_MOST];
            best_of_row(got, k, x, n);
            assert_best(got, x, k, n);
        }
        free(x);
    }
}

static void the_cpu_finds_them_on_every_path_and_any_number_of_threads(void **state)
{
    (void)state;
    for (size_t p = 0; p < ARRAY_LEN(paths) * 2; p++) {
        struct backend *b = open_path(paths[p / 2], 1 + 2 * (p % 2));
        if (!b) continue;
        check_ranking(b, 0, 1);
        backend_close(b);
    }
}

static void finding_them_allocates_nothing(void **state)
{
    (void)state;
    static struct ranking t;
    struct backend *b = open_path("portable", 2);
    float *w = new_row(TIES, 1000, 1);
    ranking_open(&t, b, w, 1000);
    for (uint32_t i = 0; i < 8; i++) t.n_best[i] = 1 + 9 * i;
    ranking_run(&t, w, 8, false, 1000);
    struct err err;
    unsigned long before = allocs_so_far();
    ranking_begin(&t, 8, false, 1000);
    assert_int_equal(backend_finish(b, &err), 0);
    assert_int_equal(allocs_so_far(), before);
    ranking_close(&t);
    backend_close(b);
    free(w);
}

static void more_than_there_are_is_refused(void **state)
{
    (void)state;
    static struct ranking t;
    struct backend *b = open_path("portable", 1);
    float *w = new_row(RANDOM, 100, 1);
    const struct {
        uint32_t n_best, usable;
    } wrong[] = {{BEST_MOST + 1, 100}, {20, 19}, {1, 101}, {0, 0}};
    ranking_open(&t, b, w, 100);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct err err = {{0}};
        t.n_best[0] = wrong[i].n_best;
        ranking_begin(&t, 1, false, wrong[i].usable);
        assert_int_equal(backend_finish(b, &err), -EINVAL);
        assert_non_null(strstr(err.msg, "best"));
    }
    ranking_close(&t);
    backend_close(b);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_are_in_order_and_ties_go_to_the_lowest_id),
        cmocka_unit_test(the_cpu_finds_them_on_every_path_and_any_number_of_threads),
        cmocka_unit_test(finding_them_allocates_nothing),
        cmocka_unit_test(more_than_there_are_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
