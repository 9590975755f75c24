/* api_value.c - one JSON value to one C value, or the sentence that says why not. */
#include "server/api_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A wrong value as a message may repeat it: as written, but not much of it. */
static void show(struct json_value v, char buf[API_SHOWN + 8])
{
    size_t n = 0;
    const char *raw = json_raw(v, &n);
    bool array = json_is(v, JSON_ARRAY);
    if (raw && (array || json_is(v, JSON_OBJECT)) && json_count(v) == 0) {
        snprintf(buf, API_SHOWN + 8, "an empty %s", array ? "array" : "object");
        return;
    }
    if (!raw || array || json_is(v, JSON_OBJECT)) {
        snprintf(buf, API_SHOWN + 8, "%s", json_type_name(v));
        return;
    }
    size_t shown = n;
    if (n > API_SHOWN) {
        shown = API_SHOWN;
        while (shown > 0 && ((unsigned char)raw[shown] & 0xc0) == 0x80) shown--;
    }
    snprintf(buf, API_SHOWN + 8, "%.*s%s", (int)shown, raw, shown < n ? "..." : "");
}

int api_wrong(struct api_error *e, const char *param, struct json_value v,
              const char *want)
{
    char shown[API_SHOWN + 8];
    show(v, shown);
    api_fail(e, 400, "invalid_value", param, "%s is %s, but must be %s", param, shown,
             want);
    snprintf(e->why, sizeof e->why, "must be %s", want);
    return -EINVAL;
}

int api_read_bool(struct json_value v, const char *param, bool *out,
                  struct api_error *e)
{
    if (json_bool(v, out)) return 0;
    return api_wrong(e, param, v, "true or false");
}

int api_read_count(struct json_value v, const char *param, uint32_t lo, uint32_t hi,
                   uint32_t *out, struct api_error *e)
{
    uint64_t x;
    if (json_u64(v, &x) && x >= lo && x <= hi) {
        *out = (uint32_t)x;
        return 0;
    }
    char want[64];
    snprintf(want, sizeof want, "an integer from %u to %u", lo, hi);
    return api_wrong(e, param, v, want);
}

int api_read_real(struct json_value v, const char *param, double lo, double hi,
                  float *out, struct api_error *e)
{
    double x;
    if (json_double(v, &x) && x >= lo && x <= hi) {
        *out = (float)x;
        return 0;
    }
    char want[64];
    snprintf(want, sizeof want, "a number from %d to %d", (int)lo, (int)hi);
    return api_wrong(e, param, v, want);
}

/* Does JSON text, which json_check() has accepted, write a NUL? */
static bool writes_nul(const char *raw, size_t n)
{
    const char *end = raw + n;
    for (const char *p = raw; (p = memchr(p, '\\', (size_t)(end - p))); p += 2) {
        if (end - p >= 6 && memcmp(p, "\\u0000", 6) == 0) return true;
    }
    return false;
}

int api_read_raw_text(struct json_value v, const char *param, const char **raw,
                      size_t *n, struct api_error *e)
{
    if (!json_is(v, JSON_STRING)) return api_wrong(e, param, v, "a string");
    size_t quoted;
    const char *text = json_raw(v, &quoted);
    *raw = text + 1;
    *n = quoted - 2;
    if (!writes_nul(*raw, *n)) return 0;
    api_fail(e, 400, "invalid_value", param,
             "%s has a NUL character (\\u0000), which is no text", param);
    snprintf(e->why, sizeof e->why, "must have no NUL character");
    return -EINVAL;
}

int api_read_text(struct json_value v, const char *param, char **out, size_t *out_n,
                  struct api_error *e)
{
    const char *raw;
    size_t n;
    int rc = api_read_raw_text(v, param, &raw, &n, e);
    if (rc < 0) return rc;
    *out = json_string_dup(v, out_n);
    if (*out) return 0;
    return api_fail(e, 500, NULL, param, "no memory for %zu bytes of text", n);
}

bool api_is_token(const struct api *a, uint64_t id)
{
    size_t n;
    return id < a->o.config->vocab && id < tokenizer_size(a->o.tokenizer) &&
           tokenizer_bytes(a->o.tokenizer, (int32_t)id, &n);
}
