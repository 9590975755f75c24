/* fuzz_safetensors.c - every tensor of an accepted file lies within the file. */
#include "model/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct tensor_set *s;
    if (safetensors_parse(&s, data, size, "fuzz", &err) < 0) return 0;

    uint64_t total = 0;
    for (uint32_t i = 0; i < safetensors_count(s); i++) {
        const struct tensor *t = safetensors_at(s, i);
        const uint8_t *p = t->data;
        if (p < data || t->bytes > (uint64_t)(data + size - p)) abort();
        if (safetensors_find(s, t->name) != t) abort();
        if (t->float_type &&
            safetensors_expect(s, t->name, t->n_dims, t->dims, &err) != t)
            abort();
        total += t->bytes;
    }
    // Without overlap, the data is no more than what lies behind the smallest header.
    if (total > size - 10) abort();
    safetensors_close(s);
    return 0;
}
