/* The methods of str that take text apart, and those of the loop variable. */
#include <string.h>

#include "tokenizer/jinja_eval.h"
#include "tokenizer/unicode.h"

#define METHOD(name)                                                                   \
    struct value name(struct run *r, struct value v, const struct value *a,            \
                      const struct call_args *all)

static bool push_slice(struct run *r, struct list *l, const struct str *s, size_t from,
                       size_t to)
{
    return run_charge(r, 0) && list_push(r, l, value_str(str_slice(r, s, from, to)));
}

/* Between runs of white space. */
static void split_spaces(struct run *r, struct list *l, const struct str *s, wide max)
{
    const char *p = s->bytes, *end = p + s->n;
    while (!r->rc) {
        const char *next = p;
        while (p < end && unicode_is_space(unicode_next(&next))) p = next;
        if (p == end) return;
        const char *from = p;
        if (max-- == 0) {
            push_slice(r, l, s, (size_t)(from - s->bytes), s->n);
            return;
        }
        for (next = p; p < end && !unicode_is_space(unicode_next(&next));) p = next;
        push_slice(r, l, s, (size_t)(from - s->bytes), (size_t)(p - s->bytes));
    }
}

static void split_at(struct run *r, struct list *l, const struct str *s,
                     const struct str *sep, wide max)
{
    size_t from = 0;
    for (; max != 0 && !r->rc; max--) {
        const char *hit = memmem(s->bytes + from, s->n - from, sep->bytes, sep->n);
        if (!hit) break;
        push_slice(r, l, s, from, (size_t)(hit - s->bytes));
        from = (size_t)(hit - s->bytes) + sep->n;
    }
    push_slice(r, l, s, from, s->n);
}

/* The separator, or NULL where white space separates. */
static bool separator(struct run *r, struct value v, const struct str **out)
{
    *out = NULL;
    if (!arg_given(v)) return true;
    if (v.kind != V_STRING)
        return run_fail_type(r, "must be str or None, not %s", value_type_name(v)),
               false;
    if (v.s->n == 0) return run_fail(r, "ValueError", "empty separator"), false;
    *out = v.s;
    return true;
}

METHOD(method_split)
{
    (void)all;
    const struct str *sep;
    struct list *l = list_new(r, 4);
    wide max = arg_int(r, a[1], -1);
    if (!l || !separator(r, a[0], &sep) || !run_charge(r, v.s->n))
        return value_undefined();
    if (sep)
        split_at(r, l, v.s, sep, max);
    else
        split_spaces(r, l, v.s, max);
    return value_list(l);
}

static void reverse(struct list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct value other = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = other;
    }
}

/* From the right; the parts are then put in order. */
METHOD(method_rsplit)
{
    const struct str *sep, *s = v.s;
    struct list *l = list_new(r, 4);
    wide max = arg_int(r, a[1], -1);
    if (!l || !separator(r, a[0], &sep)) return value_undefined();
    if (max < 0) return method_split(r, v, a, all);
    if (!sep) return run_fail(r, "ValueError", "rsplit with a limit needs a separator");
    size_t end = s->n;
    for (size_t i = end + 1; i > 0 && max > 0 && run_charge(r, sep->n); i--) {
        if (end < sep->n || i - 1 > end - sep->n) continue;
        if (memcmp(s->bytes + i - 1, sep->bytes, sep->n) != 0) continue;
        push_slice(r, l, s, i - 1 + sep->n, end);
        end = i - 1;
        max--;
    }
    push_slice(r, l, s, 0, end);
    reverse(l);
    return value_list(l);
}

METHOD(method_splitlines)
{
    (void)all;
    const struct str *s = v.s;
    struct list *l = list_new(r, 4);
    bool keep = arg_truth(a[0], false);
    const char *p = s->bytes, *end = p + s->n, *from = p;
    if (!l || !run_charge(r, s->n)) return value_undefined();
    while (p < end && !r->rc) {
        const char *at = p;
        uint32_t cp = unicode_next(&p);
        if (!unicode_is_line_end(cp)) continue;
        if (cp == '\r' && p < end && *p == '\n') p++;
        push_slice(r, l, s, (size_t)(from - s->bytes),
                   (size_t)((keep ? p : at) - s->bytes));
        from = p;
    }
    if (from < end) push_slice(r, l, s, (size_t)(from - s->bytes), s->n);
    return value_list(l);
}

static struct value parted(struct run *r, struct value v, const struct value *a,
                           bool last)
{
    const struct str *sep, *s = v.s;
    struct list *l = list_new(r, 3);
    if (!l || !separator(r, a[0], &sep)) return value_undefined();
    if (!sep) return run_fail_type(r, "must be str, not NoneType");
    size_t at = last ? str_find_last(r, s, sep) : str_find(r, s, sep, 0);
    size_t after = at + sep->n;
    if (at == SIZE_MAX) at = after = last ? 0 : s->n;
    push_slice(r, l, s, 0, at);
    push_slice(r, l, s, at, after);
    push_slice(r, l, s, after, s->n);
    return (struct value){.kind = V_TUPLE, .list = l};
}

METHOD(method_partition)
{
    return (void)all, parted(r, v, a, false);
}
METHOD(method_rpartition)
{
    return (void)all, parted(r, v, a, true);
}

/* ---- loop --------------------------------------------------------------------- */

METHOD(method_cycle)
{
    (void)a;
    if (all->n == 0) return run_fail_type(r, "no items for cycling given");
    return all->pos[v.loop->index0 % all->n];
}

METHOD(method_changed)
{
    (void)a;
    struct list *now = list_new(r, all->n);
    if (!now) return value_undefined();
    if (all->n) memcpy(now->items, all->pos, all->n * sizeof *now->items);
    now->n = all->n;
    bool same = v.loop->has_changed && value_equal(r, v.loop->changed, value_list(now));
    v.loop->changed = value_list(now);
    v.loop->has_changed = true;
    return value_bool(!same);
}
