/* json.c - a checked text as an array of tokens in document order, by jsmn.
 *
 * jsmn cuts a text into tokens but accepts much that is not JSON; json_scan() has
 * refused all of that before.  After the cut, the link to a token's parent, which only
 * jsmn needs, is replaced by the index behind its subtree, which makes a step over any
 * value O(1).  A key is a string token whose only child is its value.
 */
#include "kernels/json.h"

#include "kernels/json_check.h"

#define JSMN_STATIC
#define JSMN_PARENT_LINKS
#include <jsmn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct json {
    const char *text;  // borrowed
    uint32_t n;
    jsmntok_t tok[];
};

/* The index behind the subtree of token i, kept where jsmn had the link to its parent. */
static uint32_t after(const struct json *j, uint32_t i)
{
    return (uint32_t)j->tok[i].parent;
}

static void link_siblings(struct json *j)
{
    for (uint32_t i = j->n; i-- > 0;) {
        uint32_t next = i + 1;
        for (int left = j->tok[i].size; left > 0; left--) next = after(j, next);
        j->tok[i].parent = (int)next;
    }
}

int json_open(struct json **out, const char *text, size_t n, uint32_t max_depth,
              struct err *err)
{
    return json_open_bounded(out, text, n, max_depth, SIZE_MAX, err);
}

int json_open_bounded(struct json **out, const char *text, size_t n, uint32_t max_depth,
                      size_t max_values, struct err *err)
{
    size_t n_tokens;
    int rc = json_scan(text, n, max_depth, max_values, &n_tokens, err);
    if (rc < 0) return rc;

    struct json *j = malloc(sizeof *j + n_tokens * sizeof j->tok[0]);
    if (!j) return err_set(err, -ENOMEM, "no memory for %zu JSON tokens", n_tokens);
    j->text = text;
    j->n = (uint32_t)n_tokens;

    jsmn_parser parser;
    jsmn_init(&parser);
    int cut = jsmn_parse(&parser, text, n, j->tok, (unsigned)n_tokens);
    if (cut < 0 || (size_t)cut != n_tokens) {
        json_close(j);
        return err_set(err, -EINVAL, "not valid JSON: %d tokens where %zu were found",
                       cut, n_tokens);
    }
    link_siblings(j);
    *out = j;
    return 0;
}

void json_close(struct json *j)
{
    free(j);
}

/* ---- values ---- */

static const jsmntok_t *token(struct json_value v)
{
    return &v.doc->tok[v.index];
}

struct json_value json_root(const struct json *j)
{
    return (struct json_value){j, 0};
}

bool json_exists(struct json_value v)
{
    return v.doc != NULL;
}

enum json_type json_type(struct json_value v)
{
    if (!v.doc) return JSON_NULL;
    const jsmntok_t *t = token(v);
    switch (t->type) {
    case JSMN_OBJECT: return JSON_OBJECT;
    case JSMN_ARRAY: return JSON_ARRAY;
    case JSMN_STRING: return JSON_STRING;
    default: break;
    }
    switch (v.doc->text[t->start]) {
    case 'n': return JSON_NULL;
    case 't':
    case 'f': return JSON_BOOL;
    default: return JSON_NUMBER;
    }
}

const char *json_type_name(struct json_value v)
{
    if (!v.doc) return "nothing";
    switch (json_type(v)) {
    case JSON_NULL: return "null";
    case JSON_BOOL: return "a boolean";
    case JSON_NUMBER: return "a number";
    case JSON_STRING: return "a string";
    case JSON_ARRAY: return "an array";
    default: return "an object";
    }
}

bool json_is(struct json_value v, enum json_type type)
{
    return v.doc && json_type(v) == type;
}

const char *json_raw(struct json_value v, size_t *out_n)
{
    if (!v.doc) {
        *out_n = 0;
        return NULL;
    }
    const jsmntok_t *t = token(v);
    int quote = t->type == JSMN_STRING;  // a string token lies inside its quotes
    *out_n = (size_t)(t->end - t->start + 2 * quote);
    return v.doc->text + t->start - quote;
}

/* ---- arrays and objects ---- */

uint32_t json_count(struct json_value v)
{
    bool container = json_is(v, JSON_ARRAY) || json_is(v, JSON_OBJECT);
    return container ? (uint32_t)token(v)->size : 0;
}

struct json_value json_get(struct json_value v, const char *key)
{
    if (json_is(v, JSON_OBJECT)) {
        for (struct json_iter i = json_iter(v); json_next(&i);) {
            if (json_equals(i.key, key)) return i.value;
        }
    }
    return (struct json_value){0};
}

struct json_iter json_iter(struct json_value v)
{
    struct json_iter i = {.left = json_count(v), .object = json_is(v, JSON_OBJECT)};
    if (i.left == 0) return i;
    i.value = v;
    i.next = v.index + 1;
    return i;
}

bool json_next(struct json_iter *i)
{
    if (i->left == 0) return false;
    const struct json *j = i->value.doc;
    i->left--;
    if (i->object) i->key = (struct json_value){j, i->next};
    i->value = (struct json_value){j, i->next + i->object};
    i->next = after(j, i->next);
    return true;
}

/* ---- strings ---- */

/* A string's bytes as written; false where v is none. */
static bool inside(struct json_value v, const char **p, size_t *n)
{
    if (!json_is(v, JSON_STRING)) return false;
    *p = v.doc->text + token(v)->start;
    *n = (size_t)(token(v)->end - token(v)->start);
    return true;
}

size_t json_string_size(struct json_value v)
{
    const char *p;
    size_t n, size = 0;
    char c[4];
    if (!inside(v, &p, &n)) return 0;
    if (!memchr(p, '\\', n)) return n;
    for (const char *end = p + n; p < end;) size += json_unescape(&p, c);
    return size;
}

int json_string(struct json_value v, char *buf, size_t cap, size_t *out_n)
{
    const char *p;
    size_t n, size = json_string_size(v), at = 0;
    char c[4];
    if (!inside(v, &p, &n)) return -EINVAL;
    if (size >= cap) return -ENOSPC;
    for (const char *end = p + n; p < end;) {
        size_t k = json_unescape(&p, c);
        memcpy(buf + at, c, k);
        at += k;
    }
    buf[at] = '\0';
    if (out_n) *out_n = at;
    return 0;
}

char *json_string_dup(struct json_value v, size_t *out_n)
{
    if (!json_is(v, JSON_STRING)) return NULL;
    size_t cap = json_string_size(v) + 1;
    char *s = malloc(cap);
    if (s && json_string(v, s, cap, out_n) < 0) {
        free(s);
        return NULL;
    }
    return s;
}

bool json_equals(struct json_value v, const char *text)
{
    const char *p;
    size_t n, at = 0, size = strlen(text);
    char c[4];
    if (!inside(v, &p, &n)) return false;
    if (!memchr(p, '\\', n)) return n == size && memcmp(p, text, n) == 0;
    for (const char *end = p + n; p < end;) {
        size_t k = json_unescape(&p, c);
        if (k > size - at || memcmp(text + at, c, k) != 0) return false;
        at += k;
    }
    return at == size;
}

/* ---- numbers and booleans ---- */

bool json_u64(struct json_value v, uint64_t *out)
{
    if (!json_is(v, JSON_NUMBER)) return false;
    size_t n;
    const char *p = json_raw(v, &n);
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9') return false;
        uint64_t digit = (uint64_t)(p[i] - '0');
        if (sum > (UINT64_MAX - digit) / 10) return false;
        sum = sum * 10 + digit;
    }
    *out = sum;
    return true;
}

bool json_i64(struct json_value v, int64_t *out)
{
    if (!json_is(v, JSON_NUMBER)) return false;
    size_t n;
    const char *p = json_raw(v, &n);
    bool negative = p[0] == '-';
    int64_t sum = 0;
    for (size_t i = negative; i < n; i++) {
        if (p[i] < '0' || p[i] > '9') return false;
        int digit = p[i] - '0';
        // Summed on the negative side, which reaches one further.
        if (sum < (INT64_MIN + digit) / 10) return false;
        sum = sum * 10 - digit;
    }
    if (!negative && sum == INT64_MIN) return false;
    *out = negative ? sum : -sum;
    return true;
}

bool json_double(struct json_value v, double *out)
{
    // Room for more digits than can change a double's value.
    char buf[1024];
    if (!json_is(v, JSON_NUMBER)) return false;
    size_t n;
    const char *p = json_raw(v, &n);
    if (n >= sizeof buf) return false;
    memcpy(buf, p, n);
    buf[n] = '\0';
    double d = strtod(buf, NULL);
    if (!isfinite(d)) return false;
    *out = d;
    return true;
}

bool json_bool(struct json_value v, bool *out)
{
    if (!json_is(v, JSON_BOOL)) return false;
    *out = v.doc->text[token(v)->start] == 't';
    return true;
}
