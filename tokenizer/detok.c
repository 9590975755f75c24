#include "tokenizer/detok.h"

#include "kernels/utf8.h"
#include "tokenizer/tokenizer_parts.h"

#include <string.h>

void detok_init(struct detok *d, bool skip_special)
{
    *d = (struct detok){.skip_special = skip_special};
}

/* Each byte may turn out to be a part of its own, and so may what is pending. */
static size_t bound(size_t n)
{
    return (n + 1) * UTF8_REPLACEMENT_SIZE;
}

size_t detok_bound(const struct tokenizer *t, int32_t id)
{
    size_t n;
    return bound(tokenizer_bytes(t, id, &n) ? n : 0);
}

size_t detok_max_bound(const struct tokenizer *t)
{
    return bound(t->vocab.longest);
}

static size_t replace(char *out)
{
    memcpy(out, UTF8_REPLACEMENT, UTF8_REPLACEMENT_SIZE);
    return UTF8_REPLACEMENT_SIZE;
}

/* One more byte.  An ill-formed part is known by the byte that cannot belong to it, which
 * then begins a new one. */
static size_t push_byte(struct detok *d, unsigned char byte, char *out)
{
    size_t n_out = 0, size;
    d->pending[d->n_pending++] = byte;
    int32_t c = utf8_decode((const char *)d->pending, d->n_pending, &size);
    if (c == UTF8_BAD && size < d->n_pending) {
        n_out = replace(out);
        d->pending[0] = byte;
        d->n_pending = 1;
        c = utf8_decode((const char *)d->pending, 1, &size);
    }
    if (c == UTF8_CUT) return n_out;
    if (c == UTF8_BAD) {
        n_out += replace(out + n_out);
    } else {
        memcpy(out + n_out, d->pending, size);
        n_out += size;
    }
    d->n_pending = 0;
    return n_out;
}

size_t detok_push(struct detok *d, const struct tokenizer *t, int32_t id, char *out)
{
    size_t n, n_out = 0;
    const char *bytes = tokenizer_bytes(t, id, &n);
    if (!bytes || (d->skip_special && tokenizer_is_special(t, id))) return 0;
    for (size_t i = 0; i < n; i++) {
        n_out += push_byte(d, (unsigned char)bytes[i], out + n_out);
    }
    return n_out;
}

size_t detok_flush(struct detok *d, char *out)
{
    size_t n = d->n_pending ? replace(out) : 0;
    d->n_pending = 0;
    return n;
}
