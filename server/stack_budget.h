/* stack_budget.h - what the stack may take, and the memory budget that comes of it; private to
 * server/stack*.c.
 *
 * Threads  one, at start.
 */
#ifndef SERVER_STACK_BUDGET_H
#define SERVER_STACK_BUDGET_H

#include "server/stack.h"

struct model_options stack_model_limits(const struct options *o);
/* With what of the stack is there by then. */
struct engine_options stack_engine_limits(struct stack *s,
                                          const struct stack_options *o);

/* Settle s->budget, and s->host, by the options; s->budget.available and .limit are set. */
NODISCARD int stack_settle_budget(struct stack *s, const struct stack_options *o,
                                  struct err *err);
/* On a device: weights, activations and workspaces lie there now, so that what they take is
 * known, and the pool gets what is left. */
NODISCARD int stack_settle_pool(struct stack *s, const struct options *set,
                                struct err *err);

#endif
