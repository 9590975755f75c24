/* keys.h - API keys: which tenant a presented key belongs to.
 *
 * File     lines of `tenant key`; empty lines and lines that begin with # are skipped.
 *          A tenant may have several keys.  Key: 16 to 256 visible ASCII characters;
 *          tenant: 1 to 64 letters, digits, '.', '_', '-'.
 * Owns     a keyed BLAKE2b digest of each key; the keys themselves are wiped after
 *          reading.  The digest's key is random and new in each process.
 * Time     keys_match() digests what was presented and compares it with every stored
 *          digest, without early exit: its time depends on the length presented alone.
 * Secrets  no message holds any part of a key.
 * Threads  immutable after open.
 */
#ifndef SERVER_KEYS_H
#define SERVER_KEYS_H

#include "kernels/base.h"

#define KEYS_MIN_LENGTH 16
#define KEYS_MAX_LENGTH 256
#define KEYS_MAX        4096

struct keys;

/* -ENOENT and the like where the file cannot be read, -EINVAL with the line where it is
 * wrong or holds no key. */
NODISCARD int keys_open(struct keys **out, const char *path, struct err *err);
/* From memory; `name` is used in messages. */
NODISCARD int keys_parse(struct keys **out, const char *text, size_t n,
                         const char *name, struct err *err);
void keys_close(struct keys *k);  // NULL is fine

uint32_t keys_count(const struct keys *k);
uint32_t keys_tenants(const struct keys *k);
const char *keys_tenant_name(const struct keys *k, uint32_t tenant);
/* May others than the owner read the file?  Worth a warning. */
bool keys_exposed(const struct keys *k);

/* The tenant of this key.  False, and *tenant unchanged, where there is none. */
bool keys_match(const struct keys *k, const char *key, size_t n, uint32_t *tenant);

#endif
