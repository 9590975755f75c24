/* json_check.c - a text is JSON to the letter of RFC 8259, or why not and where.
 *
 * One pass over the bytes with an explicit stack of open containers.  The keys of the
 * open objects lie on a second stack; when an object closes, its keys are the top of
 * that stack, are sorted by their unescaped bytes and compared neighbour by neighbour.
 * Sorting costs O(n log n) whatever the keys are, which a hash table cannot promise to
 * somebody who chooses them.  Both stacks hold less than a constant times the input.
 */
#include "kernels/json_check.h"

#include "kernels/json.h"
#include "kernels/utf8.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct level {
    bool object;
    size_t first_key;  // index in keys of its first key
};

struct key {
    const char *at;  // first byte inside the quotes
    uint32_t size;   // bytes as written
    bool escaped;    // has a backslash
};

enum expect { VALUE, VALUE_OR_CLOSE, KEY, KEY_OR_CLOSE, COMMA_OR_CLOSE };

struct scan {
    const char *text;
    size_t n, pos;
    struct level *levels;
    uint32_t depth, levels_cap, max_depth;
    struct key *keys;
    size_t n_keys, keys_cap;
    size_t n_tokens, max_tokens;
    struct err *err;
};

static int invalid(const struct scan *s, size_t at, const char *what)
{
    return err_set(s->err, -EINVAL, "not valid JSON at byte %zu: %s", at, what);
}

/* The next byte, or 0 at the end; a NUL byte of the text is valid nowhere either. */
static unsigned char peek(const struct scan *s)
{
    return s->pos < s->n ? (unsigned char)s->text[s->pos] : 0;
}

static void skip_space(struct scan *s)
{
    for (;; s->pos++) {
        unsigned char c = peek(s);
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    }
}

/* ---- strings ---- */

/* The code unit of four hexadecimal digits, or -1.  Reads no further than a bad one. */
static int32_t hex4(const char *p, size_t left)
{
    int32_t unit = 0;
    for (size_t i = 0; i < 4; i++) {
        int d = i < left ? base_hex_digit(p[i]) : -1;
        if (d < 0) return -1;
        unit = unit * 16 + d;
    }
    return unit;
}

static bool is_high(int32_t unit)
{
    return unit >= 0xD800 && unit <= 0xDBFF;
}

static bool is_low(int32_t unit)
{
    return unit >= 0xDC00 && unit <= 0xDFFF;
}

/* pos stands on a backslash. */
static int scan_escape(struct scan *s)
{
    size_t start = s->pos++;
    unsigned char c = peek(s);
    if (c != 'u') {
        if (c == 0 || !strchr("\"\\/bfnrt", c)) return invalid(s, start, "bad escape");
        s->pos++;
        return 0;
    }
    int32_t unit = hex4(s->text + s->pos + 1, s->n - s->pos - 1);
    if (unit < 0) return invalid(s, start, "bad \\u escape");
    s->pos += 5;
    if (is_low(unit)) return invalid(s, start, "lone surrogate");
    if (!is_high(unit)) return 0;

    bool escape = s->n - s->pos >= 6 && memcmp(s->text + s->pos, "\\u", 2) == 0;
    if (!escape || !is_low(hex4(s->text + s->pos + 2, 4)))
        return invalid(s, start, "lone surrogate");
    s->pos += 6;
    return 0;
}

/* pos stands on the opening quote; it will stand behind the closing one. */
static int scan_string(struct scan *s, struct key *out)
{
    size_t quote = s->pos++;
    bool escaped = false;
    while (s->pos < s->n) {
        unsigned char c = peek(s);
        if (c == '"') {
            size_t start = quote + 1;
            *out = (struct key){s->text + start, (uint32_t)(s->pos - start), escaped};
            s->pos++;
            return 0;
        }
        if (c < 0x20) return invalid(s, s->pos, "control character in a string");
        if (c == '\\') {
            escaped = true;
            int rc = scan_escape(s);
            if (rc < 0) return rc;
        } else if (c < 0x80) {
            s->pos++;
        } else {
            size_t size;
            if (utf8_decode(s->text + s->pos, s->n - s->pos, &size) < 0)
                return invalid(s, s->pos, "invalid UTF-8");
            s->pos += size;
        }
    }
    return invalid(s, quote, "string without an end");
}

size_t json_unescape(const char **p, char out[4])
{
    const char *at = *p;
    if (*at != '\\') {
        out[0] = *at;  // a byte of a longer sequence is copied like a character
        *p = at + 1;
        return 1;
    }
    *p = at + 2;
    switch (at[1]) {
    case 'b': out[0] = '\b'; return 1;
    case 'f': out[0] = '\f'; return 1;
    case 'n': out[0] = '\n'; return 1;
    case 'r': out[0] = '\r'; return 1;
    case 't': out[0] = '\t'; return 1;
    case 'u': break;
    default: out[0] = at[1]; return 1;
    }
    int32_t c = hex4(at + 2, 4);
    *p = at + 6;
    if (is_high(c)) {
        c = 0x10000 + ((c - 0xD800) << 10) + (hex4(at + 8, 4) - 0xDC00);
        *p = at + 12;
    }
    return utf8_encode(c, out);
}

/* ---- keys ---- */

struct unescaped {
    const char *at, *end;
    char bytes[4];
    size_t n, used;
};

/* The next byte of an unescaped string, or -1 at its end. */
static int next_byte(struct unescaped *u)
{
    if (u->used == u->n) {
        if (u->at == u->end) return -1;
        u->n = json_unescape(&u->at, u->bytes);
        u->used = 0;
    }
    return (unsigned char)u->bytes[u->used++];
}

static int compare_keys(const void *left, const void *right)
{
    const struct key *a = left, *b = right;
    if (!a->escaped && !b->escaped) {
        int order = memcmp(a->at, b->at, a->size < b->size ? a->size : b->size);
        return order ? order : (a->size > b->size) - (a->size < b->size);
    }
    struct unescaped x = {.at = a->at, .end = a->at + a->size};
    struct unescaped y = {.at = b->at, .end = b->at + b->size};
    for (;;) {
        int c = next_byte(&x), d = next_byte(&y);
        if (c != d || c < 0) return (c > d) - (c < d);
    }
}

static int duplicate(const struct scan *s, const struct key *k)
{
    // A long key is cut, between two characters.
    uint32_t size = k->size < 100 ? k->size : 100;
    while (size < k->size && size > 0 && (k->at[size] & 0xC0) == 0x80) size--;
    return err_set(s->err, -EINVAL,
                   "not valid JSON at byte %zu: duplicate key \"%.*s\"",
                   (size_t)(k->at - s->text) - 1, (int)size, k->at);
}

/* Sort and compare the keys of the object that closes, and take them off the stack. */
static int check_keys(struct scan *s, size_t first)
{
    size_t n = s->n_keys - first;
    s->n_keys = first;
    if (n < 2) return 0;
    struct key *keys = s->keys + first;

    qsort(keys, n, sizeof *keys, compare_keys);
    for (size_t i = 1; i < n; i++) {
        if (compare_keys(&keys[i - 1], &keys[i]) != 0) continue;
        return duplicate(s, keys[i].at > keys[i - 1].at ? &keys[i] : &keys[i - 1]);
    }
    return 0;
}

static int count_token(struct scan *s)
{
    if (s->n_tokens++ < s->max_tokens) return 0;
    return err_set(s->err, -E2BIG, "more than %zu JSON values and keys", s->max_tokens);
}

static int scan_key(struct scan *s)
{
    if (peek(s) != '"') return invalid(s, s->pos, "expected a key in double quotes");
    if (s->n_keys == s->keys_cap) {
        size_t cap = s->keys_cap ? s->keys_cap * 2 : 16;
        struct key *grown = realloc(s->keys, cap * sizeof *grown);
        if (!grown) return err_set(s->err, -ENOMEM, "no memory for %zu JSON keys", cap);
        s->keys = grown;
        s->keys_cap = cap;
    }
    int rc = scan_string(s, &s->keys[s->n_keys]);
    if (rc == 0) rc = count_token(s);
    if (rc < 0) return rc;
    s->n_keys++;
    skip_space(s);
    if (peek(s) != ':') return invalid(s, s->pos, "expected ':' after a key");
    s->pos++;
    return 0;
}

/* ---- values ---- */

static size_t scan_digits(struct scan *s)
{
    size_t start = s->pos;
    while (peek(s) >= '0' && peek(s) <= '9') s->pos++;
    return s->pos - start;
}

static int scan_number(struct scan *s)
{
    size_t start = s->pos;
    if (peek(s) == '-') s->pos++;
    bool zero = peek(s) == '0';
    size_t digits = scan_digits(s);
    if (digits == 0 || (zero && digits > 1)) return invalid(s, start, "bad number");
    if (peek(s) == '.') {
        s->pos++;
        if (scan_digits(s) == 0) return invalid(s, start, "bad number");
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->pos++;
        if (peek(s) == '+' || peek(s) == '-') s->pos++;
        if (scan_digits(s) == 0) return invalid(s, start, "bad number");
    }
    return 0;
}

static int scan_word(struct scan *s, const char *word)
{
    size_t size = strlen(word);
    if (s->n - s->pos < size || memcmp(s->text + s->pos, word, size) != 0)
        return invalid(s, s->pos, "expected a value");
    s->pos += size;
    return 0;
}

static int open_container(struct scan *s, bool object)
{
    if (s->depth == s->max_depth)
        return err_set(s->err, -EINVAL,
                       "not valid JSON at byte %zu: nesting deeper than %u", s->pos,
                       s->max_depth);
    if (s->depth == s->levels_cap) {
        uint32_t cap = s->levels_cap ? s->levels_cap * 2 : 16;
        struct level *grown = realloc(s->levels, cap * sizeof *grown);
        if (!grown)
            return err_set(s->err, -ENOMEM, "no memory for %u JSON levels", cap);
        s->levels = grown;
        s->levels_cap = cap;
    }
    s->levels[s->depth++] = (struct level){object, s->n_keys};
    s->pos++;
    return 0;
}

static int scan_value(struct scan *s, enum expect *next)
{
    struct key unused;
    unsigned char c = peek(s);
    int rc = count_token(s);
    if (rc < 0) return rc;
    *next = COMMA_OR_CLOSE;
    switch (c) {
    case '{': *next = KEY_OR_CLOSE; return open_container(s, true);
    case '[': *next = VALUE_OR_CLOSE; return open_container(s, false);
    case '"': return scan_string(s, &unused);
    case 't': return scan_word(s, "true");
    case 'f': return scan_word(s, "false");
    case 'n': return scan_word(s, "null");
    default: break;
    }
    if (c == '-' || (c >= '0' && c <= '9')) return scan_number(s);
    return invalid(s, s->pos, "expected a value");
}

static int close_container(struct scan *s)
{
    struct level top = s->levels[--s->depth];
    s->pos++;
    return top.object ? check_keys(s, top.first_key) : 0;
}

/* One key, value, comma or bracket; the white space before it is skipped. */
static int scan_step(struct scan *s, enum expect *expect)
{
    unsigned char c = peek(s);
    bool object = s->depth > 0 && s->levels[s->depth - 1].object;
    bool may_close = *expect == VALUE_OR_CLOSE || *expect == KEY_OR_CLOSE ||
                     *expect == COMMA_OR_CLOSE;
    if (may_close && c == (object ? '}' : ']')) {
        *expect = COMMA_OR_CLOSE;
        return close_container(s);
    }
    switch (*expect) {
    case KEY:
    case KEY_OR_CLOSE: *expect = VALUE; return scan_key(s);
    case COMMA_OR_CLOSE:
        if (c != ',')
            return invalid(s, s->pos,
                           object ? "expected ',' or '}'" : "expected ',' or ']'");
        s->pos++;
        *expect = object ? KEY : VALUE;
        return 0;
    default: return scan_value(s, expect);
    }
}

static int scan_document(struct scan *s)
{
    if (s->n >= INT_MAX)
        return err_set(s->err, -EINVAL, "JSON of %zu bytes is larger than %d", s->n,
                       INT_MAX - 1);
    enum expect expect = VALUE;
    do {
        skip_space(s);
        int rc = scan_step(s, &expect);
        if (rc < 0) return rc;
    } while (s->depth > 0);

    skip_space(s);
    return s->pos == s->n ? 0 : invalid(s, s->pos, "something follows the value");
}

int json_scan(const char *text, size_t n, uint32_t max_depth, size_t max_tokens,
              size_t *n_tokens, struct err *err)
{
    struct scan s = {.text = text,
                     .n = n,
                     .max_depth = max_depth,
                     .max_tokens = max_tokens,
                     .err = err};
    int rc = scan_document(&s);
    *n_tokens = s.n_tokens;
    free(s.levels);
    free(s.keys);
    return rc;
}

int json_check(const char *text, size_t n, uint32_t max_depth, struct err *err)
{
    size_t n_tokens;
    return json_scan(text, n, max_depth, SIZE_MAX, &n_tokens, err);
}
