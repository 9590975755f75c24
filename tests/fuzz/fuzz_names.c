/* fuzz_names.c - whatever a table of names holds, a restart believes no more of it than the
 * SSD's blocks bear out, each conversation once, and can delete all of them. */
#include "kernels/checksum.h"
#include "offload/disk_format.h"
#include "tests/offload/kvstore_world.h"

static const struct crypto_hash ours = {{1}};

/* A third of the entries are raw; in the others numbers are small, so that they are met by
 * chance, and the sum is right. */
static void entry_from(struct disk_name *e, const struct world *w, const uint8_t *data)
{
    const struct slots *s = w->o.ssd->slots;
    const struct block_meta *m = &slots_at(s, data[1] % slots_capacity(s))->meta;
    struct kept_name n = {.tenant = m->tenant ^ (data[2] % 8 == 0),
                          .last = m->id,
                          .depth = m->depth + (data[2] % 16 == 1),
                          .tokens = data[3] * 4u,
                          .sequence = data[4] % 16};
    snprintf(n.name, sizeof n.name, "%s%u", data[5] % 4 ? "n" : "conv-", data[5] % 8);
    disk_name_make(e, &n, &ours);
    if (data[0] % 3 == 0) memcpy((char *)e + data[6] % 240, data, 16);
    if (data[0] % 8) e->sum = checksum_xxh3(e, offsetof(struct disk_name, sum));
}

static void fall_asleep(struct world *w)
{
    w->now += 100 * SEC;
    while (kvstore_unsaved(w->kv)) kvstore_step(w->kv, w->now);
    kvstore_step(w->kv, w->now);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    struct world w;
    world_open(&w, (struct sizes){24, 0, 40});
    for (uint32_t i = 0; i < 1u + data[0] % 6; i++) {  // forks of two conversations
        struct text t = chat(i % 2, 2, 1);
        text_add(&t, (data[1] >> i) % 4 * B, i);
        turn(&w, &t, 0, 0);
        fall_asleep(&w);
    }
    kvstore_close(w.kv);
    data += 2, size -= 2;
    for (uint32_t i = 0; i < FAKE_NAMES && size >= 16; i++, data += 16, size -= 16) {
        struct disk_name e;
        entry_from(&e, &w, data);
        struct kept_name *n = &w.ssd->names[i];
        enum disk_verdict v = disk_name_read(&e, &ours, n);
        assert_int_equal(n->name[0] != 0, v == DISK_OURS);
        assert_true(v != DISK_OURS || name_right(n->name, strlen(n->name)));
    }
    world_start(&w);
    world_step(&w);
    struct kv_conversation c;
    for (uint32_t n = kvstore_conversations(w.kv); n > 0; n--) {
        assert_true(kvstore_conversation_at(w.kv, 0, NULL, &c) && c.blocks[KV_SSD] > 0);
        assert_int_equal(kvstore_forget(w.kv, c.tenant, c.name), 0);
        world_step(&w);
    }
    assert_int_equal(slots_used(w.o.ssd->slots), 0);
    world_close(&w);
    return 0;
}
