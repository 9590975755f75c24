/* options_value.c - finds an option by its key, and turns its text into a value. */
#include "server/options_table.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_MAX 48

static bool same_key(const char *key, const char *other)
{
    for (; *key && *other; key++, other++)
        if (*key != *other && !(*key == '_' && *other == '-')) return false;
    return *key == *other;
}

const struct option *option_find(const struct option_list *l, const char *key)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (same_key(l->option[i].key, key)) return &l->option[i];
    return NULL;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static char plain(char c)
{
    return c == '-' ? '_' : c;
}

/* Letters to change, to add, to leave out and neighbours to swap ("optimal string
 * alignment").  Both are shorter than KEY_MAX. */
static size_t distance(const char *a, const char *b)
{
    size_t rows[3][KEY_MAX];
    size_t na = strlen(a), nb = strlen(b);
    for (size_t j = 0; j <= nb; j++) rows[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *row = rows[i % 3];
        const size_t *before = rows[(i + 2) % 3], *second = rows[(i + 1) % 3];
        char c = plain(a[i - 1]);
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            row[j] = least(before[j - 1] + (c != b[j - 1]),
                           least(before[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && c == b[j - 2] && plain(a[i - 2]) == b[j - 1])
                row[j] = least(row[j], second[j - 2] + 1);
        }
    }
    return rows[na % 3][nb];
}

/* The only one that begins so; NULL: none, or several. */
static const struct option *begins_with(const struct option_list *l, const char *key)
{
    const struct option *found = NULL;
    size_t n = strlen(key);
    for (uint32_t i = 0; i < l->n; i++) {
        const char *other = l->option[i].key;
        size_t same = 0;
        while (same < n && plain(key[same]) == other[same]) same++;
        if (same < n) continue;
        if (found) return NULL;
        found = &l->option[i];
    }
    return found;
}

const struct option *option_nearest(const struct option_list *l, const char *key)
{
    size_t n = strlen(key), best_distance = n / 3 + 1;  // of three letters one is wrong
    if (n < 3 || n >= KEY_MAX) return NULL;
    const struct option *best = begins_with(l, key);
    if (best) return best;
    for (uint32_t i = 0; i < l->n; i++) {
        size_t d = distance(key, l->option[i].key);
        if (d < best_distance) {
            best_distance = d;
            best = &l->option[i];
        }
    }
    return best;
}

int option_unknown(const struct option_list *l, const char *key, const char *where,
                   bool flag, struct err *err)
{
    const struct option *near = option_nearest(l, key);
    if (!near)
        return err_set(err, -EINVAL, "%s is unknown; `dormouse %s --help` lists all",
                       where, l->command);
    char name[KEY_MAX];
    snprintf(name, sizeof name, "%s", near->key);
    for (char *p = name; flag && *p; p++)
        if (*p == '_') *p = '-';
    return err_set(err, -EINVAL, "%s is unknown; did you mean %s%s?", where,
                   flag ? "--" : "", name);
}

const char *option_placeholder(const struct option *o)
{
    switch (o->type) {
    case OPTION_STRING: return "TEXT";
    case OPTION_CHOICE:
    case OPTION_DTYPE:
    case OPTION_WEIGHTS: return o->choices + (o->choices[0] == '|');
    case OPTION_COUNT: return "N";
    case OPTION_SIZE: return "SIZE";
    case OPTION_DURATION: return "TIME";
    case OPTION_BOOL: return "true|false";
    }
    return "";
}

void option_expects(const struct option *o, char *buf, size_t cap)
{
    unsigned long long min = o->min, max = o->max;
    switch (o->type) {
    case OPTION_STRING:
        snprintf(buf, cap, "%llu to %llu bytes of text without control characters", min,
                 max);
        break;
    case OPTION_CHOICE:
    case OPTION_DTYPE:
    case OPTION_WEIGHTS:
        snprintf(buf, cap, "%s%s",
                 o->choices[0] == '|' ? "nothing or one of " : "one of ",
                 option_placeholder(o));
        break;
    case OPTION_COUNT:
        snprintf(buf, cap, "%sa whole number from %llu to %llu",
                 o->choices ? "0 or " : "", min, max);
        break;
    case OPTION_SIZE:
        snprintf(buf, cap, "a size from %llu to %llu bytes, such as 512M or 2G", min,
                 max);
        break;
    case OPTION_DURATION:
        snprintf(buf, cap, "a time from %llums to %llums, such as 250ms or 30s", min,
                 max);
        break;
    case OPTION_BOOL: snprintf(buf, cap, "true or false"); break;
    }
}

struct suffix {
    const char *text;
    uint64_t factor;
};

static const struct suffix count_suffixes[] = {{"", 1}, {NULL, 0}};
static const struct suffix size_suffixes[] = {{"", 1},          {"B", 1},
                                              {"K", 1 << 10},   {"M", 1 << 20},
                                              {"G", 1 << 30},   {"T", 1ull << 40},
                                              {"KiB", 1 << 10}, {"MiB", 1 << 20},
                                              {"GiB", 1 << 30}, {"TiB", 1ull << 40},
                                              {NULL, 0}};
static const struct suffix duration_suffixes[] = {
    {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {NULL, 0}};

/* Digits and one of the suffixes, perhaps after a blank, and nothing else. */
static bool parse_number(const char *text, const struct suffix *suffixes, uint64_t *out)
{
    uint64_t n = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(n, 10u, &n) ||
            __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n))
            return false;
    if (p == text) return false;
    if (*p == ' ') p++;
    for (const struct suffix *s = suffixes; s->text; s++)
        if (strcmp(p, s->text) == 0) return !__builtin_mul_overflow(n, s->factor, out);
    return false;
}

static bool set_number(const struct option *o, void *field, const char *value,
                       const struct suffix *suffixes)
{
    uint64_t n;
    if (!parse_number(value, suffixes, &n) || n > o->max) return false;
    if (n < o->min && !(n == 0 && o->choices)) return false;
    if (o->size == sizeof(uint64_t))
        memcpy(field, &n, sizeof n);
    else
        memcpy(field, &(uint32_t){(uint32_t)n}, sizeof(uint32_t));
    return true;
}

static bool set_string(const struct option *o, void *field, const char *value)
{
    size_t n = strlen(value);
    if (n < o->min || n > o->max || n >= o->size) return false;
    for (const char *p = value; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) return false;
    memcpy(field, value, n + 1);
    return true;
}

static bool set_choice(const struct option *o, void *field, const char *value)
{
    size_t n = strlen(value);
    for (const char *p = o->choices;; p++) {
        size_t length = strcspn(p, "|");
        if (length == n && memcmp(p, value, n) == 0) {
            memcpy(field, value, n + 1);
            return true;
        }
        p += length;
        if (!*p) return false;
    }
}

static bool parse_bool(const char *value, bool *out)
{
    static const char *const words[] = {"false", "true", "no", "yes",
                                        "off",   "on",   "0",  "1"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (strcmp(value, words[i])) continue;
        *out = i & 1;
        return true;
    }
    return false;
}

bool option_is_bool(const char *text)
{
    bool unused;
    return parse_bool(text, &unused);
}

int option_set(const struct option *o, void *to, const char *value, const char *where,
               struct err *err)
{
    void *field = (char *)to + o->offset;
    bool ok = false;
    switch (o->type) {
    case OPTION_STRING: ok = set_string(o, field, value); break;
    case OPTION_CHOICE: ok = set_choice(o, field, value); break;
    case OPTION_COUNT: ok = set_number(o, field, value, count_suffixes); break;
    case OPTION_SIZE: ok = set_number(o, field, value, size_suffixes); break;
    case OPTION_DURATION: ok = set_number(o, field, value, duration_suffixes); break;
    case OPTION_BOOL: ok = parse_bool(value, field); break;
    case OPTION_DTYPE: ok = dtype_parse(value, field); break;
    case OPTION_WEIGHTS: ok = weight_format_parse(value, field); break;
    }
    if (ok) return 0;

    char expected[128];
    option_expects(o, expected, sizeof expected);
    return err_set(err, -EINVAL, "%s: `%.80s` is not %s", where, value, expected);
}

void option_set_defaults(const struct option_list *l, void *to)
{
    for (uint32_t i = 0; i < l->n; i++) {
        const struct option *o = &l->option[i];
        int rc = option_set(o, to, o->value, o->key, NULL);
        assert(rc == 0);
        (void)rc;
    }
}
