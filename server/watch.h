/* watch.h - what ends a connection from outside: its client has gone, or its time is up.
 *
 * The HTTP library looks at a socket only while it wants to read or write it.  A
 * connection that waits for the model is looked at by nobody, so its socket is watched
 * here for the other side's end.  A client that closes only its sending half counts as
 * gone: TCP cannot tell the two apart before an answer is written.
 *
 * Owns     an epoll set and a list of items; a thread that looks every 100 ms.
 * Caller   embeds a struct watch_item in its connection, adds it when the socket opens
 *          and removes it before the socket is closed.
 * Calls    gone() and expired() run under the lock of the watch: they return soon, take
 *          no lock that is held around a call of watch_*, and call no watch_* themselves.
 *          After watch_remove() has returned, neither is called any more.
 * Threads  any.
 */
#ifndef SERVER_WATCH_H
#define SERVER_WATCH_H

#include "kernels/base.h"

#define WATCH_NEVER UINT64_MAX

struct watch_item {
    /* set by the caller before watch_add() */
    void (*gone)(struct watch_item *i);
    void (*expired)(struct watch_item *i);
    int fd;
    /* the watch's own */
    uint64_t since;     // when the deadline was set; nanoseconds, monotonic
    uint64_t deadline;  // the same clock
    bool awaited;       // in the epoll set
    bool evictable;
    struct watch_item *prev, *next;
};

struct watch;
NODISCARD int watch_open(struct watch **out, struct err *err);
void watch_close(struct watch *w);  // NULL is fine; no items are left

void watch_add(struct watch *w, struct watch_item *i);
void watch_remove(struct watch *w, struct watch_item *i);

/* expired() is called once when `ms` have passed (0: never); a later call replaces it.
 * evictable: watch_evict() may choose it. */
void watch_deadline(struct watch *w, struct watch_item *i, uint32_t ms, bool evictable);
/* gone() is called once when the client leaves; until watch_leave(). */
void watch_await(struct watch *w, struct watch_item *i);
void watch_leave(struct watch *w, struct watch_item *i);

/* Call gone() for whoever has left by now.  Never blocks longer than the lock is held. */
void watch_poll(struct watch *w);
/* Call expired() of the evictable item whose deadline was set the longest ago: not of the
 * one whose time is up first, or the slow, whose deadlines are late, would push out those
 * who have only just come.  False: none. */
bool watch_evict(struct watch *w);
uint32_t watch_count(struct watch *w);

#endif
