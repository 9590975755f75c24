/* crypto.h - keyed hashes and comparison in constant time (the only user of libsodium).
 *
 * Threads  crypto_open() once, before any other; then pure functions, any thread.
 */
#ifndef KERNELS_CRYPTO_H
#define KERNELS_CRYPTO_H

#include "kernels/base.h"

BASE_BEGIN

#define CRYPTO_HASH_BYTES 32
#define CRYPTO_KEY_BYTES  32

struct crypto_hash {
    uint8_t bytes[CRYPTO_HASH_BYTES];
};

/* A hash in progress; a plain value. */
struct crypto_state {
    _Alignas(64) unsigned char opaque[384];
};

NODISCARD int crypto_open(struct err *err);  // may be called again

/* BLAKE2b (RFC 7693) of 256 bits; key may be NULL, else CRYPTO_KEY_BYTES long.  After
 * crypto_end() the state holds nothing and must be begun again. */
void crypto_begin(struct crypto_state *s, const uint8_t *key);
void crypto_add(struct crypto_state *s, const void *data, size_t n);
void crypto_end(struct crypto_state *s, struct crypto_hash *out);

/* Little-endian, 4 and 8 bytes. */
void crypto_add_u32(struct crypto_state *s, uint32_t v);
void crypto_add_u64(struct crypto_state *s, uint64_t v);
/* A field of varying length: n as 8 bytes, then the bytes, so that no two sequences of
 * fields run together into the same input. */
void crypto_add_field(struct crypto_state *s, const void *data, size_t n);

/* Inline, because libsodium exports a function of this name. */
static inline void crypto_hash(struct crypto_hash *out, const uint8_t *key,
                               const void *data, size_t n)
{
    struct crypto_state s;
    crypto_begin(&s, key);
    crypto_add(&s, data, n);
    crypto_end(&s, out);
}

/* In a time that depends on n alone. */
bool crypto_equal(const void *a, const void *b, size_t n);
void crypto_wipe(void *p, size_t n);  // not optimised away
void crypto_random(void *p, size_t n);

BASE_END

#endif
