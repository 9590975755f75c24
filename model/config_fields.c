/* config_fields.c - see config_fields.h. */
#include "model/config_fields.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void fields_refuse(struct fields *f, const char *field, const char *fmt, ...)
{
    if (f->rc < 0) return;
    char why[320];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    f->rc = err_set(f->err, -EINVAL, "%s: %s %s", f->path, field, why);
}

bool fields_present(struct json_value object, const char *field)
{
    struct json_value v = json_get(object, field);
    return json_exists(v) && !json_is(v, JSON_NULL);
}

/* The value as written, cut for a message; never used by two messages at once. */
struct shown {
    char text[48];
};

static const char *show(struct shown *s, struct json_value v)
{
    size_t n;
    const char *raw = json_raw(v, &n);
    bool container = json_is(v, JSON_ARRAY) || json_is(v, JSON_OBJECT);
    if (container || n >= sizeof s->text) return json_type_name(v);
    snprintf(s->text, sizeof s->text, "%.*s", (int)n, raw);
    return s->text;
}

uint32_t fields_size(struct fields *f, struct json_value object, const char *field,
                     uint32_t fallback, uint32_t min, uint32_t max)
{
    struct json_value v = json_get(object, field);
    struct shown shown;
    uint64_t n;
    if (!fields_present(object, field)) {
        if (fallback == FIELD_REQUIRED)
            fields_refuse(f, field, "is missing; expected an integer from %u to %u",
                          min, max);
        return fallback == FIELD_REQUIRED ? min : fallback;
    }
    if (json_u64(v, &n) && n >= min && n <= max) return (uint32_t)n;
    fields_refuse(f, field, "is %s; expected an integer from %u to %u", show(&shown, v),
                  min, max);
    return min;
}

bool fields_bool(struct fields *f, struct json_value object, const char *field,
                 bool fallback)
{
    struct json_value v = json_get(object, field);
    struct shown shown;
    bool b;
    if (!fields_present(object, field)) return fallback;
    if (json_bool(v, &b)) return b;
    fields_refuse(f, field, "is %s; expected true or false", show(&shown, v));
    return fallback;
}

double fields_positive(struct fields *f, struct json_value object, const char *field,
                       double fallback)
{
    struct json_value v = json_get(object, field);
    struct shown shown;
    double d;
    if (!fields_present(object, field)) {
        if (fallback > 0) return fallback;
        fields_refuse(f, field, "is missing; expected a number above 0");
        return 1;
    }
    if (json_double(v, &d) && d > 0) return d;
    fields_refuse(f, field, "is %s; expected a number above 0", show(&shown, v));
    return 1;
}

void fields_string(struct fields *f, struct json_value object, const char *field,
                   char *out, size_t cap)
{
    struct json_value v = json_get(object, field);
    struct shown shown;
    size_t n = 0;
    out[0] = '\0';
    if (!fields_present(object, field)) return;
    if (json_string(v, out, cap, &n) == 0 && strlen(out) == n) return;
    out[0] = '\0';
    fields_refuse(f, field, "is %s; expected a string of at most %zu bytes",
                  show(&shown, v), cap - 1);
}
