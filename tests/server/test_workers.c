/* Workers: every accepted job runs once, and a full queue refuses. */
#include "server/workers.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

// cmocka needs these before it
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct task {
    struct job job;
    sem_t *gate;  // waited for, where not NULL
    sem_t *begun;
    atomic_uint runs;
};

static void run(struct job *j)
{
    struct task *t = CONTAINER_OF(j, struct task, job);
    if (t->begun) sem_post(t->begun);
    if (t->gate) sem_wait(t->gate);
    atomic_fetch_add(&t->runs, 1);
}

static void every_accepted_job_runs_once_even_at_the_close(void **state)
{
    (void)state;
    struct workers *w;
    struct err err;
    static struct task tasks[1000];
    memset(tasks, 0, sizeof tasks);
    assert_int_equal(workers_open(&w, 3, ARRAY_LEN(tasks), &err), 0);
    for (size_t i = 0; i < ARRAY_LEN(tasks); i++) {
        tasks[i].job.run = run;
        assert_int_equal(workers_submit(w, &tasks[i].job), 0);
    }
    workers_close(w);
    for (size_t i = 0; i < ARRAY_LEN(tasks); i++)
        assert_int_equal(atomic_load(&tasks[i].runs), 1);
}

static void a_full_queue_refuses_and_a_stopped_one_too(void **state)
{
    (void)state;
    struct workers *w;
    struct err err;
    sem_t gate, begun;
    sem_init(&gate, 0, 0);
    sem_init(&begun, 0, 0);
    assert_int_equal(workers_open(&w, 1, 2, &err), 0);
    struct task tasks[4];
    memset(tasks, 0, sizeof tasks);
    for (size_t i = 0; i < ARRAY_LEN(tasks); i++) tasks[i].job.run = run;
    tasks[0].gate = &gate;
    tasks[0].begun = &begun;

    assert_int_equal(workers_submit(w, &tasks[0].job), 0);
    sem_wait(&begun);  // it runs, and queues no more
    assert_int_equal(workers_submit(w, &tasks[1].job), 0);
    assert_int_equal(workers_submit(w, &tasks[2].job), 0);
    assert_int_equal(workers_submit(w, &tasks[3].job), -EBUSY);
    sem_post(&gate);
    workers_stop(w);
    assert_int_equal(workers_submit(w, &tasks[3].job), -EBUSY);
    assert_int_equal(atomic_load(&tasks[2].runs), 1);
    assert_int_equal(atomic_load(&tasks[3].runs), 0);
    workers_close(w);
    sem_destroy(&gate);
    sem_destroy(&begun);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_accepted_job_runs_once_even_at_the_close),
        cmocka_unit_test(a_full_queue_refuses_and_a_stopped_one_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
