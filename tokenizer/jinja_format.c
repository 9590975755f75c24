/* Formatting as Python has it twice: "..." % values and "...".format(values). */
#include <stdio.h>
#include <string.h>

#include "tokenizer/jinja_eval.h"
#include "tokenizer/unicode.h"

#define MAX_WIDTH 100000

/* What may stand in a field: [[fill]align][sign][0][width][,][.precision][type] */
struct spec {
    uint32_t fill;
    char align;  // '<', '>', '^', or 0 for the type's own
    char sign;   // '+', ' ' or 0
    bool zero, comma;
    size_t width;
    int precision;  // -1: none
    char type;
};

static size_t read_number(const char **p, const char *end)
{
    size_t n = 0;
    for (; *p < end && **p >= '0' && **p <= '9'; ++*p) {
        if (n < MAX_WIDTH) n = n * 10 + (size_t)(**p - '0');
    }
    return n < MAX_WIDTH ? n : MAX_WIDTH;
}

/* text, padded to the width; numbers go right and take zeros behind their sign. */
static void put_padded(struct builder *b, const struct str *text,
                       const struct spec *spec, bool number)
{
    size_t pad = text->chars < spec->width ? spec->width - text->chars : 0;
    char align = spec->align ? spec->align : number ? '>' : '<';
    size_t before = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    size_t sign = 0;
    if (number && spec->zero && !spec->align) {
        sign = text->n && strchr("+- ", text->bytes[0]) ? 1 : 0;
        builder_slice(b, text, 0, sign);
        builder_repeat(b, '0', pad);
        before = pad = 0;
    }
    for (size_t i = 0; i < before && !b->r->rc; i++) builder_char(b, spec->fill, false);
    builder_slice(b, text, sign, text->n);
    for (size_t i = before; i < pad && !b->r->rc; i++)
        builder_char(b, spec->fill, false);
}

/* Digits in a base, with commas between thousands. */
static size_t int_digits(wide i, unsigned base, bool upper, bool comma, char out[180])
{
    char reversed[180];
    size_t n = 0, digits = 0;
    uwide u = i < 0 ? -(uwide)i : (uwide)i;
    do {
        if (comma && digits && digits % 3 == 0) reversed[n++] = ',';
        unsigned d = (unsigned)(u % base);
        reversed[n++] = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[d];
        digits++;
        u /= base;
    } while (u);
    for (size_t k = 0; k < n; k++) out[k] = reversed[n - 1 - k];
    return n;
}

static void put_int(struct builder *b, struct value v, const struct spec *spec)
{
    char out[180];
    wide i = value_as_int(v);
    char type = spec->type;
    unsigned base = type == 'x' || type == 'X' ? 16
                    : type == 'o'              ? 8
                    : type == 'b'              ? 2
                                               : 10;
    size_t n = int_digits(i, base, type == 'X', spec->comma, out);
    struct builder text;
    builder_init(&text, b->r);
    char sign = i < 0 ? '-' : spec->sign;
    builder_put(&text, &sign, sign != 0, v.user);
    builder_put(&text, out, n, v.user);
    put_padded(b, builder_done(&text), spec, true);
}

static void print_as(char out[512], char type, int precision, double f)
{
    switch (type) {
    case 'e': snprintf(out, 512, "%.*e", precision, f); break;
    case 'E': snprintf(out, 512, "%.*E", precision, f); break;
    case 'g': snprintf(out, 512, "%.*g", precision, f); break;
    case 'G': snprintf(out, 512, "%.*G", precision, f); break;
    case 0: print_float(f, out); break;
    default: snprintf(out, 512, "%.*f", precision, f);
    }
}

static void put_float(struct builder *b, struct value v, const struct spec *spec)
{
    char out[512];
    double f = value_as_double(v) * (spec->type == '%' ? 100 : 1);
    if (spec->precision > 100) {
        run_fail(b->r, "ValueError", "a precision above 100");
        return;
    }
    print_as(out, spec->type, spec->precision < 0 ? 6 : spec->precision, f);
    struct builder text;
    builder_init(&text, b->r);
    if (out[0] != '-' && spec->sign) builder_put(&text, &spec->sign, 1, v.user);
    size_t n = strlen(out), whole = strcspn(out, ".e");
    for (size_t i = 0; i < n; i++) {
        bool digit = i > 0 && i < whole && out[i - 1] != '-';
        if (spec->comma && digit && (whole - i) % 3 == 0)
            builder_put(&text, ",", 1, v.user);
        builder_put(&text, out + i, 1, v.user);
    }
    if (spec->type == '%') builder_put(&text, "%", 1, v.user);
    put_padded(b, builder_done(&text), spec, true);
}

static void put_text(struct builder *b, const struct str *s, const struct spec *spec)
{
    if (spec->precision >= 0)
        s = str_slice(b->r, s, 0, str_offset(s, (size_t)spec->precision));
    put_padded(b, s, spec, false);
}

/* ---- % ------------------------------------------------------------------------ */

static void put_percent(struct builder *b, struct value v, struct spec *spec)
{
    struct builder text;
    wide i = 0;
    builder_init(&text, b->r);
    bool number = spec->type && strchr("diuxXofFeEgG", spec->type);
    if (!spec->align && !(number && spec->zero)) spec->align = '>';
    switch (spec->type) {
    case 's': put_text(b, str_from(b->r, v), spec); return;
    case 'r':
        builder_repr(&text, v);
        put_text(b, builder_done(&text), spec);
        return;
    case 'i':
    case 'u': spec->type = 'd'; break;
    case 'c':
        i = value_is_integral(v) ? value_as_int(v) : -1;
        if (i >= 0 && i < 0x110000 && !(i >= 0xd800 && i < 0xe000))
            builder_char(&text, (uint32_t)i, v.user);
        else if (v.kind == V_STRING && v.s->chars == 1)
            builder_str(&text, v.s);
        else
            run_fail_type(b->r, "%%c requires int or char");
        put_text(b, builder_done(&text), spec);
        return;
    default: break;
    }
    if (!value_is_number(v)) {
        run_fail_type(b->r, "%%%c format: a real number is required, not %s",
                      spec->type, value_type_name(v));
    } else if (strchr("dxXo", spec->type)) {
        if (v.kind == V_FLOAT && (spec->type != 'd' || !(v.f > -1e38 && v.f < 1e38))) {
            run_fail_type(b->r, "%%%c format: an integer is required", spec->type);
            return;
        }
        i = v.kind == V_FLOAT ? (wide)v.f : value_as_int(v);
        put_int(b, (struct value){.kind = V_INT, .user = v.user, .i = i}, spec);
    } else if (strchr("fFeEgG", spec->type)) {
        put_float(b, v, spec);
    } else {
        run_fail(b->r, "ValueError", "unsupported format character '%c'", spec->type);
    }
}

/* One % and what follows; the next value is values[*next]. */
static const char *percent_field(struct builder *b, const struct str *s, const char *p,
                                 struct value values, size_t *next)
{
    struct run *r = b->r;
    const char *end = s->bytes + s->n, *key = NULL, *key_end = NULL;
    struct spec spec = {.fill = ' ', .precision = -1};
    if (p < end && *p == '(') {
        key = ++p;
        while (p < end && *p != ')') p++;
        key_end = p;
        if (p < end) p++;
    }
    for (; p < end && *p && strchr("-+ 0#", *p); p++) {
        if (*p == '-') spec.align = '<';
        if (*p == '0') spec.zero = true;
        if (*p == '+' || (*p == ' ' && !spec.sign)) spec.sign = *p;
    }
    spec.width = read_number(&p, end);
    if (p < end && *p == '.') {
        p++;
        spec.precision = (int)read_number(&p, end);
    }
    if (p >= end) return run_fail(r, "ValueError", "incomplete format"), end;
    spec.type = *p++;
    if (spec.type == '%') return builder_text(b, "%"), p;
    struct value v = values;
    if (key) {
        size_t from = (size_t)(key - s->bytes), to = (size_t)(key_end - s->bytes);
        if (values.kind != V_DICT)
            return run_fail_type(r, "format requires a mapping"), end;
        const struct value *found =
            dict_find_str(r, values.dict, str_slice(r, s, from, to));
        if (!found) return run_fail(r, "KeyError", "a name the format lacks"), end;
        v = *found;
    } else if (values.kind == V_TUPLE) {
        if (*next >= values.list->n)
            return run_fail_type(r, "not enough arguments for format string"), end;
        v = values.list->items[*next];
    } else if (*next > 0) {
        return run_fail_type(r, "not enough arguments for format string"), end;
    }
    *next += !key;
    put_percent(b, v, &spec);
    return p;
}

/* What can be indexed may stay unused. */
static bool has_items(struct value v)
{
    size_t n;
    return value_length(v, &n);
}

struct value str_format_percent(struct run *r, const struct str *s, struct value values)
{
    struct builder b;
    builder_init(&b, r);
    size_t next = 0;
    for (const char *p = s->bytes, *end = p + s->n; p < end && run_charge(r, 0);) {
        const char *field = memchr(p, '%', (size_t)(end - p));
        const char *to = field ? field : end;
        builder_slice(&b, s, (size_t)(p - s->bytes), (size_t)(to - s->bytes));
        p = field ? percent_field(&b, s, field + 1, values, &next) : end;
    }
    bool left = values.kind == V_TUPLE    ? next < values.list->n
                : values.kind == V_STRING ? next == 0
                                          : next == 0 && !has_items(values);
    if (left && !r->rc)
        return run_fail_type(r, "not all arguments converted during string formatting");
    return value_str(builder_done(&b));
}

/* ---- {} ----------------------------------------------------------------------- */

static bool read_spec(struct run *r, const char *p, const char *end, struct spec *spec)
{
    *spec = (struct spec){.fill = ' ', .precision = -1};
    if (p < end) {
        const char *q = p;
        uint32_t fill = unicode_next(&q);
        if (q < end && *q && strchr("<>^", *q)) {
            spec->fill = fill;
            p = q;
        }
    }
    if (p < end && *p && strchr("<>^", *p)) spec->align = *p++;
    if (p < end && *p && strchr("+- ", *p)) spec->sign = *p == '-' ? (p++, 0) : *p++;
    if (p < end && *p == '0') spec->zero = true, p++;
    spec->width = read_number(&p, end);
    if (p < end && *p == ',') spec->comma = true, p++;
    if (p < end && *p == '.') {
        p++;
        spec->precision = (int)read_number(&p, end);
    }
    if (p < end) spec->type = *p++;
    if (p == end) return true;
    run_fail(r, "ValueError", "invalid format specifier");
    return false;
}

/* format(v, spec) of a spec that is not empty. */
static void put_braced(struct builder *b, struct value v, struct spec *spec)
{
    if (spec->type && strchr("fFeEgG%", spec->type) && value_is_number(v)) {
        put_float(b, v, spec);
    } else if (value_is_integral(v) && spec->precision < 0 &&
               (!spec->type || strchr("dxXob", spec->type))) {
        put_int(b, v, spec);
    } else if (v.kind == V_FLOAT && !spec->type) {
        if (spec->precision >= 0) spec->type = 'g';
        put_float(b, v, spec);
    } else if (v.kind == V_STRING && (!spec->type || spec->type == 's') &&
               !spec->sign && !spec->comma) {
        put_text(b, v.s, spec);
    } else if (v.kind == V_STRING || value_is_number(v)) {
        run_fail(b->r, "ValueError",
                 "a format that does not suit an object of type '%s'",
                 value_type_name(v));
    } else {
        run_fail_type(b->r, "unsupported format string passed to %s.__format__",
                      value_type_name(v));
    }
}

/* The value that "0", "name" or "" stands for, and then .attribute and [item]. */
static struct value field_value(struct run *r, const struct str *name,
                                const struct call_args *args, size_t *next)
{
    size_t first = 0;
    while (first < name->n && name->bytes[first] != '.' && name->bytes[first] != '[')
        first++;
    const char *p = name->bytes;
    size_t index = first ? read_number(&p, name->bytes + first) : (*next)++;
    struct value v = {.kind = V_ABSENT};
    if (p == name->bytes + first) {
        if (index < args->n) v = args->pos[index];
    } else {
        for (size_t i = 0; i < args->n_named; i++) {
            if (str_equal(args->named[i].key.s, str_slice(r, name, 0, first)))
                v = args->named[i].value;
        }
    }
    if (v.kind == V_ABSENT)
        return run_fail(r, "IndexError", "a replacement field without an argument");
    for (size_t at = first; at < name->n && !r->rc;) {
        bool item = name->bytes[at] == '[';
        size_t from = at + 1, to = from;
        while (to < name->n &&
               (item ? name->bytes[to] != ']'
                     : name->bytes[to] != '.' && name->bytes[to] != '['))
            to++;
        v = value_attribute_path(r, v, value_str(str_slice(r, name, from, to)));
        at = to + item;
    }
    return v;
}

/* {name!r:spec} between from and to. */
static void put_field(struct builder *b, const struct str *s, size_t from, size_t to,
                      const struct call_args *args, size_t *next)
{
    struct run *r = b->r;
    size_t name_end = from;
    while (name_end < to && s->bytes[name_end] != ':' && s->bytes[name_end] != '!')
        name_end++;
    struct value v = field_value(r, str_slice(r, s, from, name_end), args, next);
    size_t at = name_end;
    if (at + 1 < to && s->bytes[at] == '!') {
        struct builder text;
        builder_init(&text, r);
        if (s->bytes[at + 1] == 'r')
            builder_repr(&text, v);
        else
            builder_value(&text, v);
        v = value_str(builder_done(&text));
        at += 2;
    }
    if (at < to && s->bytes[at] == ':') at++;
    struct spec spec;
    if (at == to)
        builder_value(b, v);
    else if (read_spec(r, s->bytes + at, s->bytes + to, &spec))
        put_braced(b, v, &spec);
}

struct value str_format_braces(struct run *r, const struct str *s,
                               const struct call_args *args)
{
    struct builder b;
    builder_init(&b, r);
    size_t next = 0;
    for (size_t i = 0; i < s->n && run_charge(r, 0);) {
        size_t from = i;
        while (i < s->n && s->bytes[i] != '{' && s->bytes[i] != '}') i++;
        builder_slice(&b, s, from, i);
        if (i == s->n) break;
        if (i + 1 < s->n && s->bytes[i + 1] == s->bytes[i]) {  // {{ or }}
            builder_slice(&b, s, i, i + 1);
            i += 2;
            continue;
        }
        const char *close = memchr(s->bytes + i, '}', s->n - i);
        if (s->bytes[i] == '}' || !close)
            return run_fail(r, "ValueError", "a single '%c' in the format",
                            s->bytes[i]);
        size_t to = (size_t)(close - s->bytes);
        put_field(&b, s, i + 1, to, args, &next);
        i = to + 1;
    }
    return value_str(builder_done(&b));
}
