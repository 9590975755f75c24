#!/usr/bin/env python3
"""random_model.py DIR TOKENIZER [8b|1b|small] - a Llama of random bf16 weights, for measuring speed.

8b has the shape of Llama 3.1 8B (16 GB on disk), 1b that of Llama 3.2 1B (2.5 GB), small that of a toy.  The tokenizer is that of
the model folder TOKENIZER; ids beyond it are never chosen.
"""
import json
import os
import shutil
import sys

SHAPES = {
    "8b": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336,
               num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
               max_position_embeddings=131072),
    "1b": dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192,
               num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
               max_position_embeddings=131072, tie_word_embeddings=True),
    "small": dict(vocab_size=49152, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048),
}
PIECE = 64 << 20
# The upper half of a bf16 between 2^-7 and 2^-5, of either sign.
UPPER = bytes(0xbc if i & 1 else 0x3c for i in range(256))


def tensors(c):
    """-> (name, shape) of each."""
    hidden, ffn, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "self_attn.q_proj.weight", (q, hidden)
        yield layer + "self_attn.k_proj.weight", (kv, hidden)
        yield layer + "self_attn.v_proj.weight", (kv, hidden)
        yield layer + "self_attn.o_proj.weight", (hidden, q)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        yield layer + "mlp.gate_proj.weight", (ffn, hidden)
        yield layer + "mlp.up_proj.weight", (ffn, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, ffn)
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], hidden)


def bytes_of(shape):
    n = 2
    for side in shape:
        n *= side
    return n


def random_piece():
    piece = bytearray(PIECE)
    piece[0::2] = os.urandom(PIECE // 2)
    piece[1::2] = os.urandom(PIECE // 2).translate(UPPER)
    return bytes(piece)


def write_weights(path, c):
    header, at = {}, 0
    for name, shape in tensors(c):
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + bytes_of(shape)]}
        at += bytes_of(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    piece = random_piece()
    with open(path + ".part", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, shape in tensors(c):
            left = bytes_of(shape)
            if len(shape) == 1:
                f.write(b"\x80\x3f" * (left // 2))  # norms: ones
                continue
            for begun in range(0, left, PIECE):
                f.write(piece[:min(PIECE, left - begun)])
    os.replace(path + ".part", path)


def make(folder, tokenizer, shape):
    c = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu",
             rms_norm_eps=1e-5, rope_theta=500000.0, torch_dtype="bfloat16",
             tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
    c.update(SHAPES[shape])
    c["head_dim"] = c["hidden_size"] // c["num_attention_heads"]
    os.makedirs(folder, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer, name), folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(c, f, indent=1)
    weights = os.path.join(folder, "model.safetensors")
    if not os.path.exists(weights):
        write_weights(weights, c)


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "8b")
