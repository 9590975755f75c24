/* sched.h - what the next step computes, and who gets blocks for it.
 *
 * Owns     jobs (requests), sequences (their choices), and every block table.
 * Caller   the engine: adds jobs, asks for a plan, computes it, says what came of each
 *          item, and frees and removes only then.
 * Pure     decisions are functions of this state and of `now`: no I/O, no clock, no
 *          threads.  Nothing decided here changes a logit, as the kernels are exact.
 * Memory   all taken by sched_open().
 * Threads  one; the engine's.
 *
 * The life of a sequence (it keeps its place among max_running until it is freed):
 *
 *     FREE --plan--> RUNNING --end-----> ENDED --free--> FREE
 *       |            ^  |  ^               ^
 *       |plan   woken|  |  |plan           |
 *       v            |  |  |               |
 *      WAKING -------'  |room needed       |end
 *       |    ^          |  |               |
 *       |    |plan      v  |               |
 *       '----'------> PUT_BACK ------------'
 *
 * A sequence knows n_known tokens (prompt and generated), of which the K and V of
 * n_computed are in its blocks.  While RUNNING it has at least one to compute; the token
 * after n_known is sampled when all are.  PUT_BACK means: its references were given up, and
 * all will be computed again but what a store still has.  WAKING means: the blocks of all it
 * knows are its own, a store is still filling the first ones, and it computes nothing until
 * sched_woken() says how many of them hold what they should.
 *
 * Steps
 *   1. A step holds one token of every running reply, then prefill with what is left of
 *      step_tokens.  While replies are running, prefill is cut further to what takes about
 *      step_ns at the measured speed, but never below SCHED_MIN_CHUNK tokens.  Where only
 *      ends are left, at most SCHED_END_TOKENS of each prompt that came from the store, one
 *      of them goes on with what makes the step about a quarter longer, so that those who run
 *      do not notice who wakes; until one has waited SCHED_BUMP_NS.
 *   2. Half of the prefill goes to the oldest sequence that needs any; the other half to
 *      those with least left to do.  So a long prompt never waits for ever, and a short
 *      one does not wait for a long one.  Where half is less than SCHED_MIN_CHUNK, the two
 *      take turns.
 *   3. The first choice of a job computes the prompt; the others begin at the moment it is
 *      there (those that find place and blocks), share its blocks, and compute its last
 *      token again for logits of their own.  A job that begins like one in prefill starts when
 *      that has computed what they have in common, or half of max_wait_ns has passed.
 *
 * Room
 *   4. A sequence starts when a place is free and the pool has blocks for all it knows
 *      and one more; a job's first, one more for each choice.  (Or nobody else has any: what
 *      engine_capacity() allows always fits alone.)  Blocks that it will share with others
 *      are not counted.  It takes the blocks of what it knows at once, and others one by
 *      one as the reply grows.  Its first blocks are a sibling's or the store's, but for a
 *      job whose prompt is scored: that computes everything.  Where a store has still to save
 *      blocks to make room, the start waits for that as long as the store says.
 *   5. Older goes first, by the time a job came.  What is smaller may pass one that waits
 *      for room, but only until it has waited SCHED_PASS_NS: from then on nothing younger
 *      starts.  When it has waited SCHED_BUMP_NS, younger jobs are put back for its blocks,
 *      the youngest first, if that makes enough room.
 *   6. When a running reply needs a block and none is available, a sequence is put back: of
 *      those whose client does not read the youngest, else the youngest of all.
 *   So the oldest reply that is read always goes on, which makes everyone's wait finite:
 *   a job that has not started within max_wait_ns is given up (sched_expired), and one
 *   that has waits for no more than the replies older than it.
 *
 * Drafts
 *   7. Of a running reply, tokens that it may go on with are computed in the same step, as
 *      many as o.draft.find() says pay.  They take what others leave: of the step's rows
 *      beside a chunk of prefill, of the rows of logits, and of the blocks that are free at
 *      the end of the plan.  The caller says for one row after the other that it is computed
 *      and what was sampled; where that is not what was drafted, sched_drafted() takes the
 *      blocks back that only drafts have.
 *
 * Invariants, checked by sched_check():
 *   a. the list of jobs holds every used job, in order of age, each with its sequences;
 *   b. a RUNNING sequence has the blocks of what it computed, and something to compute; a
 *      WAKING one those of all it knows; no other has any block;
 *   c. the counts of the pool are those of the tables, or with a store no less than these.
 */
#ifndef SERVER_SCHED_H
#define SERVER_SCHED_H

#include "model/kv_pool.h"

#define SCHED_NONE        UINT32_MAX
#define SCHED_MIN_CHUNK   16
#define SCHED_END_TOKENS  64
#define SCHED_END_HISTORY 512  // tokens that cost as much to read as one to compute
#define SCHED_PASS_NS     UINT64_C(2000000000)
#define SCHED_BUMP_NS     UINT64_C(5000000000)

enum seq_state { SEQ_FREE, SEQ_WAKING, SEQ_RUNNING, SEQ_PUT_BACK, SEQ_ENDED };

struct sched_seq {
    enum seq_state state;
    uint32_t job, choice;
    uint32_t n_known, n_computed;
    struct kv_table table;
    uint32_t n_adopted;  // WAKING: blocks of the table that came from the store
    bool inside;         // has begun, and the store has not heard that it left
    uint64_t since;      // PUT_BACK: when
    uint32_t next;       // of the same job, by rising choice
    uint32_t chunk;      // within sched_plan(): tokens of the step
    uint32_t n_draft;    // within sched_plan(): and drafts behind them
    bool full;           // within sched_plan(): takes no more
};

struct sched_job {
    bool used;
    bool paused;  // its client does not read: compute nothing for it
    uint32_t n_prompt, n_choices;
    uint32_t n_started, n_ended;  // choices
    uint32_t n_scored, to_score;  // prompt tokens scored of those that shall be
    uint32_t score_room;          // how many scores can be given out now
    uint64_t since;               // when it came
    uint32_t first_seq;
    uint32_t older, younger;
};

enum sched_room {
    ROOM_NONE,   // unless others give up theirs
    ROOM_LATER,  // others need not
    ROOM_NOW,
};

/* Where blocks of sequences that were computed before are found; all NULL: nowhere.  A
 * sequence is asked about by its number: job and n_known are set. */
struct sched_store {
    void *arg;
    /* May it start with n blocks, of which adopt() gives `most` at the most?  LATER: when
     * what is still to be copied down has been, which is not waited for for ever. */
    enum sched_room (*has_room)(void *arg, uint32_t seq, uint32_t n, uint32_t most);
    /* Is another one computing at this moment what this one would begin with? */
    bool (*computing)(void *arg, uint32_t seq);
    /* It starts: put the first blocks of what it knows into its table, with a reference on
     * each, but no more than cap; how many.  cap 0: what its table has is a sibling's, or it
     * computes everything.  loading: not all of them are filled yet. */
    uint32_t (*adopt)(void *arg, uint32_t seq, uint32_t cap, bool *loading);
    /* It gives up its blocks: called once for every start, before its references go. */
    void (*leave)(void *arg, uint32_t seq);
};

/* Who guesses what replies go on with; find NULL: nobody. */
struct sched_draft {
    void *arg;
    /* How many drafts of this sequence pay, at most `most`, where one more row adds `cost`
     * to the step's time: in LOOKUP_ONEs (lookup.h) of what it takes for each reply. */
    uint32_t (*find)(void *arg, uint32_t seq, uint32_t cost, uint32_t most);
    uint32_t most;     // of one sequence in a step
    double step_rows;  // what a step costs beside its rows, counted in rows; at least 0
};

struct sched_options {
    struct kv_pool *kv;    // borrowed
    uint32_t capacity;     // tokens of one sequence
    uint32_t max_running;  // sequences
    uint32_t max_jobs;
    uint32_t step_tokens;  // at least max_running + SCHED_MIN_CHUNK
    uint32_t max_logits;   // of one step; at least max_running
    uint64_t step_ns, max_wait_ns;
    struct sched_store store;
    struct sched_draft draft;
};

struct sched_item {  // rows [from, from + n) of a sequence
    uint32_t seq, from, n;
    uint32_t n_draft;      // of these, the last: not known to follow
    uint32_t logits_from;  // logits are wanted from this row on
};

struct sched_step {
    struct sched_item *items;  // (max_running)
    uint32_t n_items, n_rows;
    uint32_t n_decode;  // rows that continue a reply
    uint32_t n_draft;   // drafts behind them; the rest is prefill
    uint32_t *started;  // (max_running) sequences that took a place since it was begun
    uint32_t n_started;
    uint32_t n_put_back;
};

struct sched {
    struct sched_options o;
    struct sched_seq *seqs;   // (max_running)
    struct sched_job *jobs;   // (max_jobs)
    uint32_t *block_numbers;  // (max_running, blocks of capacity): the tables' memory
    uint32_t oldest, youngest;
    uint32_t n_places;  // sequences that are FREE
    uint32_t n_running, n_waking;
    bool turn;                     // rule 2
    double prefill_ns, decode_ns;  // measured: of a token, of a step; 0: not yet
    struct sched_step step;
};

NODISCARD int sched_open(struct sched *s, const struct sched_options *o,
                         struct err *err);
void sched_close(struct sched *s);  // zero-initialised is fine; releases all blocks
size_t sched_bytes(const struct sched_options *o);

/* A job of so many choices; `score`: logits of all its prompt rows are wanted, once.
 * SCHED_NONE where max_jobs are there. */
uint32_t sched_add(struct sched *s, uint32_t n_prompt, uint32_t n_choices, bool score,
                   uint64_t now);
/* The job that has waited for its start longer than max_wait_ns, or SCHED_NONE. */
uint32_t sched_expired(const struct sched *s, uint64_t now);
void sched_pause(struct sched *s, uint32_t job, bool paused, uint32_t score_room);
/* The job and all its sequences are gone, whatever their state. */
void sched_remove(struct sched *s, uint32_t job);

/* The first n_blocks of those it adopted hold what they should; the store has taken its
 * references to the others back. */
void sched_woken(struct sched *s, uint32_t seq, uint32_t n_blocks, uint64_t now);

/* Decide the next step; valid until the next call.  No rows: nothing can be computed. */
const struct sched_step *sched_plan(struct sched *s, uint64_t now);
/* The rows of an item have been computed, and the scores among them given out.  May add
 * to the step's `started`, so that those run in the next one.  Of an item with drafts: its
 * rows one by one, each after the token before it was appended. */
void sched_computed(struct sched *s, const struct sched_item *item);
void sched_drafted(struct sched *s, uint32_t seq);  // no more of its drafts are used
void sched_append(struct sched *s, uint32_t seq);   // a token was sampled
void sched_end(struct sched *s, uint32_t seq);      // the reply is over
void sched_free(struct sched *s, uint32_t seq);     // an ended one gives its place away
/* How long the planned step took. */
void sched_measured(struct sched *s, uint64_t ns);
/* What of it was the replies' and their drafts', by what is measured so far. */
double sched_replies_ns(const struct sched *s);
/* How many times as long as without drafts the planned replies take with them. */
double sched_draft_factor(const struct sched *s);

bool sched_check(const struct sched *s);

/* Of sched*.c alone: the sequence has no block any more, and the caller says what it is
 * instead. */
void sched_give_up(struct sched *s, uint32_t seq);
/* And within a plan: tokens that it knows and that nothing computes yet; prefill. */
uint32_t sched_left(const struct sched_seq *q);
void sched_plan_prefill(struct sched *s, uint64_t now);
void sched_plan_drafts(struct sched *s);

#endif
