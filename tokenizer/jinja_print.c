/* What Python prints for a value: str(), repr() and json.dumps(). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/jinja_builtin.h"
#include "tokenizer/jinja_run.h"
#include "tokenizer/unicode.h"

/* ---- numbers ------------------------------------------------------------------ */

size_t print_int(wide i, char out[41])
{
    char digits[40];
    size_t n = 0, at = 0;
    uwide u = i < 0 ? -(uwide)i : (uwide)i;
    do {
        digits[n++] = (char)('0' + (int)(u % 10));
        u /= 10;
    } while (u);
    if (i < 0) out[at++] = '-';
    while (n) out[at++] = digits[--n];
    out[at] = 0;
    return at;
}

/* The fewest digits that read back as the same number; an exponent below 1e-4 and from
 * 1e16 on, as float.__repr__ has it. */
size_t print_float(double f, char out[32])
{
    if (isnan(f) || isinf(f))
        return (size_t)snprintf(out, 32, "%s",
                                isnan(f) ? "nan"
                                : f < 0  ? "-inf"
                                         : "inf");
    char e[40];
    int precision = 0;
    do {
        snprintf(e, sizeof e, "%.*e", precision, f);
    } while (strtod(e, NULL) != f && ++precision < 17);
    int exponent = atoi(strchr(e, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        int decimals = precision - exponent;
        return (size_t)snprintf(out, 32, "%.*f", decimals < 1 ? 1 : decimals, f);
    }
    *strchr(e, 'e') = 0;
    return (size_t)snprintf(out, 32, "%se%c%02d", e, exponent < 0 ? '-' : '+',
                            abs(exponent));
}

static void put_number(struct builder *b, struct value v)
{
    char out[41];
    size_t n = v.kind == V_INT ? print_int(v.i, out) : print_float(v.f, out);
    builder_put(b, out, n, v.user);
}

/* ---- repr --------------------------------------------------------------------- */

static void put_repr_char(struct builder *b, uint32_t cp, bool user, char quote)
{
    char out[12];
    const char *text = out;
    if (cp == (uint32_t)(unsigned char)quote || cp == '\\')
        snprintf(out, sizeof out, "\\%c", (char)cp);
    else if (cp == '\n')
        text = "\\n";
    else if (cp == '\r')
        text = "\\r";
    else if (cp == '\t')
        text = "\\t";
    else if (unicode_is_printable(cp)) {
        builder_char(b, cp, user);
        return;
    } else
        snprintf(out, sizeof out,
                 cp < 0x100     ? "\\x%02x"
                 : cp < 0x10000 ? "\\u%04x"
                                : "\\U%08x",
                 (unsigned)cp);
    builder_put(b, text, strlen(text), user);
}

static void put_repr_str(struct builder *b, const struct str *s)
{
    bool single = memchr(s->bytes, '\'', s->n), both = memchr(s->bytes, '"', s->n);
    char quote = single && !both ? '"' : '\'';
    builder_put(b, &quote, 1, false);
    for (const char *p = s->bytes; p < s->bytes + s->n && run_charge(b->r, 0);) {
        bool user = str_mark(s, (size_t)(p - s->bytes));
        put_repr_char(b, unicode_next(&p), user, quote);
    }
    builder_put(b, &quote, 1, false);
}

static void put_repr_items(struct builder *b, const struct list *l)
{
    for (size_t i = 0; i < l->n && !b->r->rc; i++) {
        if (i) builder_text(b, ", ");
        builder_repr(b, l->items[i]);
    }
}

static void put_repr_dict(struct builder *b, const struct dict *d)
{
    builder_text(b, "{");
    for (size_t i = 0; i < d->n && !b->r->rc; i++) {
        if (i) builder_text(b, ", ");
        builder_repr(b, d->pairs[i].key);
        builder_text(b, ": ");
        builder_repr(b, d->pairs[i].value);
    }
    builder_text(b, "}");
}

static void put_named(struct builder *b, const char *what, const char *name, size_t n)
{
    builder_text(b, "<");
    builder_text(b, what);
    builder_text(b, " ");
    builder_put(b, name, n, false);
    builder_text(b, ">");
}

static void put_range(struct builder *b, const struct range_value *g)
{
    char out[80];
    long long stop = (long long)g->stop;
    if (g->step == 1)
        snprintf(out, sizeof out, "range(%lld, %lld)", (long long)g->start, stop);
    else
        snprintf(out, sizeof out, "range(%lld, %lld, %lld)", (long long)g->start, stop,
                 (long long)g->step);
    builder_text(b, out);
}

static void put_repr_nested(struct builder *b, struct value v)
{
    switch (v.kind) {
    case V_LIST:
        builder_text(b, "[");
        put_repr_items(b, v.list);
        builder_text(b, "]");
        break;
    case V_TUPLE:
        builder_text(b, "(");
        put_repr_items(b, v.list);
        builder_text(b, v.list->n == 1 ? ",)" : ")");
        break;
    case V_NAMESPACE:
        builder_text(b, "<Namespace ");
        put_repr_dict(b, v.dict);
        builder_text(b, ">");
        break;
    default: put_repr_dict(b, v.dict);
    }
}

void builder_repr(struct builder *b, struct value v)
{
    if (!run_charge(b->r, 0)) return;
    switch (v.kind) {
    case V_UNDEFINED:
    case V_ABSENT: builder_text(b, "Undefined"); break;
    case V_NONE: builder_text(b, "None"); break;
    case V_BOOL: builder_text(b, v.b ? "True" : "False"); break;
    case V_INT:
    case V_FLOAT: put_number(b, v); break;
    case V_STRING:
        if (v.markup) builder_text(b, "Markup(");
        put_repr_str(b, v.s);
        if (v.markup) builder_text(b, ")");
        break;
    case V_RANGE: put_range(b, v.range); break;
    case V_MACRO:
        put_named(b, "Macro", v.macro->def->name->bytes, v.macro->def->name->n);
        break;
    case V_FUNCTION:
        put_named(b, "function", v.function->name, strlen(v.function->name));
        break;
    case V_METHOD:
        put_named(b, "method", v.method->function->name,
                  strlen(v.method->function->name));
        break;
    case V_LOOP: builder_text(b, "<LoopContext>"); break;
    default:
        if (!run_enter(b->r)) return;
        put_repr_nested(b, v);
        run_leave(b->r);
    }
}

void builder_value(struct builder *b, struct value v)
{
    if (v.kind == V_STRING)
        builder_str(b, v.s);
    else if (v.kind != V_UNDEFINED)
        builder_repr(b, v);
}

const struct str *str_from(struct run *r, struct value v)
{
    if (v.kind == V_STRING) return v.s;
    struct builder b;
    builder_init(&b, r);
    builder_value(&b, v);
    return builder_done(&b);
}

/* ---- JSON --------------------------------------------------------------------- */

static void put_json_char(struct builder *b, uint32_t cp, bool user, bool ascii)
{
    static const char *const shorts[128] = {
        ['"'] = "\\\"", ['\\'] = "\\\\", ['\n'] = "\\n", ['\r'] = "\\r",
        ['\t'] = "\\t", ['\f'] = "\\f",  ['\b'] = "\\b"};
    char out[16];
    const char *text = out;
    if (cp < 128 && shorts[cp])
        text = shorts[cp];
    else if (cp >= ' ' && (!ascii || cp < 0x7f)) {
        builder_char(b, cp, user);
        return;
    } else if (cp < 0x10000)
        snprintf(out, sizeof out, "\\u%04x", (unsigned)cp);
    else
        snprintf(out, sizeof out, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (cp >> 10)),
                 (unsigned)(0xdc00 | (cp & 0x3ff)));
    builder_put(b, text, strlen(text), user);
}

static void put_json_str(struct builder *b, const struct str *s, bool ascii)
{
    builder_text(b, "\"");
    for (const char *p = s->bytes; p < s->bytes + s->n && run_charge(b->r, 0);) {
        bool user = str_mark(s, (size_t)(p - s->bytes));
        put_json_char(b, unicode_next(&p), user, ascii);
    }
    builder_text(b, "\"");
}

static void put_json_break(struct builder *b, const struct json_style *style,
                           unsigned level)
{
    if (!style->indent) return;
    builder_text(b, "\n");
    for (unsigned i = 0; i < level && !b->r->rc; i++) builder_str(b, style->indent);
}

static void put_json(struct builder *b, struct value v, const struct json_style *style,
                     unsigned level);

static void put_json_key(struct builder *b, struct value key,
                         const struct json_style *style)
{
    if (key.kind == V_STRING) {
        put_json_str(b, key.s, style->ascii);
    } else if (value_is_number(key) || key.kind == V_NONE) {
        builder_text(b, "\"");
        put_json(b, key, style, 0);
        builder_text(b, "\"");
    } else {
        run_fail_type(b->r, "keys must be str, int, float, bool or None, not %s",
                      value_type_name(key));
    }
}

static void put_json_list(struct builder *b, const struct list *l,
                          const struct json_style *style, unsigned level)
{
    builder_text(b, "[");
    for (size_t i = 0; i < l->n && !b->r->rc; i++) {
        if (i) builder_str(b, style->item);
        put_json_break(b, style, level + 1);
        put_json(b, l->items[i], style, level + 1);
    }
    if (l->n) put_json_break(b, style, level);
    builder_text(b, "]");
}

static void put_json_dict(struct builder *b, const struct dict *d,
                          const struct json_style *style, unsigned level)
{
    const struct dict *in_order = style->sort ? dict_sorted(b->r, d) : d;
    builder_text(b, "{");
    for (size_t i = 0; i < in_order->n && !b->r->rc; i++) {
        if (i) builder_str(b, style->item);
        put_json_break(b, style, level + 1);
        put_json_key(b, in_order->pairs[i].key, style);
        builder_str(b, style->key);
        put_json(b, in_order->pairs[i].value, style, level + 1);
    }
    if (in_order->n) put_json_break(b, style, level);
    builder_text(b, "}");
}

static void put_json(struct builder *b, struct value v, const struct json_style *style,
                     unsigned level)
{
    if (!run_charge(b->r, 0)) return;
    switch (v.kind) {
    case V_NONE: builder_text(b, "null"); break;
    case V_BOOL: builder_text(b, v.b ? "true" : "false"); break;
    case V_FLOAT:
        if (isinf(v.f) || isnan(v.f))
            builder_text(b, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
        else
            put_number(b, v);
        break;
    case V_INT: put_number(b, v); break;
    case V_STRING: put_json_str(b, v.s, style->ascii); break;
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
        if (!run_enter(b->r)) return;
        if (v.kind == V_DICT)
            put_json_dict(b, v.dict, style, level);
        else
            put_json_list(b, v.list, style, level);
        run_leave(b->r);
        break;
    default:
        run_fail_type(b->r, "Object of type %s is not JSON serializable",
                      value_type_name(v));
    }
}

void builder_json(struct builder *b, struct value v, const struct json_style *style)
{
    put_json(b, v, style, 0);
}
