/* config_rope.c - rotary position embedding: which scaling, and the frequencies.
 *
 * The fields are spelled in three ways that mean one thing: rope_theta beside
 * rope_scaling with its kind under "type", the same under "rope_type", and since
 * transformers 5 all of it in rope_parameters.  As there, rope_scaling decides where both
 * objects exist, and the theta within the object wins over the one beside it.
 */
#include "model/config_fields.h"

#include <math.h>
#include <string.h>

#define DEFAULT_THETA 10000.0
#define MAX_THETA     1e30  // fits f32

static void read_kind(struct fields *f, struct json_value rope, const char *object,
                      struct model_config *c)
{
    char kind[32];
    fields_string(f, rope, fields_present(rope, "rope_type") ? "rope_type" : "type",
                  kind, sizeof kind);
    bool none = kind[0] == '\0' || strcmp(kind, "default") == 0;
    if (kind[0] == '\0' && fields_present(rope, "factor"))
        fields_refuse(f, object, "has a factor and no rope_type");
    if (none) return;

    if (strcmp(kind, "linear") == 0)
        c->rope = ROPE_LINEAR;
    else if (strcmp(kind, "llama3") == 0)
        c->rope = ROPE_LLAMA3;
    else
        fields_refuse(
            f, object,
            "asks for RoPE scaling of kind \"%s\"; supported are default, linear "
            "and llama3",
            kind);
}

static void read_factors(struct fields *f, struct json_value rope, const char *object,
                         struct model_config *c)
{
    c->rope_factor = fields_positive(f, rope, "factor", 0);
    if (c->rope_factor < 1)
        fields_refuse(f, object, "has the factor %g; expected at least 1",
                      c->rope_factor);
    if (c->rope != ROPE_LLAMA3) return;

    c->rope_low_freq_factor = fields_positive(f, rope, "low_freq_factor", 0);
    c->rope_high_freq_factor = fields_positive(f, rope, "high_freq_factor", 0);
    c->rope_original_context = fields_size(f, rope, "original_max_position_embeddings",
                                           FIELD_REQUIRED, 1, CONFIG_MAX_CONTEXT);
    if (c->rope_high_freq_factor <= c->rope_low_freq_factor)
        fields_refuse(f, object,
                      "has the high_freq_factor %g; expected more than its "
                      "low_freq_factor %g",
                      c->rope_high_freq_factor, c->rope_low_freq_factor);
}

static void check_theta(struct fields *f, const struct model_config *c)
{
    if (c->rope_theta < 1 || c->rope_theta > MAX_THETA)
        fields_refuse(f, "rope_theta", "is %g; expected 1 to %g", c->rope_theta,
                      MAX_THETA);
}

static void check_whole(struct fields *f, struct json_value object)
{
    double part = fields_positive(f, object, "partial_rotary_factor", 1);
    if (part != 1)
        fields_refuse(f, "partial_rotary_factor",
                      "is %g; supported is 1, the rotation of whole heads", part);
}

void config_read_rope(struct fields *f, struct json_value root, struct model_config *c)
{
    const char *object =
        fields_present(root, "rope_scaling") ? "rope_scaling" : "rope_parameters";
    c->rope = ROPE_NONE;
    c->rope_factor = 1;
    c->rope_theta = fields_positive(f, root, "rope_theta", DEFAULT_THETA);
    check_theta(f, c);
    check_whole(f, root);
    if (fields_bool(f, root, "rope_interleaved", false))
        fields_refuse(f, "rope_interleaved", "is true; supported is false");
    if (!fields_present(root, object)) return;

    struct json_value rope = json_get(root, object);
    if (!json_is(rope, JSON_OBJECT)) {
        fields_refuse(f, object, "is %s; expected an object or null",
                      json_type_name(rope));
        return;
    }
    for (struct json_iter i = json_iter(rope); json_next(&i);) {
        if (json_is(i.value, JSON_OBJECT))
            fields_refuse(f, object, "differs between layers, which is not supported");
    }
    c->rope_theta = fields_positive(f, rope, "rope_theta", c->rope_theta);
    check_theta(f, c);
    check_whole(f, rope);
    read_kind(f, rope, object, c);
    if (c->rope != ROPE_NONE) read_factors(f, rope, object, c);
}

/* Llama 3.1: long waves are slowed by the factor, short ones are left, and between the
 * two a share of both that goes with the wave's turns within the original context. */
static float scale_llama3(const struct model_config *c, float freq)
{
    double context = c->rope_original_context;
    double low = c->rope_low_freq_factor, high = c->rope_high_freq_factor;
    float factor = (float)c->rope_factor;
    float wave = (float)(2 * M_PI) / freq;
    if (wave > (float)(context / low)) return freq / factor;
    if (wave < (float)(context / high)) return freq;

    float smooth = ((float)context / wave - (float)low) / (float)(high - low);
    return (1 - smooth) * freq / factor + smooth * freq;
}

void model_rope_frequencies(const struct model_config *c, float *inv_freq)
{
    for (uint32_t i = 0; i < c->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)c->head_dim;
        float freq = 1.0f / powf((float)c->rope_theta, exponent);
        switch (c->rope) {
        case ROPE_NONE: break;
        case ROPE_LINEAR: freq /= (float)c->rope_factor; break;
        case ROPE_LLAMA3: freq = scale_llama3(c, freq); break;
        }
        inv_freq[i] = freq;
    }
}
