/* small_config.h - configurations as short as they come, parsed or refused by a test. */
#ifndef TESTS_MODEL_SMALL_CONFIG_H
#define TESTS_MODEL_SMALL_CONFIG_H

#include "model/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The smallest configuration that loads; %s: more fields. */
#define SMALL(more)                                                                    \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":2,"               \
    "\"hidden_size\":64,\"intermediate_size\":128,\"vocab_size\":100,"                 \
    "\"num_attention_heads\":4" more "}"
#define SMALL_MISTRAL(more)                                                            \
    "{\"architectures\":[\"MistralForCausalLM\"],\"num_hidden_layers\":2,"             \
    "\"hidden_size\":64,\"intermediate_size\":128,\"vocab_size\":100,"                 \
    "\"num_attention_heads\":8" more "}"
#define SMALL_QWEN3(more)                                                              \
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"num_hidden_layers\":2,"               \
    "\"hidden_size\":72,\"intermediate_size\":128,\"vocab_size\":100,"                 \
    "\"num_attention_heads\":64" more "}"

static struct model_config parse(const char *text, const char *generation)
{
    struct model_config c;
    struct err err = {0};
    if (model_config_parse(&c, text, strlen(text), generation,
                           generation ? strlen(generation) : 0, "dir", &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return c;
}

static void refuse2(const char *text, const char *generation, const char *why)
{
    struct model_config c;
    struct err err = {0};
    int rc = model_config_parse(&c, text, strlen(text), generation,
                                generation ? strlen(generation) : 0, "dir", &err);
    if (rc != -EINVAL)
        fail_msg("accepted %s, where the message should say %s", text, why);
    if (!strstr(err.msg, why)) fail_msg("\"%s\" does not say %s", err.msg, why);
    const char *file =
        generation ? "dir/generation_config.json: " : "dir/config.json: ";
    assert_memory_equal(err.msg, file, strlen(file));
}

static void refuse(const char *text, const char *why)
{
    refuse2(text, NULL, why);
}

#endif
