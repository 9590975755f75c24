/* mailbox.h - the door of the engine: a bounded queue of requests, and who is inside.
 *
 * Owns     the queue and the counts by which a request is let in or turned away.
 * Order    requests come out as they went in.
 * Bounds   a request is let in while fewer than max_waiting wait (here, or inside but not
 *          started), or while the choices of all, its own included, can run at once; and
 *          never more than max_waiting + max_choices requests are there at all.
 * Memory   all taken at open.
 * Threads  post, poke, shut and the counts: any.  take, wait, started and left: the engine's.
 */
#ifndef SERVER_MAILBOX_H
#define SERVER_MAILBOX_H

#include "server/request.h"

struct mailbox {
    pthread_mutex_t lock;  // guards all below
    pthread_cond_t some;
    struct request **slots;
    uint32_t cap, head, n;
    uint32_t max_waiting, max_choices;
    uint32_t requests, choices, waiting;  // in the queue or inside
    bool closed, poked;
};

NODISCARD int mailbox_open(struct mailbox *m, uint32_t max_waiting,
                           uint32_t max_choices, struct err *err);
void mailbox_close(struct mailbox *m);  // it must be empty

/* 0; -EBUSY: full; -ESHUTDOWN: mailbox_shut() was called. */
NODISCARD int mailbox_post(struct mailbox *m, struct request *r);
void mailbox_poke(struct mailbox *m);  // end the wait, now or the next one
void mailbox_shut(struct mailbox *m);
uint32_t mailbox_waiting(struct mailbox *m);

struct request *mailbox_take(struct mailbox *m);  // NULL: empty
/* Until something is there or poked; at most timeout_ns, or without end where it is < 0. */
void mailbox_wait(struct mailbox *m, int64_t timeout_ns);
void mailbox_started(struct mailbox *m);  // a request that was let in waits no more
/* A request has left the engine; `started` says whether mailbox_started() was called. */
void mailbox_left(struct mailbox *m, uint32_t n_choices, bool started);
/* Has everybody left, with the door shut? */
bool mailbox_over(struct mailbox *m);

#endif
