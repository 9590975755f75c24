#include "server/keys.h"

#include "kernels/crypto.h"
#include "kernels/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TENANT_MAX      64
#define FILE_MAX        (4u << 20)
#define TENANT_NAME_CAP (TENANT_MAX + 1)

struct key {
    struct crypto_hash digest;
    uint32_t tenant;
};

struct keys {
    uint8_t secret[CRYPTO_KEY_BYTES];
    struct key *key;                  // (n_keys)
    char (*tenant)[TENANT_NAME_CAP];  // (n_tenants)
    uint32_t n_keys, n_tenants;
    bool exposed;
};

static bool same_digest(const struct crypto_hash *a, const struct crypto_hash *b)
{
    return crypto_equal(a->bytes, b->bytes, sizeof a->bytes);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static bool is_tenant_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '.' || c == '_' || c == '-';
}

/* The next word of the line [*p, end). */
static const char *word(const char **p, const char *end, size_t *n)
{
    while (*p < end && is_blank(**p)) (*p)++;
    const char *start = *p;
    while (*p < end && !is_blank(**p)) (*p)++;
    *n = (size_t)(*p - start);
    return start;
}

/* The tenant's number, a new one where it is not known yet. */
static uint32_t tenant_number(struct keys *k, const char *name, size_t n)
{
    for (uint32_t i = 0; i < k->n_tenants; i++)
        if (strlen(k->tenant[i]) == n && memcmp(k->tenant[i], name, n) == 0) return i;
    memcpy(k->tenant[k->n_tenants], name, n);
    return k->n_tenants++;
}

static int parse_line(struct keys *k, const char *p, const char *end, const char *name,
                      unsigned line, struct err *err)
{
    size_t tenant_n, key_n, rest_n;
    const char *tenant = word(&p, end, &tenant_n);
    if (tenant_n == 0 || tenant[0] == '#') return 0;
    const char *key = word(&p, end, &key_n);
    word(&p, end, &rest_n);

    if (key_n == 0 || rest_n)
        return err_set(err, -EINVAL,
                       "%s line %u: expected `tenant key` and nothing more", name,
                       line);
    bool tenant_ok = tenant_n <= TENANT_MAX;
    for (size_t i = 0; i < tenant_n; i++) tenant_ok &= is_tenant_char(tenant[i]);
    if (!tenant_ok)
        return err_set(err, -EINVAL,
                       "%s line %u: the tenant's name must be 1 to %d letters, digits, "
                       "'.', '_' or '-'",
                       name, line, TENANT_MAX);
    if (key_n < KEYS_MIN_LENGTH || key_n > KEYS_MAX_LENGTH)
        return err_set(err, -EINVAL,
                       "%s line %u: the key has %zu characters; it must have %d to %d",
                       name, line, key_n, KEYS_MIN_LENGTH, KEYS_MAX_LENGTH);
    for (size_t i = 0; i < key_n; i++)
        if (key[i] <= 0x20 || key[i] >= 0x7f)
            return err_set(err, -EINVAL,
                           "%s line %u: the key holds a character that is not visible "
                           "ASCII",
                           name, line);
    if (k->n_keys == KEYS_MAX)
        return err_set(err, -EINVAL, "%s line %u: more than %d keys", name, line,
                       KEYS_MAX);

    struct key *new = &k->key[k->n_keys];
    crypto_hash(&new->digest, k->secret, key, key_n);
    for (uint32_t i = 0; i < k->n_keys; i++)
        if (same_digest(&k->key[i].digest, &new->digest))
            return err_set(err, -EINVAL,
                           "%s line %u: this key has been given to tenant %s already",
                           name, line, k->tenant[k->key[i].tenant]);
    new->tenant = tenant_number(k, tenant, tenant_n);
    k->n_keys++;
    return 0;
}

int keys_parse(struct keys **out, const char *text, size_t n, const char *name,
               struct err *err)
{
    int rc = crypto_open(err);
    if (rc) return rc;

    rc = -ENOMEM;
    struct keys *k = calloc(1, sizeof *k);
    if (!k) goto fail;
    k->key = calloc(KEYS_MAX, sizeof *k->key);
    k->tenant = calloc(KEYS_MAX, sizeof *k->tenant);
    if (!k->key || !k->tenant) goto fail;
    crypto_random(k->secret, sizeof k->secret);

    unsigned line = 0;
    for (const char *p = text, *end = text + n; p < end;) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        const char *stop = newline ? newline : end;
        rc = parse_line(k, p, stop, name, ++line, err);
        if (rc) goto fail_with_message;
        p = stop + 1;
    }
    if (k->n_keys == 0) {
        rc = err_set(err, -EINVAL, "%s holds no key; expected lines of `tenant key`",
                     name);
        goto fail_with_message;
    }
    *out = k;
    return 0;

fail:
    err_set(err, rc, "no memory for the keys of %s", name);
fail_with_message:
    keys_close(k);
    return rc;
}

int keys_open(struct keys **out, const char *path, struct err *err)
{
    struct err why = {{0}};
    struct stat st = {0};
    char *text = NULL;
    size_t n = 0;
    int fd;
    int rc = file_open(&fd, path, &why);
    if (rc) return err_set(err, rc, "keys: %s", why.msg);
    if (fstat(fd, &st) < 0)
        rc = err_set(&why, -errno, "%s cannot be read: %s", path, strerror(errno));
    if (rc == 0) rc = file_read(fd, path, FILE_MAX, &text, &n, &why);
    close(fd);
    if (rc) return err_set(err, rc, "keys: %s", why.msg);

    rc = keys_parse(out, text, n, path, err);
    if (rc == 0) (*out)->exposed = (st.st_mode & (S_IRGRP | S_IROTH)) != 0;
    crypto_wipe(text, n);
    free(text);
    return rc;
}

void keys_close(struct keys *k)
{
    if (!k) return;
    crypto_wipe(k->secret, sizeof k->secret);
    free(k->key);
    free(k->tenant);
    free(k);
}

uint32_t keys_count(const struct keys *k)
{
    return k->n_keys;
}

uint32_t keys_tenants(const struct keys *k)
{
    return k->n_tenants;
}

const char *keys_tenant_name(const struct keys *k, uint32_t tenant)
{
    return k->tenant[tenant];
}

bool keys_exposed(const struct keys *k)
{
    return k->exposed;
}

bool keys_match(const struct keys *k, const char *key, size_t n, uint32_t *tenant)
{
    struct crypto_hash presented;
    crypto_hash(&presented, k->secret, key, n);

    uint32_t found = 0, which = 0;
    for (uint32_t i = 0; i < k->n_keys; i++) {
        uint32_t same = same_digest(&k->key[i].digest, &presented);
        found |= same;
        which |=
            (0 - same) & k->key[i].tenant;  // digests differ: at most one is the same
    }
    if (found) *tenant = which;
    return found;
}
