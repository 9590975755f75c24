/* crypto.c - libsodium behind crypto.h.
 *
 * Its headers are included one by one: sodium.h declares a crypto_hash() of its own.
 */
#include "kernels/crypto.h"

#include <sodium/core.h>
#include <sodium/crypto_generichash.h>
#include <sodium/randombytes.h>
#include <sodium/utils.h>

_Static_assert(sizeof(crypto_generichash_state) <=
                   sizeof(((struct crypto_state *)0)->opaque),
               "a state of libsodium fits");
_Static_assert(_Alignof(crypto_generichash_state) <= _Alignof(struct crypto_state),
               "and its alignment is kept");
_Static_assert(CRYPTO_HASH_BYTES >= crypto_generichash_BYTES_MIN &&
                   CRYPTO_HASH_BYTES <= crypto_generichash_BYTES_MAX &&
                   CRYPTO_KEY_BYTES >= crypto_generichash_KEYBYTES_MIN &&
                   CRYPTO_KEY_BYTES <= crypto_generichash_KEYBYTES_MAX,
               "with lengths in range the calls below cannot fail");

static crypto_generichash_state *state_of(struct crypto_state *s)
{
    return (crypto_generichash_state *)s->opaque;
}

int crypto_open(struct err *err)
{
    if (sodium_init() >= 0) return 0;  // 1: it was open already
    return err_set(err, -EIO, "libsodium cannot be initialised");
}

void crypto_begin(struct crypto_state *s, const uint8_t *key)
{
    (void)crypto_generichash_init(state_of(s), key, key ? CRYPTO_KEY_BYTES : 0,
                                  CRYPTO_HASH_BYTES);
}

void crypto_add(struct crypto_state *s, const void *data, size_t n)
{
    if (n) (void)crypto_generichash_update(state_of(s), data, n);
}

void crypto_end(struct crypto_state *s, struct crypto_hash *out)
{
    (void)crypto_generichash_final(state_of(s), out->bytes, sizeof out->bytes);
    sodium_memzero(s, sizeof *s);
}

void crypto_add_u32(struct crypto_state *s, uint32_t v)
{
    uint8_t b[4];
    for (unsigned i = 0; i < sizeof b; i++) b[i] = (uint8_t)(v >> 8 * i);
    crypto_add(s, b, sizeof b);
}

void crypto_add_u64(struct crypto_state *s, uint64_t v)
{
    uint8_t b[8];
    for (unsigned i = 0; i < sizeof b; i++) b[i] = (uint8_t)(v >> 8 * i);
    crypto_add(s, b, sizeof b);
}

void crypto_add_field(struct crypto_state *s, const void *data, size_t n)
{
    crypto_add_u64(s, n);
    crypto_add(s, data, n);
}

bool crypto_equal(const void *a, const void *b, size_t n)
{
    return sodium_memcmp(a, b, n) == 0;
}

void crypto_wipe(void *p, size_t n)
{
    sodium_memzero(p, n);
}

void crypto_random(void *p, size_t n)
{
    randombytes_buf(p, n);
}
