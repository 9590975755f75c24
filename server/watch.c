#include "server/watch.h"

#include "kernels/thread.h"
#include "server/clock.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PERIOD_MS 100
#define EVENTS    64

struct watch {
    pthread_mutex_t lock;  // guards the list, the items' own fields and the callbacks
    struct watch_item *first;
    uint32_t count;
    int epoll, stop;
    bool running;
    pthread_t thread;
};

static void forget_client(struct watch *w, struct watch_item *i)
{
    if (!i->awaited) return;
    i->awaited = false;
    epoll_ctl(w->epoll, EPOLL_CTL_DEL, i->fd, NULL);
}

static void expire(struct watch_item *i)
{
    i->deadline = WATCH_NEVER;
    i->evictable = false;
    i->expired(i);
}

static void expire_due(struct watch *w)
{
    uint64_t now = clock_ns();
    pthread_mutex_lock(&w->lock);
    for (struct watch_item *i = w->first; i; i = i->next)
        if (i->deadline <= now) expire(i);
    pthread_mutex_unlock(&w->lock);
}

static void *look(void *arg)
{
    struct watch *w = arg;
    struct pollfd stop = {.fd = w->stop, .events = POLLIN};
    while (poll(&stop, 1, PERIOD_MS) <= 0) {
        watch_poll(w);
        expire_due(w);
    }
    return NULL;
}

int watch_open(struct watch **out, struct err *err)
{
    struct watch *w = calloc(1, sizeof *w);
    if (!w) return err_set(err, -ENOMEM, "no memory to watch connections");
    pthread_mutex_init(&w->lock, NULL);
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = w->epoll < 0 || w->stop < 0 ? -errno : 0;
    if (rc == 0) rc = thread_start(&w->thread, look, w);
    if (rc) {
        watch_close(w);
        return err_set(err, rc, "connections cannot be watched: %s", strerror(-rc));
    }
    w->running = true;
    *out = w;
    return 0;
}

void watch_close(struct watch *w)
{
    if (!w) return;
    if (w->running) {
        eventfd_write(w->stop, 1);
        pthread_join(w->thread, NULL);
    }
    if (w->epoll >= 0) close(w->epoll);
    if (w->stop >= 0) close(w->stop);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void watch_add(struct watch *w, struct watch_item *i)
{
    pthread_mutex_lock(&w->lock);
    i->deadline = WATCH_NEVER;
    i->awaited = i->evictable = false;
    i->prev = NULL;
    i->next = w->first;
    if (w->first) w->first->prev = i;
    w->first = i;
    w->count++;
    pthread_mutex_unlock(&w->lock);
}

void watch_remove(struct watch *w, struct watch_item *i)
{
    pthread_mutex_lock(&w->lock);
    forget_client(w, i);
    if (i->prev)
        i->prev->next = i->next;
    else
        w->first = i->next;
    if (i->next) i->next->prev = i->prev;
    w->count--;
    pthread_mutex_unlock(&w->lock);
}

void watch_deadline(struct watch *w, struct watch_item *i, uint32_t ms, bool evictable)
{
    uint64_t now = clock_ns();
    pthread_mutex_lock(&w->lock);
    i->since = now;
    i->deadline = ms ? now + (uint64_t)ms * 1000000u : WATCH_NEVER;
    i->evictable = evictable;
    pthread_mutex_unlock(&w->lock);
}

void watch_await(struct watch *w, struct watch_item *i)
{
    /* The end of the client's side only: what it may send meanwhile is a next request. */
    struct epoll_event e = {.events = EPOLLRDHUP, .data.ptr = i};
    pthread_mutex_lock(&w->lock);
    if (!i->awaited) i->awaited = epoll_ctl(w->epoll, EPOLL_CTL_ADD, i->fd, &e) == 0;
    pthread_mutex_unlock(&w->lock);
}

void watch_leave(struct watch *w, struct watch_item *i)
{
    pthread_mutex_lock(&w->lock);
    forget_client(w, i);
    pthread_mutex_unlock(&w->lock);
}

void watch_poll(struct watch *w)
{
    struct epoll_event events[EVENTS];
    pthread_mutex_lock(&w->lock);
    for (int n = EVENTS; n == EVENTS;) {
        n = epoll_wait(w->epoll, events, EVENTS, 0);
        for (int k = 0; k < n; k++) {
            struct watch_item *i = events[k].data.ptr;
            forget_client(w, i);
            i->gone(i);
        }
    }
    pthread_mutex_unlock(&w->lock);
}

bool watch_evict(struct watch *w)
{
    pthread_mutex_lock(&w->lock);
    struct watch_item *oldest = NULL;
    for (struct watch_item *i = w->first; i; i = i->next)
        if (i->evictable && (!oldest || i->since < oldest->since)) oldest = i;
    if (oldest) expire(oldest);
    pthread_mutex_unlock(&w->lock);
    return oldest;
}

uint32_t watch_count(struct watch *w)
{
    pthread_mutex_lock(&w->lock);
    uint32_t n = w->count;
    pthread_mutex_unlock(&w->lock);
    return n;
}
