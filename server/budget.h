/* budget.h - what the server will take of the machine's memory, settled before it does.
 *
 * Owns     nothing: struct budget is a plain value.
 * Device   where the backend computes in memory of its own, weights, activations and KV pool
 *          are one budget, of what that device has free, and what is left is the KV pool;
 *          engine, tiers and what the host reads are another, without a pool.
 * Rule     weights, activations, graphs, engine, KV pool, tiers and margin together fit what is
 *          available: the least of the kernel's MemAvailable, of what every cgroup above
 *          this process has left, and of what RLIMIT_AS leaves.  Else it does not start.
 *          Memory of requests that are being read and answered comes out of the margin;
 *          http.h says its bound.
 * Threads  one, at start.  budget_plan() is a pure function.
 */
#ifndef SERVER_BUDGET_H
#define SERVER_BUDGET_H

#include "kernels/base.h"

struct budget {
    /* set by the caller, in bytes but where said */
    uint64_t weights, engine, margin;
    uint64_t activations;    // and the backend's own scratch
    uint64_t graphs;         // recorded steps
    uint64_t block_bytes;    // of one KV block
    uint64_t kv_bytes;       // asked for; 0: choose
    uint32_t kv_blocks;      // asked for, wins over kv_bytes; 0: see kv_bytes
    uint32_t context;        // tokens of one full conversation
    uint32_t max_sequences;  // that can run at one time
    uint64_t available;
    const char *limit;  // what `available` comes from; static
    uint64_t tiers;     // below the KV pool
    bool whole;  // take all that is left for the KV pool, where none is asked for
    /* set by budget_plan() */
    uint32_t blocks;  // of the KV pool
    uint64_t kv;      // bytes of it
    uint64_t total;
};

/* available and limit.  `root` is "", or for tests a directory with proc and sys in it. */
NODISCARD int budget_available(struct budget *b, const char *root, struct err *err);

/* Choose blocks, or refuse with -ENOMEM and a sentence that names every part.  Where none
 * are asked for: a quarter of what is left beside the weights, at most 2 GiB, at least
 * one full conversation, and never more than all sequences could use.  Where one full
 * conversation does not fit, what does, if it is 2048 tokens. */
NODISCARD int budget_plan(struct budget *b, struct err *err);
/* The same for a budget without a KV pool: only whether it fits. */
NODISCARD int budget_fits(struct budget *b, struct err *err);

/* "1.50 GiB", "360 KiB" */
const char *budget_size(uint64_t bytes, char buf[24]);
/* "weights 257 MiB, activations 3 MiB, ... and margin 512 MiB" */
void budget_describe(const struct budget *b, char *buf, size_t cap);

#endif
