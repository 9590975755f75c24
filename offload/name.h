/* name.h - what a conversation may be called, and what is kept of it beside its blocks.
 *
 * Threads  pure functions.
 */
#ifndef OFFLOAD_NAME_H
#define OFFLOAD_NAME_H

#include "offload/block_id.h"

#define NAME_BYTES  64  // with its NUL
#define NAME_GROUPS 64

static inline bool name_begins(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* 1 to NAME_BYTES - 1 letters, digits and -_.:@, of which the first is a letter or a digit. */
static inline bool name_right(const char *name, size_t n)
{
    if (n == 0 || n >= NAME_BYTES || !name_begins(name[0])) return false;
    for (size_t i = 1; i < n; i++) {
        char c = name[i];
        if (!name_begins(c) && c != '-' && c != '_' && c != '.' && c != ':' && c != '@')
            return false;
    }
    return true;
}

/* FNV-1a, over the tenant and the name. */
static inline uint32_t name_hash(uint64_t tenant, const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ tenant;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return (uint32_t)(h ^ (h >> 32));
}

/* Whoever waits until what he deleted is overwritten waits for all that was deleted under
 * names of the same group, so that no more than a count for each group is to be kept. */
static inline uint32_t name_group(uint64_t tenant, const char *name)
{
    return (name_hash(tenant, name) * UINT32_C(0x9e3779b1)) >> 26;
}

/* A conversation, as it is kept in a tier that outlives the process. */
struct kept_name {
    char name[NAME_BYTES];  // zeros from its end on; "": nothing is kept here
    uint64_t tenant;
    struct block_id last;  // the deepest of its blocks that are in the tier
    uint32_t depth;        // of that one
    uint32_t tokens;
    uint64_t sequence;  // of its last use: conversations come in that order
    bool foreign;  // as found: "", but another fingerprint's, to be left while it can
};

#endif
