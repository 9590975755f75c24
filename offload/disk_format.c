#include "offload/disk_format.h"

#include "kernels/checksum.h"

#include <string.h>

static const uint8_t SUPER_MAGIC[8] = "DORMFILE";
static const uint8_t SLOT_MAGIC[8] = "DORMSLOT";
static const uint8_t NAME_MAGIC[8] = "DORMNAME";

static uint64_t page_sum(const void *page)
{
    return checksum_xxh3(page, DISK_PAGE - sizeof(uint64_t));
}

static bool all_zero(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

void disk_super_make(struct disk_super *out, uint64_t block_bytes)
{
    memset(out, 0, sizeof *out);
    memcpy(out->magic, SUPER_MAGIC, sizeof out->magic);
    out->version = DISK_VERSION;
    out->block_tokens = KV_BLOCK_TOKENS;
    out->block_bytes = block_bytes;
    out->slot_bytes = disk_slot_bytes(block_bytes);
    out->sum = page_sum(out);
}

enum disk_verdict disk_super_read(const struct disk_super *s, uint64_t block_bytes)
{
    if (all_zero(s, sizeof *s)) return DISK_EMPTY;
    if (memcmp(s->magic, SUPER_MAGIC, sizeof s->magic) != 0 || s->sum != page_sum(s))
        return DISK_DAMAGED;

    struct disk_super same;
    disk_super_make(&same, block_bytes);
    return memcmp(s, &same, sizeof same) == 0 ? DISK_OURS : DISK_FOREIGN;
}

void disk_header_make(struct disk_header *out, const struct block_meta *meta,
                      const struct crypto_hash *fingerprint, uint64_t sequence,
                      const void *block, uint64_t block_bytes)
{
    memset(out, 0, sizeof *out);
    memcpy(out->magic, SLOT_MAGIC, sizeof out->magic);
    out->version = DISK_VERSION;
    out->depth = meta->depth;
    out->block_bytes = block_bytes;
    out->sequence = sequence;
    memcpy(out->fingerprint, fingerprint->bytes, sizeof out->fingerprint);
    memcpy(out->id, meta->id.bytes, sizeof out->id);
    memcpy(out->parent, meta->parent.bytes, sizeof out->parent);
    out->tenant = meta->tenant;
    memcpy(out->tokens, meta->tokens, sizeof out->tokens);
    out->payload_sum = checksum_xxh3(block, block_bytes);
    out->sum = page_sum(out);
}

enum disk_verdict disk_header_read(const struct disk_header *h,
                                   const struct crypto_hash *fingerprint,
                                   uint64_t block_bytes, struct block_meta *meta,
                                   uint64_t *sequence)
{
    static const struct block_id none;
    if (all_zero(h, sizeof *h)) return DISK_EMPTY;
    if (memcmp(h->magic, SLOT_MAGIC, sizeof h->magic) != 0 || h->sum != page_sum(h))
        return DISK_DAMAGED;
    if (h->version != DISK_VERSION ||
        memcmp(h->fingerprint, fingerprint->bytes, sizeof h->fingerprint) != 0)
        return DISK_FOREIGN;
    bool first = memcmp(h->parent, none.bytes, sizeof none.bytes) == 0;
    if (h->block_bytes != block_bytes || first != (h->depth == 0)) return DISK_DAMAGED;

    *meta = (struct block_meta){.depth = h->depth, .tenant = h->tenant};
    memcpy(meta->id.bytes, h->id, sizeof h->id);
    memcpy(meta->parent.bytes, h->parent, sizeof h->parent);
    memcpy(meta->tokens, h->tokens, sizeof h->tokens);
    *sequence = h->sequence;
    return DISK_OURS;
}

bool disk_block_right(const struct disk_header *h, const struct block_meta *meta,
                      const struct crypto_hash *fingerprint, const void *block,
                      uint64_t block_bytes)
{
    struct block_meta read;
    uint64_t sequence;
    return disk_header_read(h, fingerprint, block_bytes, &read, &sequence) ==
               DISK_OURS &&
           block_meta_equal(&read, meta) &&
           h->payload_sum == checksum_xxh3(block, block_bytes);
}

static uint64_t name_sum(const struct disk_name *e)
{
    return checksum_xxh3(e, offsetof(struct disk_name, sum));
}

void disk_name_make(struct disk_name *out, const struct kept_name *name,
                    const struct crypto_hash *fingerprint)
{
    memset(out, 0, sizeof *out);
    if (!name->name[0]) return;
    memcpy(out->magic, NAME_MAGIC, sizeof out->magic);
    out->version = DISK_VERSION;
    out->depth = name->depth;
    out->tenant = name->tenant;
    out->sequence = name->sequence;
    memcpy(out->fingerprint, fingerprint->bytes, sizeof out->fingerprint);
    memcpy(out->id, name->last.bytes, sizeof out->id);
    memcpy(out->name, name->name, strnlen(name->name, sizeof out->name - 1));
    out->tokens = name->tokens;
    out->sum = name_sum(out);
}

enum disk_verdict disk_name_read(const struct disk_name *e,
                                 const struct crypto_hash *fingerprint,
                                 struct kept_name *out)
{
    *out = (struct kept_name){0};
    if (all_zero(e, sizeof *e)) return DISK_EMPTY;
    if (memcmp(e->magic, NAME_MAGIC, sizeof e->magic) != 0 || e->sum != name_sum(e))
        return DISK_DAMAGED;
    out->foreign =
        e->version != DISK_VERSION ||
        memcmp(e->fingerprint, fingerprint->bytes, sizeof e->fingerprint) != 0;
    if (out->foreign) return DISK_FOREIGN;
    size_t n = strnlen(e->name, sizeof e->name);
    if (!name_right(e->name, n) || !all_zero(e->name + n, sizeof e->name - n))
        return DISK_DAMAGED;
    out->tenant = e->tenant;
    out->depth = e->depth;
    out->tokens = e->tokens;
    out->sequence = e->sequence;
    memcpy(out->last.bytes, e->id, sizeof out->last.bytes);
    memcpy(out->name, e->name, n);
    return DISK_OURS;
}

bool disk_blocks_likely(const void *start, size_t bytes)
{
    const struct disk_super *s = start;
    if (bytes < sizeof *s) return bytes == 0;
    return memcmp(s->magic, SUPER_MAGIC, sizeof s->magic) == 0 || all_zero(s, bytes);
}

bool disk_names_likely(const void *start, size_t bytes)
{
    static const struct crypto_hash any;
    const struct disk_name *e = start;
    struct kept_name name;
    if (bytes == 0) return true;
    for (size_t i = 0; i < bytes / sizeof *e; i++) {
        enum disk_verdict v = disk_name_read(&e[i], &any, &name);
        if (v == DISK_FOREIGN || v == DISK_OURS) return true;
    }
    return bytes >= sizeof *e && all_zero(start, bytes);
}
