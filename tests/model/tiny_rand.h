/* tiny_rand.h - the tensors of tests/golden/models/tiny-rand, to build broken files of. */
#ifndef TESTS_MODEL_TINY_RAND_H
#define TESTS_MODEL_TINY_RAND_H

#include "model/safetensors.h"
#include "tests/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY_RAND   "tests/golden/models/tiny-rand"
#define TINY_RAND_N 21

struct tiny_rand {
    char *file;  // the whole file
    size_t n;
    char *header;      // its JSON
    const char *data;  // behind the header
    size_t data_n;
    struct tensor_set *set;
    struct files_tensor t[TINY_RAND_N];  // in the order of the data
    char shape[TINY_RAND_N][32];
};

static int tiny_rand_by_place(const void *a, const void *b)
{
    const struct files_tensor *x = a, *y = b;
    return (const char *)x->data < (const char *)y->data ? -1 : 1;
}

static void tiny_rand_open(struct tiny_rand *r)
{
    r->file = files_read(TINY_RAND "/model.safetensors", &r->n);
    uint64_t header;
    memcpy(&header, r->file, 8);
    r->header = strndup(r->file + 8, header);
    r->data = r->file + 8 + header;
    r->data_n = r->n - 8 - header;
    if (safetensors_parse(&r->set, r->file, r->n, "tiny-rand", NULL) < 0) abort();
    if (safetensors_count(r->set) != TINY_RAND_N) abort();
    for (uint32_t i = 0; i < TINY_RAND_N; i++) {
        const struct tensor *t = safetensors_at(r->set, i);
        snprintf(r->shape[i], sizeof r->shape[i],
                 t->n_dims == 2 ? "[%llu,%llu]" : "[%llu]",
                 (unsigned long long)t->dims[0], (unsigned long long)t->dims[1]);
        r->t[i] = (struct files_tensor){t->name, t->dtype_name, r->shape[i], t->data,
                                        t->bytes};
    }
    qsort(r->t, TINY_RAND_N, sizeof r->t[0], tiny_rand_by_place);
}

static void tiny_rand_close(struct tiny_rand *r)
{
    safetensors_close(r->set);
    free(r->header);
    free(r->file);
}

#endif
