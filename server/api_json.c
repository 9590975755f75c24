/* api_json.c - answers as JSON text: cJSON for the objects, our own strings and numbers.
 *
 * cJSON's strings end at a NUL, which a model may well generate, and take bytes that are
 * no UTF-8 as they are.  So text goes in as a raw item that was written here.
 */
#include "kernels/utf8.h"
#include "server/api_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void escape(struct bytes *out, unsigned char c)
{
    static const char with[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    const char *found = c ? strchr(with, c) : NULL;
    if (found) {
        const char pair[2] = {'\\', letters[found - with]};
        bytes_add(out, pair, 2);
    } else {
        bytes_printf(out, "\\u%04x", c);
    }
}

void api_json_text(struct bytes *out, const char *text, size_t n)
{
    bytes_add(out, "\"", 1);
    size_t from = 0, i = 0;
    while (i < n) {
        unsigned char c = (unsigned char)text[i];
        size_t size = 1;
        bool plain = c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
        bool bad = c >= 0x80 && utf8_decode(text + i, n - i, &size) < 0;
        if (!plain && (c < 0x80 || bad)) {
            bytes_add(out, text + from, i - from);
            if (bad) {
                bytes_add(out, UTF8_REPLACEMENT, UTF8_REPLACEMENT_SIZE);
            } else {
                escape(out, c);
            }
            from = i + size;
        }
        i += size;
    }
    if (n > from) bytes_add(out, text + from, n - from);
    bytes_add(out, "\"", 1);
}

void api_json_real(struct bytes *out, float x)
{
    if (!isfinite(x) || fabsf(x) > 9999) x = copysignf(9999, x);
    int64_t nano = llround((double)x * 1e9);
    uint64_t size = (uint64_t)(nano < 0 ? -nano : nano);
    bytes_printf(out, "%s%" PRIu64 ".%09" PRIu64, nano < 0 ? "-" : "",
                 size / 1000000000, size % 1000000000);
}

cJSON *api_put(struct bytes *out, cJSON *to, const char *name, cJSON *item)
{
    bool ok =
        to && item &&
        (name ? cJSON_AddItemToObject(to, name, item) : cJSON_AddItemToArray(to, item));
    if (ok) return item;
    cJSON_Delete(item);
    out->failed = true;
    return NULL;
}

void api_put_text(struct bytes *out, cJSON *to, const char *name, const char *text,
                  size_t n)
{
    struct bytes raw = {0};
    api_json_text(&raw, text, n);
    api_put(out, to, name, raw.failed ? NULL : cJSON_CreateRaw(raw.data));
    bytes_free(&raw);
}

void api_json_print(struct bytes *out, cJSON *item)
{
    char *text = item ? cJSON_PrintUnformatted(item) : NULL;
    if (text) {
        bytes_add_text(out, text);
    } else {
        out->failed = true;
    }
    cJSON_free(text);
    cJSON_Delete(item);
}
