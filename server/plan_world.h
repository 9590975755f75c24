/* plan_world.h - the state of a replay; private to plan_replay.c, plan_admit.c and
 * plan_compute.c.
 *
 * Invariants
 *   1. a sequence is free, the head, loading, in prefill or in decode;
 *   2. the pages that admitted sequences hold or wait for never exceed those of G1, so that
 *      whoever lacks pages gets them when others end.
 *
 * Threads  as plan_replay.h.
 */
#ifndef SERVER_PLAN_WORLD_H
#define SERVER_PLAN_WORLD_H

#include "server/plan_heap.h"
#include "server/plan_pages.h"
#include "server/plan_replay.h"

/* A turn that has been admitted, or is being so. */
struct plan_sequence {
    uint32_t turn;
    uint32_t wake;  // UINT32_MAX: nothing is being loaded
    uint32_t *pages;
    uint32_t n_pages, need;  // it has; prompt and reply take
    uint32_t prefix;         // blocks that need no prefill
    uint32_t at, sealed;     // tokens computed; blocks named
    uint64_t arrived;
    bool begun;  // as in struct kv_prompt
};

struct plan_list {
    uint32_t first, last, n;  // PLAN_NONE where empty
};

struct plan_world {
    const struct plan_trace *trace;
    const struct plan_machine *machine;
    struct plan_result *result;
    uint64_t now;

    struct plan_pages pages;
    struct tier *ram, *ssd;
    struct cost *cost;
    struct kvstore *kv;
    struct block_meta *meta;  // (most blocks of a turn), of one turn at a time

    struct plan_heap arrivals;  // turns by time
    struct plan_list waiting;   // turns, linked through next_waiting
    uint32_t *next_waiting;     // (turns)
    uint64_t *arrived;          // (turns)
    struct plan_sequence *seq;  // (max_running)
    uint32_t *seq_next;         // (max_running), in the list that it is in
    uint32_t *tables;           // (max_running, most blocks of a turn)
    struct plan_list unused, loading, prefill;  // sequences
    struct plan_heap decoding;                  // sequences by the step they end with
    uint64_t step, context;  // steps so far; tokens of all contexts being decoded
    uint32_t head;           // the sequence being admitted; PLAN_NONE
};

void plan_list_clear(struct plan_list *l);
/* next_of[i] follows i in every list that i can be in. */
void plan_list_append(struct plan_list *l, uint32_t i, uint32_t *next_of);

/* world->meta[0..n) := the first n blocks of a turn; they are the prompt of the answer. */
struct kv_prompt plan_prompt(struct plan_world *w, uint32_t turn, uint32_t n);

/* Admit what may be, in order; move those whose loads have landed on to prefill. */
void plan_admit(struct plan_world *w);
/* Whether the next transfer to land may let somebody go on. */
bool plan_waits_for_load(const struct plan_world *w);

bool plan_compute_busy(const struct plan_world *w);
/* Compute one step, or as many steps of decode alone as end before `until`; how long that
 * takes.  What it gives is there when the caller has moved the clock on: plan_compute_end(). */
uint64_t plan_compute_begin(struct plan_world *w, uint64_t until);
void plan_compute_end(struct plan_world *w);

/* A turn is over: its session's next one is on its way. */
void plan_turn_over(struct plan_world *w, uint32_t turn);

#endif
