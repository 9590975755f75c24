#include "tokenizer/jinja_run.h"

#include <string.h>

const char *value_type_name(struct value v)
{
    static const char *const names[] = {
        [V_UNDEFINED] = "Undefined", [V_NONE] = "NoneType",
        [V_BOOL] = "bool",           [V_INT] = "int",
        [V_FLOAT] = "float",         [V_STRING] = "str",
        [V_LIST] = "list",           [V_TUPLE] = "tuple",
        [V_DICT] = "dict",           [V_NAMESPACE] = "Namespace",
        [V_RANGE] = "range",         [V_MACRO] = "Macro",
        [V_FUNCTION] = "function",   [V_METHOD] = "method",
        [V_LOOP] = "LoopContext",    [V_ABSENT] = "nothing"};
    return names[v.kind];
}

bool value_truth(struct value v)
{
    switch (v.kind) {
    case V_UNDEFINED:
    case V_NONE:
    case V_ABSENT: return false;
    case V_BOOL: return v.b;
    case V_INT: return v.i != 0;
    case V_FLOAT: return v.f != 0;
    case V_STRING: return v.s->n > 0;
    case V_LIST:
    case V_TUPLE: return v.list->n > 0;
    case V_DICT: return v.dict->n > 0;
    case V_RANGE: return v.range->n > 0;
    default: return true;
    }
}

bool value_length(struct value v, size_t *out)
{
    switch (v.kind) {
    case V_UNDEFINED: *out = 0; return true;
    case V_STRING: *out = v.s->chars; return true;
    case V_LIST:
    case V_TUPLE: *out = v.list->n; return true;
    case V_DICT: *out = v.dict->n; return true;
    case V_RANGE: *out = v.range->n; return true;
    default: return false;
    }
}

bool value_has_user(struct value v)
{
    if (v.kind == V_STRING) return str_has_user(v.s);
    return value_is_number(v) ? v.user : true;
}

/* ---- comparison --------------------------------------------------------------- */

static bool lists_equal(struct run *r, const struct list *a, const struct list *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        if (!value_equal(r, a->items[i], b->items[i])) return false;
    }
    return true;
}

static bool dicts_equal(struct run *r, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct value *other = dict_find(r, b, a->pairs[i].key);
        if (!other || !value_equal(r, a->pairs[i].value, *other)) return false;
    }
    return true;
}

bool value_equal(struct run *r, struct value a, struct value b)
{
    if (value_is_number(a) && value_is_number(b)) {
        if (a.kind == V_FLOAT || b.kind == V_FLOAT)
            return value_as_double(a) == value_as_double(b);
        return value_as_int(a) == value_as_int(b);
    }
    if (a.kind != b.kind || !run_charge(r, 0)) return false;
    bool equal = false;
    switch (a.kind) {
    case V_UNDEFINED:
    case V_NONE: return true;
    case V_STRING:
        return (a.s->n != b.s->n || run_charge(r, a.s->n)) && str_equal(a.s, b.s);
    case V_LIST:
    case V_TUPLE:
        if (!run_enter(r)) return false;
        equal = lists_equal(r, a.list, b.list);
        run_leave(r);
        return equal;
    case V_DICT:
        if (!run_enter(r)) return false;
        equal = dicts_equal(r, a.dict, b.dict);
        run_leave(r);
        return equal;
    case V_RANGE:
        return a.range->n == b.range->n &&
               (a.range->n == 0 ||
                (a.range->start == b.range->start &&
                 (a.range->n == 1 || a.range->step == b.range->step)));
    case V_METHOD: return false;
    default: return a.list == b.list;  // identity
    }
}

static int compare_lists(struct run *r, const struct list *a, const struct list *b,
                         const char *op)
{
    for (size_t i = 0; i < a->n && i < b->n && !r->rc; i++) {
        if (!value_equal(r, a->items[i], b->items[i]))
            return value_compare(r, a->items[i], b->items[i], op);
    }
    return a->n < b->n ? -1 : a->n > b->n;
}

int value_compare(struct run *r, struct value a, struct value b, const char *op)
{
    if (value_is_number(a) && value_is_number(b)) {
        if (a.kind == V_FLOAT || b.kind == V_FLOAT) {
            double x = value_as_double(a), y = value_as_double(b);
            return x < y ? -1 : x > y;
        }
        wide x = value_as_int(a), y = value_as_int(b);
        return x < y ? -1 : x > y;
    }
    if (a.kind == V_STRING && b.kind == V_STRING) {
        return run_charge(r, a.s->n < b.s->n ? a.s->n : b.s->n) ? str_compare(a.s, b.s)
                                                                : 0;
    }
    if (a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE)) {
        if (!run_charge(r, 0) || !run_enter(r)) return 0;
        int c = compare_lists(r, a.list, b.list, op);
        run_leave(r);
        return c;
    }
    if (a.kind == V_UNDEFINED || b.kind == V_UNDEFINED)
        run_fail_undefined(r, a.kind == V_UNDEFINED ? a : b);
    run_fail_type(r, "'%s' not supported between instances of '%s' and '%s'", op,
                  value_type_name(a), value_type_name(b));
    return 0;
}

/* ---- containers --------------------------------------------------------------- */

static bool range_contains(const struct range_value *g, struct value v)
{
    if (!value_is_number(v) || g->n == 0) return false;
    if (v.kind == V_FLOAT && v.f != (double)(int64_t)g->start &&
        v.f != __builtin_trunc(v.f))
        return false;
    wide i = v.kind == V_FLOAT
                 ? (v.f > -1e18 && v.f < 1e18 ? (wide)v.f : (wide)1 << 100)
                 : value_as_int(v);
    wide last = (wide)g->start + (wide)g->step * (wide)(g->n - 1);
    wide low = g->step > 0 ? g->start : last, high = g->step > 0 ? last : g->start;
    return i >= low && i <= high && (i - g->start) % g->step == 0;
}

bool value_contains(struct run *r, struct value v, struct value needle)
{
    switch (v.kind) {
    case V_UNDEFINED: return false;
    case V_STRING:
        if (needle.kind == V_STRING) return str_find(r, v.s, needle.s, 0) != SIZE_MAX;
        if (needle.kind == V_UNDEFINED) return run_fail_undefined(r, needle), false;
        run_fail_type(r, "'in <string>' requires string as left operand, not %s",
                      value_type_name(needle));
        return false;
    case V_LIST:
    case V_TUPLE:
        for (size_t i = 0; i < v.list->n && !r->rc; i++) {
            if (value_equal(r, v.list->items[i], needle)) return true;
        }
        return false;
    case V_DICT: return dict_find(r, v.dict, needle) != NULL;
    case V_RANGE: return range_contains(v.range, needle);
    default:
        run_fail_type(r, "argument of type '%s' is not iterable", value_type_name(v));
        return false;
    }
}

static struct list *characters(struct run *r, const struct str *s)
{
    struct list *l = list_new(r, s->chars);
    for (size_t i = 0, end; l && i < s->n; i = end) {
        for (end = i + 1; end < s->n && ((unsigned char)s->bytes[end] & 0xc0) == 0x80;)
            end++;
        if (!run_charge(r, 0)) return NULL;
        if (!list_push(r, l, value_str(str_slice(r, s, i, end)))) return NULL;
    }
    return l;
}

struct list *value_items(struct run *r, struct value v)
{
    struct list *l;
    switch (v.kind) {
    case V_LIST:
    case V_TUPLE: return v.list;
    case V_UNDEFINED: return list_new(r, 0);
    case V_STRING: return characters(r, v.s);
    case V_DICT:
        l = list_new(r, v.dict->n);
        for (size_t i = 0; l && i < v.dict->n; i++)
            l->items[l->n++] = v.dict->pairs[i].key;
        return run_charge(r, v.dict->n) ? l : NULL;
    case V_RANGE:
        l = list_new(r, v.range->n);
        for (size_t i = 0; l && i < v.range->n; i++)
            l->items[l->n++] =
                value_int((wide)v.range->start + (wide)v.range->step * (wide)i);
        return run_charge(r, v.range->n) ? l : NULL;
    default:
        run_fail_type(r, "'%s' object is not iterable", value_type_name(v));
        return NULL;
    }
}

struct list *list_new(struct run *r, size_t n)
{
    if (n > SIZE_MAX / sizeof(struct value) / 2) {
        run_limit(r, "a list is longer than a render may make");
        return NULL;
    }
    struct list *l = run_alloc(r, sizeof *l);
    if (!l) return NULL;
    *l = (struct list){.cap = n};
    if (n) l->items = run_alloc(r, n * sizeof *l->items);
    return n == 0 || l->items ? l : NULL;
}

bool list_push(struct run *r, struct list *l, struct value v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap < 8 ? 8 : l->cap * 2;
        struct value *items = run_alloc(r, cap * sizeof *items);
        if (!items) return false;
        if (l->n) memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = v;
    return !r->rc;
}

struct dict *dict_new(struct run *r, size_t n)
{
    struct dict *d = run_alloc(r, sizeof *d);
    if (!d) return NULL;
    *d = (struct dict){.cap = n};
    if (n) d->pairs = run_alloc(r, n * sizeof *d->pairs);
    return n == 0 || d->pairs ? d : NULL;
}

bool dict_append(struct run *r, struct dict *d, struct value key, struct value v)
{
    if (d->n == d->cap) {
        size_t cap = d->cap < 4 ? 4 : d->cap * 2;
        struct pair *pairs = run_alloc(r, cap * sizeof *pairs);
        if (!pairs) return false;
        if (d->n) memcpy(pairs, d->pairs, d->n * sizeof *pairs);
        d->pairs = pairs;
        d->cap = cap;
    }
    d->pairs[d->n++] = (struct pair){key, v};
    return true;
}

struct value *dict_find_str(struct run *r, const struct dict *d, const struct str *key)
{
    if (!run_charge(r, d->n * 2 + key->n)) return NULL;
    for (size_t i = 0; i < d->n; i++) {
        struct value k = d->pairs[i].key;
        if (k.kind == V_STRING && str_equal(k.s, key)) return &d->pairs[i].value;
    }
    return NULL;
}

struct value *dict_find(struct run *r, const struct dict *d, struct value key)
{
    if (key.kind == V_STRING) return dict_find_str(r, d, key.s);
    if (key.kind == V_LIST || key.kind == V_DICT) {
        run_fail_type(r, "unhashable type: '%s'", value_type_name(key));
        return NULL;
    }
    for (size_t i = 0; i < d->n && run_charge(r, 0); i++) {
        if (value_equal(r, d->pairs[i].key, key)) return &d->pairs[i].value;
    }
    return NULL;
}

bool dict_put(struct run *r, struct dict *d, struct value key, struct value v)
{
    struct value *old = dict_find(r, d, key);
    if (old) *old = v;
    return old || (!r->rc && dict_append(r, d, key, v));
}
