#include "model/content_hash.h"

#include "kernels/pool.h"

#include <stdlib.h>
#include <string.h>

#define LEAF ((uint64_t)1 << 20)
#define TAG  "dormouse tensors 1"

struct leaf {
    const uint8_t *data;
    size_t n;
    struct crypto_hash hash;
};

static uint64_t leaves_of(const struct tensor *t)
{
    return t->bytes / LEAF + (t->bytes % LEAF != 0);
}

/* The leaves of all tensors in the set's order, not yet hashed. */
static int cut(struct leaf **out, uint32_t *out_n, const struct tensor_set *s,
               struct err *err)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < safetensors_count(s); i++)
        n += leaves_of(safetensors_at(s, i));
    struct leaf *leaf = n < UINT32_MAX ? calloc(n + 1, sizeof *leaf) : NULL;
    if (!leaf)
        return err_set(err, -ENOMEM, "no memory to hash %llu MiB of tensors",
                       (unsigned long long)n);

    uint32_t at = 0;
    for (uint32_t i = 0; i < safetensors_count(s); i++) {
        const struct tensor *t = safetensors_at(s, i);
        const uint8_t *data = t->data;
        for (uint64_t done = 0; done < t->bytes; done += LEAF) {
            uint64_t left = t->bytes - done;
            leaf[at++] = (struct leaf){.data = data + done,
                                       .n = (size_t)(left < LEAF ? left : LEAF)};
        }
    }
    *out = leaf;
    *out_n = at;
    return 0;
}

static void hash_leaf(void *arg, uint32_t i, uint32_t thread)
{
    (void)thread;
    struct leaf *leaf = (struct leaf *)arg + i;
    crypto_hash(&leaf->hash, NULL, leaf->data, leaf->n);
}

static void add_text(struct crypto_state *h, const char *text)
{
    crypto_add_field(h, text, strlen(text));
}

void content_hash_add_kind(struct crypto_state *h, const struct tensor *t)
{
    add_text(h, t->name);
    add_text(h, t->dtype_name);
    crypto_add_u64(h, t->n_dims);
    for (uint32_t i = 0; i < t->n_dims; i++) crypto_add_u64(h, t->dims[i]);
}

/* What a tensor is, and its leaves; the answer is the next tensor's first. */
static const struct leaf *add_tensor(struct crypto_state *h, const struct tensor *t,
                                     const struct leaf *leaf)
{
    content_hash_add_kind(h, t);
    crypto_add_u64(h, t->bytes);
    for (uint64_t i = 0; i < leaves_of(t); i++)
        crypto_add(h, leaf[i].hash.bytes, sizeof leaf[i].hash.bytes);
    return leaf + leaves_of(t);
}

static void join(struct crypto_hash *out, const struct tensor_set *s,
                 const struct leaf *leaf)
{
    struct crypto_state h;
    crypto_begin(&h, NULL);
    crypto_add(&h, TAG, sizeof TAG - 1);
    crypto_add_u64(&h, safetensors_count(s));
    for (uint32_t i = 0; i < safetensors_count(s); i++)
        leaf = add_tensor(&h, safetensors_at(s, i), leaf);
    crypto_end(&h, out);
}

int content_hash_tensors(struct crypto_hash *out, const struct tensor_set *s,
                         uint32_t threads, struct err *err)
{
    struct leaf *leaf = NULL;
    struct pool *pool = NULL;
    uint32_t n = 0;
    int rc = crypto_open(err);
    if (rc == 0) rc = cut(&leaf, &n, s, err);
    if (rc == 0) rc = pool_open(&pool, threads, err);
    if (rc == 0) {
        pool_run(pool, n, hash_leaf, leaf);
        join(out, s, leaf);
    }
    pool_close(pool);
    free(leaf);
    return rc;
}
