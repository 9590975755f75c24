/* stack_tiers.h - the stack's part below the KV pool; private to server/stack*.c.
 *
 * Threads  one, at start and end.
 */
#ifndef SERVER_STACK_TIERS_H
#define SERVER_STACK_TIERS_H

#include "server/stack.h"

/* Names and keys of all tenants; what depends on the fingerprint comes with
 * stack_open_tiers(). */
NODISCARD int stack_take_tenants(struct stack *s, const struct stack_options *o,
                                 struct err *err);
struct tiers_options stack_tiers_options(struct stack *s, const struct options *o);
/* While the tensors are still there; takes as long as reading them. */
NODISCARD int stack_take_fingerprint(struct stack *s, const struct options *o,
                                     struct err *err);
/* The fingerprint's text of what must be equal for equal bits: the backend as it describes
 * itself, and how weights are kept.  Pure. */
void stack_arithmetic(const char *describe, enum weight_format format, char *out,
                      size_t cap);
/* When model and pool are there. */
NODISCARD int stack_open_tiers(struct stack *s, const struct stack_options *o,
                               struct err *err);
void stack_close_tiers(struct stack *s);
/* "811 tokens/s of prefill, 90210 tokens/s from RAM", of blocks of that size; of what was not
 * measured it is said. */
void stack_rates(const struct tiers *t, uint64_t block_bytes, char *out, size_t cap);
/* What is not as wished of the SSD tier, or that there is none, in the log. */
void stack_log_found(const struct tier_ssd_found *found);

#endif
