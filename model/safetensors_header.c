/* safetensors_header.c - reads the header of a safetensors file and believes none of it.
 *
 *     offset 0        u64, little-endian: n, the bytes of the header
 *     offset 8        n bytes of JSON: {"name": {"dtype": "BF16", "shape": [2, 3],
 *                     "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
 *     offset 8 + n    the data; begin and end count from here
 *
 * Valid is a header of at most 100,000,000 bytes that starts with '{', whose tensors'
 * ranges are as long as type and shape say and cover the data without hole or overlap:
 * the rules of the reference implementation, and no name twice on top.
 */
#include "model/safetensors_header.h"

#include "kernels/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEADER 100000000u

static const struct type {
    const char *name;
    uint32_t bits;
    bool float_type;
    enum dtype dtype;
} types[] = {
    {"F32", 32, true, DTYPE_F32},       {"F16", 16, true, DTYPE_F16},
    {"BF16", 16, true, DTYPE_BF16},     {.name = "BOOL", .bits = 8},
    {.name = "F4", .bits = 4},          {.name = "F6_E2M3", .bits = 6},
    {.name = "F6_E3M2", .bits = 6},     {.name = "U8", .bits = 8},
    {.name = "I8", .bits = 8},          {.name = "F8_E5M2", .bits = 8},
    {.name = "F8_E4M3", .bits = 8},     {.name = "F8_E8M0", .bits = 8},
    {.name = "F8_E4M3FNUZ", .bits = 8}, {.name = "F8_E5M2FNUZ", .bits = 8},
    {.name = "I16", .bits = 16},        {.name = "U16", .bits = 16},
    {.name = "I32", .bits = 32},        {.name = "U32", .bits = 32},
    {.name = "I64", .bits = 64},        {.name = "U64", .bits = 64},
    {.name = "F64", .bits = 64},        {.name = "C64", .bits = 64},
};

/* Where the reading stands: the file, and the tensor that messages are about. */
struct reader {
    const char *path, *file;
    const char *data;  // behind the header
    uint64_t data_size;
    struct err *err;
};

static const struct type *find_type(struct json_value v)
{
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (json_equals(v, types[i].name)) return &types[i];
    }
    return NULL;
}

char *tensor_shape_text(char *buf, size_t cap, uint32_t n_dims, const uint64_t *dims)
{
    size_t n = (size_t)snprintf(buf, cap, "[");
    for (uint32_t i = 0; i < n_dims && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%llu", i ? ", " : "",
                              (unsigned long long)dims[i]);
    if (n < cap) snprintf(buf + n, cap - n, "]");
    return buf;
}

static int read_shape(const struct reader *r, struct tensor *t, struct json_value shape)
{
    if (!json_is(shape, JSON_ARRAY))
        return err_set(r->err, -EINVAL,
                       "%s: tensor %s: shape is %s, not an array of sizes", r->path,
                       t->name, json_type_name(shape));
    if (json_count(shape) > TENSOR_MAX_DIMS)
        return err_set(r->err, -EINVAL,
                       "%s: tensor %s has %u dimensions; at most %d fit", r->path,
                       t->name, json_count(shape), TENSOR_MAX_DIMS);
    for (struct json_iter i = json_iter(shape); json_next(&i);) {
        if (json_u64(i.value, &t->dims[t->n_dims++])) continue;
        size_t n;
        const char *raw = json_raw(i.value, &n);
        return err_set(
            r->err, -EINVAL,
            "%s: tensor %s: size %.*s in its shape is not an integer from 0 to "
            "2^64 - 1",
            r->path, t->name, (int)(n < 40 ? n : 40), raw);
    }
    return 0;
}

/* What type and shape need, in bytes. */
static int needed_bytes(const struct reader *r, const struct tensor *t, uint32_t bits,
                        uint64_t *out)
{
    uint64_t total = 1;
    bool overflow = false;
    for (uint32_t i = 0; i < t->n_dims; i++)
        overflow |= __builtin_mul_overflow(total, t->dims[i], &total);
    overflow |= __builtin_mul_overflow(total, (uint64_t)bits, &total);

    char shape[TENSOR_SHAPE_TEXT];
    tensor_shape_text(shape, sizeof shape, t->n_dims, t->dims);
    if (overflow)
        return err_set(r->err, -EINVAL,
                       "%s: tensor %s: shape %s is larger than 2^64 bits", r->path,
                       t->name, shape);
    if (total % 8 != 0)
        return err_set(r->err, -EINVAL,
                       "%s: tensor %s: shape %s of type %s does not end at a byte",
                       r->path, t->name, shape, t->dtype_name);
    *out = total / 8;
    return 0;
}

static int read_range(const struct reader *r, struct tensor *t,
                      struct json_value offsets)
{
    uint64_t at[2];
    uint32_t n = 0;
    if (json_count(offsets) == 2) {
        for (struct json_iter i = json_iter(offsets); json_next(&i);)
            n += json_u64(i.value, &at[n & 1]);
    }
    if (n != 2 || !json_is(offsets, JSON_ARRAY))
        return err_set(
            r->err, -EINVAL,
            "%s: tensor %s: data_offsets is not an array of two integers from 0 "
            "to 2^64 - 1",
            r->path, t->name);
    if (at[0] > at[1] || at[1] > r->data_size)
        return err_set(
            r->err, -EINVAL,
            "%s: tensor %s: data_offsets [%llu, %llu] are no range within the "
            "file's %llu bytes of data",
            r->path, t->name, (unsigned long long)at[0], (unsigned long long)at[1],
            (unsigned long long)r->data_size);
    t->data = r->data + at[0];
    t->bytes = at[1] - at[0];
    return 0;
}

static int read_tensor(const struct reader *r, struct tensor *t,
                       struct json_value entry)
{
    if (!json_is(entry, JSON_OBJECT))
        return err_set(r->err, -EINVAL,
                       "%s: tensor %s is described by %s, not an object", r->path,
                       t->name, json_type_name(entry));

    struct json_value dtype = json_get(entry, "dtype");
    const struct type *type = find_type(dtype);
    if (!type) {
        size_t n;
        const char *raw = json_raw(dtype, &n);
        return err_set(r->err, -EINVAL, "%s: tensor %s: dtype %.*s is unknown", r->path,
                       t->name, (int)(n < 40 ? n : 40), raw ? raw : "");
    }
    t->file = r->file;
    t->dtype_name = type->name;
    t->float_type = type->float_type;
    t->dtype = type->dtype;

    uint64_t bytes = 0;
    int rc = read_shape(r, t, json_get(entry, "shape"));
    if (rc == 0) rc = read_range(r, t, json_get(entry, "data_offsets"));
    if (rc == 0) rc = needed_bytes(r, t, type->bits, &bytes);
    if (rc < 0 || bytes == t->bytes) return rc;

    char shape[TENSOR_SHAPE_TEXT];
    return err_set(
        r->err, -EINVAL,
        "%s: tensor %s has %llu bytes of data; its shape %s of type %s needs %llu",
        r->path, t->name, (unsigned long long)t->bytes,
        tensor_shape_text(shape, sizeof shape, t->n_dims, t->dims), t->dtype_name,
        (unsigned long long)bytes);
}

static int check_metadata(const struct reader *r, struct json_value v)
{
    bool good = json_is(v, JSON_OBJECT);
    for (struct json_iter i = json_iter(v); good && json_next(&i);)
        good = json_is(i.value, JSON_STRING);
    if (good) return 0;
    return err_set(r->err, -EINVAL, "%s: __metadata__ is not an object of strings",
                   r->path);
}

static int read_all(const struct reader *r, struct json_value root,
                    struct tensor_list *out)
{
    for (struct json_iter i = json_iter(root); json_next(&i);) {
        if (json_equals(i.key, "__metadata__")) {
            int rc = check_metadata(r, i.value);
            if (rc < 0) return rc;
            continue;
        }
        size_t n;
        char *name = json_string_dup(i.key, &n);
        if (!name)
            return err_set(r->err, -ENOMEM, "%s: no memory for its names", r->path);
        struct tensor *t = &out->at[out->n++];
        *t = (struct tensor){.name = name};
        if (strlen(name) != n)
            return err_set(r->err, -EINVAL, "%s: the name of tensor %s has a NUL in it",
                           r->path, name);
        int rc = read_tensor(r, t, i.value);
        if (rc < 0) return rc;
    }
    return 0;
}

static int compare_places(const void *left, const void *right)
{
    const struct tensor *a = left, *b = right;
    if (a->data != b->data)
        return (const char *)a->data < (const char *)b->data ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* Sorts the list by place. */
static int check_cover(const struct reader *r, struct tensor_list *l)
{
    const char *at = r->data;
    if (l->n > 0) qsort(l->at, l->n, sizeof *l->at, compare_places);
    for (uint32_t i = 0; i < l->n; i++) {
        const struct tensor *t = &l->at[i];
        if ((const char *)t->data != at)
            return err_set(
                r->err, -EINVAL,
                "%s: tensor %s starts at byte %llu of the data, where %llu is the "
                "end of the one before it",
                r->path, t->name, (unsigned long long)((const char *)t->data - r->data),
                (unsigned long long)(at - r->data));
        at += t->bytes;
    }
    uint64_t used = (uint64_t)(at - r->data);
    if (used == r->data_size) return 0;
    return err_set(r->err, -EINVAL,
                   "%s: its tensors take %llu of its %llu bytes of data", r->path,
                   (unsigned long long)used, (unsigned long long)r->data_size);
}

static int compare_names(const void *left, const void *right)
{
    const struct tensor *a = left, *b = right;
    return strcmp(a->name, b->name);
}

void tensor_list_sort(struct tensor_list *l)
{
    if (l->n > 0) qsort(l->at, l->n, sizeof *l->at, compare_names);
}

struct tensor *tensor_list_find(const struct tensor_list *l, const char *name)
{
    struct tensor key = {.name = name};
    return l->n ? bsearch(&key, l->at, l->n, sizeof *l->at, compare_names) : NULL;
}

void tensor_list_free(struct tensor_list *l)
{
    for (uint32_t i = 0; i < l->n; i++) free((void *)(uintptr_t)l->at[i].name);
    free(l->at);
    *l = (struct tensor_list){0};
}

static int read_header(struct tensor_list *out, const struct reader *r,
                       const char *json, size_t n)
{
    struct err why = {0};
    struct json *doc = NULL;
    int rc = json_open(&doc, json, n, JSON_MAX_DEPTH, &why);
    if (rc < 0) return err_set(r->err, rc, "%s: header: %s", r->path, why.msg);

    struct json_value root = json_root(doc);
    *out = (struct tensor_list){0};
    out->at = calloc((size_t)json_count(root) + 1, sizeof *out->at);
    rc = out->at ? read_all(r, root, out)
                 : err_set(r->err, -ENOMEM, "%s: no memory for its tensors", r->path);
    if (rc == 0) rc = check_cover(r, out);
    json_close(doc);
    if (rc < 0) tensor_list_free(out);
    return rc;
}

int safetensors_header(struct tensor_list *out, const void *data, size_t n,
                       const char *path, const char *file, struct err *err)
{
    const unsigned char *p = data;
    if (n < 8)
        return err_set(err, -EINVAL,
                       "%s: %zu bytes are too short for a safetensors file", path, n);
    uint64_t size = 0;
    for (int i = 7; i >= 0; i--) size = size << 8 | p[i];
    if (size > n - 8 || size > MAX_HEADER)
        return err_set(
            err, -EINVAL,
            "%s: a header of %llu bytes does not fit the file's %zu bytes, or the "
            "limit of %u",
            path, (unsigned long long)size, n, MAX_HEADER);
    const char *json = (const char *)data + 8;
    if (size == 0 || json[0] != '{')
        return err_set(err, -EINVAL, "%s: its header does not start with '{'", path);

    struct reader r = {path, file, json + size, n - 8 - size, err};
    int rc = read_header(out, &r, json, (size_t)size);
    if (rc == 0) tensor_list_sort(out);
    return rc;
}
