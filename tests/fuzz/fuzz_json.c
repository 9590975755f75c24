/* fuzz_json.c - what json_check accepts can be opened and walked to its last byte. */
#include "kernels/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Recursion is bounded by the depth limit of the document. */
static void walk(struct json_value v)
{
    size_t n, unescaped = 0;
    double d;
    int64_t i64;
    uint64_t u64;
    const char *raw = json_raw(v, &n);
    if (json_check(raw, n, 32, NULL) < 0) abort();
    if (json_i64(v, &i64) && !json_double(v, &d)) abort();
    if (json_u64(v, &u64) && !json_is(v, JSON_NUMBER)) abort();

    char *s = json_string_dup(v, &unescaped);
    if (s && unescaped != json_string_size(v)) abort();
    if (s && strlen(s) == unescaped && !json_equals(v, s)) abort();
    free(s);

    uint32_t members = 0;
    for (struct json_iter i = json_iter(v); json_next(&i); members++) {
        if (json_is(v, JSON_OBJECT) != json_is(i.key, JSON_STRING)) abort();
        char *key = json_string_dup(i.key, &unescaped);
        if (key && strlen(key) == unescaped && json_get(v, key).index != i.value.index)
            abort();
        free(key);
        walk(i.value);
    }
    if (members != json_count(v)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json *j;
    int rc = json_check((const char *)data, size, 32, NULL);
    if (json_open(&j, (const char *)data, size, 32, NULL) != rc) abort();
    if (rc < 0) return 0;
    walk(json_root(j));
    json_close(j);
    return 0;
}
