/* engine_state.h - what the engine's files share; private to server/engine*.c.
 *
 * Threads  the engine's alone, but for what is marked as anybody's.
 */
#ifndef SERVER_ENGINE_STATE_H
#define SERVER_ENGINE_STATE_H

#include "server/clock.h"
#include "server/engine.h"
#include "server/gate.h"
#include "server/lookup.h"
#include "server/mailbox.h"
#include "server/sched.h"

#define ENGINE_LOAD_NS  UINT64_C(100000)  // how soon the end of a transfer is seen
#define ENGINE_DUE_NS   UINT64_C(1000000)
#define ENGINE_COMMANDS 32  // that wait at one time

/* What the engine keeps for each place of the scheduler: one choice of a request. */
struct voice {
    int32_t *generated;  // (capacity); borrowed from engine.generated; then drafts
    uint32_t n_generated;
    struct lookup lookup;
    struct gate gate;
    bool over;  // generated to its end; something may still have to be given out
    enum finish_reason reason;
    bool ended_by_token;  // and `end` is that end-of-sequence token
    struct sample end;
    uint64_t last_token;  // nanoseconds
    /* with a store */
    struct block_meta *meta;  // (blocks of capacity); borrowed from engine.metas
    uint32_t n_meta;          // full blocks that have a name
    uint32_t wake;            // UINT32_MAX: nothing is being loaded for it
    struct kv_wake_report report;
};

/* What it keeps for each job of the scheduler. */
struct order {
    struct request *r;
    uint64_t finished;  // bit c: choice c has got its last event
    uint64_t completion_tokens;
    uint64_t full_since;  // nanoseconds; 0: there is room in the outbox
    bool failed;          // the model's numbers for it were none
    bool prompt_begun;    // the event of the first prompt token has been given
    bool woken;           // and its report is in the request
    char conversation
        [KVSTORE_CONVERSATION];  // what the store calls it; "": not known yet
};

struct engine {
    struct engine_options o;
    struct sched sched;
    struct sampler *sampler;
    struct voice *voices;      // (max_running)
    struct order *orders;      // (max_jobs)
    int32_t *generated;        // (max_running, capacity)
    struct block_meta *metas;  // (max_running, blocks of capacity); with a store
    char *texts;               // (max_running, gate_bytes)
    /* the batch of a step */
    int32_t *ids;                       // (step_tokens)
    uint32_t *pos, *logit_rows;         // (step_tokens)
    uint32_t *n_best;                   // (step_tokens)
    uint32_t *row_start, *block_start;  // (max_running + 1)
    uint32_t *blocks;                   // (max_running, blocks of capacity)
    /* Computing, or waiting for loads, since the last request ended; and for each one. */
    double busy_ns, request_ns;
    uint64_t now;   // of this turn
    bool arriving;  // the next step waits for blocks: its time measures nothing
    uint64_t told_pause[2];      // of RAM and SSD: the latest the log was told of
    int told_wipe, told_naming;  // likewise the errors of the SSD's chores
    uint64_t tenants_at;         // when the bytes of tenants are published next

    pthread_t thread;
    bool started, joined;  // the opener's
    /* anybody's */
    struct mailbox mailbox;
    uint32_t capacity;  // constant
    struct command_queue {
        pthread_mutex_t lock;  // guards all here, and state and rc of who waits
        pthread_cond_t answered;
        struct engine_command *waiting[ENGINE_COMMANDS];
        uint32_t n;
        bool open, closed;
    } commands;
    atomic_uint_fast64_t ns_per_request;  // 0: not known yet
    atomic_uint_fast64_t drain_at;        // 0: not draining
    atomic_bool drain_now, failed;
    struct err failure;  // written before `failed` is set
};

/* ---- engine_step.c ---- */

/* Plan and compute one step and sample from it; false: there was nothing to compute. */
bool engine_step(struct engine *e, uint64_t now);

/* ---- engine_draft.c ---- */

struct sched_draft engine_sched_draft(struct engine *e);
void engine_learn(struct engine *e, uint32_t seq);  // a token was generated

/* ---- engine_give.c ---- */

/* Of one sequence alone, which may be running: what its gate has.  False: the outbox is
 * full. */
bool engine_give_tokens(struct engine *e, uint32_t seq);
/* Give out what the outbox of this job takes.  False: it is full.  The job may be gone
 * afterwards. */
bool engine_give(struct engine *e, uint32_t job);
void engine_give_score(struct engine *e, uint32_t job, const struct sample *s,
                       bool has_logprob);
/* End all choices that are not over; text: static or NULL.  The job is gone. */
void engine_end(struct engine *e, uint32_t job, enum finish_reason reason, int status,
                const char *text);
void engine_end_all(struct engine *e, int status, const char *text);
/* Tell the gauges how things stand. */
void engine_publish(struct engine *e);

/* ---- engine_recall.c: nothing happens where there is no store ---- */

void engine_recall(struct engine *e, struct request *r);  // before it is scheduled

/* ---- engine_store.c: the same ---- */

NODISCARD int engine_name_blocks(const struct engine *e, struct request *r,
                                 struct err *err);  // anybody's
void engine_begin_names(struct engine *e, uint32_t seq);
void engine_seal(struct engine *e, const struct sched_item *it);
struct sched_store engine_sched_store(struct engine *e);
struct kv_room engine_room(struct engine *e);
void engine_store_turn(struct engine *e);
/* The time to wait, where it would be ns (< 0: for ever) without a store. */
int64_t engine_store_patience(const struct engine *e, int64_t ns);
void engine_observe_prefill(struct engine *e, const struct sched_step *p, uint64_t ns);
void engine_store_drain(struct engine *e);

/* ---- engine_metrics.c ---- */

void engine_count_prompt(struct engine *e, const struct request *r);  // it is answered
void engine_count_wake(struct engine *e, const struct kv_wake_report *w);
void engine_publish_store(struct engine *e);

/* ---- engine_log.c ---- */

void engine_tell_tiers(struct engine *e);
/* Since `before` was counted, ns ago: what the end has copied down. */
void engine_tell_end(const struct engine *e, const struct kvstore_counters *before,
                     uint64_t ns);

/* ---- engine_command.c ---- */

void commands_open(struct command_queue *q);
void commands_close(struct command_queue *q);
void engine_answer_commands(struct engine *e);
void engine_shut_commands(struct engine *e);  // all that wait, and all to come

#endif
