/* test_rope.c - the spellings of RoPE scaling, and the frequencies that they mean. */
#include "tests/model/small_config.h"

#include <math.h>

static void rope_scaling_is_read_in_every_spelling(void **state)
{
    (void)state;
    static const char *const same_thing[] = {
        SMALL(
            ",\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}"),
        SMALL(",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"linear\","
              "\"factor\":2.0}"),
        SMALL(",\"rope_parameters\":{\"rope_theta\":500000,\"rope_type\":\"linear\","
              "\"factor\":2}"),
        SMALL(",\"rope_theta\":1,\"rope_parameters\":{\"rope_theta\":500000,"
              "\"rope_type\":\"linear\",\"type\":\"linear\",\"factor\":2}"),
        SMALL(",\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
              "\"rope_parameters\":{\"rope_type\":\"default\"}"),
    };
    for (size_t i = 0; i < ARRAY_LEN(same_thing); i++) {
        struct model_config c = parse(same_thing[i], NULL);
        assert_int_equal(c.rope, ROPE_LINEAR);
        assert_true(c.rope_factor == 2);
        assert_true(c.rope_theta == 500000);
    }
    assert_int_equal(
        parse(SMALL(",\"rope_scaling\":{\"type\":\"default\"}"), NULL).rope, ROPE_NONE);

    static const char *const kinds[] = {"yarn", "dynamic", "longrope", "su", "mrope"};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        char text[512], why[128];
        snprintf(text, sizeof text,
                 SMALL(",\"rope_scaling\":{\"type\":\"%s\",\"factor\":4}"), kinds[i]);
        snprintf(
            why, sizeof why,
            "rope_scaling asks for RoPE scaling of kind \"%s\"; supported are default, "
            "linear and llama3",
            kinds[i]);
        refuse(text, why);
    }
    refuse(SMALL(",\"rope_scaling\":{\"factor\":4}"), "has a factor and no rope_type");
    refuse(SMALL(",\"rope_scaling\":{\"type\":\"linear\"}"), "factor is missing");
    refuse(SMALL(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}"),
           "factor 0.5");
    refuse(SMALL(",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}"),
           "low_freq_factor is missing");
    refuse(
        SMALL(
            ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
            "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}"),
        "high_freq_factor 4; expected more than its low_freq_factor 4");
    refuse(SMALL(",\"rope_scaling\":8"),
           "rope_scaling is a number; expected an object");
    refuse(
        SMALL(",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}"),
        "differs between layers");
    refuse(SMALL(",\"rope_theta\":0"), "rope_theta is 0");
    refuse(SMALL(",\"rope_theta\":0.5"), "rope_theta is 0.5; expected 1 to 1e+30");
    refuse(SMALL(",\"rope_parameters\":{\"rope_theta\":1e60}"), "rope_theta is 1e+60");
    refuse(SMALL(",\"rope_theta\":1e999"), "rope_theta is 1e999");
}

static const struct model_config llama3_16 = {
    .head_dim = 16,
    .rope_theta = 500000,
    .rope = ROPE_LLAMA3,
    .rope_factor = 8,
    .rope_low_freq_factor = 1,
    .rope_high_freq_factor = 4,
    .rope_original_context = 64,
};
static const struct model_config linear_16 = {
    .head_dim = 16,
    .rope_theta = 10000,
    .rope = ROPE_LINEAR,
    .rope_factor = 4,
};

/* Computed apart, in double precision: theta^(-2i/d), scaled as the kind says. */
static void check_frequencies(const struct model_config *c, const double *want,
                              uint32_t step)
{
    float got[512];
    model_rope_frequencies(c, got);
    for (uint32_t i = 0; i * step < c->head_dim / 2; i++) {
        if (fabs(got[i * step] / want[i] - 1) > 1e-6)
            fail_msg("frequency %u is %.9g, expected %.9g", i * step,
                     (double)got[i * step], want[i]);
    }
}

static void frequencies_follow_the_kind_of_scaling(void **state)
{
    (void)state;
    static const double tiny_llama3[] = {
        1.0,           0.0794030092,   0.00470075387, 0.000911583092, 0.000176776695,
        3.4281022e-05, 6.64786987e-06, 1.28917317e-06};
    check_frequencies(&llama3_16, tiny_llama3, 1);

    static const double quarter[] = {0.25,   0.0790569415,   0.025,   0.00790569415,
                                     0.0025, 0.000790569415, 0.00025, 7.90569415e-05};
    check_frequencies(&linear_16, quarter, 1);

    struct model_config c = linear_16;
    c.rope = ROPE_NONE;
    double plain[8];
    for (int i = 0; i < 8; i++) plain[i] = 4 * quarter[i];
    check_frequencies(&c, plain, 1);

    // Llama 3.2 1B and 3B; every eighth of 64.
    c = llama3_16;
    c.head_dim = 128;
    c.rope_factor = 32;
    c.rope_original_context = 8192;
    static const double big[] = {1.0,
                                 0.193922745,
                                 0.0376060309,
                                 0.00729266474,
                                 0.000429556797,
                                 8.57025549e-06,
                                 1.66196747e-06,
                                 3.22293293e-07};
    check_frequencies(&c, big, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_scaling_is_read_in_every_spelling),
        cmocka_unit_test(frequencies_follow_the_kind_of_scaling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
