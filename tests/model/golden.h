/* golden.h - reading recorded results: JSON files and rows of raw f32.
 *
 * Owns     what golden_open() read; golden_close() frees it.
 * Errors   end the program with a sentence.
 * Threads  one.
 */
#ifndef TESTS_MODEL_GOLDEN_H
#define TESTS_MODEL_GOLDEN_H

#include "kernels/json.h"
#include "tests/files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The whole file. */
static inline char *golden_read(const char *dir, const char *name, size_t *n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return files_read(path, n);
}

struct golden {
    char *text;
    struct json *json;
};

static inline struct golden golden_open(const char *dir, const char *name)
{
    size_t n;
    struct golden g = {.text = golden_read(dir, name, &n)};
    struct err err;
    if (json_open(&g.json, g.text, n, JSON_MAX_DEPTH, &err) < 0) {
        fprintf(stderr, "%s/%s: %s\n", dir, name, err.msg);
        exit(1);
    }
    return g;
}

static inline void golden_close(struct golden *g)
{
    json_close(g->json);
    free(g->text);
}

/* An array of numbers (null becomes NaN), at most `cap` of them. */
static inline uint32_t golden_numbers(struct json_value array, double *out,
                                      uint32_t cap)
{
    uint32_t n = 0;
    for (struct json_iter i = json_iter(array); json_next(&i) && n < cap; n++) {
        if (!json_double(i.value, &out[n])) out[n] = NAN;
    }
    return n;
}

static inline uint32_t golden_ids(struct json_value array, int32_t *out, uint32_t cap)
{
    uint32_t n = 0;
    for (struct json_iter i = json_iter(array); json_next(&i) && n < cap; n++) {
        uint64_t id = 0;
        if (!json_u64(i.value, &id)) fprintf(stderr, "an id is no number\n"), exit(1);
        out[n] = (int32_t)id;
    }
    return n;
}

static inline double golden_logprob(const float *logits, uint32_t n, int32_t id)
{
    double largest = (double)logits[0], total = 0;
    for (uint32_t i = 1; i < n; i++) largest = fmax(largest, (double)logits[i]);
    for (uint32_t i = 0; i < n; i++) total += exp((double)logits[i] - largest);
    return (double)logits[id] - largest - log(total);
}

#endif
