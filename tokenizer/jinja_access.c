/* a.b, a[b], a[b:c:d], as Jinja's immutable sandbox answers them. */
#include <string.h>

#include "tokenizer/jinja_eval.h"

static struct value missing(struct value v, const struct str *name, enum missing why)
{
    return (struct value){
        .kind = V_UNDEFINED, .why = (uint8_t)why, .owner = v.kind, .name = name};
}

static struct value bound_method(struct run *r, struct value v, const struct builtin *f)
{
    struct method *m = run_alloc(r, sizeof *m);
    if (!m) return value_undefined();
    *m = (struct method){f, v};
    return (struct value){.kind = V_METHOD, .method = m};
}

/* What belongs to the type rather than to the value; V_ABSENT: nothing. */
static struct value type_attribute(struct run *r, struct value v,
                                   const struct str *name)
{
    const struct builtin *f = method_find(v.kind, name->bytes, name->n);
    if (f) return bound_method(r, v, f);
    if (method_mutates(v.kind, name->bytes, name->n))
        return missing(v, name, MISSING_UNSAFE);
    if (v.kind == V_LOOP) return loop_attribute(r, v.loop, name);
    return (struct value){.kind = V_ABSENT};
}

struct value value_attribute(struct run *r, struct value v, const struct str *name)
{
    if (v.kind == V_UNDEFINED) return run_fail_undefined(r, v);
    struct value found = type_attribute(r, v, name);
    if (found.kind != V_ABSENT) return found;
    if (v.kind == V_DICT || v.kind == V_NAMESPACE) {
        const struct value *item = dict_find_str(r, v.dict, name);
        if (item) return *item;
    }
    bool hidden = name->n && name->bytes[0] == '_';
    return missing(v, name, hidden ? MISSING_UNSAFE : MISSING_ATTRIBUTE);
}

static size_t sequence_length(struct value v)
{
    size_t n = 0;
    return value_length(v, &n) ? n : 0;
}

static struct value element(struct run *r, struct value v, size_t i)
{
    if (v.kind == V_STRING) {
        size_t from = str_offset(v.s, i), to = from + 1;
        while (to < v.s->n && ((unsigned char)v.s->bytes[to] & 0xc0) == 0x80) to++;
        struct value c = value_str(str_slice(r, v.s, from, to));
        c.markup = v.markup;
        return run_charge(r, v.s->chars == v.s->n ? 0 : from) ? c : value_undefined();
    }
    if (v.kind == V_RANGE)
        return value_int((wide)v.range->start + (wide)v.range->step * (wide)i);
    return v.list->items[i];
}

static bool is_indexed(struct value v)
{
    return v.kind == V_STRING || v.kind == V_LIST || v.kind == V_TUPLE ||
           v.kind == V_RANGE;
}

struct value value_item(struct run *r, struct value v, struct value key)
{
    if (v.kind == V_UNDEFINED) return run_fail_undefined(r, v);
    if (v.kind == V_DICT && key.kind != V_LIST && key.kind != V_DICT) {
        const struct value *item = dict_find(r, v.dict, key);
        if (item) return *item;
    }
    if (is_indexed(v) && value_is_integral(key)) {
        wide i = value_as_int(key), n = (wide)sequence_length(v);
        if (i < 0) i += n;
        return i >= 0 && i < n ? element(r, v, (size_t)i)
                               : missing(v, NULL, MISSING_ITEM);
    }
    if (key.kind == V_STRING) return value_attribute(r, v, key.s);
    return missing(v, NULL, MISSING_ITEM);
}

struct value value_attribute_path(struct run *r, struct value v, struct value path)
{
    if (value_is_integral(path)) return value_item(r, v, path);
    if (path.kind != V_STRING) return run_fail_type(r, "an attribute must be a string");
    for (size_t from = 0; from <= path.s->n && !r->rc;) {
        const char *dot = memchr(path.s->bytes + from, '.', path.s->n - from);
        size_t to = dot ? (size_t)(dot - path.s->bytes) : path.s->n;
        wide i = 0;
        bool digits = to > from;
        for (size_t k = from; k < to; k++) {
            char c = path.s->bytes[k];
            digits = digits && c >= '0' && c <= '9' && i < 1000000000;
            if (digits) i = i * 10 + (c - '0');
        }
        v = value_item(
            r, v, digits ? value_int(i) : value_str(str_slice(r, path.s, from, to)));
        from = to + 1;
    }
    return v;
}

/* ---- slices ------------------------------------------------------------------- */

/* Python's PySlice_AdjustIndices: the first index and how many there are. */
static size_t adjust(wide start, wide stop, wide step, bool has_start, bool has_stop,
                     size_t length, size_t *first)
{
    wide n = (wide)length;
    if (!has_start)
        start = step > 0 ? 0 : n - 1;
    else if (start < 0)
        start = start + n < 0 ? (step > 0 ? 0 : -1) : start + n;
    else if (start >= n)
        start = step > 0 ? n : n - 1;
    if (!has_stop)
        stop = step > 0 ? n : -1;
    else if (stop < 0)
        stop = stop + n < 0 ? (step > 0 ? 0 : -1) : stop + n;
    else if (stop >= n)
        stop = step > 0 ? n : n - 1;
    *first = start > 0 ? (size_t)start : 0;
    if (step > 0) return stop > start ? (size_t)((stop - start - 1) / step + 1) : 0;
    return stop < start ? (size_t)((start - stop - 1) / -step + 1) : 0;
}

static struct value slice_str(struct run *r, struct value v, size_t first, size_t count,
                              wide step)
{
    const struct str *s = v.s;
    if (step == 1) {
        size_t from = str_offset(s, first), to = str_offset(s, first + count);
        if (s->chars != s->n && !run_charge(r, to)) return value_undefined();
        s = str_slice(r, s, from, to);
    } else {
        struct list *all = s->chars == s->n ? NULL : value_items(r, v);
        struct builder b;
        builder_init(&b, r);
        for (size_t i = 0; i < count && !r->rc; i++) {
            size_t at = (size_t)((wide)first + (wide)i * step);
            if (all)
                builder_str(&b, all->items[at].s);
            else if (s->chars == s->n)
                builder_slice(&b, s, at, at + 1);
        }
        s = builder_done(&b);
    }
    struct value out = value_str(s);
    out.markup = v.markup;
    return out;
}

static bool slice_bound(struct run *r, struct value v, wide otherwise, wide *out)
{
    const wide far = (wide)1 << 100;
    *out = otherwise;
    if (v.kind == V_NONE) return false;
    if (!value_is_integral(v)) {
        run_fail_type(r, "slice indices must be integers or None");
        return false;
    }
    *out = value_as_int(v);
    if (*out > far) *out = far;
    if (*out < -far) *out = -far;
    return true;
}

struct value value_slice(struct run *r, struct value v, const struct value bound[3])
{
    wide start, stop, step;
    bool has_start = slice_bound(r, bound[0], 0, &start);
    bool has_stop = slice_bound(r, bound[1], 0, &stop);
    slice_bound(r, bound[2], 1, &step);
    if (v.kind == V_UNDEFINED) return run_fail_undefined(r, v);
    if (!is_indexed(v))
        return run_fail_type(r, "'%s' object cannot be sliced", value_type_name(v));
    if (r->rc) return value_undefined();
    if (step == 0) return run_fail(r, "ValueError", "slice step cannot be zero");
    size_t first;
    size_t count =
        adjust(start, stop, step, has_start, has_stop, sequence_length(v), &first);
    if (v.kind == V_STRING) return slice_str(r, v, first, count, step);
    struct list *l = list_new(r, count);
    if (!l || !run_charge(r, count * 8)) return value_undefined();
    for (size_t i = 0; i < count; i++)
        l->items[l->n++] = element(r, v, (size_t)((wide)first + (wide)i * step));
    return (struct value){.kind = v.kind == V_TUPLE ? V_TUPLE : V_LIST, .list = l};
}
