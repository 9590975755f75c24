/* plan.h - the command `dormouse plan`: what would tiers of these sizes do for this trace?
 *
 * Threads  one.
 */
#ifndef SERVER_PLAN_H
#define SERVER_PLAN_H

/* argv without the program and the command's name.  The report goes to standard output,
 * what went wrong to standard error.  The program's exit status. */
int plan_command(int argc, char **argv);

#endif
