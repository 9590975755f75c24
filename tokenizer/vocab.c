#include "tokenizer/vocab.h"

#include <stdlib.h>
#include <string.h>

static uint32_t hash(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;  // FNV-1a, its upper bits folded in
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 32);
}

int vocab_init(struct vocab *v, uint32_t size, uint32_t n_tokens, size_t n_bytes)
{
    *v = (struct vocab){.size = size, .cap = n_bytes + 1};
    uint32_t slots = 2;
    while (slots / 2 < n_tokens) slots *= 2;
    v->mask = slots - 1;
    v->arena = malloc(v->cap);
    v->entry = calloc(size + 1, sizeof *v->entry);
    v->flags = calloc(size + 1, 1);
    v->table = calloc(slots, sizeof *v->table);
    if (v->arena && v->entry && v->flags && v->table) return 0;
    vocab_free(v);
    return -ENOMEM;
}

void vocab_free(struct vocab *v)
{
    free(v->arena);
    free(v->entry);
    free(v->flags);
    free(v->table);
    *v = (struct vocab){0};
}

int vocab_set_bytes(struct vocab *v, uint32_t id, const char *s, size_t n)
{
    size_t need = v->used + n;
    if (need > UINT32_MAX) return -ENOMEM;
    if (need > v->cap) {
        char *arena = realloc(v->arena, need * 2);
        if (!arena) return -ENOMEM;
        v->arena = arena;
        v->cap = need * 2;
    }
    memcpy(v->arena + v->used, s, n);
    v->entry[id] = (struct vocab_entry){(uint32_t)v->used, (uint32_t)n};
    v->used = need;
    if (n > v->longest) v->longest = n;
    return 0;
}

int vocab_add(struct vocab *v, uint32_t id, const char *s, size_t n, unsigned flags)
{
    if (v->flags[id]) return -EEXIST;
    int rc = vocab_set_bytes(v, id, s, n);
    if (rc == 0) v->flags[id] = (uint8_t)(flags | VOCAB_TOKEN);
    return rc;
}

static bool same_bytes(const struct vocab *v, uint32_t id, const char *s, size_t n)
{
    return v->entry[id].n == n && memcmp(v->arena + v->entry[id].at, s, n) == 0;
}

/* The slot that holds these bytes, or the free one where they would be put. */
static uint32_t *slot_of(const struct vocab *v, const char *s, size_t n)
{
    uint32_t i = hash(s, n) & v->mask;
    while (v->table[i] && !same_bytes(v, v->table[i] - 1, s, n)) i = (i + 1) & v->mask;
    return &v->table[i];
}

void vocab_index(struct vocab *v, uint32_t id)
{
    uint32_t *slot = slot_of(v, v->arena + v->entry[id].at, v->entry[id].n);
    if (*slot == 0 || v->flags[*slot - 1] & VOCAB_OUTSIDE) *slot = id + 1;
}

int32_t vocab_find(const struct vocab *v, const char *s, size_t n)
{
    if (n > v->longest) return -1;
    return (int32_t)*slot_of(v, s, n) - 1;
}

const char *vocab_bytes(const struct vocab *v, int64_t id, size_t *n)
{
    if (!vocab_flags(v, id)) return NULL;
    *n = v->entry[id].n;
    return v->arena + v->entry[id].at;
}

unsigned vocab_flags(const struct vocab *v, int64_t id)
{
    return id >= 0 && id < v->size ? v->flags[id] : 0;
}
