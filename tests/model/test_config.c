/* test_config.c - configurations that mean the same, and those that must be refused. */
#include "tests/files.h"
#include "tests/model/small_config.h"

#define MODELS  "tests/golden/models/"
#define CONFIGS "tests/golden/configs/"

static void same(const struct model_config *a, const struct model_config *b)
{
    assert_string_equal(a->architecture, b->architecture);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->ffn, b->ffn);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->q_heads, b->q_heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->context, b->context);
    assert_int_equal(a->window, b->window);
    assert_true(a->norm_eps == b->norm_eps);
    assert_int_equal(a->tied, b->tied);
    assert_int_equal(a->attention_bias, b->attention_bias);
    assert_int_equal(a->mlp_bias, b->mlp_bias);
    assert_int_equal(a->qk_norm, b->qk_norm);
    assert_true(a->rope_theta == b->rope_theta);
    assert_int_equal(a->rope, b->rope);
    assert_true(a->rope_factor == b->rope_factor);
    assert_true(a->rope_low_freq_factor == b->rope_low_freq_factor);
    assert_true(a->rope_high_freq_factor == b->rope_high_freq_factor);
    assert_int_equal(a->rope_original_context, b->rope_original_context);
    assert_int_equal(a->bos, b->bos);
    assert_int_equal(a->n_eos, b->n_eos);
    assert_memory_equal(a->eos, b->eos, sizeof a->eos);
    assert_int_equal(a->has_dtype, b->has_dtype);
    assert_int_equal(a->dtype, b->dtype);
}

/* What the tiny models have in common. */
#define TINY                                                                           \
    .hidden = 64, .ffn = 160, .vocab = 512, .q_heads = 4, .context = 512,              \
    .has_dtype = true

static const struct model_config llama3 = {
    .architecture = "LlamaForCausalLM",
    .layers = 3,
    .kv_heads = 2,
    .head_dim = 16,
    .norm_eps = 1e-5f,
    .tied = true,
    .rope_theta = 500000,
    .rope = ROPE_LLAMA3,
    .rope_factor = 8,
    .rope_low_freq_factor = 1,
    .rope_high_freq_factor = 4,
    .rope_original_context = 64,
    .bos = 504,
    .eos = {505, 509, 510},
    .n_eos = 3,
    TINY,
    .dtype = DTYPE_BF16,
};
static const struct model_config mistral = {
    .architecture = "MistralForCausalLM",
    .layers = 3,
    .kv_heads = 2,
    .head_dim = 32,
    .window = 24,
    .norm_eps = 1e-5f,
    .rope_theta = 10000,
    .rope_factor = 1,
    .bos = 1,
    .eos = {2},
    .n_eos = 1,
    TINY,
    .dtype = DTYPE_F16,
};
static const struct model_config qwen3 = {
    .architecture = "Qwen3ForCausalLM",
    .layers = 3,
    .kv_heads = 2,
    .head_dim = 32,
    .norm_eps = 1e-6f,
    .tied = true,
    .qk_norm = true,
    .rope_theta = 1000000,
    .rope_factor = 1,
    .bos = 505,
    .eos = {507},
    .n_eos = 1,
    TINY,
    .dtype = DTYPE_BF16,
};
static const struct model_config linear = {
    .architecture = "LlamaForCausalLM",
    .layers = 2,
    .kv_heads = 1,
    .head_dim = 16,
    .norm_eps = 1e-6f,
    .rope_theta = 10000,
    .rope = ROPE_LINEAR,
    .rope_factor = 4,
    .bos = 1,
    .eos = {2},
    .n_eos = 1,
    TINY,
    .dtype = DTYPE_F32,
};

static void a_directory_gives_what_its_files_say(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        const struct model_config *want;
    } cases[] = {{MODELS "tiny-llama3", &llama3},
                 {MODELS "tiny-mistral", &mistral},
                 {MODELS "tiny-qwen3", &qwen3},
                 {MODELS "tiny-llama-linear", &linear}};
    struct model_config c;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(model_config_load(&c, cases[i].dir, NULL), 0);
        same(&c, cases[i].want);
    }
    assert_int_equal(model_config_load(&c, MODELS "tiny-llama2", NULL), 0);
    assert_int_equal(c.kv_heads, 4);
    assert_true(c.rope_theta == 10000);
    assert_int_equal(model_config_load(&c, MODELS "tiny-smollm2", NULL), 0);
    assert_int_equal(c.q_heads, 9);
    assert_int_equal(c.kv_heads, 3);
    assert_true(c.rope_theta == 100000);
}

static void the_spelling_of_transformers_5_means_the_same(void **state)
{
    (void)state;
    static const char *const models[] = {"tiny-llama2",       "tiny-llama3",
                                         "tiny-llama-linear", "tiny-mistral",
                                         "tiny-qwen3",        "tiny-smollm2"};
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        char path[128];
        snprintf(path, sizeof path, MODELS "%s/config.json", models[i]);
        char *text = files_read(path, NULL);
        snprintf(path, sizeof path, MODELS "%s/config.v5.json", models[i]);
        char *v5 = files_read(path, NULL);
        struct model_config a = parse(text, NULL), b = parse(v5, NULL);
        same(&a, &b);
        free(text);
        free(v5);
    }
}

static void what_is_left_out_is_as_in_transformers(void **state)
{
    (void)state;
    struct model_config c = parse(SMALL(""), NULL);
    struct model_config want = {
        .architecture = "LlamaForCausalLM",
        .layers = 2,
        .hidden = 64,
        .ffn = 128,
        .vocab = 100,
        .q_heads = 4,
        .kv_heads = 4,
        .head_dim = 16,
        .context = 2048,
        .norm_eps = 1e-6f,
        .rope_theta = 10000,
        .rope_factor = 1,
        .bos = 1,
        .eos = {2},
        .n_eos = 1,
    };
    same(&c, &want);
    struct model_config nulls = parse(
        SMALL(",\"head_dim\":null,\"num_key_value_heads\":null,\"rope_scaling\":null,"
              "\"rope_theta\":null,\"hidden_act\":null,\"torch_dtype\":null,"
              "\"quantization_config\":null,\"rms_norm_eps\":null,"
              "\"max_position_embeddings\":null,\"attention_bias\":null"),
        NULL);
    same(&nulls, &want);

    c = parse(SMALL_MISTRAL(""), NULL);
    assert_int_equal(c.kv_heads, 8);
    assert_int_equal(c.window, 0);
    assert_int_equal(c.context, 131072);
    c = parse(SMALL_MISTRAL(",\"num_key_value_heads\":null"), NULL);
    assert_int_equal(c.kv_heads, 8);

    c = parse(SMALL_QWEN3(""), NULL);
    assert_int_equal(c.kv_heads, 32);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.context, 32768);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.n_eos, 0);
    assert_true(c.qk_norm && !c.attention_bias && !c.tied);
    c = parse(SMALL_QWEN3(",\"num_key_value_heads\":null"), NULL);
    assert_int_equal(c.kv_heads, 64);
}

static void other_architectures_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const files[] = {"tiny-qwen2", "tiny-qwen2-yarn", "tiny-phi3",
                                        "tiny-gemma2"};
    static const char *const names[] = {"Qwen2", "Qwen2", "Phi3", "Gemma2"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        char path[128], why[160];
        snprintf(path, sizeof path, CONFIGS "%s.json", files[i]);
        snprintf(why, sizeof why,
                 "architecture %sForCausalLM is not supported; supported are "
                 "LlamaForCausalLM, MistralForCausalLM and Qwen3ForCausalLM",
                 names[i]);
        char *text = files_read(path, NULL);
        refuse(text, why);
        free(text);
    }
    refuse("{}", "architectures is missing");
    refuse("{\"architectures\":[]}", "architectures is without a name");
    refuse("{\"architectures\":[1]}", "architectures is without a name");
    refuse("[]", "holds an array; expected an object");
    refuse("{", "not valid JSON");
    refuse(SMALL(",\"model_type\":\"mistral\""),
           "model_type is \"mistral\"; expected \"llama\" with architecture "
           "LlamaForCausalLM");
}

static void sizes_are_bounded_and_fit_each_other(void **state)
{
    (void)state;
    refuse("{\"architectures\":[\"LlamaForCausalLM\"]}",
           "num_hidden_layers is missing; expected an integer from 1 to 4096");
    refuse(SMALL(",\"num_key_value_heads\":3"),
           "num_attention_heads is 4; expected a multiple of num_key_value_heads, "
           "which is 3");
    refuse(SMALL(",\"num_key_value_heads\":0"), "num_key_value_heads is 0; expected");
    refuse(SMALL(",\"num_key_value_heads\":5000"), "num_key_value_heads is 5000");
    refuse(SMALL(",\"head_dim\":15"), "head_dim is 15; expected an even number");
    refuse(SMALL(",\"head_dim\":4096"), "head_dim is 4096");
    refuse(SMALL(",\"head_dim\":\"16\""), "head_dim is \"16\"; expected an integer");
    refuse(SMALL(",\"max_position_embeddings\":0"), "max_position_embeddings is 0");
    refuse(SMALL(",\"max_position_embeddings\":-1"), "max_position_embeddings is -1");
    refuse(SMALL(",\"max_position_embeddings\":1e9"), "max_position_embeddings is 1e9");
    refuse(SMALL(",\"max_position_embeddings\":4294967297"),
           "max_position_embeddings is 4294967297");
    refuse(SMALL(",\"rms_norm_eps\":0"),
           "rms_norm_eps is 0; expected a number above 0");
    refuse(SMALL(",\"rms_norm_eps\":1e-60"), "rms_norm_eps is 1e-60; expected");
    refuse(SMALL(",\"rms_norm_eps\":10"), "rms_norm_eps is 10; expected");
    refuse(SMALL(",\"rms_norm_eps\":[1]"), "rms_norm_eps is an array");
    refuse(SMALL(",\"tie_word_embeddings\":1"),
           "tie_word_embeddings is 1; expected true");

    char *text = files_replace(SMALL(""), "\"hidden_size\":64", "\"hidden_size\":66");
    refuse(text, "hidden_size is 66; without head_dim, a multiple of the 4");
    free(text);
    text = files_replace(SMALL(""), "\"vocab_size\":100", "\"vocab_size\":99999999999");
    refuse(text, "vocab_size is 99999999999");
    free(text);
    assert_int_equal(parse(SMALL(",\"head_dim\":32"), NULL).head_dim, 32);
}

static void features_that_would_run_wrongly_are_refused(void **state)
{
    (void)state;
    refuse(SMALL(",\"hidden_act\":\"gelu\""),
           "hidden_act is \"gelu\"; supported is \"silu\"");
    refuse(SMALL(",\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}"),
           "quantization_config asks for weights quantized by \"awq\"");
    refuse(SMALL(",\"partial_rotary_factor\":0.5"), "partial_rotary_factor is 0.5");
    refuse(SMALL(",\"rope_parameters\":{\"partial_rotary_factor\":0.25}"),
           "partial_rotary_factor is 0.25");
    refuse(SMALL(",\"rope_interleaved\":true"), "rope_interleaved is true");
    struct model_config c =
        parse(SMALL(",\"partial_rotary_factor\":1.0,\"attention_bias\":true,"
                    "\"mlp_bias\":true,\"tie_word_embeddings\":true"),
              NULL);
    assert_true(c.attention_bias && c.mlp_bias && c.tied);
    c = parse(SMALL_QWEN3(",\"attention_bias\":true,\"mlp_bias\":true"), NULL);
    assert_true(c.attention_bias && !c.mlp_bias);  // which that class does not have
}

static void a_window_counts_where_the_architecture_has_one(void **state)
{
    (void)state;
    assert_int_equal(parse(SMALL_MISTRAL(",\"sliding_window\":32"), NULL).window, 32);
    assert_int_equal(parse(SMALL_MISTRAL(",\"sliding_window\":0"), NULL).window, 0);
    assert_int_equal(parse(SMALL_MISTRAL(",\"sliding_window\":null"), NULL).window, 0);
    assert_int_equal(parse(SMALL(",\"sliding_window\":32"), NULL).window, 0);
    assert_int_equal(
        parse(SMALL_QWEN3(",\"sliding_window\":4096,\"max_window_layers\":0,"
                          "\"use_sliding_window\":false"),
              NULL)
            .window,
        0);
    refuse(
        SMALL_QWEN3(",\"sliding_window\":4096,\"use_sliding_window\":true"),
        "use_sliding_window is true; supported with architecture Qwen3ForCausalLM is "
        "false");
    refuse(SMALL_QWEN3(",\"use_sliding_window\":0"),
           "use_sliding_window is 0; expected true or false");
    refuse(SMALL_MISTRAL(",\"sliding_window\":-1"), "sliding_window is -1");
    refuse(SMALL_MISTRAL(",\"sliding_window\":1.5"), "sliding_window is 1.5");

#define FULL    "\"full_attention\""
#define SLIDING "\"sliding_attention\""
    assert_int_equal(
        parse(SMALL_MISTRAL(",\"layer_types\":[" FULL "," FULL "]"), NULL).window, 0);
    assert_int_equal(
        parse(SMALL_MISTRAL(",\"sliding_window\":32,\"layer_types\":[" SLIDING
                            "," SLIDING "]"),
              NULL)
            .window,
        32);
    assert_int_equal(parse(SMALL(",\"layer_types\":[" FULL "," FULL "]"), NULL).window,
                     0);
    refuse(
        SMALL_MISTRAL(",\"sliding_window\":32,\"layer_types\":[" FULL "," SLIDING "]"),
        "layer_types mixes 1 full_attention, 1 sliding_attention and 0 other layers");
    refuse(SMALL(",\"layer_types\":[" FULL ",\"linear_attention\"]"),
           "and 1 other layers");
    refuse(SMALL(",\"layer_types\":[" FULL "]"),
           "layer_types is no array of one type for");
    refuse(SMALL_MISTRAL(",\"sliding_window\":32,\"layer_types\":[" FULL "," FULL "]"),
           "where sliding_window is 32");
    refuse(SMALL(",\"layer_types\":[" SLIDING "," SLIDING "]"),
           "there is no sliding_window");
}

static void the_dtype_is_read_in_every_spelling(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum dtype dtype;
    } cases[] = {
        {SMALL(",\"torch_dtype\":\"bfloat16\""), DTYPE_BF16},
        {SMALL(",\"dtype\":\"bfloat16\""), DTYPE_BF16},
        {SMALL(",\"dtype\":\"torch.bfloat16\""), DTYPE_BF16},
        {SMALL(",\"torch_dtype\":\"torch.float16\""), DTYPE_F16},
        {SMALL(",\"dtype\":\"float32\",\"torch_dtype\":\"float16\""), DTYPE_F32},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model_config c = parse(cases[i].text, NULL);
        assert_true(c.has_dtype);
        assert_int_equal(c.dtype, cases[i].dtype);
    }
    assert_false(parse(SMALL(""), NULL).has_dtype);
    refuse(SMALL(",\"dtype\":\"float8\""), "dtype is \"float8\"; expected float32");
    refuse(SMALL(",\"torch_dtype\":16"), "torch_dtype is 16; expected a string");
}

static void eos_ids_of_both_files_are_united(void **state)
{
    (void)state;
    struct model_config c = parse(SMALL(",\"eos_token_id\":5,\"bos_token_id\":3"),
                                  "{\"eos_token_id\":[7,5,8],\"bos_token_id\":4}");
    assert_int_equal(c.n_eos, 3);
    assert_int_equal(c.eos[0], 5);
    assert_int_equal(c.eos[1], 7);
    assert_int_equal(c.eos[2], 8);
    assert_int_equal(c.bos, 3);

    c = parse(SMALL(""), "{\"eos_token_id\":[7],\"bos_token_id\":4}");
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 7);
    assert_int_equal(c.bos, 4);

    c = parse(SMALL(",\"eos_token_id\":null,\"bos_token_id\":null"), "{}");
    assert_int_equal(c.n_eos, 0);
    assert_int_equal(c.bos, -1);

    refuse(
        SMALL(",\"eos_token_id\":100"),
        "eos_token_id has the id 100; expected an integer below the vocabulary's 100");
    refuse(SMALL(",\"eos_token_id\":[1,-1]"), "eos_token_id has the id -1");
    refuse(SMALL(",\"bos_token_id\":\"<s>\""), "bos_token_id has the id \"<s>\"");
    refuse2(SMALL(""), "{\"eos_token_id\":100}", "eos_token_id has the id 100");
    refuse2(SMALL(""), "[]", "holds an array");
    refuse2(SMALL(""), "{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}",
            "names more than 16 ids");
}

static void missing_and_unreadable_files_are_named(void **state)
{
    (void)state;
    struct model_config c;
    struct err err = {0};
    char *dir = files_temp_dir();
    assert_int_equal(model_config_load(&c, dir, &err), -ENOENT);
    assert_non_null(strstr(err.msg, "config.json cannot be opened: No such file"));

    files_write(dir, "config.json", SMALL(""), strlen(SMALL("")));
    assert_int_equal(model_config_load(&c, dir, &err), 0);
    files_write(dir, "generation_config.json", "", 0);
    assert_int_equal(model_config_load(&c, dir, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "generation_config.json: not valid JSON"));
    files_remove_dir(dir);
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    char *deep = malloc(200001);
    assert_non_null(deep);
    memset(deep, '[', 200000);
    deep[200000] = '\0';
    refuse(deep, "nesting deeper than 128");
    free(deep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_directory_gives_what_its_files_say),
        cmocka_unit_test(the_spelling_of_transformers_5_means_the_same),
        cmocka_unit_test(what_is_left_out_is_as_in_transformers),
        cmocka_unit_test(other_architectures_are_refused_by_name),
        cmocka_unit_test(sizes_are_bounded_and_fit_each_other),
        cmocka_unit_test(features_that_would_run_wrongly_are_refused),
        cmocka_unit_test(a_window_counts_where_the_architecture_has_one),
        cmocka_unit_test(the_dtype_is_read_in_every_spelling),
        cmocka_unit_test(eos_ids_of_both_files_are_united),
        cmocka_unit_test(missing_and_unreadable_files_are_named),
        cmocka_unit_test(deep_nesting_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
