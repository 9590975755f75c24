/* Filters that make text out of text. */
#include <stdio.h>
#include <string.h>

#include "tokenizer/jinja_eval.h"
#include "tokenizer/unicode.h"

#define FILTER(name)                                                                   \
    static struct value name(struct run *r, struct value v, const struct value *a,     \
                             const struct call_args *all)
#define UNUSED (void)r, (void)a, (void)all

/* Text that counts as escaped stays so. */
static struct value text(const struct str *s, struct value like)
{
    struct value v = value_str(s);
    v.markup = like.kind == V_STRING && like.markup;
    return v;
}

FILTER(do_trim)
{
    return UNUSED, text(str_strip(r, str_from(r, v), a[0], true, true), v);
}

FILTER(do_upper)
{
    return UNUSED, text(str_case(r, str_from(r, v), UNICODE_UPPER), v);
}
FILTER(do_lower)
{
    return UNUSED, text(str_case(r, str_from(r, v), UNICODE_LOWER), v);
}
FILTER(do_capitalize)
{
    return UNUSED, text(str_capitalize(r, str_from(r, v)), v);
}
FILTER(do_string)
{
    return UNUSED, text(str_from(r, v), v);
}

/* Words begin at the start and behind blanks, hyphens and opening brackets; unlike the
 * method title(), an apostrophe begins none. */
FILTER(do_title)
{
    (void)a, (void)all;
    const struct str *s = str_from(r, v);
    const struct str *upper = &str_empty;
    size_t from = 0;
    for (size_t i = 0; i <= s->n && run_charge(r, 0);) {
        const char *p = s->bytes + i;
        uint32_t cp = i < s->n ? unicode_next(&p) : '-';
        size_t next = i < s->n ? (size_t)(p - s->bytes) : i + 1;
        if (unicode_is_space(cp) || (cp < 0x80 && strchr("-({[<", (int)cp) && cp)) {
            if (from < i) {
                const char *q = s->bytes + from;
                unicode_next(&q);
                size_t first = (size_t)(q - s->bytes);
                upper = str_concat(
                    r, upper, str_case(r, str_slice(r, s, from, first), UNICODE_UPPER));
                upper = str_concat(
                    r, upper, str_case(r, str_slice(r, s, first, i), UNICODE_LOWER));
            }
            if (i < s->n) upper = str_concat(r, upper, str_slice(r, s, i, next));
            from = next;
        }
        i = next;
    }
    return text(upper, v);
}

FILTER(do_replace)
{
    (void)all;
    const struct str *old = str_from(r, a[0]), *with = str_from(r, a[1]);
    wide count = arg_int(r, a[2], -1);
    if (v.markup) with = a[1].markup ? with : str_escape(r, with);
    return text(str_replace(r, str_from(r, v), old, with, count), v);
}

/* Put one line, indented; returns where the next begins. */
static size_t put_line(struct builder *b, const struct str *s, size_t from,
                       const struct str *indention, bool indent, bool blank)
{
    const char *p = s->bytes + from, *end = s->bytes + s->n, *line_end = end;
    while (p < end) {
        const char *at = p;
        uint32_t cp = unicode_next(&p);
        if (unicode_is_line_end(cp)) {
            line_end = at;
            if (cp == '\r' && p < end && *p == '\n') p++;
            break;
        }
    }
    size_t to = (size_t)(line_end - s->bytes);
    if (indent && (blank || to > from)) builder_str(b, indention);
    builder_slice(b, s, from, to);
    return line_end == end ? s->n + 1 : (size_t)(p - s->bytes);
}

FILTER(do_indent)
{
    (void)all;
    if (v.kind == V_UNDEFINED) return run_fail_undefined(r, v);
    if (v.kind != V_STRING)
        return run_fail_type(r, "indent takes a string, not '%s'", value_type_name(v));
    const struct str *s = v.s, *indention;
    struct builder spaces, b;
    builder_init(&spaces, r);
    builder_init(&b, r);
    wide width = a[0].kind == V_STRING ? 0 : arg_int(r, a[0], 4);
    if (width > 0)
        builder_repeat(&spaces, ' ',
                       width > (1 << 30) ? (size_t)1 << 30 : (size_t)width);
    indention = a[0].kind == V_STRING ? a[0].s : builder_done(&spaces);
    bool first = arg_truth(a[1], false), blank = arg_truth(a[2], false);
    if (first) builder_str(&b, indention);
    size_t from = put_line(&b, s, 0, indention, false, blank);
    while (from <= s->n && run_charge(r, 0)) {
        builder_text(&b, "\n");
        from = put_line(&b, s, from, indention, true, blank);
    }
    return text(builder_done(&b), v);
}

FILTER(do_escape)
{
    UNUSED;
    if (v.kind == V_STRING && v.markup) return v;
    struct value out = value_str(str_escape(r, str_from(r, v)));
    out.markup = true;
    return out;
}

FILTER(do_safe)
{
    UNUSED;
    struct value out = value_str(str_from(r, v));
    out.markup = true;
    return out;
}

static void put_url(struct builder *b, const struct str *s, bool keep_slash)
{
    for (size_t i = 0; i < s->n && run_charge(b->r, 0); i++) {
        unsigned char c = (unsigned char)s->bytes[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     (c >= '0' && c <= '9') || (c && strchr("_.-~", c)) ||
                     (keep_slash && c == '/');
        char code[4];
        if (!plain) snprintf(code, sizeof code, "%%%02X", c);
        builder_put(b, plain ? s->bytes + i : code, plain ? 1 : 3, str_mark(s, i));
    }
}

FILTER(do_urlencode)
{
    UNUSED;
    struct builder b;
    builder_init(&b, r);
    if (v.kind == V_DICT) {
        for (size_t i = 0; i < v.dict->n && !r->rc; i++) {
            if (i) builder_text(&b, "&");
            put_url(&b, str_from(r, v.dict->pairs[i].key), false);
            builder_text(&b, "=");
            put_url(&b, str_from(r, v.dict->pairs[i].value), false);
        }
    } else {
        put_url(&b, str_from(r, v), true);
    }
    return value_str(builder_done(&b));
}

FILTER(do_format)
{
    (void)a;
    if (all->n_named && all->n)
        return run_fail_type(r, "format takes values or names, not both");
    if (all->n_named) {
        struct dict d = {all->named, all->n_named, all->n_named};
        return str_format_percent(r, str_from(r, v),
                                  (struct value){.kind = V_DICT, .dict = &d});
    }
    struct list l = {all->pos, all->n, all->n};
    return str_format_percent(r, str_from(r, v),
                              (struct value){.kind = V_TUPLE, .list = &l});
}

FILTER(do_tojson)
{
    (void)all;
    struct builder b, spaces;
    builder_init(&b, r);
    builder_init(&spaces, r);
    struct json_style style = {.ascii = arg_truth(a[0], false),
                               .sort = arg_truth(a[3], false)};
    if (a[1].kind == V_STRING) {
        style.indent = a[1].s;
    } else if (arg_given(a[1])) {
        wide n = arg_int(r, a[1], 0);
        builder_repeat(&spaces, ' ', n < 0 ? 0 : n > 1000 ? 1000 : (size_t)n);
        style.indent = builder_done(&spaces);
    }
    style.item = str_of(r, ", ", style.indent ? 1 : 2);
    style.key = str_of(r, ": ", 2);
    if (arg_given(a[2])) {
        struct list *pair = value_items(r, a[2]);
        if (!pair || pair->n != 2)
            return run_fail_type(r, "separators must be a pair of strings");
        style.item = str_from(r, pair->items[0]);
        style.key = str_from(r, pair->items[1]);
    }
    builder_json(&b, v, &style);
    return value_str(builder_done(&b));
}

const struct builtin filters_of_text[] = {
    {"trim", "? chars", do_trim, 0},
    {"upper", "", do_upper, 0},
    {"lower", "", do_lower, 0},
    {"title", "", do_title, 0},
    {"capitalize", "", do_capitalize, 0},
    {"string", "", do_string, 0},
    {"replace", "old new ? count", do_replace, 0},
    {"indent", "? width first blank", do_indent, 0},
    {"escape", "", do_escape, 0},
    {"e", "", do_escape, 0},
    {"safe", "", do_safe, 0},
    {"urlencode", "", do_urlencode, 0},
    {"format", NULL, do_format, 0},
    {"tojson", "? ensure_ascii indent separators sort_keys", do_tojson, 0},
    {NULL, NULL, NULL, 0},
};
