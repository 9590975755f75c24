/* Watching connections: who has left, whose time is up, who makes room. */
#include "server/watch.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <sys/socket.h>

// cmocka needs these before it
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

struct end {
    struct watch_item item;
    int client;
    atomic_int gone;
    sem_t expired;
};

static void gone(struct watch_item *i)
{
    atomic_fetch_add(&CONTAINER_OF(i, struct end, item)->gone, 1);
}

static void expired(struct watch_item *i)
{
    sem_post(&CONTAINER_OF(i, struct end, item)->expired);
}

static int expiries(struct end *e)
{
    int n;
    sem_getvalue(&e->expired, &n);
    return n;
}

static struct watch *opened(void)
{
    struct watch *w = NULL;
    struct err err;
    assert_int_equal(watch_open(&w, &err), 0);
    return w;
}

static void end_open(struct watch *w, struct end *e)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    *e = (struct end){.item = {.gone = gone, .expired = expired, .fd = pair[0]},
                      .client = pair[1]};
    sem_init(&e->expired, 0, 0);
    watch_add(w, &e->item);
}

static void end_close(struct watch *w, struct end *e)
{
    watch_remove(w, &e->item);
    close(e->item.fd);
    if (e->client >= 0) close(e->client);
    sem_destroy(&e->expired);
}

static void a_client_that_leaves_is_seen_once_by_the_next_look(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        struct watch *w = opened();
        struct end e;
        end_open(w, &e);
        watch_await(w, &e.item);
        assert_int_equal(write(e.client, "more", 4), 4);
        watch_poll(w);
        assert_int_equal(atomic_load(&e.gone), 0);
        if (half) {
            shutdown(e.client, SHUT_WR);
        } else {
            close(e.client);
            e.client = -1;
        }
        watch_poll(w);
        assert_int_equal(atomic_load(&e.gone), 1);
        watch_poll(w);
        assert_int_equal(atomic_load(&e.gone), 1);
        end_close(w, &e);
        watch_close(w);
    }
}

static void who_is_not_awaited_may_leave_unseen(void **state)
{
    (void)state;
    struct watch *w = opened();
    struct end never, no_more;
    end_open(w, &never);
    end_open(w, &no_more);
    watch_await(w, &no_more.item);
    watch_leave(w, &no_more.item);
    shutdown(never.client, SHUT_RDWR);
    shutdown(no_more.client, SHUT_RDWR);
    watch_poll(w);
    assert_int_equal(atomic_load(&never.gone), 0);
    assert_int_equal(atomic_load(&no_more.gone), 0);
    end_close(w, &never);
    end_close(w, &no_more);
    watch_close(w);
}

static void a_deadline_strikes_once_and_a_later_one_replaces_it(void **state)
{
    (void)state;
    struct watch *w = opened();
    struct end soon, later, none;
    end_open(w, &soon);
    end_open(w, &later);
    end_open(w, &none);
    watch_deadline(w, &later.item, 3600000, false);
    watch_deadline(w, &none.item, 3600000, false);
    watch_deadline(w, &none.item, 0, true);
    watch_deadline(w, &soon.item, 1, false);
    sem_wait(&soon.expired);
    watch_deadline(w, &soon.item, 1, false);
    sem_wait(&soon.expired);
    assert_int_equal(expiries(&soon), 0);
    assert_int_equal(expiries(&none), 0);
    assert_int_equal(expiries(&later), 0);
    watch_deadline(w, &later.item, 1, false);
    sem_wait(&later.expired);
    end_close(w, &soon);
    end_close(w, &later);
    end_close(w, &none);
    watch_close(w);
}

static void who_has_been_evictable_for_the_longest_makes_room(void **state)
{
    (void)state;
    struct watch *w = opened();
    struct end busy, first, second;
    end_open(w, &busy);
    end_open(w, &first);
    end_open(w, &second);
    assert_int_equal(watch_count(w), 3);
    assert_false(watch_evict(w));
    watch_deadline(w, &busy.item, 3600000, false);
    watch_deadline(w, &first.item, 3700000, true);
    watch_deadline(w, &second.item, 3650000, true);
    assert_true(watch_evict(w));
    assert_int_equal(expiries(&first), 1);
    assert_true(watch_evict(w));
    assert_int_equal(expiries(&second), 1);
    assert_false(watch_evict(w));
    assert_int_equal(expiries(&busy), 0);
    end_close(w, &busy);
    end_close(w, &first);
    end_close(w, &second);
    assert_int_equal(watch_count(w), 0);
    watch_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_that_leaves_is_seen_once_by_the_next_look),
        cmocka_unit_test(who_is_not_awaited_may_leave_unseen),
        cmocka_unit_test(a_deadline_strikes_once_and_a_later_one_replaces_it),
        cmocka_unit_test(who_has_been_evictable_for_the_longest_makes_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
