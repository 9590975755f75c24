/* random.h - plain generators of test data, linear congruential, from seeds chosen by hand.
 *
 * Owns     nothing; the seed is the caller's.
 * Threads  pure functions.
 */
#ifndef TESTS_RANDOM_H
#define TESTS_RANDOM_H

#include <stdint.h>

/* The next 64 bits, of which the upper ones are good (Knuth's MMIX). */
static inline uint64_t random_step(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed;
}

static inline uint32_t random_below(uint64_t *seed, uint32_t n)
{
    return (uint32_t)(random_step(seed) >> 33) % n;
}

/* 24 bits (Numerical Recipes). */
static inline uint32_t random_next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

#endif
