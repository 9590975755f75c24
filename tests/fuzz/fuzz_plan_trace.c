/* Traces of any bytes: read or refused with a sentence, and then whole. */
#include "server/plan_trace.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct plan_trace t = {0};
    struct err err = {{0}};
    int rc = plan_trace_read(&t, "T", (const char *)data, size, &err);
    if ((rc == 0) != (err.msg[0] == 0)) abort();
    for (uint32_t i = 0; rc == 0 && i < t.n_turns; i++) {
        const struct plan_turn *x = &t.turns[i];
        if (x->first_block + x->n_blocks > t.n_ids) abort();
        if (x->next != PLAN_NONE && t.turns[x->next].session != x->session) abort();
    }
    plan_trace_free(&t);
    return 0;
}
