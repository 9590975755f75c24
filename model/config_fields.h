/* config_fields.h - typed, bounded reading of a configuration's fields; private to model/.
 *
 * A reader keeps the first error and answers harmless values afterwards, so that a
 * configuration reads as a list of fields and is checked once at the end.  A field that
 * is absent or null has its fallback; one of another type is an error.
 *
 * Caller   keeps the document open and the path alive.
 * Threads  one for each reader.
 */
#ifndef MODEL_CONFIG_FIELDS_H
#define MODEL_CONFIG_FIELDS_H

#include "kernels/json.h"
#include "model/config.h"

struct fields {
    const char *path;  // for messages
    struct err *err;
    int rc;  // 0, or that of the first error
};

/* Remember and describe an error about `field`, unless there is one already. */
void fields_refuse(struct fields *f, const char *field, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

bool fields_present(struct json_value object, const char *field);  // there and not null

#define CONFIG_MAX_CONTEXT (1u << 24)  // positions stay exact in f32

#define FIELD_REQUIRED UINT32_MAX  // as a fallback: absence is an error

/* An integer from min to max. */
uint32_t fields_size(struct fields *f, struct json_value object, const char *field,
                     uint32_t fallback, uint32_t min, uint32_t max);
bool fields_bool(struct fields *f, struct json_value object, const char *field,
                 bool fallback);
/* A number above 0; a fallback of 0: absence is an error. */
double fields_positive(struct fields *f, struct json_value object, const char *field,
                       double fallback);
/* A string that fits cap; absent: "". */
void fields_string(struct fields *f, struct json_value object, const char *field,
                   char *out, size_t cap);

/* config_rope.c: rope_theta, rope_scaling and rope_parameters. */
void config_read_rope(struct fields *f, struct json_value root, struct model_config *c);

#endif
