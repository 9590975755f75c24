/* fingerprint.h - one hash of everything that decides what a block's bytes mean.
 *
 * A block is found only under the fingerprint it was written with: any change below makes
 * all older blocks unreachable, and none can be taken for another's.
 *
 *     fingerprint = BLAKE2b-256("dormouse fingerprint" || FINGERPRINT_LAYOUT || fields)
 *
 * Fields stand in the order of struct fingerprint_parts: hashes as their 32 bytes, numbers
 * and truths as little-endian u32, floats as the u32 of their bits, texts (the element type is its
 * name) and inv_freq behind their length, a little-endian u64.  So padding never counts, a
 * NaN equals itself, and -0 is not 0.
 *
 * Caller   gives content hashes of the weights and of the text side; offload knows neither.
 *          Has opened kernels/crypto.h.
 * Threads  pure functions.
 */
#ifndef OFFLOAD_FINGERPRINT_H
#define OFFLOAD_FINGERPRINT_H

#include "kernels/crypto.h"
#include "kernels/kv_block.h"

/* Of the layout of a block's bytes and of its name; raised when either changes. */
#define FINGERPRINT_LAYOUT 3

struct fingerprint_parts {
    struct crypto_hash weights;    // of all tensors: names, types, shapes, bytes
    struct crypto_hash tokenizer;  // of tokenizer.json
    struct crypto_hash chat;       // of the chat template; zeros: none
    struct kv_shape kv;            // layers, KV heads, head size, element type
    uint32_t block_tokens;         // KV_BLOCK_TOKENS
    uint32_t q_heads, window;      // attention
    float scale, norm_eps;
    bool attention_bias, mlp_bias, qk_norm;  // whether the weights for them count
    const float *inv_freq;  // (kv.head_dim / 2): positions, after scaling
    char arithmetic
        [64];  // of the backend: what must be equal for equal bits; ends at NUL
    uint32_t parallel_ranks, parallel_rank;
};

void fingerprint_make(struct crypto_hash *out, const struct fingerprint_parts *p);

#endif
