/* Filters that go over the elements of something.  What is a generator in Jinja is a
 * list here. */
#include <string.h>

#include "tokenizer/jinja_eval.h"

#define FILTER(name)                                                                   \
    static struct value name(struct run *r, struct value v, const struct value *a,     \
                             const struct call_args *all)
#define UNUSED (void)r, (void)a, (void)all

static struct value list_or_none(struct list *l)
{
    return l ? value_list(l) : value_undefined();
}

/* ---- sorting ------------------------------------------------------------------ */

struct entry {
    struct value key, item;
};

/* What is compared: the item or one of its attributes, letters in lower case unless
 * they count. */
static struct value sort_key(struct run *r, struct value item, struct value attribute,
                             bool case_sensitive)
{
    if (arg_given(attribute)) item = value_attribute_path(r, item, attribute);
    if (!case_sensitive && item.kind == V_STRING)
        item.s = str_case(r, item.s, UNICODE_LOWER);
    return item;
}

/* One key for each of the attributes "a,b.c". */
static struct value sort_keys(struct run *r, struct value item, const struct str *names,
                              bool case_sensitive)
{
    struct list *keys = list_new(r, 1);
    for (size_t from = 0; keys && from <= names->n && !r->rc;) {
        const char *comma = memchr(names->bytes + from, ',', names->n - from);
        size_t to = comma ? (size_t)(comma - names->bytes) : names->n;
        struct value name = value_str(str_slice(r, names, from, to));
        list_push(r, keys, sort_key(r, item, name, case_sensitive));
        from = to + 1;
    }
    return keys ? value_list(keys) : value_undefined();
}

/* Merge sort: equal elements keep their order, also in reverse. */
static void sort_entries(struct run *r, struct entry *e, struct entry *spare, size_t n,
                         bool reverse)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t from = 0; from < n; from += 2 * width) {
            size_t mid = from + width < n ? from + width : n;
            size_t end = from + 2 * width < n ? from + 2 * width : n;
            size_t i = from, j = mid;
            for (size_t at = from; at < end && run_charge(r, 0); at++) {
                int c =
                    i < mid && j < end ? value_compare(r, e[i].key, e[j].key, "<") : 0;
                bool left = j >= end || (i < mid && (reverse ? c >= 0 : c <= 0));
                spare[at] = left ? e[i++] : e[j++];
            }
        }
        if (r->rc) return;
        memcpy(e, spare, n * sizeof *e);
    }
}

static struct list *sorted(struct run *r, const struct list *l, struct value attribute,
                           bool case_sensitive, bool reverse)
{
    struct list *out = list_new(r, l->n);
    struct entry *e = run_alloc(r, l->n * sizeof *e);
    struct entry *spare = run_alloc(r, l->n * sizeof *e);
    if (!out || !e || !spare) return NULL;
    for (size_t i = 0; i < l->n && !r->rc; i++) {
        struct value item = l->items[i];
        struct value key = attribute.kind == V_STRING
                               ? sort_keys(r, item, attribute.s, case_sensitive)
                               : sort_key(r, item, attribute, case_sensitive);
        e[i] = (struct entry){key, item};
    }
    if (r->rc) return NULL;
    sort_entries(r, e, spare, l->n, reverse);
    for (size_t i = 0; i < l->n && !r->rc; i++) out->items[out->n++] = e[i].item;
    return out;
}

FILTER(do_sort)
{
    (void)all;
    struct list *l = value_items(r, v);
    if (!l) return value_undefined();
    return list_or_none(
        sorted(r, l, a[2], arg_truth(a[1], false), arg_truth(a[0], false)));
}

struct list *dict_pairs(struct run *r, const struct dict *d)
{
    struct list *l = list_new(r, d->n);
    if (!l || !run_charge(r, d->n * 8)) return NULL;
    for (size_t i = 0; i < d->n; i++) {
        struct list *pair = list_new(r, 2);
        if (!pair) return NULL;
        pair->items[pair->n++] = d->pairs[i].key;
        pair->items[pair->n++] = d->pairs[i].value;
        l->items[l->n++] = (struct value){.kind = V_TUPLE, .list = pair};
    }
    return l;
}

FILTER(do_dictsort)
{
    (void)all;
    bool by_value = a[1].kind == V_STRING && str_is(a[1].s, "value");
    if (v.kind != V_DICT) return run_fail_type(r, "dictsort takes a mapping");
    struct list *l = dict_pairs(r, v.dict);
    if (!l) return value_undefined();
    return list_or_none(sorted(r, l, value_int(by_value), arg_truth(a[0], false),
                               arg_truth(a[2], false)));
}

struct dict *dict_sorted(struct run *r, const struct dict *d)
{
    struct dict *out = dict_new(r, d->n);
    struct list *l = dict_pairs(r, d);
    if (l) l = sorted(r, l, value_int(0), true, false);
    for (size_t i = 0; out && l && i < l->n; i++)
        dict_append(r, out, l->items[i].list->items[0], l->items[i].list->items[1]);
    return out && l ? out : dict_new(r, 0);
}

/* ---- one out of many ---------------------------------------------------------- */

static struct value extreme(struct run *r, struct value v, const struct value *a,
                            bool greatest)
{
    struct list *l = value_items(r, v);
    if (!l || l->n == 0) return value_undefined();
    struct value best = l->items[0];
    bool case_sensitive = arg_truth(a[0], false);
    struct value best_key = sort_key(r, best, a[1], case_sensitive);
    for (size_t i = 1; i < l->n && run_charge(r, 0); i++) {
        struct value key = sort_key(r, l->items[i], a[1], case_sensitive);
        int c = value_compare(r, key, best_key, greatest ? ">" : "<");
        if (greatest ? c > 0 : c < 0) {
            best = l->items[i];
            best_key = key;
        }
    }
    return best;
}

FILTER(do_max)
{
    return UNUSED, extreme(r, v, a, true);
}
FILTER(do_min)
{
    return UNUSED, extreme(r, v, a, false);
}

FILTER(do_sum)
{
    (void)all;
    struct list *l = value_items(r, v);
    struct value sum = a[1].kind == V_ABSENT ? value_int(0) : a[1];
    for (size_t i = 0; l && i < l->n && run_charge(r, 0); i++) {
        struct value item = l->items[i];
        if (arg_given(a[0])) item = value_attribute_path(r, item, a[0]);
        sum = value_binary(r, OP_ADD, sum, item);
    }
    return sum;
}

FILTER(do_join)
{
    (void)all;
    const struct str *between = a[0].kind == V_ABSENT ? &str_empty : str_from(r, a[0]);
    struct list *l = value_items(r, v);
    struct builder b;
    builder_init(&b, r);
    for (size_t i = 0; l && i < l->n && run_charge(r, 0); i++) {
        struct value item = l->items[i];
        if (arg_given(a[1])) item = value_attribute_path(r, item, a[1]);
        if (i) builder_str(&b, between);
        builder_value(&b, item);
    }
    return value_str(builder_done(&b));
}

/* ---- many out of many --------------------------------------------------------- */

FILTER(do_reverse)
{
    UNUSED;
    struct list *l = value_items(r, v);
    if (!l || !run_charge(r, l->n)) return value_undefined();
    if (v.kind == V_STRING) {
        struct builder b;
        builder_init(&b, r);
        for (size_t i = l->n; i > 0; i--) builder_str(&b, l->items[i - 1].s);
        return value_str(builder_done(&b));
    }
    struct list *out = list_new(r, l->n);
    for (size_t i = l->n; out && i > 0; i--) out->items[out->n++] = l->items[i - 1];
    return list_or_none(out);
}

FILTER(do_unique)
{
    (void)all;
    struct list *l = value_items(r, v), *keys = list_new(r, 0), *out = list_new(r, 0);
    bool case_sensitive = arg_truth(a[0], false);
    for (size_t i = 0; l && keys && out && i < l->n && !r->rc; i++) {
        struct value key = sort_key(r, l->items[i], a[1], case_sensitive);
        bool seen = value_contains(r, value_list(keys), key);
        if (!seen && (!list_push(r, keys, key) || !list_push(r, out, l->items[i])))
            break;
    }
    return list_or_none(out);
}

/* map and its like take anything that is not true for empty, none too. */
static struct list *items_or_none(struct run *r, struct value v)
{
    return value_truth(v) ? value_items(r, v) : list_new(r, 0);
}

/* The builtin that the argument at `at` names, and the arguments behind it. */
static const struct builtin *named_builtin(struct run *r, const struct call_args *all,
                                           size_t at, bool test, struct call_args *rest)
{
    const struct str *name = all->n > at ? str_from(r, all->pos[at]) : &str_empty;
    const struct builtin *f =
        test ? test_find(name->bytes, name->n) : filter_find(name->bytes, name->n);
    if (!f) {
        run_fail(r, "TemplateRuntimeError", "No %s named '%.*s'.",
                 test ? "test" : "filter", str_clip(name, 60), name->bytes);
        return NULL;
    }
    *rest = (struct call_args){all->pos + at + 1, all->n - at - 1, all->named,
                               all->n_named};
    return f;
}

static struct value named_arg(const struct call_args *all, const char *name)
{
    for (size_t i = 0; i < all->n_named; i++) {
        if (str_is(all->named[i].key.s, name)) return all->named[i].value;
    }
    return (struct value){.kind = V_ABSENT};
}

FILTER(do_map)
{
    (void)a;
    struct list *l = items_or_none(r, v), *out;
    struct value attribute = named_arg(all, "attribute");
    struct value otherwise = named_arg(all, "default");
    struct call_args rest = {0};
    const struct builtin *f = NULL;
    if (all->n == 0 && attribute.kind == V_ABSENT)
        return run_fail_type(r, "map requires a filter argument");
    if (all->n) f = named_builtin(r, all, 0, false, &rest);
    if (r->rc || !l || !(out = list_new(r, l->n))) return value_undefined();
    for (size_t i = 0; i < l->n && run_charge(r, 0); i++) {
        struct value item = l->items[i];
        item = f ? builtin_call(r, f, item, &rest)
                 : value_attribute_path(r, item, attribute);
        if (!f && item.kind == V_UNDEFINED && otherwise.kind != V_ABSENT)
            item = otherwise;
        out->items[out->n++] = item;
    }
    return value_list(out);
}

/* select, reject, selectattr and rejectattr. */
static struct value choose(struct run *r, struct value v, const struct call_args *all,
                           bool by_attribute, bool wanted)
{
    struct list *l = items_or_none(r, v), *out = list_new(r, 0);
    struct call_args rest = {0};
    const struct builtin *test = NULL;
    size_t at = by_attribute;
    if (all->n < at) return run_fail_type(r, "an attribute to select by is missing");
    if (all->n > at) test = named_builtin(r, all, at, true, &rest);
    for (size_t i = 0; l && out && i < l->n && run_charge(r, 0); i++) {
        struct value item = l->items[i];
        if (by_attribute) item = value_attribute_path(r, item, all->pos[0]);
        if (test) item = builtin_call(r, test, item, &rest);
        if (value_truth(item) == wanted && !list_push(r, out, l->items[i])) break;
    }
    return list_or_none(out);
}

FILTER(do_select)
{
    return UNUSED, choose(r, v, all, false, true);
}
FILTER(do_reject)
{
    return UNUSED, choose(r, v, all, false, false);
}
FILTER(do_selectattr)
{
    return UNUSED, choose(r, v, all, true, true);
}
FILTER(do_rejectattr)
{
    return UNUSED, choose(r, v, all, true, false);
}

const struct builtin filters_of_lists[] = {
    {"sort", "? reverse case_sensitive attribute", do_sort, 0},
    {"dictsort", "? case_sensitive by reverse", do_dictsort, 0},
    {"max", "? case_sensitive attribute", do_max, 0},
    {"min", "? case_sensitive attribute", do_min, 0},
    {"sum", "? attribute start", do_sum, 0},
    {"join", "? d attribute", do_join, 0},
    {"reverse", "", do_reverse, 0},
    {"unique", "? case_sensitive attribute", do_unique, 0},
    {"map", NULL, do_map, 0},
    {"select", NULL, do_select, 0},
    {"reject", NULL, do_reject, 0},
    {"selectattr", NULL, do_selectattr, 0},
    {"rejectattr", NULL, do_rejectattr, 0},
    {NULL, NULL, NULL, 0},
};
