#include "offload/fingerprint.h"

#include <string.h>

#define TAG "dormouse fingerprint"

static void add_float(struct crypto_state *s, float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    crypto_add_u32(s, bits);
}

static void add_hash(struct crypto_state *s, const struct crypto_hash *h)
{
    crypto_add(s, h->bytes, sizeof h->bytes);
}

static void add_shape(struct crypto_state *s, const struct kv_shape *kv)
{
    const char *type = dtype_name(kv->dtype);
    crypto_add_u32(s, kv->layers);
    crypto_add_u32(s, kv->kv_heads);
    crypto_add_u32(s, kv->head_dim);
    crypto_add_field(s, type, strlen(type));
}

void fingerprint_make(struct crypto_hash *out, const struct fingerprint_parts *p)
{
    struct crypto_state s;
    crypto_begin(&s, NULL);
    crypto_add(&s, TAG, sizeof TAG - 1);
    crypto_add_u32(&s, FINGERPRINT_LAYOUT);

    add_hash(&s, &p->weights);
    add_hash(&s, &p->tokenizer);
    add_hash(&s, &p->chat);
    add_shape(&s, &p->kv);
    crypto_add_u32(&s, p->block_tokens);
    crypto_add_u32(&s, p->q_heads);
    crypto_add_u32(&s, p->window);
    add_float(&s, p->scale);
    add_float(&s, p->norm_eps);
    crypto_add_u32(&s, p->attention_bias);
    crypto_add_u32(&s, p->mlp_bias);
    crypto_add_u32(&s, p->qk_norm);
    crypto_add_u64(&s, p->kv.head_dim / 2);
    for (uint32_t i = 0; i < p->kv.head_dim / 2; i++) add_float(&s, p->inv_freq[i]);
    crypto_add_field(&s, p->arithmetic, strnlen(p->arithmetic, sizeof p->arithmetic));
    crypto_add_u32(&s, p->parallel_ranks);
    crypto_add_u32(&s, p->parallel_rank);
    crypto_end(&s, out);
}
