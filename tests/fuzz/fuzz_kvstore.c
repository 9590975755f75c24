/* Any sequence of what can be asked of the store, over tiers of any size, with names that
 * collide or do not: its invariants hold, and no wake ends with another block's bytes. */
#include "tests/offload/kvstore_storm.h"

#define STEPS 400

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 6) return 0;
    struct storm *s = calloc(1, sizeof *s);
    struct policy p = storm_policy();
    const struct sizes sizes = {
        .pages = 14 + data[0] % 30,
        .ram = data[1] % 40,
        .ssd = data[2] % 60,
    };
    if (data[3] & 1) p.ram_quota = (1 + data[4] % 16) * PAGE;
    if (data[3] & 2) p.ssd_quota = (1 + data[5] % 16) * PAGE;
    if (data[3] & 4) p.second_touch = true;
    if (data[3] & 8) p.ssd_bytes_per_day = 86400 * PAGE;
    if (data[3] & 16) p.max_loads_tenant = 2;
    if (data[3] & 32) p.keep_for = 0;
    storm_open(s, sizes, &p, data[3] & 128, data[4]);
    s->choices = data + 6;
    s->n_choices = size - 6;
    for (int n = 0; n < STEPS && s->n_choices >= 2; n++) storm_step(s);
    storm_close(s);
    free(s);
    return 0;
}
