/* config.h - config.json and generation_config.json of a model directory, checked.
 *
 * Owns     nothing: struct model_config is a plain value.
 * Refused  whatever this version would run wrongly: an unknown architecture, activation
 *          or rope scaling, sizes that do not fit each other.  -EINVAL names the file, the
 *          field, the value and what would be right.
 * Threads  pure functions of files.
 */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include "kernels/dtype.h"

#define MODEL_MAX_EOS 16

enum rope_scaling { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3 };

struct model_config {
    char architecture[48];  // its class in transformers: "LlamaForCausalLM"
    uint32_t layers, hidden, ffn, vocab;
    uint32_t q_heads, kv_heads, head_dim;
    uint32_t context;  // max_position_embeddings
    uint32_t window;   // a token sees itself and the window-1 before it; 0: all
    float norm_eps;
    bool tied;            // lm_head is the embedding table
    bool attention_bias;  // q, k, v and o have a bias
    bool mlp_bias;
    bool qk_norm;  // each head of q and k has an RMSNorm before RoPE
    double rope_theta;
    enum rope_scaling rope;
    double rope_factor;
    double rope_low_freq_factor, rope_high_freq_factor;  // llama3 only
    uint32_t rope_original_context;                      // llama3 only
    int32_t bos;                                         // -1: none
    int32_t eos[MODEL_MAX_EOS];  // of config.json and generation_config.json together
    uint32_t n_eos;
    bool has_dtype;
    enum dtype dtype;  // torch_dtype or dtype, if given: a claim, not what is read
};

/* Read dir/config.json and, where it exists, dir/generation_config.json. */
NODISCARD int model_config_load(struct model_config *out, const char *dir,
                                struct err *err);
/* From memory; generation may be NULL.  `dir` is used in messages. */
NODISCARD int model_config_parse(struct model_config *out, const char *text, size_t n,
                                 const char *generation, size_t generation_n,
                                 const char *dir, struct err *err);

/* RoPE frequencies, (head_dim / 2) floats, after scaling; computed in f32 steps as
 * transformers does (modeling_rope_utils). */
void model_rope_frequencies(const struct model_config *c, float *inv_freq);

#endif
