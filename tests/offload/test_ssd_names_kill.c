/* The table of names beside the SSD's blocks, and kill -9. */
#include "tests/offload/names_fixture.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define KILLS 40

/* Of each entry the latest number that a name there had, and the latest one that was deleted
 * and is not owed any more. */
struct told {
    _Atomic uint32_t number[NAMES], deleted[NAMES];
};

/* Of the name there; 0: there is none. */
static uint32_t number_at(const struct tier *t, uint32_t i)
{
    struct kept_name n;
    uint32_t at, number;
    tier_name_at(t, i, &n);
    if (!n.name[0]) return 0;
    if (sscanf(n.name, "n-%u-%u", &at, &number) != 2 || at != i) _exit(5);
    return number;
}

static void name_until_killed(const struct tier_ssd_options *o, uint64_t seed,
                              struct told *told)
{
    struct tier *t;
    struct tier_ssd_found f;
    struct tier_io *none;
    uint32_t has[NAMES], asked[NAMES] = {0};
    if (tier_ssd_open(&t, &f, o, NULL) < 0) _exit(2);
    for (uint32_t i = 0; i < NAMES; i++) has[i] = number_at(t, i);
    for (;;) {
        uint32_t i = (uint32_t)(mix64(&seed) % NAMES);
        char name[NAME_BYTES];
        if (asked[i] == 0 && has[i] && mix64(&seed) % 2) {
            asked[i] = has[i];
            has[i] = 0;
            tier_put_name(t, i, NULL);
        } else if (asked[i] == 0) {
            has[i] = ++told->number[i];
            snprintf(name, sizeof name, "n-%u-%u", i, has[i]);
            struct kept_name n = name_of(name, i);
            tier_put_name(t, i, &n);
        }
        tier_flush(t);
        (void)!tier_reap(t, &none, 1, 1);
        for (i = 0; i < NAMES; i++) {
            snprintf(name, sizeof name, "n-%u-%u", i, asked[i]);
            if (asked[i] == 0 || t->to_erase[name_group(i, name)]) continue;
            told->deleted[i] = asked[i];
            asked[i] = 0;
        }
    }
}

static void kill_while_naming(const struct world *w, uint32_t k, struct told *told)
{
    int status = 0;
    uint64_t random = k;
    pid_t child = fork();
    if (child == 0) name_until_killed(&w->ssd, k, told);
    assert_true(child > 0);
    usleep(2000 + (unsigned)(mix64(&random) % 20000));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void
no_deleted_name_is_found_after_a_kill_and_none_that_was_not_put(void **state)
{
    (void)state;
    struct world w;
    struct told *told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(told != MAP_FAILED);
    uint32_t n = 0, gone = 0;
    world_ssd(&w, "/tmp", 4);
    w.ssd.max_names = NAMES;
    for (uint32_t k = 0; k < KILLS; k++) {
        w.ssd.no_uring = k & 1;
        w.ssd.no_direct = k & 2;
        kill_while_naming(&w, k, told);
        world_start(&w);
        assert_string_equal(w.found.note, "");
        for (uint32_t i = 0; i < NAMES; i++) {
            uint32_t number = number_at(w.tier, i);
            gone += told->deleted[i] > 0;
            if (number == 0) continue;
            n++;
            assert_true(number > told->deleted[i] && number <= told->number[i]);
        }
        world_stop(&w);
    }
    print_message("%d kills: %u names found, %u entries with deletions\n", KILLS, n,
                  gone);
    assert_true(n > KILLS && gone > KILLS);
    munmap(told, sizeof *told);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            no_deleted_name_is_found_after_a_kill_and_none_that_was_not_put),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
