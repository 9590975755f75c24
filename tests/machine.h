/* machine.h - what this machine can do at most, to print measured speeds beside it.
 *
 * Caller   gives it a quiet machine for about two seconds.
 * Memory   256 MiB while machine_measure() runs.
 */
#ifndef TESTS_MACHINE_H
#define TESTS_MACHINE_H

#include <stdint.h>

struct machine {
    double bytes;  // read from memory in a second, by all threads together
    double flops;  // f32 multiply-adds in a second, counted as two, likewise
    double
        pairs;  // the same of bf16 in pairs; 0 where this CPU has no such instruction
};

/* Reading goes over far more than any last-level cache holds; multiply-adds run on
 * registers alone, in 256-bit FMA where this CPU has it, those of pairs in 512-bit
 * vdpbf16ps.  Each is the best of several tries. */
struct machine machine_measure(uint32_t threads);

double machine_now(void);                      // seconds of a monotonic clock
double machine_median(double *x, uint32_t n);  // sorts them

#endif
