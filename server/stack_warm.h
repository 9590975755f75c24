/* stack_warm.h - the first steps of a model, before anybody waits for one; private to
 * server/stack*.c.
 *
 * Threads  one, at start.
 */
#ifndef SERVER_STACK_WARM_H
#define SERVER_STACK_WARM_H

#include "server/stack.h"

/* Run a step of decode of each size that the backend tells apart, and one of as many rows of
 * a prompt as a step may have, so that what the first of them costs is over; nothing on a
 * backend that tells none apart.  When model and pool are there. */
NODISCARD int stack_warm(struct stack *s, struct err *err);

/* Measure what a token of a prompt costs, for the cost model of the tiers. */
NODISCARD int stack_calibrate(struct stack *s, struct err *err);

/* Measure what a step costs beside its rows, counted in rows: how much one more row of a
 * reply adds decides whether drafts pay. */
NODISCARD int stack_measure_step(struct stack *s, double *step_rows, struct err *err);

#endif
