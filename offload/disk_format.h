/* disk_format.h - the bytes of the SSD tier's files.
 *
 *     blocks  superblock (one page), then slots without gaps
 *     slot    header (one page), then the payload: the block's bytes, rounded up to pages
 *     names   entries, 16 to a page: one for each conversation that may be listed
 *
 * A page is 4096 bytes.  Numbers are little-endian; bytes not named are zero.
 *
 *     superblock                          header of a slot
 *        0   8  magic "DORMFILE"             0   8  magic "DORMSLOT"
 *        8   4  version                      8   4  version
 *       12   4  tokens in a block           12   4  depth: blocks before this one
 *       16   8  bytes of a block            16   8  bytes of the block
 *       24   8  bytes of a slot             24   8  sequence number of the store
 *     4088   8  XXH3 of bytes 0..4087       32  32  fingerprint
 *                                           64  32  id
 *                                           96  32  parent; zeros where depth is 0
 *                                          128   8  tenant
 *                                          136  64  tokens, 16 of i32
 *                                         4080   8  XXH3 of the block's bytes
 *                                         4088   8  XXH3 of bytes 0..4087
 *
 * A slot is empty if its header is all zeros, and holds a block if the header's checksum,
 * magic, version, length and parent are right; the block is whole if the payload's
 * checksum is right too.  Header and payload are written in one go in no particular order:
 * a write that was cut short leaves at most a slot that these rules refuse.
 *
 *     entry
 *        0   8  magic "DORMNAME"             64  32  id of the conversation's last block
 *        8   4  version                      96  64  name, zeros from its end on
 *       12   4  depth of the last block     160   4  tokens
 *       16   8  tenant                      248   8  XXH3 of bytes 0..247
 *       24   8  sequence number of the last use
 *       32  32  fingerprint
 *
 * An entry is empty if it is all zeros, and names a conversation if its checksum, magic and
 * version are right and its name is one (name.h).  It says nothing about what lies in
 * `blocks`: whoever reads it looks for the block there.  An entry lies within a sector, so
 * that a write which was cut short leaves each one old or new, or refused.
 *
 * The superblock only tells a file of another geometry.  Where it is damaged, the slots
 * still speak for themselves.
 */
#ifndef OFFLOAD_DISK_FORMAT_H
#define OFFLOAD_DISK_FORMAT_H

#include "offload/name.h"

#define DISK_PAGE    4096
#define DISK_VERSION 2

struct disk_super {
    uint8_t magic[8];
    uint32_t version, block_tokens;
    uint64_t block_bytes, slot_bytes;
    uint8_t zero[4056];
    uint64_t sum;
};

struct disk_header {
    uint8_t magic[8];
    uint32_t version, depth;
    uint64_t block_bytes, sequence;
    uint8_t fingerprint[CRYPTO_HASH_BYTES];
    uint8_t id[CRYPTO_HASH_BYTES], parent[CRYPTO_HASH_BYTES];
    uint64_t tenant;
    int32_t tokens[KV_BLOCK_TOKENS];
    uint8_t zero[3880];
    uint64_t payload_sum, sum;
};

#define DISK_NAMES 16  // entries of a page

struct disk_name {
    uint8_t magic[8];
    uint32_t version, depth;
    uint64_t tenant, sequence;
    uint8_t fingerprint[CRYPTO_HASH_BYTES];
    uint8_t id[CRYPTO_HASH_BYTES];
    char name[NAME_BYTES];
    uint32_t tokens;
    uint8_t zero[84];
    uint64_t sum;
};

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "structs are read as they lie");
_Static_assert(CRYPTO_HASH_BYTES == 32 && KV_BLOCK_TOKENS == 16, "version 2 has these");
_Static_assert(sizeof(struct disk_super) == DISK_PAGE, "one page");
_Static_assert(offsetof(struct disk_super, block_bytes) == 16, "as in the table");
_Static_assert(offsetof(struct disk_super, sum) == 4088, "as in the table");
_Static_assert(sizeof(struct disk_header) == DISK_PAGE, "one page");
_Static_assert(offsetof(struct disk_header, block_bytes) == 16, "as in the table");
_Static_assert(offsetof(struct disk_header, fingerprint) == 32, "as in the table");
_Static_assert(offsetof(struct disk_header, id) == 64, "as in the table");
_Static_assert(offsetof(struct disk_header, parent) == 96, "as in the table");
_Static_assert(offsetof(struct disk_header, tenant) == 128, "as in the table");
_Static_assert(offsetof(struct disk_header, tokens) == 136, "as in the table");
_Static_assert(offsetof(struct disk_header, payload_sum) == 4080, "as in the table");
_Static_assert(offsetof(struct disk_header, sum) == 4088, "as in the table");
_Static_assert(sizeof(struct disk_name) * DISK_NAMES == DISK_PAGE, "as in the table");
_Static_assert(offsetof(struct disk_name, fingerprint) == 32, "as in the table");
_Static_assert(offsetof(struct disk_name, name) == 96 && NAME_BYTES == 64,
               "as in the table");
_Static_assert(offsetof(struct disk_name, tokens) == 160, "as in the table");
_Static_assert(offsetof(struct disk_name, sum) == 248, "as in the table");

static inline uint64_t disk_slot_bytes(uint64_t block_bytes)
{
    return DISK_PAGE + ALIGN_UP(block_bytes, DISK_PAGE);
}

static inline uint64_t disk_slot_at(uint64_t slot_bytes, uint64_t slot)
{
    return DISK_PAGE + slot * slot_bytes;
}

enum disk_verdict {
    DISK_EMPTY,
    DISK_DAMAGED,
    DISK_FOREIGN,  // of another fingerprint; a superblock: of another geometry or version
    DISK_OURS,
};

void disk_super_make(struct disk_super *out, uint64_t block_bytes);
enum disk_verdict disk_super_read(const struct disk_super *s, uint64_t block_bytes);

void disk_header_make(struct disk_header *out, const struct block_meta *meta,
                      const struct crypto_hash *fingerprint, uint64_t sequence,
                      const void *block, uint64_t block_bytes);
/* Fills *meta and *sequence where the header is ours. */
enum disk_verdict disk_header_read(const struct disk_header *h,
                                   const struct crypto_hash *fingerprint,
                                   uint64_t block_bytes, struct block_meta *meta,
                                   uint64_t *sequence);
/* Is this that very block, whole? */
bool disk_block_right(const struct disk_header *h, const struct block_meta *meta,
                      const struct crypto_hash *fingerprint, const void *block,
                      uint64_t block_bytes);

void disk_name_make(struct disk_name *out, const struct kept_name *name,
                    const struct crypto_hash *fingerprint);
/* Fills *out: with no name where the entry is not ours. */
enum disk_verdict disk_name_read(const struct disk_name *e,
                                 const struct crypto_hash *fingerprint,
                                 struct kept_name *out);
/* May a file that begins with these bytes, at most a page, be one of slots, or a table of names?
 * One that is empty, or was never written, may. */
bool disk_blocks_likely(const void *start, size_t bytes);
bool disk_names_likely(const void *start, size_t bytes);

#endif
