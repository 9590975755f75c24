/* json.h - strict reading of JSON that came from outside (the only user of jsmn).
 *
 * Owns     the token array of a document.  The text is borrowed and never changed.
 * Caller   keeps the text alive and unchanged until json_close().
 * Strict   RFC 8259 to the letter: well-formed UTF-8, no control characters or lone
 *          surrogates in strings, JSON number syntax, one value and nothing but white
 *          space after it, no key twice in one object (compared after unescaping), and
 *          nesting no deeper than the limit.  Every check is iterative: no input can
 *          use up the stack.  json_check() takes O(n log n) at worst, json_open() that
 *          and O(n) times the depth.
 * Threads  a document is immutable once open; any thread may read it.
 */
#ifndef KERNELS_JSON_H
#define KERNELS_JSON_H

#include "kernels/base.h"

BASE_BEGIN

#define JSON_MAX_DEPTH 128  // the limit for files of a model directory

enum json_type {
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

struct json;

/* One value of a document; copied freely.  doc == NULL means "there is none", which
 * every function below accepts and answers as such. */
struct json_value {
    const struct json *doc;
    uint32_t index;
};

/* Check `text` without building anything.  -EINVAL with the byte offset and what is
 * wrong there ("duplicate key", "invalid UTF-8", "nesting deeper than 64" ...); -ENOMEM:
 * the keys of its open objects are kept while it runs. */
NODISCARD int json_check(const char *text, size_t n, uint32_t max_depth,
                         struct err *err);

/* json_check() and build the token array.  -EINVAL, -ENOMEM. */
NODISCARD int json_open(struct json **out, const char *text, size_t n,
                        uint32_t max_depth, struct err *err);
/* The same for a text of no more than max_values values and keys together; -E2BIG beyond.
 * It takes at most 48 bytes for each of them, whatever the size of the text. */
NODISCARD int json_open_bounded(struct json **out, const char *text, size_t n,
                                uint32_t max_depth, size_t max_values, struct err *err);
void json_close(struct json *j);  // NULL is fine

struct json_value json_root(const struct json *j);
bool json_exists(struct json_value v);
enum json_type json_type(struct json_value v);    // of a value that exists
const char *json_type_name(struct json_value v);  // "an object", "a number", "nothing"
bool json_is(struct json_value v, enum json_type type);  // false where there is none

/* Arrays and objects: the number of elements or members, 0 for anything else. */
uint32_t json_count(struct json_value v);

/* The member of that name; does not exist where v is no object or lacks it. */
struct json_value json_get(struct json_value v, const char *key);

/* Iterate in document order, each step O(1):
 *     for (struct json_iter i = json_iter(v); json_next(&i);) use(i.key, i.value);
 * key does not exist while iterating an array. */
struct json_iter {
    struct json_value key, value;
    uint32_t next, left;
    bool object;
};
struct json_iter json_iter(struct json_value v);
bool json_next(struct json_iter *i);

/* A string's unescaped bytes.  json_string_size() is their number; json_string()
 * writes them and a final NUL where they fit `cap`, else answers -ENOSPC.  A string may
 * hold NUL bytes ("\u0000"); the size tells. -EINVAL where v is no string. */
size_t json_string_size(struct json_value v);
NODISCARD int json_string(struct json_value v, char *buf, size_t cap, size_t *out_n);
char *json_string_dup(struct json_value v,
                      size_t *out_n);  // malloc; NULL: no string or memory
bool json_equals(struct json_value v, const char *text);  // is it that very string?

/* Numbers.  False where v is no number, or does not fit exactly (u64 and i64 accept
 * an integer written without fraction or exponent only). */
bool json_u64(struct json_value v, uint64_t *out);
bool json_i64(struct json_value v, int64_t *out);
bool json_double(struct json_value v, double *out);
bool json_bool(struct json_value v, bool *out);

/* The value's own text within the document, as written. */
const char *json_raw(struct json_value v, size_t *out_n);

BASE_END

#endif
