/* Methods of str; and of dict, list and tuple, as far as they change nothing. */
#include <string.h>

#include "tokenizer/jinja_eval.h"
#include "tokenizer/unicode.h"

#define METHOD(name)                                                                   \
    static struct value name(struct run *r, struct value v, const struct value *a,     \
                             const struct call_args *all)
#define UNUSED (void)r, (void)a, (void)all

static struct value text(const struct str *s, struct value like)
{
    struct value v = value_str(s);
    v.markup = like.markup;
    return v;
}

/* The argument as a string, TypeError where it is none. */
static const struct str *str_arg(struct run *r, struct value v)
{
    if (v.kind == V_STRING) return v.s;
    if (v.kind == V_UNDEFINED)
        run_fail_undefined(r, v);
    else
        run_fail_type(r, "a string is wanted here, not '%s'", value_type_name(v));
    return &str_empty;
}

METHOD(do_upper)
{
    return UNUSED, text(str_case(r, v.s, UNICODE_UPPER), v);
}
METHOD(do_lower)
{
    return UNUSED, text(str_case(r, v.s, UNICODE_LOWER), v);
}
METHOD(do_title)
{
    return UNUSED, text(str_case(r, v.s, UNICODE_TITLE), v);
}
METHOD(do_capitalize)
{
    return UNUSED, text(str_capitalize(r, v.s), v);
}
METHOD(do_strip)
{
    return UNUSED, text(str_strip(r, v.s, a[0], true, true), v);
}
METHOD(do_lstrip)
{
    return UNUSED, text(str_strip(r, v.s, a[0], true, false), v);
}
METHOD(do_rstrip)
{
    return UNUSED, text(str_strip(r, v.s, a[0], false, true), v);
}

METHOD(do_replace)
{
    (void)all;
    const struct str *old = str_arg(r, a[0]), *with = str_arg(r, a[1]);
    if (v.markup && !a[1].markup) with = str_escape(r, with);
    return text(str_replace(r, v.s, old, with, arg_int(r, a[2], -1)), v);
}

METHOD(do_join)
{
    (void)all;
    struct list *l = value_items(r, a[0]);
    struct builder b;
    builder_init(&b, r);
    for (size_t i = 0; l && i < l->n && run_charge(r, 0); i++) {
        if (i) builder_str(&b, v.s);
        builder_str(&b, str_arg(r, l->items[i]));
    }
    return value_str(builder_done(&b));
}

METHOD(do_format)
{
    (void)a;
    return str_format_braces(r, v.s, all);
}

/* ---- searching ---------------------------------------------------------------- */

static bool ends_at(const struct str *s, const struct str *part, bool start)
{
    if (part->n > s->n) return false;
    return memcmp(start ? s->bytes : s->bytes + s->n - part->n, part->bytes, part->n) ==
           0;
}

/* s[start:end] of the optional bounds a[1] and a[2]; `from`: where it begins. */
static const struct str *window(struct run *r, struct value v, const struct value *a,
                                size_t *from)
{
    struct value bound[3] = {arg_given(a[1]) ? a[1] : value_none(),
                             arg_given(a[2]) ? a[2] : value_none(), value_none()};
    struct value part = value_slice(r, v, bound);
    if (part.kind != V_STRING) return &str_empty;
    *from = part.s->n ? (size_t)(part.s->bytes - v.s->bytes) : 0;
    return part.s;
}

static struct value starts_or_ends(struct run *r, struct value v, const struct value *a,
                                   bool start)
{
    size_t from;
    const struct str *s = window(r, v, a, &from);
    if (a[0].kind != V_TUPLE) {
        const struct str *part = str_arg(r, a[0]);
        return value_bool(run_charge(r, part->n) && ends_at(s, part, start));
    }
    for (size_t i = 0; i < a[0].list->n && run_charge(r, s->n); i++) {
        if (ends_at(s, str_arg(r, a[0].list->items[i]), start)) return value_bool(true);
    }
    return value_bool(false);
}

METHOD(do_startswith)
{
    return UNUSED, starts_or_ends(r, v, a, true);
}
METHOD(do_endswith)
{
    return UNUSED, starts_or_ends(r, v, a, false);
}

static struct value find(struct run *r, struct value v, const struct value *a,
                         bool last)
{
    size_t from = 0;
    const struct str *s = window(r, v, a, &from), *what = str_arg(r, a[0]);
    size_t at = last ? str_find_last(r, s, what) : str_find(r, s, what, 0);
    if (at == SIZE_MAX) return value_int(-1);
    return value_int((wide)unicode_count(v.s->bytes, from + at));
}

METHOD(do_find)
{
    return UNUSED, find(r, v, a, false);
}
METHOD(do_rfind)
{
    return UNUSED, find(r, v, a, true);
}

METHOD(do_index)
{
    (void)all;
    struct value at = find(r, v, a, false);
    return at.i < 0 ? run_fail(r, "ValueError", "substring not found") : at;
}

METHOD(do_count)
{
    (void)all;
    size_t from, n = 0;
    const struct str *s = window(r, v, a, &from), *what = str_arg(r, a[0]);
    if (what->n == 0) return value_int((wide)s->chars + 1);
    const char *p = s->bytes, *end = p + s->n;
    if (!run_charge(r, s->n)) return value_undefined();
    while ((p = memmem(p, (size_t)(end - p), what->bytes, what->n))) {
        p += what->n;
        n++;
    }
    return value_int((wide)n);
}

METHOD(do_removeprefix)
{
    (void)all;
    const struct str *part = str_arg(r, a[0]);
    return ends_at(v.s, part, true) ? text(str_slice(r, v.s, part->n, v.s->n), v) : v;
}

METHOD(do_removesuffix)
{
    (void)all;
    const struct str *part = str_arg(r, a[0]);
    return ends_at(v.s, part, false) ? text(str_slice(r, v.s, 0, v.s->n - part->n), v)
                                     : v;
}

/* Are there characters, and all of that class? */
static struct value all_are(struct run *r, const struct str *s, bool (*right)(uint32_t))
{
    if (!run_charge(r, s->n)) return value_undefined();
    for (const char *p = s->bytes; p < s->bytes + s->n;) {
        if (!right(unicode_next(&p))) return value_bool(false);
    }
    return value_bool(s->n > 0);
}

METHOD(do_isdigit)
{
    return UNUSED, all_are(r, v.s, unicode_is_digit);
}
METHOD(do_isalpha)
{
    return UNUSED, all_are(r, v.s, unicode_is_alpha);
}
METHOD(do_isalnum)
{
    return UNUSED, all_are(r, v.s, unicode_is_alnum);
}
METHOD(do_isspace)
{
    return UNUSED, all_are(r, v.s, unicode_is_space);
}
METHOD(do_isupper)
{
    return UNUSED, builtin_call(r, test_find("upper", 5), v, all);
}
METHOD(do_islower)
{
    return UNUSED, builtin_call(r, test_find("lower", 5), v, all);
}

const struct builtin methods_of_text[] = {
    {"upper", "", do_upper, V_STRING},
    {"lower", "", do_lower, V_STRING},
    {"title", "", do_title, V_STRING},
    {"capitalize", "", do_capitalize, V_STRING},
    {"strip", "? chars", do_strip, V_STRING},
    {"lstrip", "? chars", do_lstrip, V_STRING},
    {"rstrip", "? chars", do_rstrip, V_STRING},
    {"split", "? sep maxsplit", method_split, V_STRING},
    {"rsplit", "? sep maxsplit", method_rsplit, V_STRING},
    {"splitlines", "? keepends", method_splitlines, V_STRING},
    {"partition", "sep", method_partition, V_STRING},
    {"rpartition", "sep", method_rpartition, V_STRING},
    {"startswith", "prefix ? start end", do_startswith, V_STRING},
    {"endswith", "suffix ? start end", do_endswith, V_STRING},
    {"find", "sub ? start end", do_find, V_STRING},
    {"rfind", "sub ? start end", do_rfind, V_STRING},
    {"index", "sub ? start end", do_index, V_STRING},
    {"count", "sub ? start end", do_count, V_STRING},
    {"replace", "old new ? count", do_replace, V_STRING},
    {"removeprefix", "prefix", do_removeprefix, V_STRING},
    {"removesuffix", "suffix", do_removesuffix, V_STRING},
    {"join", "iterable", do_join, V_STRING},
    {"format", NULL, do_format, V_STRING},
    {"isdigit", "", do_isdigit, V_STRING},
    {"isalpha", "", do_isalpha, V_STRING},
    {"isalnum", "", do_isalnum, V_STRING},
    {"isspace", "", do_isspace, V_STRING},
    {"isupper", "", do_isupper, V_STRING},
    {"islower", "", do_islower, V_STRING},
    {NULL, NULL, NULL, 0},
};

/* ---- dict, list, tuple -------------------------------------------------------- */

METHOD(dict_get)
{
    (void)all;
    const struct value *found = dict_find(r, v.dict, a[0]);
    if (found) return *found;
    return a[1].kind == V_ABSENT ? value_none() : a[1];
}

METHOD(dict_items)
{
    UNUSED;
    struct list *l = dict_pairs(r, v.dict);
    return l ? value_list(l) : value_undefined();
}

METHOD(dict_keys)
{
    UNUSED;
    struct list *l = value_items(r, v);
    return l ? value_list(l) : value_undefined();
}

METHOD(dict_values)
{
    UNUSED;
    struct list *l = list_new(r, v.dict->n);
    if (!l || !run_charge(r, v.dict->n)) return value_undefined();
    for (size_t i = 0; i < v.dict->n; i++) l->items[l->n++] = v.dict->pairs[i].value;
    return value_list(l);
}

METHOD(same)
{
    return UNUSED, v;
}

METHOD(list_index)
{
    (void)all;
    for (size_t i = 0; i < v.list->n && !r->rc; i++) {
        if (value_equal(r, v.list->items[i], a[0])) return value_int((wide)i);
    }
    return run_fail(r, "ValueError", "the value is not in the %s", value_type_name(v));
}

METHOD(list_count)
{
    (void)all;
    size_t n = 0;
    for (size_t i = 0; i < v.list->n && !r->rc; i++)
        n += value_equal(r, v.list->items[i], a[0]);
    return value_int((wide)n);
}

const struct builtin methods_of_values[] = {
    {"get", "key ? default", dict_get, V_DICT},
    {"items", "", dict_items, V_DICT},
    {"keys", "", dict_keys, V_DICT},
    {"values", "", dict_values, V_DICT},
    {"copy", "", same, V_DICT},  // nothing can change either of them
    {"index", "value", list_index, V_LIST},
    {"count", "value", list_count, V_LIST},
    {"copy", "", same, V_LIST},
    {"index", "value", list_index, V_TUPLE},
    {"count", "value", list_count, V_TUPLE},
    {"changed", NULL, method_changed, V_LOOP},
    {"cycle", NULL, method_cycle, V_LOOP},
    {NULL, NULL, NULL, 0},
};
