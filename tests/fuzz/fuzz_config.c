/* fuzz_config.c - an accepted configuration can size memory and fill its frequencies. */
#include "model/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    // A NUL divides config.json from generation_config.json.
    const char *text = (const char *)data;
    const char *cut = size > 0 ? memchr(text, 0, size) : NULL;
    size_t n = cut ? (size_t)(cut - text) : size;
    struct model_config c;
    struct err err;
    int rc = model_config_parse(&c, text, n, cut ? cut + 1 : NULL,
                                cut ? size - n - 1 : 0, "fuzz", &err);
    if (rc < 0) return 0;

    if (c.head_dim < 2 || c.head_dim % 2 || c.head_dim > 1024) abort();
    if (c.kv_heads == 0 || c.q_heads % c.kv_heads || c.q_heads > 1024) abort();
    if (c.bos >= (int32_t)c.vocab || c.n_eos > MODEL_MAX_EOS || c.layers == 0) abort();
    for (uint32_t i = 0; i < c.n_eos; i++) {
        if (c.eos[i] < 0 || c.eos[i] >= (int32_t)c.vocab) abort();
    }
    float inv_freq[512];
    model_rope_frequencies(&c, inv_freq);
    for (uint32_t i = 0; i < c.head_dim / 2; i++) {
        if (!isfinite(inv_freq[i]) || inv_freq[i] < 0) abort();
    }
    return 0;
}
