/* weak_names.c - linked around block_meta_next() into a server that only tests run: it cuts
 * the names of blocks to 8 bits, so that they collide all the time.  Then only the tokens,
 * compared on every match, tell one prompt's blocks from another's. */
#include "offload/block_id.h"

#include <string.h>

void __real_block_meta_next(struct block_meta *out, const struct block_meta *before,
                            const struct block_key *key, const int32_t *tokens,
                            uint64_t tenant);
void __wrap_block_meta_next(struct block_meta *out, const struct block_meta *before,
                            const struct block_key *key, const int32_t *tokens,
                            uint64_t tenant);

void __wrap_block_meta_next(struct block_meta *out, const struct block_meta *before,
                            const struct block_key *key, const int32_t *tokens,
                            uint64_t tenant)
{
    __real_block_meta_next(out, before, key, tokens, tenant);
    memset(out->id.bytes + 1, 0, sizeof out->id.bytes - 1);
}
