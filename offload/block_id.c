#include "offload/block_id.h"

#include <string.h>

#define TENANT_TAG "dormouse tenant"

void block_key_derive(struct block_key *out, const struct crypto_hash *fingerprint,
                      const void *salt, size_t salt_n)
{
    struct crypto_state s;
    struct crypto_hash h;
    crypto_begin(&s, NULL);
    crypto_add(&s, fingerprint->bytes, sizeof fingerprint->bytes);
    crypto_add_field(&s, salt, salt_n);
    crypto_end(&s, &h);
    memcpy(out->bytes, h.bytes, sizeof out->bytes);
}

void block_meta_next(struct block_meta *out, const struct block_meta *before,
                     const struct block_key *key, const int32_t *tokens,
                     uint64_t tenant)
{
    struct block_id parent = before ? before->id : (struct block_id){{0}};
    uint32_t depth = before ? before->depth + 1 : 0;

    struct crypto_state s;
    struct crypto_hash h;
    crypto_begin(&s, key->bytes);
    crypto_add(&s, parent.bytes, sizeof parent.bytes);
    for (unsigned i = 0; i < KV_BLOCK_TOKENS; i++)
        crypto_add_u32(&s, (uint32_t)tokens[i]);
    crypto_end(&s, &h);

    memcpy(out->id.bytes, h.bytes, sizeof out->id.bytes);
    out->parent = parent;
    memmove(out->tokens, tokens, sizeof out->tokens);
    out->depth = depth;
    out->tenant = tenant;
}

uint64_t block_tenant(const char *name)
{
    struct crypto_state s;
    struct crypto_hash h;
    crypto_begin(&s, NULL);
    crypto_add(&s, TENANT_TAG, sizeof TENANT_TAG - 1);
    crypto_add(&s, name, strlen(name));
    crypto_end(&s, &h);

    uint64_t number = 0;
    for (unsigned i = 0; i < sizeof number; i++)
        number |= (uint64_t)h.bytes[i] << 8 * i;
    return number;
}
