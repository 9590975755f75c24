/* engine.h - the engine thread: takes requests, runs steps, publishes tokens.
 *
 * Owns     the scheduler, every running sequence and, while it runs, model and KV pool.
 * Caller   opens model, pool and tokenizer before and closes them after.
 * Bounds   max_waiting requests wait at most max_wait_ms; one step computes at most
 *          step_tokens tokens, and while replies are running a prompt's share of a step is
 *          cut to about step_ms of time at the measured speed.
 * Memory   all taken by engine_open(); a step allocates nothing.
 * Drafts   with prompt_lookup, tokens that a reply may go on with are computed in the same
 *          step, and kept where they are what is chosen: the same tokens, sooner.
 * Store    with one, prompts whose beginning is kept start behind it, those whose blocks
 *          have gone down wait until they are back, and what is computed is kept.
 * Threads  open, start, drain and close: one; everything else: any.
 *
 * The backend must have been opened for batches of max_running sequences whose block
 * tables together have max_running * kv_blocks_for(engine_capacity()) entries, and the
 * model for step_tokens rows and at least max_running rows of logits.
 */
#ifndef SERVER_ENGINE_H
#define SERVER_ENGINE_H

#include "model/model.h"
#include "server/metrics.h"
#include "server/request.h"

/* Whose blocks may be found by whom: those of equal keys, under equal numbers. */
struct engine_tenant {
    struct block_key key;
    uint64_t number;  // block_tenant()
};

struct engine_options {
    struct model *model;                // borrowed
    struct kv_pool *kv;                 // borrowed
    const struct tokenizer *tokenizer;  // borrowed
    struct metrics *metrics;            // borrowed
    uint32_t context;                   // tokens of one sequence, prompt and reply
    uint32_t max_running;               // sequences (choices) in one step
    uint32_t max_waiting;               // requests
    uint32_t step_tokens;               // at most model_options.max_rows
    uint32_t step_ms;
    uint32_t prompt_lookup;  // most tokens drafted for a sequence in a step; 0: none
    double step_rows;        // with it: what a step costs beside its rows, in rows
    uint32_t max_wait_ms;    // in the queue, then 503
    uint32_t stall_ms;      // with a full outbox, then FINISH_CANCELLED with status 408
    struct kvstore *store;  // borrowed, over this kv; NULL: nothing is kept
    struct cost *cost;      // borrowed, the store's; NULL with it
    const struct tier *ram,
        *ssd;  // borrowed, the store's, to tell how they are; or NULL
    const struct engine_tenant *tenants;  // (n_tenants) by request.tenant; borrowed
    uint32_t n_tenants;
    uint32_t copy_ms;  // at the end of a drain, for copying down what is not yet
    /* Called by the engine thread after every step while any request is there: the place
     * to look for clients that have gone. */
    void (*tick)(void *arg);
    void *tick_arg;
};

struct engine;

NODISCARD int engine_open(struct engine **out, const struct engine_options *o,
                          struct err *err);
/* Bytes that engine_open() will take, for the memory budget; model and kv may be NULL
 * (the context then counts in full). */
size_t engine_bytes(const struct engine_options *o);
NODISCARD int engine_start(struct engine *e, struct err *err);

/* Lend r to the engine.  -E2BIG: can never fit (message with both sizes); -EBUSY: the
 * queue is full; -ESHUTDOWN: draining; -EIO: the backend has failed; -EINVAL: an id is
 * not in the vocabulary, or the tenant is unknown; -ENOMEM.  On any error r stays the
 * caller's alone.  Choices beyond max_running run one after the other. */
NODISCARD int engine_submit(struct engine *e, struct request *r, struct err *err);
void engine_wake(struct engine *e);  // look at cancelled requests now

/* The largest prompt + reply of one sequence: the context, or what the pool holds. */
uint32_t engine_capacity(const struct engine *e);
/* The most bytes of text in one event. */
size_t engine_event_text_max(const struct engine *e);
size_t engine_block_bytes(const struct engine *e);  // of one KV block
/* An estimate, in seconds (at least 1), of when a refused request may be tried again. */
uint32_t engine_retry_after(const struct engine *e);

/* Why the backend failed, so that every request gets a 500, in *out unless that is NULL;
 * false: it has not. */
bool engine_failure(const struct engine *e, struct err *out);

/* ---- conversations ---- */

enum engine_op {
    ENGINE_LIST,    // of this tenant, the latest first
    ENGINE_FIND,    // one, by name
    ENGINE_SLEEP,   // out of G1 as soon as it is copied
    ENGINE_WAKE,    // into G1, ahead of a message
    ENGINE_HOLD,    // keep it in G1 or RAM for hold_ns
    ENGINE_FORGET,  // out of every tier
    ENGINE_COUNT    // what the store has counted since it was opened
};

struct engine_command {
    /* set by the caller */
    enum engine_op op;
    uint32_t tenant;                  // as in struct request
    char name[KVSTORE_CONVERSATION];  // all but LIST and COUNT
    uint64_t hold_ns;
    struct kv_conversation *list;       // (cap) LIST and FIND: what was found
    uint32_t cap, from;                 // LIST: 0, or `next` of the page before
    struct kvstore_counters *counters;  // COUNT
    /* the answer */
    uint32_t n;            // of list
    uint32_t next;         // LIST: where to go on; UINT32_MAX: that was all
    uint64_t hold_tokens;  // HOLD: that may be held at one time, by all together
    /* the engine's own */
    int state, rc;
    bool moving;     // blocks of it were on their way when last looked at
    bool gone;       // FORGET: it is, with rc; its bytes are being overwritten
    int wipe_error;  // then: the tier's
};
/* Ask the engine's thread, and wait for its answer: at most until its step is over, and no
 * longer than ENGINE_COMMAND_MS.  A list is taken page by page, so that conversations may
 * move between pages meanwhile; a page may be empty and not the last.  To forget one, or to
 * let it sleep, whose blocks are on their way waits until they have arrived, and to forget
 * one until it is overwritten, so that no restart finds it.  To wake one that is waking does
 * nothing.  -ENOENT: no such conversation; -EBUSY: a reply to it is being computed;
 * -EDQUOT: too much would be held;
 * -EOPNOTSUPP: nothing is kept; -EAGAIN: too many ask at once; -ETIMEDOUT; -ESHUTDOWN. */
#define ENGINE_COMMAND_MS 5000
NODISCARD int engine_command(struct engine *e, struct engine_command *c,
                             struct err *err);

/* Take no more requests.  Those that are there run on; what still runs after drain_ms
 * ends with an error event of status 503.  Then what the store has not copied down yet is,
 * for at most copy_ms.  Returns when nothing is left. */
void engine_drain(struct engine *e, uint32_t drain_ms);
/* From any thread, async-signal-safe: end the drain now (a second signal). */
void engine_drain_now(struct engine *e);
void engine_close(struct engine *e);  // NULL is fine; drains with 0 ms if still running

#endif
