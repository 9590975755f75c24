/* fuzz_ssd.c - whatever headers a file holds, what is found of it is in order: whole
 * chains only, in slots that hold together, the deepest of a chain first to go. */
#include "offload/ssd_scan.h"

#include "kernels/checksum.h"

#include <stdlib.h>
#include <string.h>

#define CAPACITY 24

static void must(bool holds)
{
    if (!holds) abort();
}

/* Small names, so that parents, copies and gaps come about by chance.  One in eight is
 * raw, with what checksum it may have. */
static size_t header_from(struct disk_header *h, const uint8_t *data, size_t size)
{
    static const struct crypto_hash ours = {{1}};
    struct block_meta m = {.depth = data[1] % 6, .tenant = data[2] % 3};
    m.id.bytes[0] = (uint8_t)(1 + data[3] % 32);
    if (m.depth > 0) m.parent.bytes[0] = (uint8_t)(1 + data[4] % 32);
    disk_header_make(h, &m, &ours, data[5], "", 0);
    h->block_bytes = 4096;
    size_t raw = data[0] & 1 ? data[6] % 80 : 0;
    if (raw > size - 8) raw = size - 8;
    memcpy((char *)h + data[7], data + 8, raw);
    if (data[0] % 8) h->sum = checksum_xxh3(h, DISK_PAGE - 8);
    return 8 + raw;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static _Alignas(64) struct disk_header h;
    static const struct crypto_hash ours = {{1}};
    struct tier_ssd_found found = {0};
    struct ssd_wipe wipe;
    uint32_t owed[NAME_GROUPS] = {0};
    struct ssd_scan s = {
        .wipe = &wipe, .fingerprint = &ours, .block_bytes = 4096, .found = &found};
    must(slots_open(&s.slots, CAPACITY, NULL) == 0);
    must(ssd_wipe_open(&wipe, CAPACITY, owed, NULL) == 0 &&
         ssd_scan_open(&s, NULL) == 0);

    for (uint32_t i = 0; i < CAPACITY && size >= 8; i++) {
        size_t n = header_from(&h, data, size);
        ssd_scan_take(&s, i, &h);
        data += n, size -= n;
    }
    must(ssd_scan_order(&s, NULL) == 0);
    must(slots_check(s.slots) && slots_used(s.slots) == found.blocks);
    for (uint32_t i; (i = slots_coldest(s.slots, NULL)) != SLOT_NONE;) {
        const struct block_meta *m = &slots_at(s.slots, i)->meta;
        uint32_t parent = slots_find(s.slots, &m->parent);
        must(m->depth == 0 || (parent != SLOT_NONE &&
                               slots_at(s.slots, parent)->meta.depth + 1 == m->depth));
        slots_release(s.slots, i);
    }
    ssd_scan_close(&s);
    ssd_wipe_close(&wipe);
    slots_close(s.slots);
    return 0;
}
